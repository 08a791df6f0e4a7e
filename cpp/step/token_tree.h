// What a drafter proposes for one sequence: a tree of tokens below the last committed one. Data and its invariants; a
// chain and an empty proposal (plain decoding) are trees too.
#pragma once

#include <limits>
#include <span>
#include <vector>

#include "base/types.h"

namespace fastspec {

/// Node 0 is the root: the last committed token, whose K/V is not cached yet. A parent comes before its children.
struct TokenTree {
  std::vector<TokenId> tokens;    // [num_nodes]
  std::vector<int> parents;       // [num_nodes], -1 for the root
  std::vector<float> confidence;  // [num_nodes] chance that the token is accepted once its parent was; NaN = unknown
  std::vector<int> scratch;       // [num_nodes] scratch slot of the sequence that holds its K/V; -1 for the root.
                                  // Numbers are given in drafting order and survive pruning.

  explicit TokenTree(TokenId root) : tokens{root}, parents{-1}, confidence{1.0f}, scratch{-1} {}

  /// Back to a root alone; memory stays.
  void reset(TokenId root) {
    tokens.assign(1, root);
    parents.assign(1, -1);
    confidence.assign(1, 1.0f);
    scratch.assign(1, -1);
  }

  int num_nodes() const { return static_cast<int>(tokens.size()); }
  int num_drafted() const { return num_nodes() - 1; }

  /// Appends a node and returns its index.
  int add(TokenId token, int parent, float probability = std::numeric_limits<float>::quiet_NaN());

  /// Depth of every node, [num_nodes]; 0 for the root.
  std::vector<int> depths() const;

  /// True for a chain: node i's parent is i - 1.
  bool is_chain() const;

  /// Puts a chain between the root, which is replaced, and what hangs below it. The chain's tokens have scratch slots
  /// `first_scratch` and on.
  void hang_below(TokenId root, std::span<const TokenId> chain, int first_scratch);

  /// Keeps the nodes marked in `keep` [num_nodes]; the set must hold the root and be closed under parents.
  void prune(const std::vector<bool>& keep);

  /// @throws Error(kInternal) when an invariant of the arrays is broken or a limit is passed.
  void check(int max_drafted, int max_depth, int vocab_size) const;
};

}  // namespace fastspec
