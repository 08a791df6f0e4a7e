// The attention kernels behind a C interface, so that tools/bench_tree_attention.py can run them beside others in one
// process: trees of equal size over paged prefixes of equal length, bf16. Owns lists, plan and workspace; all else is
// the caller's device memory. Must not decide anything about attention: kernel and plan are chosen as the backend does.
#include <cuda_bf16.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include "attention/attention.h"
#include "cuda/device_memory.h"

namespace fastspec::gpu_check {

/// Mirrored by a ctypes structure in tools/tree_attention/ways.py. The pool of one layer is
/// [pages, num_kv_heads, 2 (K, V), 2^page_shift, head_dim].
struct TreeShape {
  int batch;
  int rows;     // nodes of a tree, root included: at most 256
  int context;  // cached keys of a sequence
  int num_heads;
  int num_kv_heads;
  int head_dim;
  int page_shift;
};

class TreeAttention {
 public:
  /// @param pages [batch, ceil(context / page size)] page ids, on the device, as are
  /// @param slots [batch * rows] where the rows' own K and V lie, and
  /// @param mask_bits [batch * rows, kMaskWords].
  TreeAttention(const TreeShape& shape, const Slot* pages, const Slot* slots, const std::uint64_t* mask_bits)
      : shape_(shape), limits_(device_limits()) {
    std::vector<std::int32_t> row_offsets{0}, positions;
    std::vector<KvList> lists;
    const int pages_each = (shape.context + (1 << shape.page_shift) - 1) >> shape.page_shift;
    for (int i = 0; i < shape.batch; ++i) {
      lists.push_back({std::int64_t{i} * pages_each, shape.context, true});
      row_offsets.push_back((i + 1) * shape.rows);
      for (int row = 0; row < shape.rows; ++row) positions.push_back(shape.context + row);
    }
    row_offsets_ = DeviceArray<std::int32_t>(row_offsets);
    positions_ = DeviceArray<std::int32_t>(positions);
    lists_ = DeviceArray<KvList>(lists);
    masks_ = DeviceArray<NewMask>(std::vector<NewMask>(lists.size(), NewMask::kAncestor));
    plan_memory_ = DeviceArray<unsigned char>(cuda::attention_plan_bytes(limits_.num_sms, shape.batch));
    workspace_ = DeviceArray<unsigned char>(cuda::attention_workspace_bytes(limits_.num_sms, shape.head_dim));
    workspace_.fill_bytes(0);
    plan_ = cuda::attention_plan_at(plan_memory_.data(), shape.batch);
    config_ = cuda::choose_attention({.dtype = DType::kBFloat16,
                                      .head_dim = shape.head_dim,
                                      .packed_rows = shape.rows * shape.num_heads / shape.num_kv_heads,
                                      .num_sequences = shape.batch},
                                     limits_);
    fill_params(pages, slots, mask_bits);
    check(cudaDeviceSynchronize(), "TreeAttention");
  }

  cudaError_t plan(cudaStream_t stream) const {
    cuda::AttentionPlanParams params;
    params.num_sequences = params_.num_sequences;
    params.num_heads = params_.num_heads;
    params.num_kv_heads = params_.kv.num_kv_heads;
    params.row_offsets = params_.row_offsets;
    params.lists = params_.lists;
    params.masks = params_.masks;
    params.positions = params_.positions;
    params.config = config_;
    params.plan = plan_;
    return cuda::launch_attention_plan(params, stream);
  }

  cudaError_t attend(void* query, void* layer, void* output, float* lse, cudaStream_t stream) {
    params_.query.data = query;
    params_.kv.base = layer;
    params_.output.data = output;
    params_.lse = lse;
    return cuda::launch_attention(params_, config_, plan_, workspace_.data(), stream);
  }

 private:
  void fill_params(const Slot* pages, const Slot* slots, const std::uint64_t* mask_bits) {
    const int rows = shape_.batch * shape_.rows, width = shape_.num_heads * shape_.head_dim;
    params_.query = {nullptr, DType::kBFloat16, rows, width, width};
    params_.output = params_.query;
    params_.num_heads = shape_.num_heads;
    params_.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    params_.num_sequences = shape_.batch;
    params_.max_rows_per_sequence = shape_.rows;
    params_.row_offsets = row_offsets_.data();
    params_.lists = lists_.data();
    params_.entries = pages;
    params_.masks = masks_.data();
    params_.mask_bits = mask_bits;
    params_.positions = positions_.data();
    params_.slots = slots;
    KvView& kv = params_.kv;
    kv.dtype = DType::kBFloat16;
    kv.page_shift = shape_.page_shift;
    kv.num_kv_heads = shape_.num_kv_heads;
    kv.head_dim = shape_.head_dim;
    kv.slot_stride = shape_.head_dim;
    kv.value_offset = std::int64_t{shape_.head_dim} << shape_.page_shift;
    kv.head_stride = 2 * kv.value_offset;
    kv.page_stride = shape_.num_kv_heads * kv.head_stride;
  }

  TreeShape shape_;
  cuda::DeviceLimits limits_;
  DeviceArray<std::int32_t> row_offsets_, positions_;
  DeviceArray<KvList> lists_;
  DeviceArray<NewMask> masks_;
  DeviceArray<unsigned char> plan_memory_, workspace_;
  cuda::AttentionPlan plan_;
  cuda::AttentionConfig config_;
  AttentionParams params_;
};

}  // namespace fastspec::gpu_check

using fastspec::gpu_check::TreeAttention;

extern "C" {

/// Null on failure, which is then printed to stderr.
TreeAttention* fastspec_tree_attention_create(const fastspec::gpu_check::TreeShape* shape, const fastspec::Slot* pages,
                                              const fastspec::Slot* slots, const std::uint64_t* mask_bits) {
  try {
    return std::make_unique<TreeAttention>(*shape, pages, slots, mask_bits).release();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fastspec_tree_attention_create: %s\n", error.what());
    return nullptr;
  }
}

/// Once a step; cudaError_t.
int fastspec_tree_attention_plan(const TreeAttention* attention, cudaStream_t stream) {
  return attention->plan(stream);
}

/// One layer; cudaError_t. query, output: bf16 [batch * rows, num_heads * head_dim]; lse: [batch * rows, num_heads].
int fastspec_tree_attention_attend(TreeAttention* attention, void* query, void* layer, void* output, float* lse,
                                   cudaStream_t stream) {
  return attention->attend(query, layer, output, lse, stream);
}

void fastspec_tree_attention_destroy(TreeAttention* attention) {
  delete attention;
}

const char* fastspec_tree_attention_error(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}
}
