// Makes the plan of one step and list class on the device: one small CTA, no host round trip. Reads lengths, not K/V.
#include "attention/attention.h"
#include "common/warp.cuh"

namespace fastspec::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kMostUnits = 1 << 26;  // more than any item has
constexpr int kFewestGroups = 4;     // of CTAs on the same keys; fewer would leave too many CTAs over

/// Lowest position of rows [begin, end); every lane of the warp gets it.
__device__ int lowest_position(const std::int32_t* positions, int begin, int end) {
  int highest_negated = -0x7fffffff;
  for (int row = begin + static_cast<int>(threadIdx.x % kWarpSize); row < end; row += kWarpSize) {
    highest_negated = max(highest_negated, -positions[row]);
  }
  return -warp_max(highest_negated);
}

/// Everything of a sequence's plan but its place in the line; one warp a sequence.
__device__ void plan_sequences(const AttentionPlanParams& params) {
  const int group_size = params.num_heads / params.num_kv_heads;
  for (int s = static_cast<int>(threadIdx.x) / kWarpSize; s < params.num_sequences; s += kWarps) {
    const int begin = params.row_offsets[s];
    const int end = params.row_offsets[s + 1];
    const KvList list = params.lists[s];
    SequenceFacts facts;
    facts.row_begin = begin;
    facts.num_rows = end - begin;
    facts.entries_offset = list.offset;
    facts.list_length = list.length;
    facts.pages = list.pages;
    facts.mask = params.masks[s];
    if (params.window > 0 && list.pages && end > begin) {
      facts.lowest_position = lowest_position(params.positions, begin, end);
    }
    const SequencePlan plan = plan_sequence(facts, group_size, params.config.tile_rows, params.window, params.sinks);
    if (threadIdx.x % kWarpSize == 0) params.plan.sequences[s] = plan;
  }
}

/// Sum over the CTA, for every thread. `sums` is [kWarps]; needs a barrier before the next call with the same memory.
__device__ std::int64_t block_sum(std::int64_t value, std::int64_t* sums) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  if (thread % kWarpSize == 0) sums[thread / kWarpSize] = value;
  __syncthreads();
  std::int64_t total = 0;
  for (int warp = 0; warp < kWarps; ++warp) total += sums[warp];
  return total;
}

/// Calls `count(plan)` for every sequence and adds up.
template <typename Count>
__device__ std::int64_t sum_over_sequences(const AttentionPlanParams& params, std::int64_t* sums, const Count& count) {
  std::int64_t value = 0;
  for (int s = static_cast<int>(threadIdx.x); s < params.num_sequences; s += kThreads) {
    value += count(params.plan.sequences[s]);
  }
  __syncthreads();
  return block_sum(value, sums);
}

/// How the line is cut; its total is that of equal shares.
__device__ Line choose_line(const AttentionPlanParams& params, std::int64_t* sums) {
  const int heads = params.num_kv_heads;
  Line line;
  // Numbers are all equal just when their count times the sum of their squares is the square of their sum.
  const std::int64_t tiles = sum_over_sequences(params, sums, [](const SequencePlan& plan) { return plan.row_tiles; });
  const std::int64_t squares = sum_over_sequences(
      params, sums, [](const SequencePlan& plan) { return std::int64_t{plan.row_tiles} * plan.row_tiles; });
  const std::int64_t with_rows =
      sum_over_sequences(params, sums, [](const SequencePlan& plan) { return plan.row_tiles > 0 ? 1 : 0; });
  if (with_rows > 0 && tiles > with_rows && squares * with_rows == tiles * tiles &&
      tiles / with_rows <= params.config.num_ctas / kFewestGroups) {
    line.group_tiles = static_cast<int>(tiles / with_rows);
  }
  line.total = sum_over_sequences(params, sums,
                                  [&](const SequencePlan& plan) { return total_units(plan, heads, line.group_tiles); });
  const int num_sms = params.config.num_ctas / tile_ctas_per_sm(params.config.path, params.config.tile_rows);
  line.num_shares = shares_wanted(line.total * line.group_tiles, params.config.num_ctas, num_sms) / line.group_tiles;
  const int equal = max(kShortestShare, static_cast<int>(quotient(line.total + line.num_shares - 1, line.num_shares)));
  const auto shares_of = [&](int units) {
    return sum_over_sequences(
        params, sums, [&](const SequencePlan& plan) { return shares_taken(plan, heads, line.group_tiles, units); });
  };
  const std::int64_t items = shares_of(kMostUnits);
  if (items <= line.num_shares && shares_of(whole_share(equal)) == items) {
    line.share_units = whole_share(equal);
    return line;
  }
  for (int units = equal; units <= longest_fixed_share(equal); ++units) {
    if (shares_of(units) > line.num_shares) continue;
    line.share_units = units;
    break;
  }
  return line;
}

