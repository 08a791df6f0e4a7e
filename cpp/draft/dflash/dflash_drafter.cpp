// Context as it is committed, and a pass a step for the blocks.
#include "draft/dflash/dflash_drafter.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "step/row_tiers.h"

namespace fastspec {

namespace {

KvShape kv_shape(const ModelConfig& decoder, DType dtype) {
  return {decoder.num_layers, decoder.num_kv_heads, decoder.head_dim, dtype};
}

/// The decoder of a model that sees a ring: places in it are no positions, so windows cannot be told from them.
DFlashConfig without_windows(DFlashConfig config, const ContextShape& context) {
  if (!context.is_ring()) return config;
  for (int& window : config.decoder.window) {
    if (window > 0 && context.window + config.block_size > window) {
      fail(ErrorCode::kInvalidArgument, "a window of ", context.window, " tokens and a block of ", config.block_size,
           " exceed the sliding window of ", window, " that the draft model was made with: name at most ",
           window - config.block_size);
    }
    window = 0;
  }
  return config;
}

}  // namespace

DFlashDrafter::Layout::Layout(const DFlashConfig& config, const Limits& limits)
    : together(
          std::clamp(std::min(limits.pass.max_rows, kMaxRowTier) / config.block_size, 1, limits.pass.max_sequences)),
      projected_rows(std::max(together * config.block_size, std::min(limits.pass.max_rows, kMaxRowTier))),
      seat_pages((limits.context.num_slots() + limits.page_size - 1) / limits.page_size),
      shared_pages(limits.context.is_ring() ? 0 : limits.num_pages) {
  const int first_block_page = shared_pages + seat_pages * limits.pass.max_sequences;
  block_slots = Slot{first_block_page} * limits.page_size;
  const int num_block_slots = together * config.block_size + 1;
  num_pages = first_block_page + (num_block_slots + limits.page_size - 1) / limits.page_size;
  const std::int64_t entries =
      limits.context.is_ring() ? limits.context.num_slots() : limits.pass.max_list_entries / limits.pass.max_sequences;
  pass = {.max_rows = together * config.block_size, .max_sequences = together, .max_list_entries = together * entries};
}

DFlashDrafter::DFlashDrafter(DFlashModel model, const Matrix& hidden, Backend& backend, DType dtype,
                             const Limits& limits)
    : config_(without_windows(std::move(model.config), limits.context)),
      limits_(limits),
      layout_(config_, limits),
      backend_(backend),
      fc_(model.fc),
      hidden_norm_(model.hidden_norm),
      decoder_(config_.decoder, std::move(model.weights), backend, layout_.pass.max_rows,
               layout_.together * limits.max_drafted),
      kv_(*backend.device, kv_shape(config_.decoder, dtype), layout_.num_pages, limits.page_size),
      passes_(backend, decoder_, kv_, layout_.pass, Slot{layout_.num_pages} * limits.page_size - 1, limits.graphs),
      projection_(config_.decoder, decoder_.weights(), fc_, hidden_norm_, backend, kv_,
                  {.max_rows = layout_.projected_rows,
                   .padding_slot = Slot{layout_.num_pages} * limits.page_size - 1,
                   .graphs = limits.graphs}),
      hidden_(hidden) {
  FS_CHECK(limits.max_drafted >= 1 && limits.max_drafted < config_.block_size, limits.max_drafted, " of a block of ",
           config_.block_size);
  const auto proposals = static_cast<std::size_t>(layout_.together * limits.max_drafted);
  positions_ = backend.device->allocate(proposals * sizeof(std::int32_t), "positions of a draft");
  tokens_ = backend.device->allocate_host(proposals * sizeof(TokenId), "drafted tokens");
  confidences_ = backend.device->allocate_host(proposals * sizeof(float), "confidences of drafted tokens");
  if (!limits.context.is_ring()) return;
  const int seats = limits.pass.max_sequences;
  seat_pages_.resize(static_cast<std::size_t>(seats * layout_.seat_pages));
  std::iota(seat_pages_.begin(), seat_pages_.end(), 0);
  free_seats_.resize(static_cast<std::size_t>(seats));
  std::iota(free_seats_.rbegin(), free_seats_.rend(), 0);
  if (!limits.rebases_positions || limits.context.sinks == 0) return;
  const std::size_t row_bytes = std::size_t(config_.decoder.hidden_size) * size_of(backend.ops->activation_dtype());
  sinks_ = backend.device->allocate(row_bytes * static_cast<std::size_t>(seats * limits.context.sinks),
                                    "contexts of the sinks");
}

std::size_t DFlashDrafter::shared_kv_bytes_per_token(const DFlashConfig& config, DType dtype, const Limits& limits) {
  return limits.context.is_ring() ? 0 : kv_shape(config.decoder, dtype).bytes_per_token();
}

std::size_t DFlashDrafter::own_kv_bytes(const DFlashConfig& config, DType dtype, const Limits& limits) {
  const Layout layout(config, limits);
  const int own_pages = layout.num_pages - layout.shared_pages;
  return kv_shape(config.decoder, dtype).bytes_per_token() * static_cast<std::size_t>(own_pages * limits.page_size);
}

std::size_t DFlashDrafter::activation_bytes(const DFlashModel& model, std::size_t element_size, const Limits& limits) {
  const DFlashConfig& config = model.config;
  const Layout layout(config, limits);
  const std::size_t sinks = limits.rebases_positions ? static_cast<std::size_t>(limits.context.sinks) : 0;
  return Transformer::activation_bytes(config.decoder, element_size, layout.pass.max_rows,
                                       layout.together * limits.max_drafted) +
         PassBuffers::device_bytes(layout.pass) +
         static_cast<std::size_t>(layout.together * limits.max_drafted) * sizeof(std::int32_t) +
         ContextProjection::activation_bytes(config.decoder, model.fc, element_size, layout.projected_rows) +
         sinks * static_cast<std::size_t>(limits.pass.max_sequences) * std::size_t(config.decoder.hidden_size) *
             element_size;
}

// --- context ---------------------------------------------------------------------------------------------------------

DFlashDrafter::Sequence& DFlashDrafter::sequence_of(SeqId seq) {
  const auto found = sequences_.find(seq);
  if (found != sequences_.end()) return found->second;
  Sequence sequence{.range = ContextRange(limits_.context)};
  if (limits_.context.is_ring()) {
    FS_CHECK(!free_seats_.empty(), "more than ", limits_.pass.max_sequences, " sequences draft");
    sequence.seat = free_seats_.back();
  }
  Sequence& added = sequences_.emplace(seq, sequence).first->second;
  if (limits_.context.is_ring()) free_seats_.pop_back();
  return added;
}

void DFlashDrafter::forget(SeqId seq) noexcept {
  const auto found = sequences_.find(seq);
  if (found == sequences_.end()) return;
  if (limits_.context.is_ring()) free_seats_.push_back(found->second.seat);  // cannot fail: there was room for all
  sequences_.erase(found);
}

void DFlashDrafter::truncate(SeqId seq, int length) {
  const auto found = sequences_.find(seq);
  if (found == sequences_.end()) return;
  found->second.range.truncate(length);
  found->second.sink_offset = -1;  // some of them may be computed anew
}

void DFlashDrafter::share(SeqId from, SeqId to, int length) {
  const auto found = sequences_.find(from);
  if (found == sequences_.end()) return;
  const Sequence source = found->second;
  Sequence& target = sequence_of(to);
  const int seat = target.seat;
  target = source;
  target.seat = seat;
  truncate(to, length);
  if (limits_.context.is_ring()) shares_.push_back({source.seat, seat, target.range.visible(target.range.end())});
}

void DFlashDrafter::start_on_noise(SeqId seq, int length) {
  sequence_of(seq).range.note(0, length);
}

void DFlashDrafter::copy_shares() {
  while (!shares_.empty()) {
    const Share& share = shares_.front();
    std::vector<SlotMove> moves;
    for (const int position : share.positions) {
      moves.push_back({ring_slot(share.from_seat, position), ring_slot(share.to_seat, position)});
    }
    const std::vector<KvView>& layers = kv_.layers();
    if (!moves.empty()) {
      backend_.ops->copy_slots({.layers = layers.data(),
                                .num_layers = static_cast<int>(layers.size()),
                                .moves = moves.data(),
                                .num_moves = static_cast<int>(moves.size())});
    }
    if (sinks_.bytes() > 0) {
      const int count = limits_.context.sinks;
      backend_.ops->copy_rows(
          {.input = sinks(share.from_seat * count, count), .output = sinks(share.to_seat * count, count)});
    }
    shares_.erase(shares_.begin());
  }
}

Slot DFlashDrafter::ring_slot(int seat, int position) const {
  return Slot{seat} * layout_.seat_pages * limits_.page_size + limits_.context.place(position);
}

Slot DFlashDrafter::slot_of(const Sequence& sequence, std::span<const PageId> pages, int position) const {
  if (limits_.context.is_ring()) return ring_slot(sequence.seat, position);
  return Slot{pages[static_cast<std::size_t>(position / limits_.page_size)]} * limits_.page_size +
         position % limits_.page_size;
}

Matrix DFlashDrafter::sinks(int first, int count) const {
  const int width = config_.decoder.hidden_size;
  const DType dtype = backend_.ops->activation_dtype();
  return {sinks_.as<std::byte>() + std::size_t(first) * width * size_of(dtype), dtype, count, width, width};
}

void DFlashDrafter::observe(std::span<const Observation> observations) {
  copy_shares();
  std::vector<ContextRow> rows;
  std::vector<int> kept_sinks;  // row of `sinks_` that keeps a row's context; -1: none does
  for (const Observation& seen : observations) {
    if (!seen.will_draft) continue;
    const Sequence& sequence = sequence_of(seen.seq);
    const int count = static_cast<int>(seen.rows.size());
    FS_CHECK(count == seen.num_known_rows + seen.num_accepted, count, " rows of ",
             seen.num_known_rows + seen.num_accepted, " tokens");
    for (int i = 0; i < count; ++i) {
      const int position = seen.first_position + i;
      if (!sequence.range.keeps(position, seen.first_position + count)) continue;
      rows.push_back({seen.rows[static_cast<std::size_t>(i)], position, slot_of(sequence, seen.pages, position)});
      const bool is_sink = sinks_.bytes() > 0 && position < limits_.context.sinks;
      kept_sinks.push_back(is_sink ? sequence.seat * limits_.context.sinks + position : -1);
    }
  }
  for (std::size_t first = 0; first < rows.size(); first += static_cast<std::size_t>(layout_.projected_rows)) {
    const std::size_t count = std::min(rows.size() - first, static_cast<std::size_t>(layout_.projected_rows));
    project(std::span(rows).subspan(first, count), std::span(kept_sinks).subspan(first, count));
  }
  for (const Observation& seen : observations) {
    if (!seen.will_draft) continue;
    Sequence& sequence = sequence_of(seen.seq);
    sequence.range.note(seen.first_position, seen.first_position + static_cast<int>(seen.rows.size()));
    if (seen.first_position < limits_.context.sinks) sequence.sink_offset = seen.first_position == 0 ? 0 : -1;
  }
}

void DFlashDrafter::project(std::span<const ContextRow> rows, std::span<const int> kept_sinks) {
  projection_.project(hidden_, rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (kept_sinks[i] < 0) continue;
    backend_.ops->copy_rows({.input = projection_.context(static_cast<int>(i)), .output = sinks(kept_sinks[i], 1)});
  }
}

// --- drafting --------------------------------------------------------------------------------------------------------

void DFlashDrafter::draft(std::span<const DraftRequest> requests, std::span<TokenTree> trees) {
  copy_shares();
  std::vector<const DraftRequest*> active;
  std::vector<TokenTree*> results;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const DraftRequest& request = requests[i];
    if (std::min(request.max_drafted, request.max_depth) <= 0) continue;
    const int root = static_cast<int>(request.tokens.size()) - 1;
    const ContextRange& range = sequence_of(request.seq).range;
    if (range.end() != root || !(range.is_whole(root) || limits_.context.is_ring())) continue;
    active.push_back(&request);
    results.push_back(&trees[i]);
  }
  const auto together = static_cast<std::size_t>(layout_.together);
  for (std::size_t first = 0; first < active.size(); first += together) {
    const std::size_t count = std::min(together, active.size() - first);
    draft_together(std::span(active).subspan(first, count), std::span(results).subspan(first, count));
  }
}

