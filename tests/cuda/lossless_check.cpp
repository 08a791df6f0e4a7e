// The whole lossless matrix on any backend, under the near-tie rule: whatever is drafted, batched, cut or preempted, an
// output is plain decoding's, or parts from it at a token that another rounding could have chosen.
//   fastspec_lossless_check [--device cuda:0] [--dtype float32|bfloat16] [--jobs N] [--batch N] [--replays 1]
//   [--pipelined 1] [--sparse streaming|history|quest|oracle]
// Engines of N cases run at once. On a backend that has no graphs, --replays 1 records and replays passes all the same,
// and --pipelined 1 also launches steps ahead. With --sparse passes read twelve keys and are confirmed by dense ones.
// Exit code 1 where a sequence differs, something was not reached or graphs were not used, 77 without the device.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "step/row_tiers.h"
#include "support/lossless_matrix.h"
#include "support/near_tie.h"

namespace fastspec::testing {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Options {
  std::string device = "cuda:0";
  std::string dtype;  // "" = float32 and bfloat16
  int jobs = 1;
  int batch = 0;  // 0 = all
  bool replays = false;
  bool pipelined = false;
  std::string sparse;  // selector; "" = dense passes only
};

/// Requests of a temperature, and what plain decoding makes of them.
struct Workload {
  float temperature = 0;
  bool penalties = false;
  std::vector<Request> requests;
  Outputs plain;
};

/// Passes by how they were issued.
struct Passes {
  std::int64_t steps = 0, with_prompts = 0, replayed = 0, captured = 0, eager = 0;

  void add(const MatrixRun& run) {
    steps += run.stats.steps;
    with_prompts += run.prompt_steps;
    replayed += run.stats.graph_replays;
    captured += run.stats.graph_captures;
    eager += run.stats.graph_eager_passes;
  }
};

/// Everything that the cases of one batch size found. Guarded by its mutex.
struct Findings {
  std::mutex mutex;
  MatrixReach reach;
  Passes passes;
  int sequences = 0, near_ties = 0, at_cutoffs = 0, not_judged = 0, failures = 0;
  double largest_margin = 0;

