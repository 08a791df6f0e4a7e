// Which drafted rows are verified when not all can be: the global ranking of D-cut (arXiv 2607.14647). Pure functions
// over trees; knows no device.
#pragma once

#include <span>
#include <vector>

#include "step/token_tree.h"

namespace fastspec {

/// Survival of every node: the product of confidences on its path (D-cut: s_i,p). A missing confidence counts as 1, and
/// one above 1 too, so survival never grows along a path. [num_nodes], 1 for the root.
std::vector<float> survival(const TokenTree& tree);

/// Keeps the `max_drafted` drafted nodes of highest survival over all trees; the rest is pruned. Ties go to the smaller
/// depth, then to the earlier tree and node, so what is kept is closed under parents. @returns nodes kept.
int keep_best_rows(std::span<TokenTree> trees, int max_drafted);

}  // namespace fastspec
