// Proposals with an acceptance that was asked for, for benchmarks of a target whose draw is known. Not a drafter that
// anyone can configure: it knows nothing of language.
#pragma once

#include <string>
#include <unordered_map>

#include "draft/drafter.h"

namespace fastspec {

class SyntheticDrafter final : public Drafter {
 public:
  /// What the target has to draw everywhere for the acceptance to come true.
  static constexpr TokenId kDrawn = 0;

  /// @param rows tokens of every proposal, a chain.
  /// @param acceptance of these, accepted in the mean over steps; each step's number is a neighbour of it.
  SyntheticDrafter(int rows, double acceptance) : rows_(rows), acceptance_(acceptance) {}

  std::string name() const override { return "synthetic"; }
  DraftShape shape() const override { return {rows_, rows_}; }
  void draft(std::span<const DraftRequest> requests, std::span<TokenTree> trees) override;
  void observe(std::span<const Observation>) override {}
  void truncate(SeqId, int) override {}
  void forget(SeqId seq) noexcept override { rounds_.erase(seq); }
  void share(SeqId, SeqId, int) override {}

 private:
  int rows_;
  double acceptance_;
  std::unordered_map<SeqId, int> rounds_;  // proposals made
};

}  // namespace fastspec
