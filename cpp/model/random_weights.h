// Weights of a shape without files, for measuring: their size is real, their values are noise.
#pragma once

#include <cstddef>
#include <vector>

#include "backend/device.h"
#include "model/model_config.h"
#include "model/weights.h"

namespace fastspec {

/// Writes the same pseudo-random block again and again: device memory that computes like real values, at the speed of
/// copying.
class NoiseFill {
 public:
  /// Values are uniform in [-amplitude, amplitude].
  NoiseFill(Device& device, DType dtype, float amplitude);
  /// `bytes` is a multiple of the element size.
  void fill(void* destination, std::size_t bytes) const;

 private:
  Device& device_;
  std::vector<std::byte> block_;
};

/// @throws Error(kOutOfMemory).
Weights random_weights(const ModelConfig& config, DType dtype, Device& device);

}  // namespace fastspec
