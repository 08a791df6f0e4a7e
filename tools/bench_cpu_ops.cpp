// Times the CPU backend's operations at the shapes of SmolLM2-135M beside the memory's read rate, measured in the same
// run. Variants are interleaved; medians of the repetitions. Prints, asserts nothing.
//
// bench_cpu_ops [threads] [repetitions] [linear | attention | sampling | all] [kernel table | reference]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/fast_ops.h"
#include "backend/cpu/thread_pool.h"

namespace fastspec {
namespace {

constexpr int kHidden = 576, kQkv = 960, kGateUp = 3072, kIntermediate = 1536, kLayers = 30, kVocab = 49152;
constexpr int kHeads = 9, kKvHeads = 3, kHeadDim = 64;

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Sums a buffer far larger than the caches; GB/s.
double read_rate(cpu::ThreadPool& pool, const Buffer& buffer) {
  const auto words = static_cast<std::int64_t>(buffer.bytes() / 8);
  const auto* data = buffer.as<std::uint64_t>();
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(pool.num_threads()) * 8);
  const auto start = std::chrono::steady_clock::now();
  pool.parallel_for(words, 512, [&](std::int64_t begin, std::int64_t end, int thread) {
    std::uint64_t lanes[8] = {};
    for (std::int64_t i = begin; i + 8 <= end; i += 8) {
      __builtin_prefetch(data + i + 256);
      for (int lane = 0; lane < 8; ++lane) lanes[lane] ^= data[i + lane];
    }
    for (std::uint64_t lane : lanes) sums[static_cast<std::size_t>(thread) * 8] ^= lane;
  });
  const double elapsed = milliseconds_since(start);
  if (sums[0] == 42) std::puts("");  // the sums are used
  return static_cast<double>(buffer.bytes()) / elapsed / 1e6;
}

Buffer random_buffer(Device& device, DType dtype, std::size_t elements) {
  Buffer buffer = device.allocate(elements * size_of(dtype), "benchmark");
  std::mt19937 random(1);
  // Small finite values of any type: the bits of a float or a bfloat16 around 1/64.
  for (std::size_t i = 0; i < elements; ++i) {
    const std::uint32_t bits = 0x3c000000u | (random() & 0x807f0000u);
    if (dtype == DType::kFloat32) {
      buffer.as<std::uint32_t>()[i] = bits;
    } else {
      buffer.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(bits >> 16);
    }
  }
  return buffer;
}

/// The linear layers of the whole model and its head, each layer with its own weights.
class Model {
 public:
  Model(Device& device, DType dtype) : dtype_(dtype) {
    const std::size_t layer = std::size_t{kHidden} * (kQkv + kHidden + kGateUp + kIntermediate);
    weights_ = random_buffer(device, dtype, layer * kLayers + std::size_t{kHidden} * kVocab);
    activations_ = random_buffer(device, DType::kFloat32, std::size_t{512} * (kVocab + 2 * kGateUp));
  }

  void run(Ops& ops, int rows, bool head) {
    const auto* next = weights_.as<char>();
    const auto weight = [&](int out, int in) {
      const Weight result{next, dtype_, out, in};
      next += std::size_t(out) * in * size_of(dtype_);
      return result;
    };
    const auto matrix = [&](std::size_t offset, int cols) {
      return Matrix{activations_.as<float>() + offset, DType::kFloat32, rows, cols, cols};
    };
    const std::size_t second = std::size_t{512} * kGateUp;
    for (int layer = 0; layer < kLayers; ++layer) {
      ops.linear({matrix(0, kHidden), weight(kQkv, kHidden), {}, false, matrix(second, kQkv)});
      ops.linear({matrix(0, kHidden), weight(kHidden, kHidden), {}, false, matrix(second, kHidden)});
      ops.linear({matrix(0, kHidden), weight(kGateUp, kHidden), {}, false, matrix(second, kGateUp)});
      ops.linear({matrix(0, kIntermediate), weight(kHidden, kIntermediate), {}, false, matrix(second, kHidden)});
    }
    if (head) ops.linear({matrix(0, kHidden), weight(kVocab, kHidden), {}, false, matrix(second, kVocab)});
  }

  double bytes(bool head) const {
    const double rows = double(kLayers) * (kQkv + kHidden + kGateUp + kIntermediate) + (head ? kVocab : 0);
    return rows * kHidden * static_cast<double>(size_of(dtype_));
  }
  double flops(int rows, bool head) const { return 2.0 * rows * bytes(head) / static_cast<double>(size_of(dtype_)); }

