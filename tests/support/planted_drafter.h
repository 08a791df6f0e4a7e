// A drafter that knows the plain output and offers the true token with a chosen probability among decoys, and one that
// proposes random trees. They give the lossless matrix every accepted length and every child index, which random small
// models never would.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "draft/drafter.h"

namespace fastspec::testing {

enum class TreeShape { kChain, kBlock, kTree };

/// What the drafter saw happen: the matrix asserts that all of it did.
struct Coverage {
  std::set<int> accepted_lengths;
  std::set<int> child_indices;  // place among its siblings of an accepted node
  std::set<int> end_places;     // tokens of the last accepted run of a sequence that ended
  std::int64_t duplicate_siblings = 0;
};

class PlantedDrafter final : public Drafter {
 public:
  /// @param truths plain outputs, prompt included, by (seed, sample). Empty: every token is a decoy.
  /// @param probability chance that a node of the true path gets its true child.
  PlantedDrafter(std::map<std::pair<std::uint64_t, std::uint32_t>, std::vector<TokenId>> truths, TreeShape shape,
                 double probability, int depth, int vocab_size, Coverage* coverage);

  std::string name() const override { return "planted"; }
  DraftShape shape() const override;
  void draft(std::span<const DraftRequest> requests, std::span<TokenTree> trees) override;
  void observe(std::span<const Observation> observations) override;
  void truncate(SeqId seq, int length) override;
  void forget(SeqId seq) noexcept override;
  void share(SeqId, SeqId, int) override {}

 private:
  struct Proposal {
    int length = 0;  // tokens before the proposal
    TokenTree tree{0};
    int last_run = 0;
  };
  void grow(const DraftRequest& request, TokenTree& tree);
  void grow_tree(std::span<const TokenId> truth, int length, int max_drafted, int max_depth, TokenTree& tree);
  TokenId decoy() { return std::uniform_int_distribution<TokenId>(0, vocab_size_ - 1)(random_); }
  bool hit() { return std::bernoulli_distribution(probability_)(random_); }

  std::map<std::pair<std::uint64_t, std::uint32_t>, std::vector<TokenId>> truths_;
  TreeShape tree_shape_;
  double probability_;
  int depth_;
  int vocab_size_;
  Coverage* coverage_;
  std::mt19937_64 random_{7};
  std::unordered_map<SeqId, Proposal> proposals_;
};

}  // namespace fastspec::testing
