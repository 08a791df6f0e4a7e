// See attention_problem.h.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

#include "cuda/attention_problem.h"
#include "support/kv_layout.h"

namespace fastspec::gpu_check {
namespace {

int uniform(std::mt19937_64& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

std::int64_t element_index(const KvView& kv, Slot slot, int head, int which, int d) {
  const Slot page_size = Slot{1} << kv.page_shift;
  return slot / page_size * kv.page_stride + slot % page_size * kv.slot_stride + head * kv.head_stride +
         which * kv.value_offset + d;
}

bool window_lets(const AttentionParams& params, int row_position, int key_position) {
  if (params.window == 0) return true;
  return key_position > row_position - params.window || key_position < params.sinks;
}

std::vector<Slot> visible_slots(const Problem& problem, int sequence, int row) {
  const AttentionParams& params = problem.params;
  const Slot page_size = Slot{1} << params.kv.page_shift;
  const KvList& list = problem.lists[sequence];
  const int begin = problem.row_offsets[sequence];
  std::vector<Slot> seen;
  for (int key = 0; key < list.length; ++key) {
    if (list.pages && !window_lets(params, problem.positions[row], key)) continue;
    seen.push_back(list.pages ? problem.entries[list.offset + key / page_size] * page_size + key % page_size
                              : problem.entries[list.offset + key]);
  }
  for (int other = begin; other < problem.row_offsets[sequence + 1]; ++other) {
    bool allowed = false;
    switch (problem.masks[sequence]) {
      case NewMask::kCausal:
        allowed = other <= row;
        break;
      case NewMask::kAncestor:
        allowed = problem.mask_bits[row * kMaskWords + (other - begin) / 64] >> ((other - begin) % 64) & 1;
        break;
      case NewMask::kFull:
        allowed = true;
        break;
      case NewMask::kNone:
        break;
    }
    if (allowed && window_lets(params, problem.positions[row], problem.positions[other])) {
      seen.push_back(problem.slots[other]);
    }
  }
  return seen;
}

void solve_head(const Problem& problem, const std::vector<Slot>& seen, int row, int head, Solution& solution) {
  const AttentionParams& params = problem.params;
  const KvView& kv = params.kv;
  const int kv_head = head / problem.spec.group_size;
  std::vector<double> query(kv.head_dim), logits(seen.size());
  for (int d = 0; d < kv.head_dim; ++d) {
    query[d] = read_element(problem.query.data(), kv.dtype, row * params.query.stride + head * kv.head_dim + d);
  }
  double top = -std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < seen.size(); ++i) {
    double sum = 0;
    const std::int64_t at = element_index(kv, seen[i], kv_head, 0, 0);
    for (int d = 0; d < kv.head_dim; ++d) sum += query[d] * read_element(problem.pool.data(), kv.dtype, at + d);
    logits[i] = sum * params.scale;
    top = std::max(top, logits[i]);
  }
  const std::int64_t index = std::int64_t{row} * params.num_heads + head;
  solution.lse[index] = -std::numeric_limits<double>::infinity();
  if (seen.empty()) return;
  double total = 0;
  for (double& logit : logits) total += logit = std::exp(logit - top);
  solution.lse[index] = top + std::log(total);
  double* output = &solution.output[index * kv.head_dim];
  double* magnitude = &solution.magnitude[index * kv.head_dim];
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const std::int64_t at = element_index(kv, seen[i], kv_head, 1, 0);
    for (int d = 0; d < kv.head_dim; ++d) {
      const double value = read_element(problem.pool.data(), kv.dtype, at + d);
      output[d] += logits[i] / total * value;
      magnitude[d] += logits[i] / total * std::abs(value);
    }
  }
}

}  // namespace

double read_element(const void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::kFloat32:
      return static_cast<const float*>(data)[index];
    case DType::kBFloat16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[index]);
    case DType::kFloat16:
      return __half2float(static_cast<const __half*>(data)[index]);
  }
  return 0;
}

void write_element(void* data, DType dtype, std::int64_t index, double value) {
  const float narrow = static_cast<float>(value);
  switch (dtype) {
    case DType::kFloat32:
      static_cast<float*>(data)[index] = narrow;
      break;
    case DType::kBFloat16:
      static_cast<__nv_bfloat16*>(data)[index] = __float2bfloat16(narrow);
      break;
    case DType::kFloat16:
      static_cast<__half*>(data)[index] = __float2half(narrow);
      break;
  }
}

double output_tolerance(DType dtype, double value, double magnitude) {
  const double half_ulp = dtype == DType::kBFloat16 ? 0x1p-8 : dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-24;
  // Output rounding, weight rounding, and float accumulation of scores and values.
  return 1.01 * half_ulp * (std::abs(value) + magnitude) + 3e-5 * magnitude + 1e-6;
}

double lse_tolerance(DType dtype, double value) {
  return (dtype == DType::kFloat32 ? 1e-5 : 2e-5) * (1 + std::abs(value));
}