 private:
  DType dtype_;
  Buffer weights_, activations_;
};

void bench_linear(Backend& backend, cpu::ThreadPool& pool, const Buffer& read_buffer, int repetitions) {
  const std::vector<int> row_counts = {1, 2, 4, 8, 12, 16, 24, 32, 64, 128, 512};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Model model(*backend.device, dtype);
    std::vector<std::vector<double>> times(row_counts.size());
    std::vector<double> rates;
    for (int repetition = 0; repetition <= repetitions; ++repetition) {  // the first is a warm-up
      const double rate = read_rate(pool, read_buffer);
      if (repetition > 0) rates.push_back(rate);
      for (std::size_t i = 0; i < row_counts.size(); ++i) {
        const auto start = std::chrono::steady_clock::now();
        model.run(*backend.ops, row_counts[i], row_counts[i] <= 64);
        if (repetition > 0) times[i].push_back(milliseconds_since(start));
      }
    }
    const double rate = median(rates);
    std::printf("\nlinear layers, %s, read rate %.1f GB/s (best %.1f)\n", to_string(dtype), rate,
                *std::max_element(rates.begin(), rates.end()));
    std::printf("%6s %10s %10s %8s %8s %9s %9s\n", "rows", "median ms", "best ms", "GB/s", "share", "GFLOP/s",
                "x 1 row");
    for (std::size_t i = 0; i < row_counts.size(); ++i) {
      const bool head = row_counts[i] <= 64;
      const double time = median(times[i]);
      const double best = *std::min_element(times[i].begin(), times[i].end());
      std::printf("%6d %10.2f %10.2f %8.1f %7.0f%% %9.0f %9.2f%s\n", row_counts[i], time, best,
                  model.bytes(head) / time / 1e6, 100 * model.bytes(head) / time / 1e6 / rate,
                  model.flops(row_counts[i], head) / time / 1e6, time / median(times[0]), head ? "" : "  (no head)");
    }
  }
}

/// One layer's attention: `rows` new rows after `context` cached keys, on pages in random order.
void bench_attention(Backend& backend, int repetitions) {
  constexpr int kPageSize = 16, kNumLayers = 8, kMaxKeys = 9216;  // layers apart, so that keys come from memory
  std::printf("\nattention, one layer, %d heads, %d K/V heads x %d\n", kHeads, kKvHeads, kHeadDim);
  std::printf("%9s %9s %6s %10s %10s %8s\n", "dtype", "context", "rows", "median ms", "best ms", "GB/s");
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const std::int64_t page_stride = kKvHeads * 2 * kPageSize * kHeadDim;
    const std::size_t layer_elements = static_cast<std::size_t>(kMaxKeys / kPageSize * page_stride);
    const Buffer pool = random_buffer(*backend.device, dtype, layer_elements * kNumLayers);
    const Buffer activations = random_buffer(*backend.device, DType::kFloat32, 2 * 512 * kHeads * kHeadDim);
    std::vector<Slot> pages(kMaxKeys / kPageSize);
    for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<Slot>(i);
    std::shuffle(pages.begin(), pages.end(), std::mt19937(2));
    for (const auto& [context, rows] : {std::pair{128, 1},
                                        {1024, 1},
                                        {1024, 4},
                                        {1024, 8},
                                        {1024, 16},
                                        {8192, 1},
                                        {8192, 8},
                                        {0, 128},
                                        {0, 512},
                                        {1024, 256},
                                        {8192, 256}}) {
      std::vector<std::int32_t> positions, offsets = {0, rows};
      std::vector<Slot> slots;
      for (int row = 0; row < rows; ++row) {
        positions.push_back(context + row);
        slots.push_back(pages[static_cast<std::size_t>((context + row) / kPageSize)] * kPageSize +
                        (context + row) % kPageSize);
      }
      const KvList list{0, context, true};
      const NewMask mask = NewMask::kCausal;
      AttentionParams params;
      const int width = kHeads * kHeadDim;
      params.query = {activations.data(), DType::kFloat32, rows, width, width};
      params.output = {activations.as<float>() + 512 * width, DType::kFloat32, rows, width, width};
      params.num_heads = kHeads;
      params.scale = 0.125f;
      params.num_sequences = 1;
      params.row_offsets = offsets.data();
      params.lists = &list;
      params.entries = pages.data();
      params.masks = &mask;
      params.positions = positions.data();
      params.slots = slots.data();
      std::vector<double> times;
      for (int i = 0; i < kNumLayers * repetitions; ++i) {
        char* base = pool.as<char>() + layer_elements * size_of(dtype) * static_cast<std::size_t>(i % kNumLayers);
        params.kv = {base,    dtype, 4, kKvHeads, kHeadDim, page_stride, 2 * kPageSize * kHeadDim, kPageSize * kHeadDim,
                     kHeadDim};
        const auto start = std::chrono::steady_clock::now();
        backend.ops->attention(params);
        if (i >= kNumLayers) times.push_back(milliseconds_since(start));
      }
      const double bytes = 2.0 * (context + rows) * kKvHeads * kHeadDim * static_cast<double>(size_of(dtype));
      std::printf("%9s %9d %6d %10.3f %10.3f %8.1f\n", to_string(dtype), context, rows, median(times),
                  *std::min_element(times.begin(), times.end()), bytes / median(times) / 1e6);
    }
  }
}

