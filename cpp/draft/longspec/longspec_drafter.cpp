// The rounds of drafting: windows first, then level by level.
#include "draft/longspec/longspec_drafter.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <set>
#include <utility>

#include "base/check.h"
#include "step/row_tiers.h"

namespace fastspec {

namespace {

constexpr int kMinProjectedRows = 128;

int depth_of(const std::vector<int>& tree_widths) {
  return static_cast<int>(tree_widths.size());
}

KvShape kv_shape(const ModelConfig& target, DType dtype) {
  return {1, target.num_kv_heads, target.head_dim, dtype};
}

/// Rows of a tree, rounded up to few classes: attention's choice of a kernel is recorded with it.
int rows_class(int max_rows_per_tree) {
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(max_rows_per_tree)));
}

}  // namespace

LongSpecDrafter::Layout::Layout(const Limits& limits, int window_size)
    : window(window_size),
      width(*std::max_element(limits.tree_widths.begin(), limits.tree_widths.end())),
      // Trees of as many sequences as the rows of a pass allow grow together; at least one does.
      level_rows(std::max(width, std::min(limits.pass.max_rows, limits.pass.max_sequences * width))),
      projected_rows(std::max(level_rows, kMinProjectedRows)),
      num_nodes(std::accumulate(limits.tree_widths.begin(), limits.tree_widths.end() - 1, 0)),
      slots_per_seat(KvWindow::num_slots(window_size, num_nodes)),
      num_slots(limits.pass.max_sequences * slots_per_seat + 1) {}

LevelBatch::Limits LongSpecDrafter::batch_limits(const Limits& limits, const Layout& layout) {
  const std::int64_t own = std::int64_t{limits.pass.max_sequences} * (layout.window + 1) +
                           std::int64_t{layout.level_rows} * depth_of(limits.tree_widths);
  return {.max_trees = limits.pass.max_sequences,
          .max_rows = layout.level_rows,
          .max_projected_rows = layout.projected_rows,
          .max_list_entries = own + limits.pass.max_list_entries * limits.page_size};  // slots, where not pages
}

LongSpecDrafter::LongSpecDrafter(LongSpecModel model, const ModelConfig& target, const Weights& target_weights,
                                 const KvView& target_kv, Backend& backend, DType dtype, const Limits& limits)
    : limits_(limits),
      layout_(limits, model.config.window),
      target_layer_(target.num_layers - 1),
      target_kv_(target_kv),
      backend_(backend),
      block_(std::move(model), target, target_weights, backend, layout_.projected_rows, layout_.level_rows),
      vocabulary_(block_.weights().vocabulary),
      kv_(*backend.device, kv_shape(target, dtype), layout_.num_slots, 1),
      batch_(*backend.device, batch_limits(limits, layout_)),
      graphs_(*backend.device, limits.graphs) {
  for (int seat = 0; seat < limits.pass.max_sequences; ++seat) {
    seats_.emplace_back(Slot{seat} * layout_.slots_per_seat, layout_.window, layout_.num_nodes);
    free_seats_.push_back(limits.pass.max_sequences - 1 - seat);
  }
}

std::size_t LongSpecDrafter::kv_bytes(const LongSpecConfig& config, const ModelConfig& target, DType dtype,
                                      const Limits& limits) {
  return kv_shape(target, dtype).bytes_per_token() * static_cast<std::size_t>(Layout(limits, config.window).num_slots);
}

std::size_t LongSpecDrafter::activation_bytes(const LongSpecModel& model, const ModelConfig& target,
                                              std::size_t element_size, const Limits& limits) {
  const Layout layout(limits, model.config.window);
  return LongSpecBlock::activation_bytes(model, target, element_size, layout.projected_rows, layout.level_rows) +
         LevelBatch::device_bytes(batch_limits(limits, layout));
}

DraftShape LongSpecDrafter::shape_of(const std::vector<int>& tree_widths, int max_drafted) {
  const int nodes = std::min(std::accumulate(tree_widths.begin(), tree_widths.end(), 0), max_drafted);
  return {.max_nodes = nodes, .max_depth = std::min(depth_of(tree_widths), nodes)};
}

KvWindow& LongSpecDrafter::seat_of(SeqId seq) {
  const auto found = seat_of_.find(seq);
  if (found != seat_of_.end()) return seats_[static_cast<std::size_t>(found->second)];
  FS_CHECK(!free_seats_.empty(), "more than ", seats_.size(), " sequences draft");
  const int seat = free_seats_.back();
  seat_of_.emplace(seq, seat);
  free_seats_.pop_back();
  seats_[static_cast<std::size_t>(seat)].clear();
  return seats_[static_cast<std::size_t>(seat)];
}

