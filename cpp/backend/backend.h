// Chooses a backend by device name. The only place of the project that knows which backends were built.
#pragma once

#include <fastspec/tensor.h>

#include <memory>
#include <string_view>

#include "backend/device.h"
#include "backend/ops.h"

namespace fastspec {

struct Backend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
};

/// @param device "cpu" (fast path), "cpu:reference" (row-invariant float32, for tests and for bit-exact runs), "cuda"
/// or
///        "cuda:N" (the first, or the N-th GPU).
/// @param dtype of weights and K/V; activations follow Ops::activation_dtype().
/// @param num_threads 0 = one per core.
/// @throws Error(kInvalidArgument) for another name, Error(kUnsupported) for a backend this build lacks.
Backend make_backend(std::string_view device, DType dtype, int num_threads);

}  // namespace fastspec
