// Passes of one model on a device: uploads them and runs them, as recordings where the device has them and the pass has
// a shape that comes back. Knows no sequence; what the rows mean is the caller's.
#pragma once

#include <optional>

#include "backend/backend.h"
#include "backend/graph_cache.h"
#include "memory/kv_pool.h"
#include "model/pass.h"
#include "model/transformer.h"
#include "step/row_batch.h"

namespace fastspec {

/// What a device does of a pass between the copy of its arrays and its layers, recorded with them: it may write the
/// entries that the batch left unwritten (SlotLists::num_unwritten).
class PassPrelude {
 public:
  virtual ~PassPrelude() = default;
  virtual void issue(const Pass& pass, Slot* unwritten) = 0;
};

class PassRunner {
 public:
  /// @param padding_slot takes the K/V of rows that fill a recorded pass up.
  PassRunner(Backend& backend, Transformer& model, const KvPool& kv, const PassLimits& limits, Slot padding_slot,
             const GraphLimits& graphs);

  /// Computes a pass, whose batch it may pad. @returns the logits of its logit rows, valid until the next pass.
  /// @param recurs that passes like it come again and again: those of decoding. Others, with prompt chunks of any
  /// number of rows, run operation by operation by design. The caller waits for what it issues behind a pass that
  /// recurs before it runs another: the next one takes the place of what the device may not have read yet.
  /// @param prelude null = none; the same one in every pass that has one.
  Matrix forward(RowBatch& batch, bool recurs, PassPrelude* prelude = nullptr);
  /// Records every shape that passes of up to `max_sequences` sequences with up to `max_rows_each` rows, all of them
  /// with logits, can have. Takes the padding slot alone; waits for the device.
  /// @param prelude of these passes: forward() takes recordings with one, or without, as it is given one.
  void record(int max_sequences, int max_rows_each, PassPrelude* prelude = nullptr);
  /// The same for passes whose sequences all have `rows_each` rows, `logit_rows_each` of them with logits.
  void record_blocks(int max_sequences, int rows_each, int logit_rows_each);

  GraphUse graphs() const { return cache_.use(); }

 private:
  std::optional<GraphKey> key_of(const RowBatch& batch) const;
  int packed_class(int rows_each) const;
  void record_one(const GraphKey& key, PassPrelude* prelude);
  void run_recorded(const RowBatch& batch, const GraphKey& key, PassPrelude* prelude, bool only_record);
  void run(const Pass& pass, PassPrelude* prelude);

  Backend& backend_;
  Transformer& model_;
  const KvPool& kv_;
  PassLimits limits_;
  Slot padding_slot_;
  PassBuffers buffers_;
  GraphCache cache_;
  int cached_generation_ = 0;  // of buffers_, when the graphs were recorded
  bool said_too_many_rows_ = false;
};

}  // namespace fastspec
