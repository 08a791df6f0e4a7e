// DFlash (arXiv 2602.06036): a block of masks behind the root, predicted in one pass over a context that the target's
// hidden states make. Context grows with the sequence, in the target's slots; or, with a window, is a ring of one size.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "draft/dflash/context_projection.h"
#include "draft/dflash/context_range.h"
#include "draft/dflash/dflash_model.h"
#include "draft/drafter.h"
#include "memory/kv_pool.h"
#include "model/pass_runner.h"
#include "model/transformer.h"
#include "step/row_batch.h"

namespace fastspec {

class DFlashDrafter final : public Drafter {
 public:
  struct Limits {
    int max_drafted = 0;  // of a block
    ContextShape context;
    bool rebases_positions = false;  // sinks take the positions just before the window
    PassLimits pass;                 // of the target
    int num_pages = 0;               // of the target's pool, scratch pages included
    int page_size = 0;
    GraphLimits graphs;
  };
  /// @param hidden what the target keeps for this drafter, of all rows of its last pass (Transformer::kept_hidden).
  /// @throws Error(kOutOfMemory).
  DFlashDrafter(DFlashModel model, const Matrix& hidden, Backend& backend, DType dtype, const Limits& limits);

  // What one takes of the device, beside weights.
  /// In every slot of the target's.
  static std::size_t shared_kv_bytes_per_token(const DFlashConfig& config, DType dtype, const Limits& limits);
  /// Beside them, whatever the context.
  static std::size_t own_kv_bytes(const DFlashConfig& config, DType dtype, const Limits& limits);
  static std::size_t activation_bytes(const DFlashModel& model, std::size_t element_size, const Limits& limits);

  std::string name() const override { return "dflash"; }
  DrafterNeeds needs() const override { return {.hidden_layers = config_.target_layers}; }
  DraftShape shape() const override { return {limits_.max_drafted, limits_.max_drafted}; }
  void draft(std::span<const DraftRequest> requests, std::span<TokenTree> trees) override;
  /// After a failure the features are gone for good: the sequence has a hole there. Without a window it then decodes
  /// plainly, until it is computed anew or ends.
  void observe(std::span<const Observation> observations) override;
  void truncate(SeqId seq, int length) override;
  void forget(SeqId seq) noexcept override;
  void share(SeqId from, SeqId to, int length) override;
  void start_on_noise(SeqId seq, int length) override;
  GraphUse graphs() const override;
  void record_graphs(int max_sequences) override;

 private:
  /// Sizes that follow from the limits.
  struct Layout {
    Layout(const DFlashConfig& config, const Limits& limits);
    int together;        // sequences of a pass
    int projected_rows;  // of a pass that makes context
    int seat_pages;      // of a ring
    int shared_pages;    // the target's, where there is no ring
    Slot block_slots;    // the first; behind them one that padding rows write to
    int num_pages;
    PassLimits pass;
  };
  struct Sequence {
    ContextRange range;
    int seat = 0;         // of its ring
    int sink_offset = 0;  // by which the positions of its sinks are moved; -1: not known
  };
  /// A ring that another sequence starts with.
  struct Share {
    int from_seat, to_seat;
    std::vector<int> positions;
  };

  Sequence& sequence_of(SeqId seq);
  Slot ring_slot(int seat, int position) const;
  Slot slot_of(const Sequence& sequence, std::span<const PageId> pages, int position) const;
  void copy_shares();
  void project(std::span<const ContextRow> rows, std::span<const int> kept_sinks);
  void rebase_sinks(std::span<const DraftRequest* const> requests);
  void draft_together(std::span<const DraftRequest* const> requests, std::span<TokenTree* const> trees);
  void add_block(const DraftRequest& request, int index);
  void propose(const Matrix& logits, std::span<const DraftRequest* const> requests, std::span<TokenTree* const> trees);
  Matrix sinks(int first, int count) const;
  Matrix all_sinks() const { return sinks(0, limits_.pass.max_sequences * limits_.context.sinks); }

  DFlashConfig config_;
  Limits limits_;
  Layout layout_;
  Backend& backend_;
  Weight fc_;
  Vector hidden_norm_;
  Transformer decoder_;
  KvPool kv_;
  PassRunner passes_;
  ContextProjection projection_;
  RowBatch batch_;
  Matrix hidden_;
  Buffer positions_;             // of proposals, on the device
  Buffer tokens_, confidences_;  // proposals, read by the host
  Buffer sinks_;                 // [seats * sinks, hidden_size] contexts, to be projected to other positions
  std::vector<PageId> seat_pages_;
  std::vector<int> free_seats_;
  std::unordered_map<SeqId, Sequence> sequences_;
  std::vector<Share> shares_;  // to be copied before anything else is done
};

}  // namespace fastspec
