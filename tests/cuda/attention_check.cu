// Checks every attention kernel on a GPU against the double-precision solution of random problems, then times it.
//   attention_check [--small] [--no-timing] [--only TEXT] [--seed N]
// --small keeps shapes fit for compute-sanitizer. Prints a line per failing case (and per case with --verbose) with the
// largest error over its tolerance and the first bad index; ends with 1 if anything failed. One failing case does not
// stop the others, except that a device fault makes the rest meaningless and ends the run.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "attention/attention.h"
#include "cuda/attention_cases.h"
#include "cuda/attention_problem.h"
#include "cuda/attention_timing.h"
#include "cuda/device_memory.h"

namespace fastspec::gpu_check {
namespace {

constexpr unsigned char kPoison = 0xff;  // NaN in every element type

/// A problem on the device, with poisoned outputs and workspace.
class DeviceProblem {
 public:
  DeviceProblem(const Problem& problem, const cuda::DeviceLimits& limits)
      : params_(problem.params),
        row_offsets_(problem.row_offsets),
        positions_(problem.positions),
        lists_(problem.lists),
        masks_(problem.masks),
        entries_(problem.entries),
        slots_(problem.slots),
        mask_bits_(problem.mask_bits),
        pool_(problem.pool),
        query_(problem.query),
        output_(problem.query.size()),
        lse_(static_cast<std::size_t>(problem.params.query.rows) * problem.params.num_heads),
        plan_memory_(cuda::attention_plan_bytes(limits.num_sms, problem.params.num_sequences)),
        workspace_(cuda::attention_workspace_bytes(limits.num_sms, problem.spec.head_dim)) {
    params_.query.data = query_.data();
    params_.output.data = output_.data();
    params_.row_offsets = row_offsets_.data();
    params_.lists = lists_.data();
    params_.entries = entries_.data();
    params_.masks = masks_.data();
    params_.mask_bits = mask_bits_.data();
    params_.positions = positions_.data();
    params_.slots = slots_.data();
    params_.kv.base = pool_.data();
    params_.lse = lse_.data();
    plan_ = cuda::attention_plan_at(plan_memory_.data(), params_.num_sequences);
    const cuda::AttentionWorkspace layout = cuda::attention_workspace(limits.num_sms, problem.spec.head_dim);
    counters_bytes_ = layout.partial_lse;
    workspace_.fill_bytes(kPoison);
    check(cudaMemset(workspace_.data(), 0, counters_bytes_), "clear counters");
    plan_memory_.fill_bytes(kPoison);
  }

  void poison() {
    output_.fill_bytes(kPoison);
    lse_.fill_bytes(kPoison);
  }

  void launch(const cuda::AttentionConfig& config, cudaStream_t stream) {
    cuda::AttentionPlanParams plan_params;
    plan_params.num_sequences = params_.num_sequences;
    plan_params.num_heads = params_.num_heads;
    plan_params.num_kv_heads = params_.kv.num_kv_heads;
    plan_params.row_offsets = params_.row_offsets;
    plan_params.lists = params_.lists;
    plan_params.masks = params_.masks;
    plan_params.positions = params_.positions;
    plan_params.window = params_.window;
    plan_params.sinks = params_.sinks;
    plan_params.config = config;
    plan_params.plan = plan_;
    check(cuda::launch_attention_plan(plan_params, stream), "launch_attention_plan");
    check(cuda::launch_attention(params_, config, plan_, workspace_.data(), stream), "launch_attention");
  }

  void write_lengths(const std::vector<KvList>& lists) { lists_.write(lists); }
  std::vector<unsigned char> output() const { return output_.read(); }
  std::vector<float> lse() const { return lse_.read(); }
  bool counters_are_zero() const {
    std::vector<unsigned char> bytes(counters_bytes_);
    check(cudaMemcpy(bytes.data(), workspace_.data(), bytes.size(), cudaMemcpyDeviceToHost), "read counters");
    for (const unsigned char byte : bytes) {
      if (byte != 0) return false;
    }
    return true;
  }