void DFlashDrafter::rebase_sinks(std::span<const DraftRequest* const> requests) {
  std::vector<ContextRow> rows;
  std::vector<std::pair<Sequence*, int>> moved;
  for (const DraftRequest* request : requests) {
    const int root = static_cast<int>(request->tokens.size()) - 1;
    const int offset = std::max(0, root - limits_.context.num_slots());
    Sequence& sequence = sequence_of(request->seq);
    if (sequence.sink_offset == offset || !sequence.range.has_beginning()) continue;
    moved.emplace_back(&sequence, offset);
    for (int sink = 0; sink < std::min(limits_.context.sinks, root); ++sink) {
      rows.push_back({sequence.seat * limits_.context.sinks + sink, offset + sink, ring_slot(sequence.seat, sink)});
    }
  }
  for (std::size_t first = 0; first < rows.size(); first += static_cast<std::size_t>(layout_.projected_rows)) {
    const std::size_t count = std::min(rows.size() - first, static_cast<std::size_t>(layout_.projected_rows));
    projection_.project_again(all_sinks(), std::span(rows).subspan(first, count));
  }
  for (const auto& [sequence, offset] : moved) sequence->sink_offset = offset;
}

void DFlashDrafter::draft_together(std::span<const DraftRequest* const> requests, std::span<TokenTree* const> trees) {
  if (sinks_.bytes() > 0) rebase_sinks(requests);
  batch_.clear();
  for (std::size_t i = 0; i < requests.size(); ++i) add_block(*requests[i], static_cast<int>(i));
  propose(passes_.forward(batch_, true), requests, trees);
}

