// The groups of cases that ops_check runs.
#pragma once

#include "cuda/ops_gpu.h"
#include "cuda/ops_report.h"

namespace fastspec::gpu_check {

/// Embedding, norms, linear, SiLU, merge.
void check_layers(Sides& sides, Report& report);
/// RoPE with K/V writes, attention, slot copies.
void check_kv_operations(Sides& sides, Report& report);
/// Scores, page bounds and selection of sparse passes.
void check_sparse(Sides& sides, Report& report);
/// Accept, on a float32 backend.
void check_sampling(Sides& sides, Report& report);
/// Propose and grow_beam, on a float32 backend.
void check_proposals(Sides& sides, Report& report);
/// Whole drafts of LongSpec, on a float32 backend.
void check_drafts(Sides& sides, Report& report);
/// Whole engines of the tiny model against the reference.
void check_engines(const std::string& device, Report& report);

}  // namespace fastspec::gpu_check
