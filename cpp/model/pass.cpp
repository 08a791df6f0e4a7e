// Copies a RowBatch into device memory.
#include "model/pass.h"

#include "base/check.h"

namespace fastspec {

PassBuffers::PassBuffers(Device& device, int max_rows, int max_sequences)
    : device_(device), max_rows_(max_rows), max_sequences_(max_sequences) {
  const auto array = [&](std::size_t count, std::size_t size) { return device.allocate(count * size, "pass arrays"); };
  tokens_ = array(max_rows, sizeof(TokenId));
  positions_ = array(max_rows, sizeof(std::int32_t));
  slots_ = array(max_rows, sizeof(Slot));
  row_offsets_ = array(max_sequences + 1, sizeof(std::int32_t));
  masks_ = array(max_sequences, sizeof(NewMask));
  mask_bits_ = array(std::size_t{kMaskWords} * max_rows, sizeof(std::uint64_t));
  logit_rows_ = array(max_rows, sizeof(std::int32_t));
  lists_ = array(max_sequences, sizeof(KvList));
}

template <typename T>
const T* PassBuffers::copy(Buffer& buffer, const std::vector<T>& values, const char* what) {
  const std::size_t bytes = values.size() * sizeof(T);
  // Only the page lists have no limit known beforehand; growing by half keeps that rare.
  if (bytes > buffer.bytes()) buffer = device_.allocate(bytes + bytes / 2, what);
  if (bytes > 0) device_.copy_to_device(buffer.data(), values.data(), bytes);
  return buffer.as<const T>();
}

Pass PassBuffers::upload(const RowBatch& batch) {
  FS_CHECK(batch.num_rows() <= max_rows_ && batch.num_sequences() <= max_sequences_, batch.num_rows(), " rows of ",
           batch.num_sequences(), " sequences, limits ", max_rows_, " and ", max_sequences_);
  Pass pass;
  pass.num_rows = batch.num_rows();
  pass.num_sequences = batch.num_sequences();
  pass.num_logit_rows = static_cast<int>(batch.logit_rows.size());
  pass.tokens = copy(tokens_, batch.tokens, "row tokens");
  pass.positions = copy(positions_, batch.positions, "row positions");
  pass.slots = copy(slots_, batch.slots, "row slots");
  pass.row_offsets = copy(row_offsets_, batch.row_offsets, "row offsets");
  pass.masks = copy(masks_, batch.masks, "row masks");
  pass.mask_bits = copy(mask_bits_, batch.mask_bits, "ancestor masks");
  pass.logit_rows = copy(logit_rows_, batch.logit_rows, "logit rows");
  pass.lists = copy(lists_, batch.kv.lists, "KV lists");
  pass.entries = copy(entries_, batch.kv.entries, "KV list entries");
  return pass;
}

}  // namespace fastspec