void DFlashDrafter::add_block(const DraftRequest& request, int index) {
  const int root = static_cast<int>(request.tokens.size()) - 1;
  for (int row = 0; row < config_.block_size; ++row) {
    if (row >= 1 && row <= limits_.max_drafted) batch_.logit_rows.push_back(batch_.num_rows());
    batch_.tokens.push_back(row == 0 ? request.tokens.back() : config_.mask_token);
    batch_.positions.push_back(root + row);
    batch_.slots.push_back(layout_.block_slots + index * config_.block_size + row);
  }
  const Sequence& sequence = sequence_of(request.seq);
  if (!limits_.context.is_ring()) {
    const int num_pages = (root + limits_.page_size - 1) / limits_.page_size;
    batch_.kv.lists.push_back({.length = root});
    batch_.kv.tables.push_back(
        {.pages = request.pages.data(), .num_pages = num_pages, .num_lasting = num_pages, .version = request.version});
  } else if (sequence.range.is_whole(root)) {
    // Nobody asks for the order of keys, so the pages of a ring are a table that never changes.
    batch_.kv.lists.push_back({.length = std::min(root, limits_.context.num_slots())});
    batch_.kv.tables.push_back({.pages = seat_pages_.data() + std::ptrdiff_t{sequence.seat} * layout_.seat_pages,
                                .num_pages = layout_.seat_pages,
                                .num_lasting = layout_.seat_pages,
                                .version = static_cast<std::uint64_t>(sequence.seat) + 1});
  } else {
    const std::vector<int> positions = sequence.range.visible(root);
    batch_.kv.lists.push_back({.offset = static_cast<std::int64_t>(batch_.kv.entries.size()),
                               .length = static_cast<std::int32_t>(positions.size()),
                               .pages = false});
    batch_.kv.tables.push_back({});
    for (const int position : positions) batch_.kv.entries.push_back(ring_slot(sequence.seat, position));
  }
  batch_.end_sequence(NewMask::kFull);
}

