// The rounds of drafting: windows first, then all levels in one go.
#include "draft/longspec/longspec_drafter.h"

#include <algorithm>
#include <bit>
#include <numeric>
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

/// The widths of whole trees, the root's first.
std::vector<int> widths_of(const std::vector<int>& tree_widths) {
  std::vector<int> widths{1};
  widths.insert(widths.end(), tree_widths.begin(), tree_widths.end());
  return widths;
}

}  // namespace

LongSpecDrafter::Layout::Layout(const Limits& limits, int window_size)
    : window(window_size),
      // Trees of as many sequences as the rows of a pass allow grow together; at least one does.
      most{.widths = widths_of(limits.tree_widths)},
      num_nodes(most.nodes_above(most.depth()) - 1),
      slots_per_seat(KvWindow::num_slots(window_size, num_nodes)),
      num_slots(limits.pass.max_sequences * slots_per_seat + 1) {
  most.num_trees =
      std::clamp(limits.pass.max_rows / most.widest(), 1, std::min(limits.pass.max_sequences, kMaxRowTier));
  level_rows = most.num_trees * most.widest();
  projected_rows = std::max(level_rows, kMinProjectedRows);
}

TreeBatch::Limits LongSpecDrafter::batch_limits(const Limits& limits, const Layout& layout) {
  return {.most = layout.most,
          .window = layout.window,
          .page_tables = {limits.pass.max_sequences, limits.pass.max_list_entries},
          .max_cross_slots = limits.pass.max_list_entries * limits.page_size};
}

PassLimits LongSpecDrafter::projection_limits(const Layout& layout) {
  return {.max_rows = layout.projected_rows, .max_sequences = 1, .max_list_entries = 1, .tables = PassLimits::Tables{}};
}

TreeLookahead::Limits LongSpecDrafter::lookahead_limits(const Limits& limits, const Layout& layout,
                                                        const ModelConfig& target) {
  return {.is_kept = limits.keeps_lookahead,
          .most = layout.most,
          .max_trees = limits.pass.max_sequences,
          .num_heads = target.num_heads,
          .head_dim = target.head_dim};
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
      projection_(*backend.device, projection_limits(layout_)),
      batch_(*backend.device, batch_limits(limits, layout_)),
      lookahead_(backend, lookahead_limits(limits, layout_, target), target_kv),
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
         PassBuffers::device_bytes(projection_limits(layout)) + TreeBatch::device_bytes(batch_limits(limits, layout)) +
         TreeLookahead::device_bytes(lookahead_limits(limits, layout, target), element_size);
}

int LongSpecDrafter::lookahead_rows(const Limits& limits) {
  const std::vector<int> widths = widths_of(limits.tree_widths);
  return std::accumulate(widths.begin(), widths.end() - 1, 0);
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
  lookahead_.begin();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const DraftRequest& request = requests[i];
    const int depth = std::min({layout_.most.depth(), request.max_depth, request.max_drafted});
    if (depth <= 0) continue;
    growing.push_back({&request, static_cast<int>(i), &seat_of(request.seq), depth, {}, &trees[i]});
    vocabulary_.to_columns(request.rule, growing.back().rule);
    if (!limits_.coupled) growing.back().rule.rule.temperature = 0;  // its own most likely tokens, without noise
  }
  const auto together = static_cast<std::size_t>(layout_.most.num_trees);
  for (std::size_t first = 0; first < growing.size(); first += together) {
    if (first > 0) lookahead_.put_aside();
    draft_together(std::span(growing).subspan(first, std::min(together, growing.size() - first)));
  }
  lookahead_.end(static_cast<int>(requests.size()));
}

void LongSpecDrafter::draft_together(std::span<Growing> trees) {
  complete_windows(trees);
  int max_drafted = 0, max_depth = 0;
  std::vector<SamplingRule> rules;
  for (const Growing& tree : trees) {
    max_drafted = std::max(max_drafted, std::min(tree.request->max_drafted, limits_.max_drafted));
    max_depth = std::max(max_depth, tree.max_depth);
    rules.push_back(tree.rule.rule);
  }
  const TreeShape shape = shape_for(static_cast<int>(trees.size()), max_drafted, max_depth);
  batch_.begin(shape, layout_.num_slots - 1);
  for (const Growing& tree : trees) add_tree(tree, shape);
  run(shape, {rules.data(), static_cast<int>(rules.size()), block_.num_columns()}, false);
  backend_.ops->await_proposals();
  for (std::size_t i = 0; i < trees.size(); ++i) read_tree(static_cast<int>(i), shape, trees[i]);
}

