// Whole engines of the tiny model on the GPU: float32 gives the tokens of the reference up to near-ties, with and
// without drafting, and with sequences cut while their passes run; 16-bit runs to the end and is compared by share.
#include "cuda/ops_cases.h"
#include "support/engine_harness.h"

namespace fastspec::gpu_check {

namespace {

using testing::HarnessOptions;
using testing::Outputs;
using testing::WholeOutput;

constexpr int kVocab = 61;
constexpr float kNearTie = 1e-3f;

std::vector<Request> make_requests(int count, int max_tokens, float temperature) {
  Random random(404);
  std::vector<Request> requests(count);
  for (int i = 0; i < count; ++i) {
    for (int t = pick(random, 1, 45); t > 0; --t) {
      requests[i].prompt_token_ids.push_back(pick(random, 0, kVocab - 2));
    }
    SamplingParams& sampling = requests[i].sampling;
    sampling.temperature = temperature;
    sampling.seed = 1000 + i;
    sampling.max_tokens = max_tokens;
    sampling.n = i % 8 == 2 ? 2 : 1;
    if (i % 3 == 1) sampling.top_k = 12;
    if (i % 3 == 2) sampling.top_p = 0.9f;
    if (i % 4 == 1) sampling.logprobs = 3;
    if (i % 4 == 3) sampling.repetition_penalty = 1.2f;
    if (i % 5 == 1) sampling.min_tokens = 9;
    if (i % 5 == 2) sampling.logit_bias = {{3, 1.5f}};
  }
  return requests;
}

/// Compares up to the first difference of each output.
Outcome compare_outputs(const Outputs& seen, const Outputs& expected, bool exact) {
  Outcome outcome;
  if (seen.size() != expected.size()) outcome.failure = text(seen.size(), " outputs, expected ", expected.size());
  for (std::size_t i = 0; i < expected.size() && outcome.failure.empty(); ++i) {
    const WholeOutput &a = seen[i], &b = expected[i];
    ++outcome.compared;
    if (!a.error.empty() || a.finish == FinishReason::kNone) {
      outcome.failure = text("output ", i, " did not finish: ", a.error);
      break;
    }
    std::size_t same = 0;
    while (same < std::min(a.tokens.size(), b.tokens.size()) && a.tokens[same] == b.tokens[same]) ++same;
    for (std::size_t t = 0; exact && t < std::min({same, a.logprobs.size(), b.logprobs.size()}); ++t) {
      outcome.error = std::max<double>(outcome.error, std::fabs(a.logprobs[t].logprob - b.logprobs[t].logprob));
    }
    if (same == a.tokens.size() && same == b.tokens.size()) continue;
    ++outcome.near_ties;
    if (exact && (same >= b.margins.size() || b.margins[same] > kNearTie)) {
      outcome.failure = text("output ", i, " differs at token ", same, " of ", b.tokens.size(), ", margin ",
                             same < b.margins.size() ? b.margins[same] : -1.0f);
    }
  }
  if (outcome.failure.empty() && exact && outcome.error > 1e-3) outcome.failure = "log-probabilities differ";
  return outcome;
}

/// Takes a random tail of a random sequence back, most often while its pass is on the device.
class RandomCuts {
 public:
  void operator()(EngineCore& engine) {
    const auto& running = engine.scheduler().running_sequences();
    if (num_left_ == 0 || running.empty() || pick(random_, 0, 3) > 0) return;
    --num_left_;
    const Sequence& victim = *running[pick(random_, 0, static_cast<int>(running.size()) - 1)];
    engine.runner().truncate(victim.id(), victim.len() - pick(random_, 0, victim.num_generated()));
  }

 private:
  Random random_{7};
  int num_left_ = 60;  // without an end the last sequences would hardly get on
};

Outcome run_engine(const std::string& device, const std::string& drafter, DType dtype, float temperature, bool cuts,
                   bool small) {
  const std::vector<Request> requests = make_requests(small ? 4 : 24, small ? 16 : 60, temperature);
  HarnessOptions reference;
  const Outputs expected = testing::run_plain_alone(reference, requests);
  HarnessOptions options;
  options.device = device;
  options.dtype = dtype;
  options.drafter.kind = drafter.substr(0, drafter.find(' '));
  options.drafter.ngram_min = 1;
  if (!drafter.empty() && drafter != "ngram") options.drafter.model = "tiny";
  if (drafter == "longspec" || drafter == "dflash") options.max_draft_tokens = std::nullopt;
  if (drafter == "dflash window") {
    options.drafter.window = 9;
    options.drafter.sinks = 3;
    options.drafter.rebase_positions = true;
  }
  const auto engine = testing::make_engine(std::move(options));
  RandomCuts cut;
  const Outputs seen = testing::run(*engine, requests, 5, [&](EngineCore& core) {
    if (cuts) {
      cut(core);  // below what callers have seen, which real cuts leave alone
    } else {
      core.check_invariants();
    }
  });
  const EngineStats stats = engine->stats();
  if (stats.steps_ahead == 0 || stats.graph_replays == 0) {
    Outcome outcome;
    outcome.failure = text(stats.steps_ahead, " steps launched ahead, ", stats.graph_replays, " passes replayed");
    return outcome;
  }
  return compare_outputs(seen, expected, dtype == DType::kFloat32);
}

}  // namespace

void check_engines(const std::string& device, Report& report) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const char* drafter : {"", "ngram", "standalone", "longspec", "dflash", "dflash window"}) {
      for (const float temperature : report.small() ? std::vector{1.0f} : std::vector{0.0f, 1.0f}) {
        for (const bool cuts : report.small() ? std::vector{false} : std::vector{false, true}) {
          report.run(text("engine ", to_string(dtype), " ", *drafter == 0 ? "plain" : drafter, " temperature ",
                          temperature, cuts ? ", cut at random" : ""),
                     [&] { return run_engine(device, drafter, dtype, temperature, cuts, report.small()); });
        }
      }
    }
  }
}

}  // namespace fastspec::gpu_check
