// Lays a RowBatch out in one block and copies it.
#include "model/pass.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/check.h"

namespace fastspec {

PassBuffers::Offsets PassBuffers::lay_out(const PassLimits& limits) {
  const auto rows = static_cast<std::size_t>(limits.max_rows);
  const auto sequences = static_cast<std::size_t>(limits.max_sequences);
  const std::array<std::size_t, kNumArrays> bytes = {
      rows * sizeof(TokenId),      rows * sizeof(std::int32_t),
      rows * sizeof(Slot),         (sequences + 1) * sizeof(std::int32_t),
      sequences * sizeof(NewMask), rows * kMaskWords * sizeof(std::uint64_t),
      rows * sizeof(std::int32_t), sequences * sizeof(KvList),
  };
  constexpr std::size_t kAlignment = 64;
  Offsets offsets{};
  for (int array = 0; array < kNumArrays; ++array) {
    offsets[array + 1] = (offsets[array] + bytes[array] + kAlignment - 1) / kAlignment * kAlignment;
  }
  return offsets;
}

std::size_t PassBuffers::device_bytes(const PassLimits& limits) {
  return lay_out(limits).back() + static_cast<std::size_t>(limits.max_list_entries) * sizeof(Slot);
}

PassBuffers::PassBuffers(Device& device, const PassLimits& limits)
    : device_(device), limits_(limits), offsets_(lay_out(limits)) {
  host_ = device.allocate_host(offsets_.back(), "staging of pass arrays");
  device_memory_ = device.allocate(offsets_.back(), "pass arrays");
  constexpr std::int64_t kUsualEntries = 1 << 16;
  reserve_entries(static_cast<std::size_t>(std::min(limits.max_list_entries, kUsualEntries)));
}

void PassBuffers::reserve_entries(std::size_t count) {
  host_entries_ = device_.allocate_host(count * sizeof(Slot), "staging of KV list entries");
  device_entries_ = device_.allocate(count * sizeof(Slot), "KV list entries");
  ++generation_;
}

const Slot* PassBuffers::upload_entries(const std::vector<Slot>& entries) {
  const std::size_t bytes = entries.size() * sizeof(Slot);
  if (bytes > host_entries_.bytes()) {
    FS_CHECK(std::ssize(entries) <= limits_.max_list_entries, entries.size(), " list entries, limit ",
             limits_.max_list_entries);
    const auto limit = static_cast<std::size_t>(limits_.max_list_entries);
    reserve_entries(std::min(2 * entries.size(), limit));
  }
  if (bytes > 0) {
    std::memcpy(host_entries_.data(), entries.data(), bytes);
    device_.copy_to_device(device_entries_.data(), host_entries_.data(), bytes);
  }
  return device_entries_.as<const Slot>();
}

template <typename T>
const T* PassBuffers::stage(int array, const std::vector<T>& values) {
  const std::size_t bytes = values.size() * sizeof(T);
  FS_CHECK(offsets_[array] + bytes <= offsets_[array + 1], "array ", array, " of a pass takes ", bytes,
           " bytes, it has ", offsets_[array + 1] - offsets_[array]);
  if (bytes > 0) std::memcpy(host_.as<std::byte>() + offsets_[array], values.data(), bytes);
  used_ = offsets_[array] + bytes;
  return reinterpret_cast<const T*>(device_memory_.as<std::byte>() + offsets_[array]);
}

Pass PassBuffers::upload(const RowBatch& batch) {
  FS_CHECK(batch.num_rows() <= limits_.max_rows && batch.num_sequences() <= limits_.max_sequences, batch.num_rows(),
           " rows of ", batch.num_sequences(), " sequences, limits ", limits_.max_rows, " and ", limits_.max_sequences);
  Pass pass;
  pass.num_rows = batch.num_rows();
  pass.num_sequences = batch.num_sequences();
  pass.num_logit_rows = static_cast<int>(batch.logit_rows.size());
  pass.host = {batch.row_offsets.data(), batch.kv.lists.data(), batch.masks.data()};
  pass.tokens = stage(0, batch.tokens);
  pass.positions = stage(1, batch.positions);
  pass.slots = stage(2, batch.slots);
  pass.row_offsets = stage(3, batch.row_offsets);
  pass.masks = stage(4, batch.masks);
  pass.mask_bits = stage(5, batch.mask_bits);
  pass.logit_rows = stage(6, batch.logit_rows);
  pass.lists = stage(7, batch.kv.lists);
  device_.copy_to_device(device_memory_.data(), host_.data(), used_);
  pass.entries = upload_entries(batch.kv.entries);
  return pass;
}

}  // namespace fastspec