 private:
  AttentionParams params_;
  DeviceArray<std::int32_t> row_offsets_, positions_;
  DeviceArray<KvList> lists_;
  DeviceArray<NewMask> masks_;
  DeviceArray<Slot> entries_, slots_;
  DeviceArray<std::uint64_t> mask_bits_;
  DeviceArray<unsigned char> pool_, query_, output_;
  DeviceArray<float> lse_;
  DeviceArray<unsigned char> plan_memory_, workspace_;
  cuda::AttentionPlan plan_;
  std::size_t counters_bytes_ = 0;
};

/// What is wrong with a result; empty if nothing is.
class Verdict {
 public:
  void note(const char* kind, int row, int head, int d, double got, double wanted, double ratio) {
    if (!(ratio > worst_)) {
      if (ratio == ratio) return;  // a NaN is always the worst
    }
    if (count_ == 0 && !(ratio <= 1)) {
      char text[160];
      std::snprintf(text, sizeof text, "first bad: %s row %d head %d dim %d got %.8g wanted %.8g", kind, row, head, d,
                    got, wanted);
      first_ = text;
    }
    worst_ = ratio == ratio ? ratio : INFINITY;
  }
  void element(const char* kind, int row, int head, int d, double got, double wanted, double tolerance) {
    const double ratio = got == wanted ? 0 : std::abs(got - wanted) / tolerance;
    note(kind, row, head, d, got, wanted, ratio);
    if (!(ratio <= 1)) ++count_;
  }
  void fault(const std::string& text) {
    if (count_++ == 0) first_ = text;
  }
  bool ok() const { return count_ == 0; }
  double worst() const { return worst_; }
  std::string text() const { return first_ + " (" + std::to_string(count_) + " bad)"; }

