// Prompt lookup: proposes what followed an earlier occurrence of the sequence's last tokens. Needs no model and keeps
// nothing but an index of the tokens.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "draft/drafter.h"

namespace fastspec {

class NgramDrafter final : public Drafter {
 public:
  /// The longest match of `max_ngram` down to `min_ngram` tokens wins, the most recent of equals; up to `max_drafted`
  /// tokens are proposed.
  NgramDrafter(int min_ngram, int max_ngram, int max_drafted);

  std::string name() const override { return "ngram"; }
  DraftShape shape() const override { return {max_drafted_, max_drafted_}; }
  void draft(std::span<const DraftRequest> requests, std::span<TokenTree> trees) override;
  void observe(std::span<const Observation>) override {}
  void truncate(SeqId seq, int length) override;
  void forget(SeqId seq) noexcept override;
  void share(SeqId, SeqId, int) override {}

 private:
  /// Where every run of min_ngram tokens was seen last, by hash, and through `previous` where before that. A place is
  /// the number of tokens up to and including the run; 0 = none.
  struct Index {
    std::unordered_map<std::uint64_t, int> last;
    std::vector<int> previous;          // [place]
    std::vector<std::uint64_t> hashes;  // [place]
  };
  void extend(Index& index, std::span<const TokenId> tokens) const;
  struct Match {
    int place = 0;   // 0 = none
    int length = 0;  // tokens
  };
  Match find(const Index& index, std::span<const TokenId> tokens) const;

  int min_ngram_;
  int max_ngram_;
  int max_drafted_;
  std::unordered_map<SeqId, Index> indexes_;
};

}  // namespace fastspec