void LongSpecDrafter::forget(SeqId seq) noexcept {
  const auto found = seat_of_.find(seq);
  if (found == seat_of_.end()) return;
  free_seats_.push_back(found->second);  // cannot fail: there was room for all of them
  seat_of_.erase(found);
}

void LongSpecDrafter::draft(std::span<const DraftRequest> requests, std::span<TokenTree> trees) {
  std::vector<Growing> growing;
  std::vector<TokenTree*> results;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const DraftRequest& request = requests[i];
    const int depth = std::min({depth_of(limits_.tree_widths), request.max_depth, request.max_drafted});
    if (depth <= 0) continue;
    growing.push_back({&request, &seat_of(request.seq), Beam(request.tokens.back()), depth, {}});
    vocabulary_.to_columns(request.rule, growing.back().rule);
    if (!limits_.coupled) growing.back().rule.rule.temperature = 0;  // its own most likely tokens, without noise
    results.push_back(&trees[i]);
  }
  const auto together = static_cast<std::size_t>(layout_.level_rows / layout_.width);
  for (std::size_t first = 0; first < growing.size(); first += together) {
    draft_together(std::span(growing).subspan(first, std::min(together, growing.size() - first)));
  }
  for (std::size_t k = 0; k < growing.size(); ++k) {
    growing[k].beam.write(std::min(growing[k].request->max_drafted, limits_.max_drafted), *results[k]);
  }
}

void LongSpecDrafter::draft_together(std::span<Growing> trees) {
  complete_windows(trees);
  for (int depth = 0;; ++depth) {
    std::vector<Growing*> active;
    for (Growing& tree : trees) {
      if (depth < tree.max_depth && tree.beam.level_size() > 0) active.push_back(&tree);
    }
    if (active.empty()) return;
    compute_level(active, depth);
    grow_beams(active, depth);
  }
}

void LongSpecDrafter::complete_windows(std::span<Growing> trees) {
  std::vector<SlotMove> moves;
  std::vector<KvWindow::Missing> missing;
  for (Growing& tree : trees) tree.kv->find_missing(tree.request->tokens, moves, missing);
  if (!moves.empty()) {
    const std::vector<KvView>& layers = kv_.layers();
    backend_.ops->copy_slots({.layers = layers.data(),
                              .num_layers = static_cast<int>(layers.size()),
                              .moves = moves.data(),
                              .num_moves = static_cast<int>(moves.size())});
  }
  for (std::size_t first = 0; first < missing.size(); first += static_cast<std::size_t>(layout_.projected_rows)) {
    batch_.clear();
    const std::size_t end = std::min(missing.size(), first + static_cast<std::size_t>(layout_.projected_rows));
    for (std::size_t i = first; i < end; ++i) {
      batch_.add_row(missing[i].token, missing[i].position, missing[i].slot, {});
    }
    block_.project(batch_.upload_rows(), kv_.layer(0));
  }
  for (Growing& tree : trees) tree.kv->note_window(tree.request->tokens);
}

void LongSpecDrafter::compute_level(std::span<Growing* const> trees, int depth) {
  batch_.clear();
  for (Growing* tree : trees) add_tree(*tree, depth);
  forward_level();
  for (Growing* tree : trees) {
    for (int node = tree->beam.level_begin(); node < static_cast<int>(tree->beam.nodes().size()); ++node) {
      const TokenId token = tree->beam.nodes()[static_cast<std::size_t>(node)].token;
      if (node == 0) {
        tree->kv->note_root(token, tree->root_position());
      } else {
        tree->kv->note_node(node - 1, token, tree->root_position() + depth);
      }
    }
  }
}

void LongSpecDrafter::add_tree(Growing& tree, int depth) {
  const int root = tree.root_position();
  const std::vector<Beam::Node>& nodes = tree.beam.nodes();
  std::vector<Slot> ancestors;
  for (int node = tree.beam.level_begin(); node < static_cast<int>(nodes.size()); ++node) {
    const Beam::Node& own = nodes[static_cast<std::size_t>(node)];
    ancestors.clear();
    for (int above = own.parent; above > 0; above = nodes[static_cast<std::size_t>(above)].parent) {
      ancestors.push_back(tree.kv->node_slot(above - 1));
    }
    const Slot slot = node == 0 ? tree.kv->place_root(root) : tree.kv->place_node(node - 1);
    batch_.add_row(own.token, root + depth, slot, ancestors);
  }
  // Below the root's level its K/V is a cached key like those before it.
  std::vector<Slot> window;
  const int end = depth == 0 ? root : root + 1;
  for (int position = std::max(0, root + depth - layout_.window); position < end; ++position) {
    window.push_back(tree.kv->ring_slot(position));
  }
  if (!tree.request->slots.empty()) {
    batch_.end_tree(window, tree.request->slots);
  } else {
    const int num_pages = (root + limits_.page_size - 1) / limits_.page_size;
    batch_.end_tree(window, tree.request->pages.first(static_cast<std::size_t>(num_pages)), root);
  }
}

