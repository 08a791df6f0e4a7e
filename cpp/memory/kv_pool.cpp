// Allocation of the K/V tensors and their strided views.
#include "memory/kv_pool.h"

#include <bit>

#include "base/check.h"

namespace fastspec {

KvPool::KvPool(Device& device, const KvShape& shape, int num_pages, int page_size)
    : bytes_per_token_(shape.bytes_per_token()) {
  FS_CHECK(page_size > 0 && std::has_single_bit(static_cast<unsigned>(page_size)), "page size ", page_size);
  const std::int64_t value_offset = std::int64_t{page_size} * shape.head_dim;
  const std::int64_t head_stride = 2 * value_offset;
  const std::int64_t page_stride = shape.num_kv_heads * head_stride;
  const std::int64_t layer_stride = num_pages * page_stride;
  buffer_ =
      device.allocate(static_cast<std::size_t>(layer_stride) * shape.num_layers * size_of(shape.dtype), "the KV cache");
  layers_.reserve(shape.num_layers);
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    KvView view;
    view.base = buffer_.as<std::byte>() + static_cast<std::size_t>(layer_stride) * layer * size_of(shape.dtype);
    view.dtype = shape.dtype;
    view.page_shift = std::countr_zero(static_cast<unsigned>(page_size));
    view.num_kv_heads = shape.num_kv_heads;
    view.head_dim = shape.head_dim;
    view.page_stride = page_stride;
    view.head_stride = head_stride;
    view.value_offset = value_offset;
    view.slot_stride = shape.head_dim;
    layers_.push_back(view);
  }
}

}  // namespace fastspec
