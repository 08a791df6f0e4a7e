// Second half of filtering: gathers the tokens of the bins that hold the cutoff; the last block to finish a row sorts
// them and finds it. Where they are too many, one block searches the row digit by digit.
#include "sampling/filter.cuh"
#include "sampling/filter_launches.h"
#include "sampling/radix_search.cuh"
#include "sampling/sampling.h"

namespace fastspec::cuda {
namespace {

constexpr int kPerThread = kMaxGathered / kSamplingThreads;

/// Sorts `size` keys (a power of two), greatest first.
__device__ void sort_descending(SortKey* keys, int size) {
  for (int length = 2; length <= size; length *= 2) {
    for (int distance = length / 2; distance > 0; distance /= 2) {
      for (int i = static_cast<int>(threadIdx.x); i < size / 2; i += kSamplingThreads) {
        const int low = 2 * i - (i & (distance - 1));
        const int high = low + distance;
        const bool descending = (low & length) == 0;
        if ((keys[low] < keys[high]) == descending) {
          const SortKey kept = keys[low];
          keys[low] = keys[high];
          keys[high] = kept;
        }
      }
      __syncthreads();
    }
  }
}

/// Mass of keys[0 .. last] where `wanted` is 0; else the first index that reaches `wanted` is put into `crossing`,
/// which holds num_keys - 1 before.
__device__ std::uint64_t scan_masses(const SortKey* keys, int num_keys, float top, float temperature,
                                     std::uint64_t before, std::uint64_t wanted, int* crossing) {
  __shared__ unsigned long long sums[kSamplingThreads];
  const int thread = static_cast<int>(threadIdx.x);
  std::uint64_t own[kPerThread];
  std::uint64_t sum = 0;
  for (int i = 0; i < kPerThread; ++i) {
    const int at = thread * kPerThread + i;
    own[i] = at < num_keys ? mass_of(score_of(keys[at]), top, temperature) : 0;
    sum += own[i];
  }
  sums[thread] = sum;
  __syncthreads();
  std::uint64_t running = before;
  std::uint64_t total = before;
  for (int other = 0; other < kSamplingThreads; ++other) {
    if (other < thread) running += sums[other];
    total += sums[other];
  }
  __syncthreads();
  if (crossing != nullptr) {
    for (int i = 0; i < kPerThread; ++i) {
      const int at = thread * kPerThread + i;
      running += own[i];
      if (at < num_keys && running >= wanted) {
        atomicMin(crossing, at);
        break;
      }
    }
    __syncthreads();
  }
  return total;
}

/// The cutoff among the sorted tokens of the bins; the same in every thread.
__device__ SortKey cutoff_of_sorted(const SortKey* keys, const FilterState& state, const DeviceRule& rule, float top) {
  __shared__ int crossing;
  int num_keys = state.num_tokens;
  if (state.by_count) num_keys = static_cast<int>(rule.top_k - state.count_before);  // at least 1: the bin crosses
  if (filters_by_mass(rule)) {
    std::uint64_t wanted = state.mass_target;
    if (state.by_count) {
      wanted = mass_target(rule.top_p, scan_masses(keys, num_keys, top, rule.temperature, 0, 0, nullptr));
    }
    if (threadIdx.x == 0) crossing = num_keys - 1;
    __syncthreads();
    scan_masses(keys, num_keys, top, rule.temperature, state.mass_before, wanted, &crossing);
    num_keys = crossing + 1;
  }
  return keys[num_keys - 1];
}

__device__ SortKey search_row(const Row& row, const DeviceRule& rule, const RowStatistics& statistics,
                              const FilterState& state, DigitCounts& digits) {
  Found found{0, 0};
  std::uint64_t wanted = state.mass_target;
  if (state.by_count) {
    const Search search{false, static_cast<std::uint64_t>(rule.top_k), 0};
    found = radix_search(row, statistics, rule.temperature, search, digits);
    wanted = mass_target(rule.top_p, found.mass);
  }
  if (filters_by_mass(rule)) {
    found = radix_search(row, statistics, rule.temperature, {true, wanted, found.cutoff}, digits);
  }
  return found.cutoff;
}

__device__ void gather_chunk(const Row& row, int begin, int end, float top, const FilterState& state, int* num_gathered,
                             SortKey* gathered) {
  for_each_quad(row, begin, end, [&](int token, const float4& quad) {
    const float values[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (values[i] == -kInfinity) continue;
      const int bin = bin_of(values[i], top, state.bin_scale);
      if (bin < state.first_bin || bin > state.last_bin) continue;
      gathered[atomicAdd(num_gathered, 1)] = sort_key(values[i], static_cast<std::uint32_t>(token + i));
    }
  });
}

/// Block (chunk, filtered row).
__global__ void __launch_bounds__(kSamplingThreads) cutoff_kernel(SamplingBatch batch) {
  __shared__ SortKey keys[kMaxGathered];
  __shared__ DigitCounts digits;
  const int filter_row = static_cast<int>(blockIdx.y);
  const int task_index = filtered_task(batch, filter_row);
  const RowTask task = task_at(batch, task_index);
  if (is_idle(batch, task) || task.filter_row < 0) return;
  const DeviceRule rule = batch.rules[task.rule];
  const RowStatistics statistics = final_statistics(batch, task_index);
  if (is_hopeless(statistics) || is_greedy(statistics, rule)) return;
  FilterState* place = batch.filters + filter_row;
  const FilterState state = *place;
  if (state.first_bin > state.last_bin) return;  // everything is kept

  const Row row = final_row(batch, task);
  if (state.num_tokens > kMaxGathered) {
    if (blockIdx.x != 0) return;
    const SortKey cutoff = search_row(row, rule, statistics, state, digits);
    if (threadIdx.x == 0) place->cutoff = cutoff;
    return;
  }
  SortKey* gathered = batch.gathered + std::int64_t{filter_row} * kMaxGathered;
  const int begin = static_cast<int>(blockIdx.x) * batch.chunk_size;
  const int end = min(begin + batch.chunk_size, row.size);
  gather_chunk(row, begin, end, statistics.top, state, &place->num_gathered, gathered);
  if (!is_last_arrival(batch.arrivals + filter_row, batch.num_chunks)) return;

  int size = 2;
  while (size < state.num_tokens) size *= 2;
  const auto* source = reinterpret_cast<const unsigned long long*>(gathered);
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kSamplingThreads) {
    keys[i] = i < state.num_tokens ? __ldcg(source + i) : 0;
  }
  __syncthreads();
  sort_descending(keys, size);
  const SortKey cutoff = cutoff_of_sorted(keys, state, rule, statistics.top);
  if (threadIdx.x == 0) {
    place->cutoff = cutoff;
    place->num_gathered = 0;
  }
}

}  // namespace

void launch_cutoff(const SamplingBatch& batch, cudaStream_t stream) {
  cutoff_kernel<<<dim3(batch.num_chunks, batch.num_filtered), kSamplingThreads, 0, stream>>>(batch);
}

void launch_filters(const SamplingBatch& batch, cudaStream_t stream) {
  if (batch.num_filtered == 0) return;
  launch_histogram(batch, stream);
  launch_cutoff(batch, stream);
}

}  // namespace fastspec::cuda
