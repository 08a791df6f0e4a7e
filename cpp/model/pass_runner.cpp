// See pass_runner.h.
#include "model/pass_runner.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "step/row_tiers.h"

namespace fastspec {

PassRunner::PassRunner(Backend& backend, Transformer& model, const KvPool& kv, const PassLimits& limits,
                       Slot padding_slot, const GraphLimits& graphs)
    : backend_(backend),
      model_(model),
      kv_(kv),
      limits_(limits),
      padding_slot_(padding_slot),
      buffers_(*backend.device, limits),
      cache_(*backend.device, graphs) {}

int PassRunner::packed_class(int rows_each) const {
  // Attention packs the query heads of a K/V head; its kernels differ in how many packed rows they take at once.
  const int group_size = model_.config().group_size();
  int packed = 16;
  while (packed < rows_each * group_size) packed *= 2;
  return packed / group_size;
}

std::optional<GraphKey> PassRunner::key_of(const RowBatch& batch) const {
  int most = 1;
  for (int i = 0; i < batch.num_sequences(); ++i) {
    most = std::max(most, batch.row_offsets[i + 1] - batch.row_offsets[i]);
  }
  const GraphKey key{
      .num_rows = row_tier(batch.num_rows(), limits_.max_rows),
      .num_logit_rows = row_tier(static_cast<int>(std::ssize(batch.logit_rows)), model_.max_logit_rows()),
      .max_rows_per_sequence = packed_class(most)};
  if (key.num_rows == 0 || key.num_logit_rows == 0) return std::nullopt;
  return key;
}

void PassRunner::run(const Pass& pass, PassPrelude* prelude) {
  if (prelude != nullptr) prelude->issue(pass, buffers_.unwritten_entries());
  model_.forward(pass, kv_);
}

Matrix PassRunner::forward(RowBatch& batch, bool recurs, PassPrelude* prelude) {
  const int num_logit_rows = static_cast<int>(batch.logit_rows.size());
  if (!backend_.device->has_graphs()) {
    run(buffers_.upload(batch), prelude);
    return model_.logits(num_logit_rows);
  }
  std::optional<GraphKey> key = recurs ? key_of(batch) : std::nullopt;
  if (!key) {
    if (recurs && !std::exchange(said_too_many_rows_, true)) {
      log(LogLevel::kInfo, "decoding passes of ", batch.num_rows(),
          " rows are launched operation by operation: those of ", std::min(kMaxRowTier, limits_.max_rows),
          " and fewer are recorded");
    }
    run(buffers_.upload(batch), prelude);
    cache_.note_eager_pass();
    return model_.logits(num_logit_rows);
  }
  key->has_prelude = prelude != nullptr;
  pad_batch(key->num_rows, key->num_logit_rows, limits_.max_sequences, padding_slot_, batch);
  run_recorded(batch, *key, prelude, false);
  return model_.logits(num_logit_rows);
}

void PassRunner::run_recorded(const RowBatch& batch, const GraphKey& key, PassPrelude* prelude, bool only_record) {
  try {
    Pass pass = buffers_.stage(batch);
    pass.max_rows_per_sequence = key.max_rows_per_sequence;
    pass.host = {};
    if (std::exchange(cached_generation_, buffers_.generation()) != buffers_.generation()) cache_.clear();
    const auto work = [this, pass, prelude] {
      buffers_.copy_staged();
      run(pass, prelude);
    };
    if (only_record) return cache_.record(key, work);
    cache_.run(key, work);
  } catch (...) {
    buffers_.forget_tables();
    throw;
  }
}

void PassRunner::record(int max_sequences, int max_rows_each, PassPrelude* prelude) {
  if (!backend_.device->has_graphs()) return;
  const int most_rows =
      std::min({max_sequences * max_rows_each, limits_.max_rows, model_.max_logit_rows(), kMaxRowTier});
  for (int rows = 1; rows <= most_rows; ++rows) {
    const int tier = row_tier(rows, limits_.max_rows);
    const int logit_tier = row_tier(rows, model_.max_logit_rows());
    int smallest = 1;  // rows of a sequence that the class is for
    while (smallest <= std::min(max_rows_each, tier)) {
      const GraphKey key{.num_rows = tier,
                         .num_logit_rows = logit_tier,
                         .max_rows_per_sequence = packed_class(smallest),
                         .has_prelude = prelude != nullptr};
      record_one(key, prelude);
      smallest = key.max_rows_per_sequence + 1;
    }
    rows = std::min(tier, logit_tier);
  }
}

void PassRunner::record_blocks(int max_sequences, int rows_each, int logit_rows_each) {
  if (!backend_.device->has_graphs()) return;
  GraphKey last;
  for (int sequences = 1; sequences <= max_sequences; ++sequences) {
    const GraphKey key{.num_rows = row_tier(sequences * rows_each, limits_.max_rows),
                       .num_logit_rows = row_tier(sequences * logit_rows_each, model_.max_logit_rows()),
                       .max_rows_per_sequence = packed_class(rows_each)};
    if (key.num_rows == 0 || key.num_logit_rows == 0) return;
    if (std::exchange(last, key) != key) record_one(key, nullptr);
  }
}

void PassRunner::record_one(const GraphKey& key, PassPrelude* prelude) {
  RowBatch batch;
  if (prelude != nullptr) {  // a first sequence, which has nothing to choose from, so that the others have contexts too
    batch.kv.lists.emplace_back();
    batch.kv.contexts.emplace_back();
    batch.end_sequence(NewMask::kCausal);
  }
  pad_batch(key.num_rows, key.num_logit_rows, limits_.max_sequences, padding_slot_, batch);
  run_recorded(batch, key, prelude, true);
  backend_.device->synchronize();
}

}  // namespace fastspec