void bench_sampling(Backend& backend, int repetitions) {
  std::printf("\nsampling, one row of %d logits\n", kVocab);
  std::vector<float> logits(kVocab);
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 3);
  for (float& logit : logits) logit = normal(random);
  struct Case {
    const char* name;
    SamplingRule rule;
    bool wants_logprob;
  };
  std::vector<Case> cases(6);
  for (Case& item : cases) item = {"temperature 1", {}, false};
  cases[0].name = "greedy";
  cases[0].rule.temperature = 0;
  cases[1] = cases[0];
  cases[1].name = "greedy, logprob";
  cases[1].wants_logprob = true;
  cases[3].name = "top_k 50";
  cases[3].rule.top_k = 50;
  cases[4].name = "top_p 0.95";
  cases[4].rule.top_p = 0.95f;
  cases[5].name = "min_p 0.05";
  cases[5].rule.min_p = 0.05f;
  const TokenId token = 1;
  const std::int32_t parent = -1, row = 0;
  for (const Case& item : cases) {
    std::vector<double> times, propose_times;
    for (int i = 0; i < 10 * repetitions; ++i) {
      AcceptTree tree{1, &token, &parent, &row, i, item.rule, item.wants_logprob, 0};
      SampledToken sampled;
      std::int32_t path;
      AcceptResult result;
      result.path = &path;
      result.sampled = &sampled;
      const Matrix matrix{logits.data(), DType::kFloat32, 1, kVocab, kVocab};
      auto start = std::chrono::steady_clock::now();
      backend.ops->accept({matrix, &tree, &result, 1});
      times.push_back(milliseconds_since(start));
      TokenId proposal;
      float confidence;
      ProposeParams propose;
      propose.logits = matrix;
      backend.ops->set_rules({&item.rule, 1, kVocab});
      propose.positions = &i;
      propose.tokens = &proposal;
      propose.confidences = &confidence;
      start = std::chrono::steady_clock::now();
      backend.ops->propose(propose);
      propose_times.push_back(milliseconds_since(start));
    }
    std::printf("%18s  accept %7.3f ms  propose %7.3f ms\n", item.name, median(times), median(propose_times));
  }
}

int run(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 0;
  const int repetitions = argc > 2 ? std::max(1, std::atoi(argv[2])) : 7;
  const std::string only = argc > 3 ? argv[3] : "all";
  Backend backend = make_backend("cpu", DType::kFloat32, threads);
  if (argc > 4 && std::string(argv[4]) == "reference")
    backend = make_backend("cpu:reference", DType::kFloat32, threads);
  for (auto table = cpu::runnable_kernels(); argc > 4 && *table != nullptr; ++table) {
    if (std::string(argv[4]) == (*table)->name) backend.ops = std::make_unique<cpu::FastOps>(threads, **table);
  }
  cpu::ThreadPool pool(threads);
  const Buffer read_buffer = random_buffer(*backend.device, DType::kFloat32, std::size_t{1} << 26);
  {
    cpu::ThreadPool one(1);
    std::vector<double> single, all;
    for (int i = 0; i < repetitions; ++i) {
      single.push_back(read_rate(one, read_buffer));
      all.push_back(read_rate(pool, read_buffer));
    }
    std::printf("read rate: 1 thread %.1f GB/s, %d threads %.1f GB/s (medians)\n", median(single), pool.num_threads(),
                median(all));
  }
  if (only == "all" || only == "linear") bench_linear(backend, pool, read_buffer, repetitions);
  if (only == "all" || only == "attention") bench_attention(backend, repetitions);
  if (only == "all" || only == "sampling") bench_sampling(backend, repetitions);
  return 0;
}

}  // namespace
}  // namespace fastspec

int main(int argc, char** argv) {
  return fastspec::run(argc, argv);
}