void DFlashDrafter::propose(const Matrix& logits, std::span<const DraftRequest* const> requests,
                            std::span<TokenTree* const> trees) {
  std::vector<SamplingRule> rules;
  std::vector<std::int32_t> positions;
  for (const DraftRequest* request : requests) {
    for (int row = 1; row <= limits_.max_drafted; ++row) {
      SamplingRule& rule = rules.emplace_back(request->rule);
      // What the rows before this one propose is not known yet; how many they are is.
      rule.num_generated += row - 1;
      // The masks are asked what stands at their own place, after the row before.
      positions.push_back(static_cast<std::int32_t>(request->tokens.size()) - 2 + row);
    }
  }
  backend_.device->copy_to_device(positions_.data(), positions.data(), positions.size() * sizeof(std::int32_t));
  backend_.ops->set_rules({rules.data(), static_cast<int>(rules.size()), logits.cols});
  backend_.ops->propose({.logits = logits,
                         .positions = positions_.as<const std::int32_t>(),
                         .top_k = 1,
                         .tokens = tokens_.as<TokenId>(),
                         .confidences = confidences_.as<float>()});
  backend_.ops->await_proposals();
  const auto* tokens = tokens_.as<const TokenId>();
  const auto* confidences = confidences_.as<const float>();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const int count = std::min({limits_.max_drafted, requests[i]->max_drafted, requests[i]->max_depth});
    for (int row = 0; row < count; ++row) {
      const std::size_t at = i * static_cast<std::size_t>(limits_.max_drafted) + static_cast<std::size_t>(row);
      if (tokens[at] == kNoToken) break;  // the filters leave nothing: the chain ends
      trees[i]->add(tokens[at], row, confidences[at]);
    }
  }
}

GraphUse DFlashDrafter::graphs() const {
  GraphUse use = passes_.graphs();
  use += projection_.graphs();
  return use;
}

void DFlashDrafter::record_graphs(int max_sequences) {
  passes_.record_blocks(std::min(max_sequences, layout_.together), config_.block_size, limits_.max_drafted);
  projection_.record(hidden_, max_sequences * (1 + limits_.max_drafted));
  if (sinks_.bytes() > 0) projection_.record_again(all_sinks(), max_sequences * limits_.context.sinks);
}

}  // namespace fastspec
