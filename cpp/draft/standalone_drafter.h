// A small model of the target's tokenizer that drafts a chain, one token a pass, over its own K/V in the target's slot
// space: a page that the target shares, or gives back, is shared or given back for the draft too.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "draft/chain_lookahead.h"
#include "draft/drafter.h"
#include "memory/kv_pool.h"
#include "model/pass_runner.h"
#include "model/transformer.h"
#include "step/row_batch.h"

namespace fastspec {

class StandaloneDrafter final : public Drafter {
 public:
  struct Limits {
    int max_drafted = 0;
    PassLimits pass;
    int vocab_size = 0;  // of the target: ids beyond are never proposed (paddings may differ either way)
    int num_pages = 0;   // scratch pages included
    int page_size = 0;
    GraphLimits graphs;
    std::vector<int> lookahead_layers;  // whose queries are kept; ascending
  };
  /// @throws Error(kOutOfMemory).
  StandaloneDrafter(const ModelConfig& config, Weights weights, Backend& backend, DType dtype, const Limits& limits);

  /// Device memory that one takes beside its K/V; `element_size` of an activation.
  static std::size_t activation_bytes(const ModelConfig& config, std::size_t element_size, const Limits& limits);

  std::string name() const override { return "standalone"; }
  DraftShape shape() const override { return {limits_.max_drafted, limits_.max_drafted}; }
  void draft(std::span<const DraftRequest> requests, std::span<TokenTree> trees) override;
  const Lookahead* lookahead() const override { return lookahead_.get(); }
  void observe(std::span<const Observation> observations) override;
  void truncate(SeqId seq, int length) override;
  void forget(SeqId seq) noexcept override;
  void share(SeqId from, SeqId to, int length) override;
  GraphUse graphs() const override { return passes_.graphs(); }
  void record_graphs(int max_sequences) override { passes_.record(max_sequences, 1); }

 private:
  /// A sequence's rows of one draft pass: tokens[first .. end) of `tokens`, whose K/V goes to their final slots. A
  /// chain's drafted token has a final slot reserved, and this pool is the draft's own, so nothing is moved on
  /// acceptance.
  struct Rows {
    std::span<const TokenId> tokens;
    std::span<const PageId> pages;
    int num_lasting_pages = 0;  // see PageTable
    std::uint64_t version = 0;
    int first = 0;
    int end = 0;
    bool wants_logits = false;
  };
  /// What proposals of one level are asked for, beside logits.
  struct Level {
    int path_length = 0;
    std::vector<std::int32_t> positions = {};
    std::vector<TokenId> paths = {};
  };
  struct State {
    int kv_len = 0;   // leading committed tokens whose draft K/V is right
    int written = 0;  // and up to here that of the chain drafted in this step
  };

  Matrix forward(std::span<const Rows> rows);
  /// Into tokens_ and confidences_, which can be read.
  void propose(const Matrix& logits, const Level& level);
  /// The tokens and pages of a request; rows are the caller's to choose.
  Rows rows_of(const DraftRequest& request) const;
  /// False when one of the tokens is beyond the draft's vocabulary: such a sequence runs plain.
  bool knows(std::span<const TokenId> tokens) const;
  bool knows(const SamplingRule& rule) const;
  /// Computes K/V of committed tokens up to `length` (exclusive), in passes of at most max_rows.
  /// @param rows says what the tokens and pages are.
  void catch_up(State& state, Rows rows, int length);

  Limits limits_;
  Backend& backend_;
  Transformer transformer_;
  KvPool kv_;
  PassRunner passes_;
  RowBatch batch_;
  Buffer positions_, paths_;     // of proposals, on the device
  Buffer tokens_, confidences_;  // proposals, read by the host
  ChainLookahead lookahead_;
  std::unordered_map<SeqId, State> states_;
};

}  // namespace fastspec