 private:
  double worst_ = 0;
  long count_ = 0;
  std::string first_;
};

void compare(const Problem& problem, const Solution& solution, const std::vector<unsigned char>& output,
             const std::vector<float>& lse, Verdict& verdict) {
  const AttentionParams& params = problem.params;
  const int head_dim = params.kv.head_dim;
  for (int row = 0; row < problem.rows; ++row) {
    for (int head = 0; head < params.num_heads; ++head) {
      const std::int64_t index = std::int64_t{row} * params.num_heads + head;
      const double wanted_lse = solution.lse[index];
      verdict.element("lse", row, head, -1, lse[index], wanted_lse, lse_tolerance(params.kv.dtype, wanted_lse));
      for (int d = 0; d < head_dim; ++d) {
        const double got =
            read_element(output.data(), params.kv.dtype, row * params.output.stride + head * head_dim + d);
        const double wanted = solution.output[index * head_dim + d];
        verdict.element("output", row, head, d, got, wanted,
                        output_tolerance(params.kv.dtype, wanted, solution.magnitude[index * head_dim + d]));
      }
    }
  }
  // Nothing else may have been written: the gap behind each row, and rows past the last sequence.
  const std::size_t element = size_of(params.kv.dtype);
  for (int row = 0; row < params.query.rows; ++row) {
    const std::size_t from = (row * params.output.stride + (row < problem.rows ? params.output.cols : 0)) * element;
    const std::size_t to = (row + 1) * params.output.stride * element;
    for (std::size_t byte = from; byte < to; ++byte) {
      if (output[byte] != kPoison) return verdict.fault("wrote outside its rows, row " + std::to_string(row));
    }
  }
}

struct NamedConfig {
  std::string name;
  cuda::AttentionConfig config;
};

/// Every kernel that can answer a problem.
std::vector<NamedConfig> all_configs(const ProblemSpec& spec, const cuda::DeviceLimits& limits) {
  std::vector<NamedConfig> configs{{"plain", {}}};
  if (spec.dtype == DType::kFloat32) return configs;
  for (const bool hopper : {false, true}) {
    for (const int rows : {16, 32, 64, 128}) {
      const cuda::AttentionConfig config = cuda::choose_attention({spec.dtype, spec.head_dim, rows, hopper}, limits);
      const bool is_hopper = config.path == cuda::AttentionPath::kHopper;
      if (is_hopper != hopper || config.tile_rows != rows) continue;
      configs.push_back({(is_hopper ? "hopper-" : "mma-") + std::to_string(config.tile_rows), config});
    }
  }
  return configs;
}

struct Totals {
  int cases = 0;
  int failed = 0;
  double worst = 0;
};

void report(const ProblemSpec& spec, const std::string& config, const Verdict& verdict, bool verbose, Totals& totals) {
  ++totals.cases;
  if (!verdict.ok()) ++totals.failed;
  totals.worst = std::max(totals.worst, verdict.worst());
  if (verbose || !verdict.ok()) {
    std::printf("%-6s %-44s %-10s error/tolerance %.3f %s\n", verdict.ok() ? "ok" : "FAILED", spec.name.c_str(),
                config.c_str(), verdict.worst(), verdict.ok() ? "" : verdict.text().c_str());
  }
}

void run_problem(const ProblemSpec& spec, std::uint64_t seed, const cuda::DeviceLimits& limits, bool verbose,
                 Totals& totals) {
  const Problem problem(spec, seed);
  const Solution solution = solve(problem);
  for (const NamedConfig& named : all_configs(spec, limits)) {
    Verdict verdict;
    DeviceProblem device(problem, limits);
    device.poison();
    device.launch(named.config, nullptr);
    check(cudaDeviceSynchronize(), (spec.name + " " + named.name).c_str());
    const std::vector<unsigned char> first = device.output();
    compare(problem, solution, first, device.lse(), verdict);
    device.poison();
    device.launch(named.config, nullptr);
    check(cudaDeviceSynchronize(), (spec.name + " " + named.name + ", again").c_str());
    if (device.output() != first) verdict.fault("second launch differs from the first");
    if (!device.counters_are_zero()) verdict.fault("counters are not zero after the launch");
    report(spec, named.name, verdict, verbose, totals);
  }
}

/// One captured graph must stay right when lengths change under it.
void run_captured(const cuda::DeviceLimits& limits, bool verbose, Totals& totals) {
  ProblemSpec spec;
  spec.name = "captured, then other lengths";
  spec.sequences = {
      {5, 700, true, NewMask::kAncestor}, {1, 33, true, NewMask::kCausal}, {3, 250, false, NewMask::kFull, 7}};
  Problem problem(spec, 77);
  const std::vector<KvList> full = problem.lists;
  for (const NamedConfig& named : all_configs(spec, limits)) {
    Verdict verdict;
    problem.lists = full;
    DeviceProblem device(problem, limits);
    device.launch(named.config, nullptr);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    check(cudaDeviceSynchronize(), "before capture");
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
    device.launch(named.config, stream);
    check(cudaStreamEndCapture(stream, &graph), "end capture");
    check(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    const int lengths[4][3] = {{700, 33, 250}, {0, 1, 0}, {64, 0, 129}, {3, 31, 250}};
    for (const auto& length : lengths) {
      for (int s = 0; s < 3; ++s) problem.lists[s].length = length[s];
      device.write_lengths(problem.lists);
      device.poison();
      check(cudaDeviceSynchronize(), "before replay");
      check(cudaGraphLaunch(executable, stream), "replay");
      check(cudaStreamSynchronize(stream), "replay");
      compare(problem, solve(problem), device.output(), device.lse(), verdict);
    }
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    report(spec, named.name, verdict, verbose, totals);
  }
}

struct Options {
  bool small = false;
  bool timing = true;
  bool verbose = false;
  std::string only;
  std::uint64_t seed = 1;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--small") {
      options.small = true;
    } else if (argument == "--no-timing") {
      options.timing = false;
    } else if (argument == "--verbose") {
      options.verbose = true;
    } else if (argument == "--only" && i + 1 < argc) {
      options.only = argv[++i];
    } else if (argument == "--seed" && i + 1 < argc) {
      options.seed = std::strtoull(argv[++i], nullptr, 10);
    } else {
      throw std::runtime_error("attention_check: unknown argument " + argument);
    }
  }
  return options;
}

int run(const Options& options) {
  const cuda::DeviceLimits limits = device_limits();
  std::printf("device: %d SMs, compute capability %d, shared memory %d a block, %d an SM\n", limits.num_sms,
              limits.compute_capability, limits.shared_per_block, limits.shared_per_sm);
  Totals totals;
  std::uint64_t seed = options.seed;
  for (const ProblemSpec& spec : attention_cases(options.small, options.seed)) {
    ++seed;
    if (!options.only.empty() && spec.name.find(options.only) == std::string::npos) continue;
    run_problem(spec, seed, limits, options.verbose, totals);
  }
  if (options.only.empty()) run_captured(limits, options.verbose, totals);
  std::printf("%d of %d failed; largest error/tolerance %.3f\n", totals.failed, totals.cases, totals.worst);
  bool timing_ok = true;
  if (options.timing && !options.small) timing_ok = time_attention(limits, options.only);
  return totals.failed == 0 && timing_ok ? 0 : 1;
}

}  // namespace
}  // namespace fastspec::gpu_check

int main(int argc, char** argv) {
  try {
    return fastspec::gpu_check::run(fastspec::gpu_check::parse(argc, argv));
  } catch (const std::exception& error) {
    std::printf("STOPPED: %s\n", error.what());
    return 2;
  }
}
