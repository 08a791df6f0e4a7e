// Which drafted rows are verified: the global ranking of D-cut (arXiv 2607.14647), how many of it a share of the rows
// keeps, and the share that gives most tokens for its time. Pure functions over trees; knows no device.
#pragma once

#include <fastspec/config.h>

#include <span>
#include <vector>

#include "budget/cost_model.h"
#include "step/token_tree.h"

namespace fastspec {

/// Survival of every node: the product of chances on its path (D-cut: s_i,p). A missing or NaN chance counts as 1, and
/// one above 1 too, so survival never grows along a path. [num_nodes], 1 for the root.
/// @param chances [num_nodes] that a node is accepted once its parent was.
void survival(const TokenTree& tree, std::span<const float> chances, std::vector<float>& result);
/// The same with the drafter's confidence as it is.
std::vector<float> survival(const TokenTree& tree);

struct RankedNode {
  float survival = 0;
  int depth = 0;
  int tree = 0;
  int node = 0;
};

/// Ranks drafted nodes; its memory is used again.
class RowRanking {
 public:
  /// All drafted nodes, best first. Ties go to the smaller depth, then to the earlier tree and node, so the first of
  /// them, any number, are closed under parents. Valid until the next call.
  std::span<const RankedNode> rank(std::span<const TokenTree> trees, std::span<const std::vector<float>> survivals);

 private:
  /// Brings the nodes into the order of a key of few bits; those of equal keys stay in the order they have.
  template <typename Key>
  void order_by(int num_keys, const Key& key);

  std::vector<RankedNode> nodes_, ordered_;
  std::vector<int> depths_, begins_;
};

/// Keeps the first `count` nodes of a ranking of these trees; the rest is pruned.
void keep_ranked(std::span<TokenTree> trees, std::span<const RankedNode> ranking, int count);

/// Keeps the `max_drafted` drafted nodes of highest survival over all trees. @returns nodes kept.
int keep_best_rows(std::span<TokenTree> trees, int max_drafted);

/// keep(rho): drafted rows that a share of all offered rows, roots included, leaves beside the roots.
int rows_of_share(double ratio, int num_roots, int num_drafted);

/// What a pass has beside drafted rows, and how it may grow.
struct RowOffer {
  struct Rows {
    int known = 0;  // rows that are computed whatever is cut
    int keys = 0;   // cached tokens
  };
  std::vector<Rows> sequences;  // one a tree
  int num_decoding = 0;         // of these, those that decode: they offer a root and what they drafted
  int num_drafting = 0;         // and those that a draft was made for, over draft_keys cached tokens
  double draft_keys = 0;
  int max_drafted = 0;  // drafted rows that fit the pass
  int max_padded = 0;   // rows of the largest pass that is filled up to a row tier (step/row_tiers.h); 0 = none is
};

/// A share of the offered rows, and what it comes to.
struct RowChoice {
  double ratio = 1;
  int kept = 0;             // drafted rows: keep(ratio), raised to what the pass computes anyway
  double tokens = 0;        // expected to be committed, roots' own included
  double milliseconds = 0;  // of the whole step
  StepLoad load;
};

/// What each of `ratios` (ascending) keeps, and its price.
std::vector<RowChoice> price_shares(const RowOffer& offer, std::span<const RankedNode> ranking,
                                    std::span<const double> ratios, const CostModel& cost);

/// The best of them by `objective`, at the raised number of rows: tokens of the step over its time, or the paper's
/// form, which leaves the roots' tokens out and never keeps nothing. Fewer rows than the last share keeps are chosen
/// only where they are better by `min_saving` (0.02 = 2 %).
const RowChoice& best_share(std::span<const RowChoice> shares, int num_roots, BudgetObjective objective,
                            double min_saving);

}  // namespace fastspec