/// Inclusive prefix sum over the CTA; `sums` is [kThreads].
__device__ std::int64_t prefix_sum(std::int64_t value, std::int64_t* sums) {
  const int thread = static_cast<int>(threadIdx.x);
  sums[thread] = value;
  __syncthreads();
  for (int distance = 1; distance < kThreads; distance *= 2) {
    const std::int64_t before = thread >= distance ? sums[thread - distance] : 0;
    __syncthreads();
    value += before;
    sums[thread] = value;
    __syncthreads();
  }
  return value;
}

/// Puts the sequences in line and sets its total.
__device__ void place_sequences(const AttentionPlanParams& params, Line& line, std::int64_t* sums) {
  std::int64_t total = 0;
  for (int base = 0; base < params.num_sequences; base += kThreads) {
    const int s = base + static_cast<int>(threadIdx.x);
    std::int64_t units = 0;
    if (s < params.num_sequences) {
      SequencePlan& plan = params.plan.sequences[s];
      if (line.share_units > 0) plan.span = ceil_div(plan.units, line.share_units) * line.share_units;
      units = total_units(plan, params.num_kv_heads, line.group_tiles);
    }
    const std::int64_t end = total + prefix_sum(units, sums);
    if (s < params.num_sequences) {
      params.plan.sequences[s].start = end - units;
      params.plan.sequences[s].end = end;
    }
    total += sums[kThreads - 1];
    __syncthreads();  // before the next round overwrites sums
  }
  line.total = total;
}

__global__ void __launch_bounds__(kThreads) attention_plan_kernel(const __grid_constant__ AttentionPlanParams params) {
  __shared__ std::int64_t sums[kThreads];
  plan_sequences(params);
  __syncthreads();
  Line line = choose_line(params, sums);
  __syncthreads();
  place_sequences(params, line, sums);
  if (threadIdx.x == 0) {
    SequencePlan last;
    last.start = line.total;
    last.end = line.total;
    params.plan.sequences[params.num_sequences] = last;
  }
  __syncthreads();
  for (int cta = static_cast<int>(threadIdx.x); cta < params.config.num_ctas; cta += kThreads) {
    const int index = cta / line.group_tiles;
    CtaPlan plan;
    if (index < line.num_shares) {
      const Share share = share_of(line, index);
      plan.low = share.low;
      plan.high = share.high;
      plan.sequence = sequence_of_unit(params.plan.sequences, params.num_sequences, share.low);
      plan.plan = params.plan.sequences[plan.sequence];
      plan.line = line;
      plan.row_tile = line.group_tiles > 1 ? cta % line.group_tiles : -1;
    }
    params.plan.ctas[cta] = plan;
  }
}

}  // namespace

cudaError_t launch_attention_plan(const AttentionPlanParams& params, cudaStream_t stream) {
  if (params.config.path == AttentionPath::kPlain || params.num_sequences == 0) return cudaSuccess;
  if (params.num_sequences < 0 || params.num_kv_heads <= 0 || params.num_heads % params.num_kv_heads != 0 ||
      params.window < 0 || params.sinks < 0 || params.config.tile_rows <= 0 || params.config.num_ctas <= 0) {
    return cudaErrorInvalidValue;
  }
  attention_plan_kernel<<<1, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace fastspec::cuda