Problem::Problem(const ProblemSpec& problem_spec, std::uint64_t seed) : spec(problem_spec), random_(seed) {
  const int page_size = 1 << spec.page_shift;
  int num_pages = 3;
  for (const SequenceSpec& sequence : spec.sequences) {
    num_pages += sequence.cached / page_size + sequence.rows / page_size + 5;
  }
  params.kv = {.dtype = spec.dtype,
               .page_shift = spec.page_shift,
               .num_kv_heads = spec.num_kv_heads,
               .head_dim = spec.head_dim};
  pool = testing::make_gapped_pool(params.kv, num_pages);
  for (int page = 0; page < num_pages; ++page) free_pages_.push_back(page);
  std::shuffle(free_pages_.begin(), free_pages_.end(), random_);

  row_offsets.push_back(0);
  for (const SequenceSpec& sequence : spec.sequences) {
    add_list(sequence);
    add_rows(sequence);
  }
  rows = row_offsets.back();
  params.num_heads = spec.num_kv_heads * spec.group_size;
  params.scale = spec.scale / std::sqrt(static_cast<float>(spec.head_dim));
  params.num_sequences = static_cast<int>(spec.sequences.size());
  params.window = spec.window;
  params.sinks = spec.sinks;
  fill_query();
}

Slot Problem::take_page() {
  const Slot page = free_pages_.back();
  free_pages_.pop_back();
  return page;
}

void Problem::fill_slot(Slot slot) {
  std::normal_distribution<double> normal;
  for (int head = 0; head < spec.num_kv_heads; ++head) {
    for (int which = 0; which < 2; ++which) {
      for (int d = 0; d < spec.head_dim; ++d) {
        write_element(pool.data(), spec.dtype, element_index(params.kv, slot, head, which, d), normal(random_));
      }
    }
  }
}

void Problem::add_list(const SequenceSpec& sequence) {
  const int page_size = 1 << spec.page_shift;
  const bool first = lists.empty();
  const KvList shared = first ? KvList{} : lists.front();
  lists.push_back({static_cast<std::int64_t>(entries.size()), sequence.cached, sequence.pages});
  if (!sequence.pages) {
    std::vector<Slot> owned;
    while (static_cast<int>(owned.size()) < sequence.cached + page_size) {
      const Slot base = take_page() * page_size;
      for (int i = 0; i < page_size; ++i) owned.push_back(base + i);
    }
    std::shuffle(owned.begin(), owned.end(), random_);
    owned.resize(static_cast<std::size_t>(sequence.cached));
    for (const Slot slot : owned) fill_slot(slot);
    entries.insert(entries.end(), owned.begin(), owned.end());
    return;
  }
  const int shared_pages = spec.share_pages && !first && shared.pages ? shared.length / page_size : 0;
  for (int index = 0; index * page_size < sequence.cached; ++index) {
    if (index < shared_pages) {
      entries.push_back(entries[static_cast<std::size_t>(shared.offset + index)]);
      continue;
    }
    entries.push_back(take_page());
    for (int i = index * page_size; i < std::min(sequence.cached, (index + 1) * page_size); ++i) {
      fill_slot(entries.back() * page_size + i % page_size);
    }
  }
}

void Problem::add_rows(const SequenceSpec& sequence) {
  const int page_size = 1 << spec.page_shift;
  const int begin = row_offsets.back();
  masks.push_back(sequence.mask);
  Slot page = 0;
  for (int row = 0; row < sequence.rows; ++row) {
    if (row % page_size == 0) page = take_page();
    slots.push_back(page * page_size + (page_size - 1 - row % page_size));  // not in order
    fill_slot(slots.back());
    std::uint64_t bits[kMaskWords] = {};
    int position = sequence.cached + sequence.gap + row;
    if (sequence.mask == NewMask::kAncestor) {
      const int parent = row == 0 ? -1 : uniform(random_, std::max(0, row - 9), row - 1);
      if (parent >= 0) {
        std::copy_n(&mask_bits[static_cast<std::size_t>((begin + parent) * kMaskWords)], kMaskWords, bits);
      }
      bits[row / 64] |= std::uint64_t{1} << (row % 64);
      position = parent < 0 ? sequence.cached + sequence.gap : positions[static_cast<std::size_t>(begin + parent)] + 1;
    }
    positions.push_back(position);
    mask_bits.insert(mask_bits.end(), bits, bits + kMaskWords);
  }
  row_offsets.push_back(begin + sequence.rows);
}

void Problem::fill_query() {
  const int width = params.num_heads * spec.head_dim;
  const int stride = width + 16;
  const int all_rows = rows + spec.padding_rows;
  query.assign(static_cast<std::size_t>(all_rows * stride) * size_of(spec.dtype), 0xff);
  std::normal_distribution<double> normal;
  for (int row = 0; row < rows; ++row) {
    for (int i = 0; i < width; ++i) {
      write_element(query.data(), spec.dtype, std::int64_t{row} * stride + i, normal(random_));
    }
  }
  params.query = {nullptr, spec.dtype, all_rows, width, stride};
  params.output = params.query;
}

Solution solve(const Problem& problem) {
  const AttentionParams& params = problem.params;
  const std::size_t size = static_cast<std::size_t>(problem.rows) * params.num_heads;
  Solution solution;
  solution.output.resize(size * params.kv.head_dim);
  solution.magnitude.resize(size * params.kv.head_dim);
  solution.lse.resize(size);
  const int num_threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<std::thread> threads;
  for (int thread = 0; thread < num_threads; ++thread) {
    threads.emplace_back([&, thread] {
      int sequence = 0;
      for (int row = thread; row < problem.rows; row += num_threads) {
        while (row >= problem.row_offsets[sequence + 1]) ++sequence;
        const std::vector<Slot> seen = visible_slots(problem, sequence, row);
        for (int head = 0; head < params.num_heads; ++head) solve_head(problem, seen, row, head, solution);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return solution;
}

}  // namespace fastspec::gpu_check
