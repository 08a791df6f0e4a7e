// Times of the CUDA backend's operations besides attention, for the shapes of a 7B model: microseconds (medians), bytes
// that must move over time, and the share of the machine's read rate.
//   fastspec_cuda_speed_check [--device cuda:0] [--rate TB/s]
// Layers and products run inside captured graphs over several sets of data, so that no set stays in the cache; accept
// and propose are timed from call to return, as the engine waits for them. Exit code 77 where there is no GPU.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_ops.h"
#include "cuda/ops_gpu.h"

namespace fastspec::gpu_check {
namespace {

constexpr int kSets = 6;
constexpr int kHidden = 3584, kInner = 18944, kHeads = 28, kKvHeads = 4, kHeadDim = 128, kVocab = 152064, kLayers = 28;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  Bench(const std::string& device, double rate)
      : sides_(device, DType::kBFloat16),
        ops_(dynamic_cast<cuda::CudaOps&>(*sides_.gpu.ops)),
        stream_(ops_.context().stream()),
        rate_(rate) {
    cuda::check_cuda(cudaEventCreate(&begin_), "cudaEventCreate");
    cuda::check_cuda(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~Bench() {
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  cuda::CudaOps& ops() { return ops_; }

  /// Random bf16 numbers, `count` of them, made from a small pattern: contents matter little here, zeros would.
  Buffer numbers(std::size_t count) { return filled(count, DType::kBFloat16, 0.05f); }
  Buffer floats(std::size_t count) { return filled(count, DType::kFloat32, 3.0f); }
  template <typename T>
  Buffer put(const std::vector<T>& values) {
    return sides_.put(values);
  }

  /// `body(set)` enqueues one operation on data set 0 .. kSets - 1.
  double graph_microseconds(const std::function<void(int)>& body) {
    for (int set = 0; set < kSets; ++set) body(set);
    cuda::check_cuda(cudaStreamSynchronize(stream_), "warm-up");
    cudaGraph_t graph = nullptr;
    cuda::check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    constexpr int kRepeats = 4;
    for (int i = 0; i < kRepeats * kSets; ++i) body(i % kSets);
    cuda::check_cuda(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    cudaGraphExec_t executable = nullptr;
    cuda::check_cuda(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    std::vector<double> times;
    for (int run = 0; run < 12; ++run) {
      cuda::check_cuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
      cuda::check_cuda(cudaGraphLaunch(executable, stream_), "cudaGraphLaunch");
      cuda::check_cuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
      cuda::check_cuda(cudaEventSynchronize(end_), "cudaEventSynchronize");
      float milliseconds = 0;
      cuda::check_cuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
      if (run >= 2) times.push_back(milliseconds * 1e3 / (kRepeats * kSets));
    }
    cuda::check_cuda(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
    cuda::check_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    return median(times);
  }

  static double wall_microseconds(const std::function<void(int)>& body) {
    for (int set = 0; set < kSets; ++set) body(set);
    std::vector<double> times;
    for (int run = 0; run < 30; ++run) {
      const auto start = std::chrono::steady_clock::now();
      body(run % kSets);
      times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    }
    return median(times);
  }

  void print(const std::string& name, int rows, double microseconds, double bytes) const {
    const double gigabytes = bytes / microseconds * 1e-3;
    std::printf("%-34s %5d rows %9.2f us %8.1f GB/s %5.1f %% of %.2f TB/s\n", name.c_str(), rows, microseconds,
                gigabytes, gigabytes / rate_ * 0.1, rate_);
    std::fflush(stdout);
  }

 private:
  Buffer filled(std::size_t count, DType dtype, float scale) {
    Random random(count);
    constexpr std::size_t kPattern = 1 << 20;
    const std::vector<std::byte> pattern = to_bytes(normal(std::min(count, kPattern), scale, random), dtype);
    Buffer buffer = sides_.gpu.device->allocate(count * size_of(dtype), "bench data");
    for (std::size_t at = 0; at < buffer.bytes(); at += pattern.size()) {
      // Each part begins elsewhere in the pattern, so that rows differ.
      const std::size_t shift = at / pattern.size() * 4096 % pattern.size();
      const std::size_t size = std::min(pattern.size(), buffer.bytes() - at);
      std::vector<std::byte> part(pattern.begin() + static_cast<std::ptrdiff_t>(shift), pattern.end());
      part.insert(part.end(), pattern.begin(), pattern.begin() + static_cast<std::ptrdiff_t>(shift));
      sides_.gpu.device->copy_to_device(buffer.as<std::byte>() + at, part.data(), size);
    }
    return buffer;
  }

  Sides sides_;
  cuda::CudaOps& ops_;
  cudaStream_t stream_;
  double rate_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

Matrix rows_of(const Buffer& buffer, int set, int rows, int cols) {
  return {buffer.as<std::uint16_t>() + std::size_t(set) * rows * cols, DType::kBFloat16, rows, cols, cols};
}

void time_layers(Bench& bench, int rows) {
  const Buffer hidden = bench.numbers(std::size_t(kSets) * rows * kHidden);
  const Buffer hidden_out = bench.numbers(std::size_t(kSets) * rows * kHidden);
  const Buffer inner = bench.numbers(std::size_t(kSets) * rows * 2 * kInner);
  const Buffer inner_out = bench.numbers(std::size_t(kSets) * rows * kInner);
  const Buffer weight = bench.floats(kHidden), frequencies = bench.floats(kHeadDim / 2);
  cuda::CudaOps& ops = bench.ops();
  bench.print("rms_norm", rows, bench.graph_microseconds([&](int set) {
    ops.rms_norm({rows_of(hidden, set, rows, kHidden),
                  {weight.as<float>(), kHidden},
                  1e-6f,
                  nullptr,
                  rows_of(hidden_out, set, rows, kHidden)});
  }),
              4.0 * rows * kHidden);
  bench.print("silu_mul", rows, bench.graph_microseconds([&](int set) {
    ops.silu_mul({rows_of(inner, set, rows, 2 * kInner), rows_of(inner_out, set, rows, kInner)});
  }),
              6.0 * rows * kInner);

  const int qkv_size = (kHeads + 2 * kKvHeads) * kHeadDim;
  const Buffer qkv = bench.numbers(std::size_t(kSets) * rows * qkv_size);
  const Buffer pool = bench.numbers(std::size_t{2} * 16384 * kKvHeads * kHeadDim);
  std::vector<std::int32_t> positions(rows);
  std::vector<Slot> slots(rows);
  std::vector<TokenId> tokens(rows);
  for (int row = 0; row < rows; ++row) {
    positions[row] = 1000 + row;
    slots[row] = (row * 37) % 16384;
    tokens[row] = (row * 911) % 32768;
  }
  const Buffer device_positions = bench.put(positions), device_slots = bench.put(slots),
               device_tokens = bench.put(tokens);
  KvView kv{pool.data(),       DType::kBFloat16, 4,       kKvHeads, kHeadDim, 2 * 16 * kKvHeads * kHeadDim,
            2 * 16 * kHeadDim, 16 * kHeadDim,    kHeadDim};
  bench.print("rope_store", rows, bench.graph_microseconds([&](int set) {
    RopeStoreParams params;
    params.qkv = rows_of(qkv, set, rows, qkv_size);
    params.num_heads = kHeads;
    params.positions = device_positions.as<std::int32_t>();
    params.inverse_frequencies = frequencies.as<float>();
    params.slots = device_slots.as<Slot>();
    params.kv = kv;
    params.query = rows_of(hidden_out, set, rows, kHeads * kHeadDim);
    ops.rope_store(params);
  }),
              4.0 * rows * qkv_size);
  const Buffer table = bench.numbers(std::size_t{32768} * kHidden);
  bench.print("embed", rows, bench.graph_microseconds([&](int set) {
    ops.embed({device_tokens.as<TokenId>(),
               {table.data(), DType::kBFloat16, 32768, kHidden},
               rows_of(hidden_out, set, rows, kHidden)});
  }),
              4.0 * rows * kHidden);
}

void time_copy_slots(Bench& bench, int moves_count) {
  const std::size_t layer = std::size_t{2} * 4096 * kKvHeads * kHeadDim;
  const Buffer pool = bench.numbers(layer * kLayers);
  std::vector<KvView> layers;
  for (int i = 0; i < kLayers; ++i) {
    layers.push_back({pool.as<std::uint16_t>() + layer * i, DType::kBFloat16, 4, kKvHeads, kHeadDim,
                      2 * 16 * kKvHeads * kHeadDim, 2 * 16 * kHeadDim, 16 * kHeadDim, kHeadDim});
  }
  std::vector<SlotMove> moves;
  for (int i = 0; i < moves_count; ++i) moves.push_back({2048 + i * 7, i * 5});
  cuda::CudaOps& ops = bench.ops();
  const double time = Bench::wall_microseconds([&](int) {
    ops.copy_slots({layers.data(), kLayers, moves.data(), moves_count});
    cuda::check_cuda(cudaStreamSynchronize(ops.context().stream()), "copy_slots");
  });
  bench.print("copy_slots, 28 layers, call + wait", moves_count, time,
              2.0 * moves_count * kLayers * 2 * kKvHeads * kHeadDim * 2);
}

void time_linear(Bench& bench, const char* name, int in, int out, bool to_float) {
  const std::size_t elements = std::size_t(in) * out;
  const int copies = elements * 2 > (std::size_t{200} << 20) ? 1 : kSets;
  const Buffer weights = bench.numbers(elements * copies);
  for (const int rows : {1, 8, 16, 64, 128, 256}) {
    const Buffer input = bench.numbers(std::size_t(kSets) * rows * in);
    const Buffer output =
        to_float ? bench.floats(std::size_t(rows) * out) : bench.numbers(std::size_t(kSets) * rows * out);
    const auto params = [&](int set) {
      LinearParams linear;
      linear.input = rows_of(input, set, rows, in);
      linear.weight = {weights.as<std::uint16_t>() + elements * (set % copies), DType::kBFloat16, out, in};
      linear.output =
          to_float ? Matrix{output.data(), DType::kFloat32, rows, out, out} : rows_of(output, set, rows, out);
      return linear;
    };
    const auto run = [&](int set) { bench.ops().linear(params(set)); };
    const double bytes = 2.0 * elements + 2.0 * rows * in + (to_float ? 4.0 : 2.0) * rows * out;
    bench.print(std::string(name) + " first choice", rows, bench.graph_microseconds(run), bytes);
    (void)bench.ops().tune(params(0));
    bench.print(std::string(name) + " tuned", rows, bench.graph_microseconds(run), bytes);
  }
}

struct NamedRule {
  std::string name;
  SamplingRule rule;
  int top_logprobs = 0;
};

std::vector<NamedRule> sampling_rules(const std::vector<TokenCount>& counts) {
  SamplingRule plain;
  plain.seed = 7;
  SamplingRule greedy = plain, top_k = plain, top_p = plain, both = plain, min_p = plain, penalties = plain;
  greedy.temperature = 0;
  top_k.top_k = both.top_k = 50;
  top_p.top_p = both.top_p = 0.9f;
  min_p.min_p = 0.05f;
  penalties.repetition_penalty = 1.1f;
  penalties.counts = counts.data();
  penalties.num_counts = static_cast<int>(counts.size());
  return {{"greedy", greedy},
          {"temperature 1", plain},
          {"min-p", min_p},
          {"top-k 50", top_k},
          {"top-p 0.9", top_p},
          {"top-k 50, top-p 0.9", both},
          {"penalties 2000", penalties},
          {"greedy, 5 logprobs", greedy, 5}};
}

void time_sampling(Bench& bench, int rows) {
  const std::size_t row_elements = kVocab;
  const Buffer logits = bench.floats(row_elements * rows * kSets);
  const auto matrix = [&](int set) {
    return Matrix{logits.as<float>() + row_elements * rows * set, DType::kFloat32, rows, kVocab, kVocab};
  };
  std::vector<TokenCount> counts;
  for (int i = 0; i < 2000; ++i) counts.push_back({i * 71, 1 + i % 3, i % 2 == 0});
  const std::vector<TokenId> root_token(1, 0);
  const std::vector<std::int32_t> root_parent(1, -1);
  std::vector<std::int32_t> row_numbers(rows), paths(rows);
  for (int row = 0; row < rows; ++row) row_numbers[row] = row;
  std::vector<SampledToken> sampled(rows);
  std::vector<TopLogprob> top(std::size_t(rows) * 5);
  const double bytes = 4.0 * rows * kVocab;
  for (const NamedRule& named : sampling_rules(counts)) {
    std::vector<AcceptTree> trees;
    std::vector<AcceptResult> results(rows);
    for (int row = 0; row < rows; ++row) {
      trees.push_back({1, root_token.data(), root_parent.data(), &row_numbers[row], 100 + row, named.rule,
                       named.top_logprobs > 0, named.top_logprobs});
      results[row].path = &paths[row];
      results[row].sampled = &sampled[row];
      results[row].top_logprobs = named.top_logprobs > 0 ? &top[std::size_t(row) * 5] : nullptr;
    }
    const double time = Bench::wall_microseconds([&](int set) {
      bench.ops().accept({matrix(set), trees.data(), results.data(), rows});
      bench.ops().await_accept();
    });
    bench.print("accept " + named.name, rows, time, bytes);
  }
}

/// Proposals of a level and the growth of the next, as they lie in the recording of a draft: trees of `width` nodes a
/// level.
void time_proposals(Bench& bench, int num_trees, int width) {
  const int rows = num_trees * width, top_k = width, depth = 2;
  const std::size_t row_elements = kVocab;
  const Buffer logits = bench.floats(row_elements * rows * kSets);
  const Buffer positions = bench.put(std::vector<std::int32_t>(rows, 100));
  const Buffer paths = bench.put(std::vector<TokenId>(std::size_t(rows) * (depth + 1), 5));
  const Buffer child_paths = bench.put(std::vector<TokenId>(std::size_t(rows) * (depth + 1), 5));
  const Buffer slots = bench.put(std::vector<Slot>(std::size_t(rows) * depth, 7));
  const Buffer child_slots = bench.put(std::vector<Slot>(std::size_t(rows) * depth, 7));
  const Buffer scores = bench.put(std::vector<double>(rows, -1.0)), child_scores = bench.put(std::vector<double>(rows));
  const Buffer tokens = bench.put(std::vector<TokenId>(std::size_t(rows) * top_k));
  const Buffer child_tokens = bench.put(std::vector<TokenId>(rows));
  const Buffer confidences = bench.put(std::vector<float>(std::size_t(rows) * top_k, 0.1f));
  const Buffer nodes = bench.put(std::vector<BeamNode>(rows));
  SamplingRule greedy, noisy, filtered, penalised;
  greedy.temperature = 0;
  filtered.top_p = 0.9f;
  penalised.repetition_penalty = 1.1f;
  const std::pair<const char*, SamplingRule> rules[] = {
      {"greedy", greedy}, {"noise", noisy}, {"top-p 0.9", filtered}, {"penalties", penalised}};
  for (const auto& [name, rule] : rules) {
    const std::vector<SamplingRule> all(num_trees, rule);
    bench.ops().set_rules({all.data(), num_trees, kVocab});
    const double time = bench.graph_microseconds([&](int set) {
      bench.ops().propose(
          {.logits = {logits.as<float>() + row_elements * rows * set, DType::kFloat32, rows, kVocab, kVocab},
           .rows_per_rule = width,
           .positions = positions.as<const std::int32_t>(),
           .paths = paths.as<const TokenId>(),
           .path_length = depth,
           .top_k = top_k,
           .tokens = tokens.as<TokenId>(),
           .confidences = confidences.as<float>()});
    });
    bench.ops().await_proposals();
    bench.print(std::string("propose top_k ") + std::to_string(top_k) + " " + name, rows, time, 4.0 * rows * kVocab);
  }
  const double time = bench.graph_microseconds([&](int) {
    bench.ops().grow_beam({.num_trees = num_trees,
                           .num_parents = width,
                           .width = width,
                           .top_k = top_k,
                           .depth = depth,
                           .proposals = tokens.as<const TokenId>(),
                           .confidences = confidences.as<const float>(),
                           .scores = scores.as<const double>(),
                           .slots = slots.as<const Slot>(),
                           .ancestors = slots.as<const Slot>(),
                           .paths = paths.as<const TokenId>(),
                           .child_tokens = child_tokens.as<TokenId>(),
                           .child_scores = child_scores.as<double>(),
                           .child_ancestors = child_slots.as<Slot>(),
                           .child_paths = child_paths.as<TokenId>(),
                           .nodes = nodes.as<BeamNode>()});
  });
  bench.print("grow_beam width " + std::to_string(width), rows, time, 8.0 * rows * top_k);
}

void run(const std::string& device, double rate) {
  Bench bench(device, rate);
  for (const int rows : {1, 16, 64, 128, 2048}) time_layers(bench, rows);
  for (const int moves : {4, 64, 512}) time_copy_slots(bench, moves);
  for (const int rows : {1, 16, 64, 128}) time_sampling(bench, rows);
  for (const int trees : {1, 8}) {
    for (const int width : {1, 4, 16}) time_proposals(bench, trees, width);
  }
  time_linear(bench, "qkv", kHidden, (kHeads + 2 * kKvHeads) * kHeadDim, false);
  time_linear(bench, "o", kHidden, kHidden, false);
  time_linear(bench, "gate_up", kHidden, 2 * kInner, false);
  time_linear(bench, "down", kInner, kHidden, false);
  time_linear(bench, "lm_head", kHidden, kVocab, true);
}

}  // namespace
}  // namespace fastspec::gpu_check

int main(int argc, char** argv) {
  std::string device = "cuda:0";
  double rate = 4.2;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--device") device = argv[i + 1];
    if (option == "--rate") rate = std::stod(argv[i + 1]);
  }
  try {
    fastspec::gpu_check::run(device, rate);
  } catch (const fastspec::Error& error) {
    std::printf("stopped: %s\n", error.what());
    return error.code() == fastspec::ErrorCode::kUnsupported ? 77 : 1;
  } catch (const std::exception& error) {
    std::printf("stopped: %s\n", error.what());
    return 1;
  }
  return 0;
}