void LongSpecDrafter::forward_level() {
  const int num_rows = batch_.num_rows();
  const int tier = backend_.device->has_graphs() ? row_tier(num_rows, layout_.level_rows) : 0;
  if (tier == 0) {
    block_.forward(batch_.upload(batch_.max_rows_per_tree()), kv_.layer(0), target_kv_);
    if (backend_.device->has_graphs()) graphs_.note_eager_pass();
    return;
  }
  run_recorded(tier, rows_class(batch_.max_rows_per_tree()), false);
}

void LongSpecDrafter::run_recorded(int num_rows, int max_rows_per_tree, bool only_record) {
  batch_.pad(num_rows, layout_.num_slots - 1);
  const LevelPass level = batch_.upload(max_rows_per_tree);
  if (std::exchange(graphs_generation_, batch_.generation()) != batch_.generation()) graphs_.clear();
  const GraphKey key{.num_rows = num_rows, .max_rows_per_sequence = max_rows_per_tree};
  const auto work = [this, level] { block_.forward(level, kv_.layer(0), target_kv_); };
  if (only_record) return graphs_.record(key, work);
  graphs_.run(key, work);
}

void LongSpecDrafter::record_graphs(int max_sequences) {
  if (!backend_.device->has_graphs()) return;
  std::set<std::pair<int, int>> shapes;  // tier, class
  int width = 1;                         // of the level that is computed: the root first
  for (const int next_width : limits_.tree_widths) {
    for (int trees = 1; trees <= max_sequences; ++trees) {
      const int tier = row_tier(std::min(trees * width, layout_.level_rows), layout_.level_rows);
      if (tier > 0) shapes.emplace(tier, rows_class(width));
    }
    width = next_width;
  }
  for (const auto& [tier, max_rows] : shapes) {
    batch_.clear();
    run_recorded(tier, max_rows, true);
    backend_.device->synchronize();
  }
}

void LongSpecDrafter::grow_beams(std::span<Growing* const> trees, int depth) {
  const int width = limits_.tree_widths[static_cast<std::size_t>(depth)];
  const int top_k = std::min(width, block_.num_columns());
  std::vector<SamplingRule> rules;
  std::vector<std::int32_t> positions;
  std::vector<std::vector<TokenId>> path_columns;
  for (const Growing* tree : trees) {
    const Beam& beam = tree->beam;
    for (int node = beam.level_begin(); node < static_cast<int>(beam.nodes().size()); ++node) {
      rules.push_back(tree->rule.rule);
      positions.push_back(tree->root_position() + depth + 1);
      path_columns.push_back(beam.path(node));
      for (TokenId& token : path_columns.back()) token = vocabulary_.column(token);
    }
  }
  std::vector<const TokenId*> paths;
  for (const std::vector<TokenId>& path : path_columns) paths.push_back(path.data());
  const std::vector<std::int32_t> path_lengths(rules.size(), depth);
  std::vector<TokenId> tokens(rules.size() * static_cast<std::size_t>(top_k));
  std::vector<float> confidences(tokens.size());
  backend_.ops->propose({.logits = block_.logits(static_cast<int>(rules.size())),
                         .rules = rules.data(),
                         .positions = positions.data(),
                         .paths = paths.data(),
                         .path_lengths = path_lengths.data(),
                         .top_k = top_k,
                         .tokens = tokens.data(),
                         .confidences = confidences.data(),
                         .token_ids = block_.weights().token_ids.as<const TokenId>()});
  for (TokenId& token : tokens) {
    if (token != kNoToken) token = vocabulary_.token(token);
  }
  std::size_t first = 0;
  for (Growing* tree : trees) {
    const std::size_t count = static_cast<std::size_t>(tree->beam.level_size() * top_k);
    tree->beam.grow(std::span(tokens).subspan(first, count), std::span(confidences).subspan(first, count), top_k,
                    std::min(width, tree->request->max_drafted));
    first += count;
  }
}

}  // namespace fastspec
