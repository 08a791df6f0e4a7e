// One pass's rows in device memory. Uploads a RowBatch into buffers that are allocated once; computes nothing.
#pragma once

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

/// Buffers for passes of up to `max_rows` rows and `max_sequences` sequences; each upload replaces the last.
class PassBuffers {
 public:
  PassBuffers(Device& device, int max_rows, int max_sequences);
  /// @throws Error(kInternal) for a batch beyond the limits.
  Pass upload(const RowBatch& batch);

 private:
  template <typename T>
  const T* copy(Buffer& buffer, const std::vector<T>& values, const char* what);

  Device& device_;
  int max_rows_;
  int max_sequences_;
  Buffer tokens_, positions_, slots_, row_offsets_, masks_, mask_bits_, logit_rows_, lists_, entries_;
};

}  // namespace fastspec
