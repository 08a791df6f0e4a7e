// Lays out the rows of a pass.
#include "verify/batch.h"

#include <iterator>
#include <numeric>

#include "base/check.h"

namespace fastspec {

namespace {

void add_drafted_rows(const TokenTree& tree, int root_position, int sequence, const KvReservation& reservation,
                      RowBatch& batch) {
  if (tree.num_drafted() == 0) return;
  const std::vector<int> depths = tree.depths();
  for (int node = 1; node < tree.num_nodes(); ++node) {
    batch.logit_rows.push_back(batch.num_rows());
    batch.tokens.push_back(tree.tokens[node]);
    batch.positions.push_back(root_position + depths[node]);
    batch.slots.push_back(reservation.scratch_slot(sequence, tree.scratch[node]));
  }
}

void set_ancestor_masks(const TokenTree& tree, int first_row, RowBatch& batch) {
  FS_CHECK(tree.num_nodes() <= 64 * kMaskWords, "tree of ", tree.num_nodes(), " rows, at most ", 64 * kMaskWords);
  for (int node = 0; node < tree.num_nodes(); ++node) {
    std::uint64_t* bits = batch.mask_bits.data() + std::size_t{kMaskWords} * (first_row + node);
    if (node > 0) {
      const std::uint64_t* parent = batch.mask_bits.data() + std::size_t{kMaskWords} * (first_row + tree.parents[node]);
      for (int word = 0; word < kMaskWords; ++word) bits[word] = parent[word];
    }
    bits[node / 64] |= std::uint64_t{1} << (node % 64);
  }
}

}  // namespace

int num_rows_of(const SequencePlan& planned, const TokenTree& tree) {
  return planned.num_known_rows + tree.num_drafted();
}

int row_of_node(const SequencePlan& planned, int first_row, int node) {
  return first_row + planned.num_known_rows - 1 + node;
}

std::vector<std::int32_t> committed_rows(const SequencePlan& planned, int first_row, std::span<const int> path) {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(planned.num_known_rows));
  std::iota(rows.begin(), rows.end(), first_row);
  for (const int node : path) rows.push_back(row_of_node(planned, first_row, node));
  return rows;
}

void build_batch(const StepPlan& plan, std::span<const std::span<const TokenId>> tokens,
                 std::span<const TokenTree> trees, const KvReservation& reservation, RowBatch& batch,
                 const Selection& selection) {
  batch.clear();
  batch.kv.entries.assign(selection.slots.begin(), selection.slots.end());
  std::int64_t next_slot = 0;
  for (int i = 0; i < static_cast<int>(plan.sequences.size()); ++i) {
    const SequencePlan& planned = plan.sequences[i];
    const int first_row = batch.num_rows();
    const int end = planned.first_position + planned.num_known_rows;
    for (int position = planned.first_position; position < end; ++position) {
      batch.tokens.push_back(tokens[i][position]);
      batch.positions.push_back(position);
      batch.slots.push_back(reservation.slot(i, position));
    }
    if (planned.samples) batch.logit_rows.push_back(batch.num_rows() - 1);
    add_drafted_rows(trees[i], end - 1, i, reservation, batch);

    const std::span<const PageId> pages = reservation.pages(i);
    if (planned.kv_mode == KvMode::kSparse) {
      batch.kv.lists.push_back({.offset = next_slot, .length = planned.num_slots, .pages = false});
      next_slot += planned.num_slots;
    } else {
      batch.kv.lists.push_back({.length = planned.first_position});
    }
    const bool chooses = planned.kv_mode == KvMode::kSparse;
    if (selection.by_device) batch.kv.contexts.push_back({.length = chooses ? planned.first_position : 0});
    const int page_size = reservation.page_size();
    const int num_pages = (planned.first_position + page_size - 1) / page_size;
    batch.kv.tables.push_back(
        {.pages = pages.data(), .num_pages = num_pages, .num_lasting = num_pages, .version = reservation.version(i)});

    // A chain needs no bitmask: row order is path order.
    const bool causal = trees[i].is_chain();
    batch.end_sequence(causal ? NewMask::kCausal : NewMask::kAncestor);
    if (!causal) {
      FS_CHECK(planned.num_known_rows == 1, "a tree hangs below a root alone");
      set_ancestor_masks(trees[i], first_row, batch);
    }
  }
  if (selection.by_device) batch.kv.num_unwritten = next_slot;
  FS_CHECK(next_slot == std::ssize(batch.kv.entries) + batch.kv.num_unwritten, next_slot, " keys of sparse sequences, ",
           batch.kv.entries.size(), " were selected");
}

}  // namespace fastspec