  void fail(const std::string& name, const std::string& what) {
    if (++failures <= 10) std::printf("FAIL  %s: %s\n", name.c_str(), what.c_str());
    std::fflush(stdout);
  }
};

/// What is wrong with how a case's passes were issued. Eager are those with prompts, and each shape's first, which
/// warms up what the backend allocates.
std::string graph_complaint(const MatrixRun& run) {
  const EngineStats& stats = run.stats;
  const std::int64_t issued = stats.graph_replays + stats.graph_captures + stats.graph_eager_passes;
  if (issued == 0) return {};  // no graphs on this backend
  if (issued != stats.steps)
    return std::to_string(issued) + " passes issued in " + std::to_string(stats.steps) + " steps";
  // Powers of two to 128 and multiples of 32 beyond, by the class of the largest sequence; with a selection and
  // without.
  const std::int64_t max_shapes = (stats.sparse.sparse_passes > 0 ? 4 : 2) * (8 + (kMaxRowTier - 128) / 32);
  const std::int64_t unexplained = stats.graph_eager_passes - run.prompt_steps;
  if (unexplained > std::min(max_shapes, stats.steps / 2 + 4)) {
    return std::to_string(unexplained) + " eager passes without prompts in " + std::to_string(stats.steps);
  }
  return {};
}

void run_case(const MatrixCase& matrix_case, const HarnessOptions& base, const Workload& workload, NearTieJudge& judge,
              Findings& findings) {
  const std::string name = describe(matrix_case, workload.temperature, workload.penalties);
  MatrixReach reach;
  MatrixRun run;
  try {
    run = run_matrix_case(matrix_case, base, workload.requests, workload.plain, reach.coverage_of(matrix_case));
  } catch (const std::exception& error) {
    const std::lock_guard lock(findings.mutex);
    findings.fail(name, std::string("threw: ") + error.what());
    return;
  }
  reach.add(matrix_case, run);
  const std::lock_guard lock(findings.mutex);
  const NearTieJudge::Verdict verdict = judge.judge(workload.requests, workload.plain, run);
  findings.reach.merge(reach);
  findings.passes.add(run);
  findings.sequences += verdict.sequences;
  findings.near_ties += verdict.near_ties;
  findings.at_cutoffs += verdict.at_cutoffs;
  findings.not_judged += verdict.not_judged;
  findings.largest_margin = std::max(findings.largest_margin, verdict.largest_margin);
  if (!verdict.failure.empty()) findings.fail(name, verdict.failure);
  const std::string complaint = graph_complaint(run);
  if (!complaint.empty()) findings.fail(name, complaint);
}

std::vector<Workload> make_workloads(const HarnessOptions& base) {
  std::vector<Workload> workloads;
  for (const float temperature : {0.0f, 0.7f, 1.0f}) {
    for (const bool penalties : {false, true}) {
      Workload workload{temperature, penalties, matrix_requests(8, temperature, penalties), {}};
      workload.plain = run_plain_alone(base, workload.requests);
      workloads.push_back(std::move(workload));
    }
  }
  return workloads;
}

void run_batch(int batch, const HarnessOptions& base, const std::vector<Workload>& workloads, NearTieJudge& judge,
               int jobs, Findings& findings) {
  struct Job {
    MatrixCase matrix_case;
    const Workload* workload;
  };
  std::vector<Job> work;
  for (const Workload& workload : workloads) {
    for (const MatrixSetting& setting : matrix_settings()) {
      for (const Disturbance disturbance : kDisturbances) work.push_back({{setting, batch, disturbance}, &workload});
    }
  }
  std::atomic<std::size_t> next = 0;
  const auto take = [&] {
    for (std::size_t i = next++; i < work.size(); i = next++) {
      run_case(work[i].matrix_case, base, *work[i].workload, judge, findings);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < jobs; ++i) threads.emplace_back(take);
  take();
  for (std::thread& thread : threads) thread.join();
}

/// The matrix in one element type. Returns whether it held.
bool run_matrix(const Options& options, DType dtype) {
  HarnessOptions base;
  base.device = options.device;
  base.dtype = dtype;
  base.replays = options.replays;
  base.pipelined = options.pipelined;
  base.has_windows = options.sparse.empty();
  base.sparse.selector = options.sparse;
  base.sparse.kv_budget = 12;
  base.sparse.sinks = 2;
  base.sparse.recent = 4;
  auto start = Clock::now();
  const std::vector<Workload> workloads = make_workloads(base);
  NearTieJudge judge(options.device, dtype, base.has_windows);
  std::printf("%s %s: a logit's error, measured between numbers of rows: %.3g; plain decoding and this took %.1f s\n",
              options.device.c_str(), to_string(dtype), judge.error(), seconds_since(start));
  int sequences = 0, near_ties = 0, not_judged = 0, failures = 0;
  for (const int batch : {8, 3, 1}) {
    if (options.batch != 0 && options.batch != batch) continue;
    start = Clock::now();
    Findings findings;
    run_batch(batch, base, workloads, judge, options.jobs, findings);
    const std::string missing = findings.reach.missing(batch);
    // Runs of provisional tokens are offered too, so what drafts reach is another question there.
    if (!missing.empty() && options.sparse.empty())
      findings.fail("batch " + std::to_string(batch), "not reached: " + missing);
    const Passes& passes = findings.passes;
    if (passes.eager > 0 && passes.replayed <= passes.captured) {
      findings.fail("batch " + std::to_string(batch), "graphs are hardly used");
    }
    std::printf(
        "%s  %s batch %d: %d sequences, %d near-ties (%d at a filter's cutoff; largest margin of the others %.3g), %d "
        "not "
        "judged, %d failures; %lld passes: %lld replayed, %lld captured, %lld eager, %lld had prompts; %.1f s\n",
        findings.failures == 0 ? "ok  " : "FAIL", to_string(dtype), batch, findings.sequences, findings.near_ties,
        findings.at_cutoffs, findings.largest_margin, findings.not_judged, findings.failures,
        static_cast<long long>(passes.steps), static_cast<long long>(passes.replayed),
        static_cast<long long>(passes.captured), static_cast<long long>(passes.eager),
        static_cast<long long>(passes.with_prompts), seconds_since(start));
    std::fflush(stdout);
    sequences += findings.sequences;
    near_ties += findings.near_ties;
    not_judged += findings.not_judged;
    failures += findings.failures;
  }
  const double share = sequences == 0 ? 1.0 : static_cast<double>(near_ties) / sequences;
  const bool few = (dtype != DType::kFloat32 || share < 0.01) && not_judged <= sequences / 1000;
  std::printf("%s  %s: %.3f %% of %d sequences part at a near-tie%s\n", failures == 0 && few ? "ok  " : "FAIL",
              to_string(dtype), 100 * share, sequences, few ? "" : ": too many, or too many not judged");
  return failures == 0 && few;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--device") options.device = argv[i + 1];
    if (option == "--dtype") options.dtype = argv[i + 1];
    if (option == "--sparse") options.sparse = argv[i + 1];
    if (option == "--jobs") options.jobs = std::stoi(argv[i + 1]);
    if (option == "--batch") options.batch = std::stoi(argv[i + 1]);
    if (option == "--replays") options.replays = std::stoi(argv[i + 1]) != 0;
    if (option == "--pipelined") options.pipelined = std::stoi(argv[i + 1]) != 0;
  }
  return options;
}

}  // namespace
}  // namespace fastspec::testing

int main(int argc, char** argv) {
  using namespace fastspec;
  try {
    const testing::Options options = testing::parse(argc, argv);
    std::vector<DType> dtypes = {DType::kFloat32, DType::kBFloat16};
    if (!options.dtype.empty()) dtypes = {parse_dtype(options.dtype)};
    const auto start = testing::Clock::now();
    bool held = true;
    for (const DType dtype : dtypes) held = testing::run_matrix(options, dtype) && held;
    std::printf("%s in %.1f s\n", held ? "passed" : "FAILED", testing::seconds_since(start));
    return held ? 0 : 1;
  } catch (const Error& error) {
    std::printf("stopped: %s\n", error.what());
    return error.code() == ErrorCode::kUnsupported ? 77 : 1;
  } catch (const std::exception& error) {
    std::printf("stopped: %s\n", error.what());
    return 1;
  }
}
