// Which attention kernel answers a pass, and the sizes of its workspace and plan. Pure functions of shapes and device
// limits; no CUDA header.
#pragma once

#include <fastspec/tensor.h>

#include <cstddef>
#include <cstdint>

#include "attention/partition.h"

namespace fastspec::cuda {

/// What a device offers; from cudaDeviceProp.
struct DeviceLimits {
  int num_sms = 0;
  int shared_per_block = 0;    // bytes, sharedMemPerBlockOptin
  int shared_per_sm = 0;       // bytes, sharedMemPerMultiprocessor
  int compute_capability = 0;  // 10 * major + minor
};

enum class AttentionPath : std::uint8_t {
  kPlain,   // any element type, any strides; one CTA a (row, head); for tests and small models
  kMma,     // 16-bit, any device from 8.0 on
  kHopper,  // 16-bit, warpgroup instructions of 9.0
};

/// The kernel that answers a pass.
struct AttentionConfig {
  AttentionPath path = AttentionPath::kPlain;
  int padded_dim = 0;  // head_dim rounded up to 64, 96, 128 or 256
  int tile_rows = 0;   // packed rows a tile: 16, 32, 64 or 128 (32 where padded_dim is 256)
  int num_ctas = 0;
};

struct AttentionChoice {
  DType dtype = DType::kFloat32;  // of query, output and K/V
  int head_dim = 0;
  int packed_rows = 0;       // rows of a typical sequence x query heads of a K/V head; a hint, any value is right
  bool allow_hopper = true;  // false forces the path without Hopper instructions
};

constexpr int kMaxHeadDim = 256;        // of the tile kernels
constexpr int kMaxTileRowsPerSm = 128;  // tile_rows x CTAs on one SM: what bounds the workspace

/// Head sizes that tile kernels exist for; 0 where only the plain kernel answers.
constexpr int padded_head_dim(int head_dim) {
  if (head_dim <= 0 || head_dim % 8 != 0 || head_dim > kMaxHeadDim) return 0;
  return head_dim <= 64 ? 64 : head_dim <= 96 ? 96 : head_dim <= 128 ? 128 : 256;
}

/// CTAs that are meant to share an SM.
constexpr int tile_ctas_per_sm(int tile_rows) {
  return tile_rows == 128 ? 1 : 2;
}

constexpr AttentionConfig choose_attention(const AttentionChoice& choice, const DeviceLimits& limits) {
  AttentionConfig config;
  const int padded = padded_head_dim(choice.head_dim);
  if (choice.dtype == DType::kFloat32 || padded == 0 || limits.compute_capability < 80) return config;
  config.padded_dim = padded;
  const int rows = choice.packed_rows;
  config.tile_rows = padded == 256 ? 32 : rows <= 16 ? 16 : rows <= 32 ? 32 : rows <= 64 ? 64 : 128;
  config.num_ctas = limits.num_sms * tile_ctas_per_sm(config.tile_rows);
  const bool hopper = choice.allow_hopper && limits.compute_capability == 90 && (padded == 64 || padded == 128) &&
                      config.tile_rows >= 64;
  config.path = hopper ? AttentionPath::kHopper : AttentionPath::kMma;
  return config;
}

/// Byte offsets within the workspace, the same for every config of one device and head size.
struct AttentionWorkspace {
  std::size_t counters = 0;     // int [2 * num_sms]
  std::size_t partial_lse = 0;  // float [2 * num_ctas, tile_rows]
  std::size_t partial = 0;      // float [2 * num_ctas, tile_rows, padded_dim]
  std::size_t bytes = 0;
};

constexpr AttentionWorkspace attention_workspace(int num_sms, int head_dim) {
  const auto aligned = [](std::size_t bytes) { return (bytes + 255) / 256 * 256; };
  const std::size_t rows = std::size_t{2} * static_cast<std::size_t>(num_sms) * kMaxTileRowsPerSm;
  AttentionWorkspace workspace;
  workspace.partial_lse = aligned(std::size_t{2} * static_cast<std::size_t>(num_sms) * sizeof(int));
  workspace.partial = workspace.partial_lse + aligned(rows * sizeof(float));
  workspace.bytes =
      workspace.partial + aligned(rows * static_cast<std::size_t>(padded_head_dim(head_dim)) * sizeof(float));
  return workspace;
}

/// Device memory for partial results, shared by all launches on one stream. A function of the device and the head size
/// alone. Must be zeroed once (its counters then reset themselves).
constexpr std::size_t attention_workspace_bytes(int num_sms, int head_dim) {
  return attention_workspace(num_sms, head_dim).bytes;
}

/// Where a CTA begins.
struct CtaPlan {
  std::int64_t low = 0;
  std::int64_t high = 0;
  std::int32_t sequence = 0;  // first sequence of its share
  std::int32_t padding = 0;
};

/// Device memory of one plan. Valid for passes with the same rows, lists, masks, positions, window and config.
struct AttentionPlan {
  SequencePlan* sequences = nullptr;  // [num_sequences + 1]
  CtaPlan* ctas = nullptr;            // [num_ctas]
};

/// Bytes of one plan for at most `max_sequences` and any config of the device.
constexpr std::size_t attention_plan_bytes(int num_sms, int max_sequences) {
  return (static_cast<std::size_t>(max_sequences) + 1) * sizeof(SequencePlan) +
         std::size_t{2} * static_cast<std::size_t>(num_sms) * sizeof(CtaPlan);
}

/// Lays a plan out in 16-byte-aligned device memory of attention_plan_bytes.
inline AttentionPlan attention_plan_at(void* memory, int max_sequences) {
  AttentionPlan plan;
  plan.sequences = static_cast<SequencePlan*>(memory);
  plan.ctas = reinterpret_cast<CtaPlan*>(plan.sequences + max_sequences + 1);
  return plan;
}

}  // namespace fastspec::cuda