TreeShape LongSpecDrafter::shape_for(int num_trees, int max_drafted, int max_depth) const {
  TreeShape shape{.num_trees = num_trees, .widths = {1}};
  int width = max_drafted;
  if (backend_.device->has_graphs()) {
    // Few shapes, so that they recur. Nodes beyond a tree's limits cost time and are left out when it is read.
    shape.num_trees = row_tier(num_trees, layout_.most.num_trees);
    const int largest = std::max(layout_.most.widest(), layout_.most.depth());
    width = static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::min(max_drafted, largest))));
    max_depth = std::min(layout_.most.depth(), width);
  }
  for (int level = 1; level <= max_depth; ++level) {
    shape.widths.push_back(std::min(layout_.most.width(level), width));
  }
  return shape;
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
    RowBatch rows;
    const std::size_t end = std::min(missing.size(), first + static_cast<std::size_t>(layout_.projected_rows));
    for (std::size_t i = first; i < end; ++i) {
      rows.tokens.push_back(missing[i].token);
      rows.positions.push_back(missing[i].position);
      rows.slots.push_back(missing[i].slot);
    }
    block_.project(projection_.upload(rows), kv_.layer(0));
  }
  for (Growing& tree : trees) tree.kv->note_window(tree.request->tokens);
}

void LongSpecDrafter::add_tree(const Growing& tree, const TreeShape& shape) {
  const int root = tree.root_position();
  std::vector<Slot> nodes{tree.kv->place_root(root)};
  for (int node = 0; node + 1 < shape.nodes_above(shape.depth()); ++node) nodes.push_back(tree.kv->place_node(node));
  std::vector<Slot> window;
  for (int position = batch_.window_begin(root); position <= root; ++position) {
    window.push_back(tree.kv->ring_slot(position));
  }
  const int num_pages = (root + limits_.page_size - 1) / limits_.page_size;
  batch_.add({.root = tree.request->tokens.back(),
              .root_position = root,
              .nodes = nodes,
              .window = window,
              .cross_pages = {.pages = tree.request->pages.data(),
                              .num_pages = num_pages,
                              .num_lasting = num_pages,
                              .version = tree.request->version},
              .cross_slots = tree.request->slots});
}

void LongSpecDrafter::run(const TreeShape& shape, const ProposalRules& rules, bool only_record) {
  const int rule_class = backend_.ops->set_rules(rules);
  try {
    batch_.stage();
    const auto work = [this, shape] { issue_levels(shape); };
    if (!backend_.device->has_graphs()) return work();
    if (std::exchange(graphs_generation_, batch_.generation()) != batch_.generation()) graphs_.clear();
    const GraphKey key{.num_rows = shape.num_trees * shape.nodes_above(shape.depth()),
                       .max_rows_per_sequence = shape.nodes_above(shape.depth() + 1),
                       .rule_class = rule_class};
    if (only_record) return graphs_.record(key, work);
    graphs_.run(key, work);
  } catch (...) {
    batch_.forget_tables();
    throw;
  }
}

void LongSpecDrafter::issue_levels(const TreeShape& shape) {
  const TokenId* token_ids = block_.weights().token_ids.as<const TokenId>();
  batch_.copy_staged();
  for (int level = 0; level < shape.depth(); ++level) {
    LevelPass pass = batch_.level(level);
    pass.cross_query = lookahead_.level(shape, level);
    block_.forward(pass, kv_.layer(0), target_kv_);
    ProposeParams proposals = batch_.proposals(level, block_.logits(shape.num_rows(level)));
    proposals.token_ids = token_ids;
    backend_.ops->propose(proposals);
    GrowBeamParams growth = batch_.growth(level, proposals.top_k);
    growth.token_ids = token_ids;
    backend_.ops->grow_beam(growth);
  }
}

void LongSpecDrafter::read_tree(int index, const TreeShape& shape, Growing& tree) {
  const int root = tree.root_position();
  tree.kv->note_root(tree.request->tokens.back(), root);
  Beam beam;
  for (int level = 1; level <= shape.depth(); ++level) {
    const std::span<const BeamNode> nodes = batch_.nodes(index, level);
    const int first = shape.nodes_above(level) - 1;
    for (std::size_t i = 0; level < shape.depth() && i < nodes.size() && nodes[i].confidence > 0; ++i) {
      tree.kv->note_node(first + static_cast<int>(i), nodes[i].token, root + level);
    }
    if (level <= tree.max_depth) beam.add_level(nodes);
  }
  lookahead_.add(tree.request_index, batch_, shape, index, tree.max_depth);
  beam.write(std::min(tree.request->max_drafted, limits_.max_drafted), *tree.result);
}

void LongSpecDrafter::record_graphs(int max_sequences) {
  if (!backend_.device->has_graphs()) return;
  SamplingRule plain, filtered, changed, both;  // one of every class
  filtered.top_k = both.top_k = 2;
  changed.repetition_penalty = both.repetition_penalty = 1.1f;
  const int most = std::min(max_sequences, layout_.most.num_trees);
  for (int trees = 1; trees <= most; ++trees) {
    const TreeShape shape = shape_for(trees, limits_.max_drafted, layout_.most.depth());
    for (const SamplingRule& rule : {plain, filtered, changed, both}) {
      batch_.begin(shape, layout_.num_slots - 1);
      run(shape, {&rule, 1, block_.num_columns()}, true);
      backend_.ops->await_proposals();
    }
    trees = shape.num_trees;
  }
}

}  // namespace fastspec
