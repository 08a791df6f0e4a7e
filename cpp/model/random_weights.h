// Weights of a shape without files, for measuring: their size is real, their values are noise.
#pragma once

#include <cstddef>
#include <utility>
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

/// Makes tensors one by one, and owns their memory until it is taken.
class RandomWeights {
 public:
  RandomWeights(Device& device, DType dtype);

  Weight matrix(int out_features, int in_features);
  Vector vector(int size);
  LayerWeights layer(const ModelConfig& config);
  std::vector<Buffer> take_buffers() { return std::move(buffers_); }

 private:
  Device& device_;
  DType dtype_;
  NoiseFill matrices_;
  NoiseFill vectors_;
  std::vector<Buffer> buffers_;
};

/// @throws Error(kOutOfMemory).
Weights random_weights(const ModelConfig& config, DType dtype, Device& device);

}  // namespace fastspec
