// Plan, trees and reservation become the rows of one pass. Pure: no device.
#pragma once

#include <span>
#include <vector>

#include "memory/paged_kv_cache.h"
#include "step/row_batch.h"
#include "step/step_plan.h"
#include "step/token_tree.h"

namespace fastspec {

/// Fills `batch` (cleared first): for planned sequence i its known rows tokens[i][first_position ...], then the drafted
/// nodes of trees[i]. Logit rows: the root and the nodes of every sampling sequence, in node order, sequence by
/// sequence. The batch's page tables point into the reservation.
/// @param tokens committed tokens of each planned sequence.
void build_batch(const StepPlan& plan, std::span<const std::span<const TokenId>> tokens,
                 std::span<const TokenTree> trees, const KvReservation& reservation, RowBatch& batch);

}  // namespace fastspec
