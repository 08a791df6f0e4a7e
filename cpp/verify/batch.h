// Plan, trees and reservation become the rows of one pass. Pure: no device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memory/paged_kv_cache.h"
#include "step/row_batch.h"
#include "step/step_plan.h"
#include "step/token_tree.h"

namespace fastspec {

/// Slot lists of the sparse sequences of a pass.
struct Selection {
  std::span<const Slot> slots;  // SequencePlan::num_slots of each, in the plan's order
  bool by_device = false;       // no slots are given: operations write them, and are told of all cached keys
};

/// Fills `batch` (cleared first): for planned sequence i its known rows tokens[i][first_position ...], then the drafted
/// nodes of trees[i]. Logit rows: the root and the nodes of every sampling sequence, in node order, sequence by
/// sequence. The batch's page tables point into the reservation.
/// @param tokens committed tokens of each planned sequence.
/// @param selection what the plan's sparse sequences read.
void build_batch(const StepPlan& plan, std::span<const std::span<const TokenId>> tokens,
                 std::span<const TokenTree> trees, const KvReservation& reservation, RowBatch& batch,
                 const Selection& selection = {});

/// Rows that a planned sequence with this tree has in its pass.
int num_rows_of(const SequencePlan& planned, const TokenTree& tree);

/// Of a sequence whose rows begin at `first_row` of the pass, that of a node of its tree; the root is node 0.
int row_of_node(const SequencePlan& planned, int first_row, int node);

/// Of a sequence whose rows begin at `first_row` of the pass, those of the tokens that the pass made permanent: the
/// known rows, then the accepted nodes `path`.
std::vector<std::int32_t> committed_rows(const SequencePlan& planned, int first_row, std::span<const int> path);

}  // namespace fastspec
