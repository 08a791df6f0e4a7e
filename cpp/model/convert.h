// Conversion of arrays between the element types of checkpoints. Host memory only; no shapes, no tensors.
#pragma once

#include <fastspec/tensor.h>

#include <cstddef>

namespace fastspec {

/// Converts `count` elements, rounding to nearest even where the target is narrower; NaN stays NaN, and what float16
/// cannot hold becomes infinite. `source` may be unaligned; the ranges must not overlap.
void convert_elements(const std::byte* source, DType source_dtype, std::byte* destination, DType destination_dtype,
                      std::size_t count);

}  // namespace fastspec
