// Attention on the device: the plan of its work, and the launch. Torch-free; nothing here allocates, waits, or reads
// device memory on the host, so every launch may be captured in a graph.
//
//   config = choose_attention(...)                             host, once per (row tier, head shape); config.h
//   launch_attention_plan({...}, stream)                       once a step and list class (window, sinks)
//   launch_attention(params, config, plan, workspace, stream)  every layer of that class
//
// Grids depend on the config (kPlain: on the number of rows) only, never on lengths or on how rows fall to sequences:
// those are read on the device.
#pragma once

#include <cuda_runtime_api.h>

#include "attention/config.h"
#include "backend/params.h"

namespace fastspec::cuda {

struct AttentionPlanParams {
  int num_sequences = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  const std::int32_t* row_offsets = nullptr;  // [num_sequences + 1]
  const KvList* lists = nullptr;              // [num_sequences]
  const NewMask* masks = nullptr;             // [num_sequences]
  const std::int32_t* positions = nullptr;    // [rows]; read where window > 0
  int window = 0;
  int sinks = 0;
  AttentionConfig config;
  AttentionPlan plan;  // written
};

/// Does nothing for AttentionPath::kPlain, which needs no plan.
cudaError_t launch_attention_plan(const AttentionPlanParams& params, cudaStream_t stream);

/// O and LSE of a pass. `params` as in backend/params.h, all pointers on the device; rows at or past
/// row_offsets[num_sequences] are left alone. `plan` must have been made in the same step, with the same config.
/// @param workspace attention_workspace_bytes, 256-byte aligned, zeroed once; unused by kPlain.
/// @returns cudaErrorInvalidValue for shapes or element types that the config does not cover,
///          cudaErrorMisalignedAddress where kMma or kHopper meet data or strides that are no multiple of 16 bytes.
cudaError_t launch_attention(const AttentionParams& params, const AttentionConfig& config, const AttentionPlan& plan,
                             void* workspace, cudaStream_t stream);

}  // namespace fastspec::cuda
