// One pass's rows in device memory. Uploads a RowBatch into memory that is allocated once; computes nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "backend/device.h"
#include "backend/params.h"
#include "step/row_batch.h"

namespace fastspec {

/// Device pointers to the arrays of a RowBatch; shapes as there.
struct Pass {
  int num_rows = 0;
  int num_sequences = 0;
  int num_logit_rows = 0;
  int max_rows_per_sequence = 0;  // at least that of the largest sequence; 0 = unknown
  HostSequences host;             // the batch's own arrays, while they live; null in a pass that is recorded
  const TokenId* tokens = nullptr;
  const std::int32_t* positions = nullptr;
  const Slot* slots = nullptr;
  const std::int32_t* row_offsets = nullptr;
  const NewMask* masks = nullptr;
  const std::uint64_t* mask_bits = nullptr;
  const std::int32_t* logit_rows = nullptr;
  const KvList* lists = nullptr;
  const Slot* entries = nullptr;
};

struct PassLimits {
  int max_rows = 0;
  int max_sequences = 0;
  std::int64_t max_list_entries = 0;  // page ids of all sequences together
};

/// Memory for passes within the limits; each upload replaces the last. Every array keeps its address, but the list
/// entries, whose limit few workloads come near: they move when they outgrow their memory.
class PassBuffers {
 public:
  PassBuffers(Device& device, const PassLimits& limits);
  /// Device memory that passes within the limits take at most.
  static std::size_t device_bytes(const PassLimits& limits);
  /// @throws Error(kInternal) for a batch beyond the limits.
  Pass upload(const RowBatch& batch);
  /// Grows when an array moves: what holds the pointers of an earlier pass must let go of them.
  int generation() const { return generation_; }

 private:
  static constexpr int kNumArrays = 8;
  using Offsets = std::array<std::size_t, kNumArrays + 1>;
  static Offsets lay_out(const PassLimits& limits);
  template <typename T>
  const T* stage(int array, const std::vector<T>& values);

  Device& device_;
  PassLimits limits_;
  const Slot* upload_entries(const std::vector<Slot>& entries);
  void reserve_entries(std::size_t count);

  Offsets offsets_;       // of each array, in bytes
  std::size_t used_ = 0;  // bytes of this upload
  Buffer host_, device_memory_;
  Buffer host_entries_, device_entries_;
  int generation_ = 0;
};

}  // namespace fastspec
