// Proposals with an acceptance that was asked for, for benchmarks of a target whose draw is known. Not a drafter that
// anyone can configure: it knows nothing of language. Around a real drafter it has that one do all its work and offers
// its own proposals instead.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "draft/drafter.h"

namespace fastspec {

class SyntheticDrafter final : public Drafter {
 public:
  /// What the target has to draw everywhere for the acceptance to come true.
  static constexpr TokenId kDrawn = 0;

  struct Options {
    int rows = 0;           // tokens of every proposal, a chain
    double acceptance = 0;  // of these, accepted in the mean over steps; each step's number is a neighbour of it
    /// Confidences are chances, and an accepted token's is above a refused one's this often (AUC), in [0.5, 1).
    /// 0 = none are given.
    double ranking_power = 0;
  };
  /// @param inner may be null: no drafter works.
  explicit SyntheticDrafter(const Options& options, std::unique_ptr<Drafter> inner = nullptr);

  std::string name() const override;
  DrafterNeeds needs() const override { return inner_ ? inner_->needs() : DrafterNeeds{}; }
  DraftShape shape() const override { return {options_.rows, options_.rows}; }
  void draft(std::span<const DraftRequest> requests, std::span<TokenTree> trees) override;
  void observe(std::span<const Observation> observations) override;
  void truncate(SeqId seq, int length) override;
  void forget(SeqId seq) noexcept override;
  void share(SeqId from, SeqId to, int length) override;
  void start_on_noise(SeqId seq, int length) override;
  GraphUse graphs() const override { return inner_ ? inner_->graphs() : GraphUse{}; }
  void record_graphs(int max_sequences) override;

 private:
  float confidence(bool is_accepted);

  Options options_;
  std::unique_ptr<Drafter> inner_;
  double separation_ = 0;                  // of the scores of accepted and refused tokens, in standard deviations
  std::mt19937_64 random_{1};              // of confidences
  std::unordered_map<SeqId, int> rounds_;  // proposals made
  std::vector<TokenTree> discarded_;
};

}  // namespace fastspec
