// First half of filtering: a histogram of a row's logits by distance from the largest; the last block to finish a row
// finds the bins that hold the cutoff.
#include "sampling/filter.cuh"
#include "sampling/filter_launches.h"
#include "sampling/sampling.h"

namespace fastspec::cuda {
namespace {

constexpr int kBinsPerThread = kBins / kSamplingThreads;

struct Histogram {
  std::uint32_t counts[kBins];
  std::uint32_t low_masses[kBins];
  std::uint32_t high_masses[kBins];
};

__device__ void count_chunk(const Row& row, int begin, int end, float top, float scale, bool with_mass,
                            float temperature, Histogram& histogram) {
  for_each_quad(row, begin, end, [&](int, const float4& quad) {
    const float values[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (values[i] == -kInfinity) continue;
      const int bin = bin_of(values[i], top, scale);
      atomicAdd(&histogram.counts[bin], 1u);
      if (!with_mass) continue;
      const std::uint64_t mass = mass_of(values[i], top, temperature);
      atomicAdd(&histogram.low_masses[bin], static_cast<std::uint32_t>(mass) & ((1u << kLowMassBits) - 1));
      atomicAdd(&histogram.high_masses[bin], static_cast<std::uint32_t>(mass >> kLowMassBits));
    }
  });
}

/// Sum over this thread's bins and over those of the threads before it.
struct Running {
  std::int64_t count;
  std::uint64_t mass;
};

/// Exclusive sums over the block's threads, and the total.
__device__ Running exclusive_sum(Running own, Running& total) {
  __shared__ Running sums[kSamplingThreads];
  const int thread = static_cast<int>(threadIdx.x);
  sums[thread] = own;
  __syncthreads();
  for (int distance = 1; distance < kSamplingThreads; distance *= 2) {
    Running other{0, 0};
    if (thread >= distance) other = sums[thread - distance];
    __syncthreads();
    sums[thread].count += other.count;
    sums[thread].mass += other.mass;
    __syncthreads();
  }
  total = sums[kSamplingThreads - 1];
  const Running before = thread > 0 ? sums[thread - 1] : Running{0, 0};
  __syncthreads();
  return before;
}

/// Finds the bins with the cutoff from the row's whole histogram, in one block.
__device__ void find_bins(const SamplingBatch& batch, const DeviceRule& rule, int filter_row, float scale) {
  std::uint32_t* counts = batch.bin_counts + std::int64_t{filter_row} * kBins;
  std::uint64_t* masses = batch.bin_masses + std::int64_t{filter_row} * kBins;
  FilterState& state = batch.filters[filter_row];
  const int first_bin = static_cast<int>(threadIdx.x) * kBinsPerThread;
  Running bins[kBinsPerThread];
  Running own{0, 0};
#pragma unroll
  for (int i = 0; i < kBinsPerThread; ++i) {
    bins[i] = {__ldcg(counts + first_bin + i),
               __ldcg(reinterpret_cast<const unsigned long long*>(masses) + first_bin + i)};
    own.count += bins[i].count;
    own.mass += bins[i].mass;
    counts[first_bin + i] = 0;
    masses[first_bin + i] = 0;
  }
  Running total;
  Running running = exclusive_sum(own, total);

  const bool by_count = filters_by_count(rule, batch.logits.cols) && rule.top_k < total.count;
  const bool by_mass = filters_by_mass(rule);
  const std::uint64_t target = mass_target(rule.top_p, total.mass);
  if (threadIdx.x == 0) {
    state.cutoff = 0;
    state.bin_scale = scale;
    state.by_count = by_count;
    state.first_bin = 1;
    state.last_bin = 0;
    state.num_tokens = 0;
    state.mass_target = target;
  }
  __syncthreads();
  if (!by_count && !by_mass) return;
  for (int i = 0; i < kBinsPerThread; ++i) {
    const Running before = running;
    running.count += bins[i].count;
    running.mass += bins[i].mass;
    if (bins[i].count == 0) continue;
    // Exactly one bin of the block crosses; an empty one never does.
    const bool crosses = by_count ? before.count < rule.top_k && running.count >= rule.top_k
                                  : (before.mass < target || before.count == 0) && running.mass >= target;
    if (!crosses) continue;
    state.last_bin = first_bin + i;
    // The mass of the k best is known only once they are: with both filters everything up to the bin is sorted.
    const bool whole = by_count && by_mass;
    state.first_bin = whole ? 0 : first_bin + i;
    state.count_before = whole ? 0 : before.count;
    state.mass_before = whole ? 0 : before.mass;
    state.num_tokens = static_cast<int>(whole ? running.count : bins[i].count);
  }
}

/// Block (chunk, filtered row).
__global__ void __launch_bounds__(kSamplingThreads) histogram_kernel(SamplingBatch batch) {
  __shared__ Histogram histogram;
  const int filter_row = static_cast<int>(blockIdx.y);
  const int task_index = filtered_task(batch, filter_row);
  const RowTask task = task_at(batch, task_index);
  if (is_idle(batch, task) || task.filter_row < 0) return;
  const DeviceRule rule = batch.rules[task.rule];
  const RowStatistics statistics = final_statistics(batch, task_index);
  if (is_hopeless(statistics) || is_greedy(statistics, rule)) return;  // nothing is filtered; so in every block

  const int thread = static_cast<int>(threadIdx.x);
  for (int bin = thread; bin < kBins; bin += kSamplingThreads) {
    histogram.counts[bin] = 0;
    histogram.low_masses[bin] = 0;
    histogram.high_masses[bin] = 0;
  }
  __syncthreads();
  const Row row = final_row(batch, task);
  const int begin = static_cast<int>(blockIdx.x) * batch.chunk_size;
  const int end = min(begin + batch.chunk_size, row.size);
  const float scale = bin_scale(statistics, rule.temperature);
  count_chunk(row, begin, end, statistics.top, scale, filters_by_mass(rule), rule.temperature, histogram);
  __syncthreads();
  auto* masses = reinterpret_cast<unsigned long long*>(batch.bin_masses + std::int64_t{filter_row} * kBins);
  for (int bin = thread; bin < kBins; bin += kSamplingThreads) {
    if (histogram.counts[bin] == 0) continue;
    atomicAdd(batch.bin_counts + std::int64_t{filter_row} * kBins + bin, histogram.counts[bin]);
    const auto mass =
        (static_cast<unsigned long long>(histogram.high_masses[bin]) << kLowMassBits) + histogram.low_masses[bin];
    if (mass > 0) atomicAdd(masses + bin, mass);
  }
  if (is_last_arrival(batch.arrivals + filter_row, batch.num_chunks)) find_bins(batch, rule, filter_row, scale);
}

}  // namespace

void launch_histogram(const SamplingBatch& batch, cudaStream_t stream) {
  histogram_kernel<<<dim3(batch.num_chunks, batch.num_filtered), kSamplingThreads, 0, stream>>>(batch);
}

}  // namespace fastspec::cuda
