// The K/V tensors of one model: [layer][page][kv_head][K,V][slot][head_dim]. Owns memory; knows no sequences.
#pragma once

#include <cstddef>
#include <vector>

#include "backend/device.h"
#include "backend/params.h"

namespace fastspec {

/// Sizes of one model's K/V, enough to plan memory.
struct KvShape {
  int num_layers = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  DType dtype = DType::kFloat32;

  std::size_t bytes_per_token() const { return std::size_t{2} * num_layers * num_kv_heads * head_dim * size_of(dtype); }
};

class KvPool {
 public:
  /// @param num_pages pages of `page_size` slots (a power of two), scratch pages included.
  /// @throws Error(kOutOfMemory).
  KvPool(Device& device, const KvShape& shape, int num_pages, int page_size);

  const KvView& layer(int index) const { return layers_[index]; }
  const std::vector<KvView>& layers() const { return layers_; }
  std::size_t bytes_per_token() const { return bytes_per_token_; }

 private:
  std::size_t bytes_per_token_;
  Buffer buffer_;
  std::vector<KvView> layers_;
};

}  // namespace fastspec
