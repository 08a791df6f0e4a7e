// From the parts of an item in the workspace to its result: the CTA that brings the last part merges all of them in
// piece order; of many parts, first the neighbours in a group and then the groups. No CTA waits for another one.
//
// The time is that of dependent reads from L2, not of bytes: a warp takes several rows at once and keeps as many loads
// in flight as registers hold.
#pragma once

#include "attention/tile_output.cuh"

namespace fastspec::cuda {

/// Counts this CTA in; true in all threads that do math for the CTA that is the last of `count`. Call with the part
/// written by all of them. The barriers carry one thread's release and acquire to all the others.
template <typename Traits>
__device__ bool is_last(int* counter, int count, int* flag) {
  Traits::sync_math();
  if (threadIdx.x == 0) {
    int before = 0;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;\n" : "=r"(before) : "l"(counter) : "memory");
    const bool last = before == count - 1;
    if (last) *counter = 0;  // for the next launch
    *flag = last ? 1 : 0;
  }
  Traits::sync_math();
  return *flag != 0;
}

/// Merges `num_rows` rows of the tile, of parts 0, `step`, 2 * `step` ... below parts.count (32 at most), kRows of them
/// a warp at a time; `store(row, column, four values, base-2 LSE)` takes the results.
template <typename Traits, int kRows, int kParts, typename Store>
__device__ void merge_rows(const TileLaunch& launch, const ItemParts& parts, int num_rows, const Store& store) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  for (int first_row = warp; first_row < num_rows; first_row += kRows * Traits::kWarps) {
    const auto row_of = [&](int i) { return min(first_row + i * Traits::kWarps, num_rows - 1); };
    float lse[kRows];
    float weight[kRows];  // of part `lane`
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      lse[i] =
          lane < parts.count ? __ldcg(partial_row<Traits>(launch, parts.slot(lane), row_of(i)).lse) : kMinusInfinity;
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float top = warp_max(lse[i]);
      weight[i] = fast_exp2(lse[i] - (top == kMinusInfinity ? 0.0f : top));
      const float sum = warp_sum(weight[i]);
      weight[i] *= inverse_or_zero(sum);
      lse[i] = base2_lse(top, sum);
    }
#pragma unroll
    for (int vector = 0; vector < (Traits::kDim + 127) / 128; ++vector) {
      const int column = vector * 128 + lane * 4;
      float total[kRows][4] = {};
      const bool inside = column < Traits::kDim;
      for (int base = 0; base < parts.count; base += kParts) {
        float4 values[kRows][kParts];
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
            values[i][part] = make_float4(0, 0, 0, 0);
            if (inside && base + part < parts.count) {
              const float* source = partial_row<Traits>(launch, parts.slot(base + part), row_of(i)).output;
              values[i][part] = __ldcg(reinterpret_cast<const float4*>(source + column));
            }
          }
        }
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
            const float part_weight = __shfl_sync(kAllLanes, weight[i], (base + part) % kWarpSize);
            total[i][0] = fmaf(part_weight, values[i][part].x, total[i][0]);
            total[i][1] = fmaf(part_weight, values[i][part].y, total[i][1]);
            total[i][2] = fmaf(part_weight, values[i][part].z, total[i][2]);
            total[i][3] = fmaf(part_weight, values[i][part].w, total[i][3]);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (inside && first_row + i * Traits::kWarps < num_rows) store(row_of(i), column, total[i], lse[i]);
      }
    }
  }
}

/// Few rows: many parts at a time; many rows: many of those.
template <typename Traits, typename Store>
__device__ void merge_tile(const TileLaunch& launch, const ItemParts& parts, int num_rows, const Store& store) {
  if (num_rows <= 2 * Traits::kWarps) {
    merge_rows<Traits, 2, 8>(launch, parts, num_rows, store);
  } else {
    merge_rows<Traits, 8, 2>(launch, parts, num_rows, store);
  }
}

/// Counts the CTA's part in and merges where it was the last.
template <typename Traits>
__device__ void finish_part(const TileLaunch& launch, const Item& item, const ItemParts& parts, int* flag) {
  using T = typename Traits::T;
  const int num_rows = item.packed_in_tile(Traits::kRows);
  const int group = parts.group();
  ItemParts merged = parts;
  int* counter = launch.counters + parts.first_cta;
  int target_slot = -1;  // none: the output
  if (group < parts.count) {
    const int own_part = (static_cast<int>(blockIdx.x) - parts.first_cta) / parts.stride;
    merged = parts.neighbours(own_part - own_part % group, group);
    target_slot = merged.slot(0);  // in place of the first part: each row is read and written by one warp
    counter = launch.counters + gridDim.x + target_slot;
  }
#pragma unroll 1
  while (is_last<Traits>(counter, merged.count, flag)) {
    merge_tile<Traits>(launch, merged, num_rows, [&](int row, int column, const float (&values)[4], float lse) {
      if (target_slot >= 0) {
        const OutputRow<float> target = partial_row<Traits>(launch, target_slot, row);
        *reinterpret_cast<float4*>(target.output + column) = make_float4(values[0], values[1], values[2], values[3]);
        if (column == 0) *target.lse = lse;
      } else if (column < launch.params.kv.head_dim) {
        const OutputRow<T> target = final_row<T>(launch.params, item, item.first_packed + row);
        const uint2 packed = make_uint2(pack_pair<T>(values[0], values[1]), pack_pair<T>(values[2], values[3]));
        *reinterpret_cast<uint2*>(target.output + column) = packed;
        if (column == 0 && target.lse != nullptr) *target.lse = lse * kLn2;
      }
    });
    if (target_slot < 0) return;
    merged = parts.groups();
    counter = launch.counters + parts.first_cta;
    target_slot = -1;
  }
}

}  // namespace fastspec::cuda
