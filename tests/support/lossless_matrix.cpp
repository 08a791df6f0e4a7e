// See lossless_matrix.h.
#include "support/lossless_matrix.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <sstream>
#include <utility>

namespace fastspec::testing {

std::vector<Request> matrix_requests(int count, float temperature, bool penalties) {
  std::mt19937_64 random(108);
  std::vector<Request> requests(count);
  for (int i = 0; i < count; ++i) {
    Request& request = requests[i];
    const int prompt_len = std::vector<int>{1, 7, 30, 4, 45, 12, 2, 19}[i % 8];
    for (int t = 0; t < prompt_len; ++t) {
      request.prompt_token_ids.push_back(std::uniform_int_distribution<TokenId>(0, kMatrixVocab - 2)(random));
    }
    SamplingParams& sampling = request.sampling;
    sampling.temperature = temperature;
    sampling.seed = 1000 + i;
    sampling.max_tokens = 30 + i % 3;
    sampling.n = i % 8 == 2 ? 2 : 1;
    if (i % 4 == 1) sampling.logprobs = 3;
    if (i % 4 == 2) sampling.stop = {"abca", "dd"};
    if (i % 4 == 3) sampling.stop_token_ids = {5, 17};
    if (i % 5 == 1) sampling.min_tokens = 9;
    if (i % 3 == 1) sampling.top_k = 12;
    if (i % 3 == 2) sampling.top_p = 0.9f;
    if (i % 7 == 3) sampling.min_p = 0.02f;
    if (i % 6 == 4) sampling.ignore_eos = true;
    sampling.logit_bias = {{3, 1.5f}, {kMatrixVocab - 1, i % 2 == 0 ? 2.0f : -1.0f}};
    if (penalties) {
      sampling.repetition_penalty = 1.3f;
      sampling.presence_penalty = 0.4f;
      sampling.frequency_penalty = 0.3f;
    }
  }
  return requests;
}

const std::vector<MatrixSetting>& matrix_settings() {
  static const std::vector<MatrixSetting> kSettings = {
      {MatrixDrafter::kNone},
      {MatrixDrafter::kNgram},
      {MatrixDrafter::kStandalone},
      {MatrixDrafter::kLongSpecChain},
      {MatrixDrafter::kLongSpecTree},
      {MatrixDrafter::kDFlash},
      {MatrixDrafter::kDFlashWindow},
      {MatrixDrafter::kPlantedChain, 0.3},
      {MatrixDrafter::kPlantedChain, 0.8},
      {MatrixDrafter::kPlantedChain, 1.0},
      {MatrixDrafter::kPlantedBlock, 0.8},
      {MatrixDrafter::kPlantedTree, 0.3},
      {MatrixDrafter::kPlantedTree, 0.8},
      {MatrixDrafter::kPlantedTree, 1.0},
      {MatrixDrafter::kAdversarialTree},
      {MatrixDrafter::kNgram, 0, "auto"},
      {MatrixDrafter::kStandalone, 0, "auto"},
      {MatrixDrafter::kLongSpecTree, 0, "auto"},
      {MatrixDrafter::kPlantedChain, 0.3, "auto"},
      {MatrixDrafter::kPlantedChain, 0.8, "fixed:0.25"},
      {MatrixDrafter::kPlantedBlock, 0.8, "auto", BudgetObjective::kPaper},
      {MatrixDrafter::kPlantedTree, 0.8, "fixed:0.5"},
      {MatrixDrafter::kPlantedTree, 1.0, "fixed:0.75"},
      {MatrixDrafter::kPlantedTree, 0.8, "fixed:1"},
      {MatrixDrafter::kPlantedTree, 0.8, "auto"},
      {MatrixDrafter::kPlantedTree, 1.0, "auto", BudgetObjective::kPaper},
      {MatrixDrafter::kAdversarialTree, 0, "auto"},
  };
  return kSettings;
}

HarnessOptions matrix_options(const MatrixSetting& setting, const std::vector<Request>& requests, const Outputs& plain,
                              Coverage* coverage) {
  HarnessOptions options;
  options.budget.set_mode(setting.row_budget);
  options.budget.objective = setting.objective;
  // Every row has its price, so that it matters which are verified. Steps that are measured correct this.
  options.costs = CostParameters{.linear = {{1, 256}, {0.1, 10}}, .per_key = 1e-5, .draft = {{1, 8}, {0.05, 0.1}}};
  const auto plant = [&](TreeShape shape, bool knows) {
    options.own_drafter = std::make_unique<PlantedDrafter>(
        knows ? truths_of(requests, plain) : std::map<std::pair<std::uint64_t, std::uint32_t>, std::vector<TokenId>>{},
        shape, setting.probability, shape == TreeShape::kTree ? 4 : 6, kMatrixVocab, coverage);
  };
  switch (setting.drafter) {
    case MatrixDrafter::kNone:
      break;
    case MatrixDrafter::kNgram:
      options.drafter.kind = "ngram";
      options.drafter.ngram_min = 1;
      break;
    case MatrixDrafter::kStandalone:
      options.drafter.kind = "standalone";
      options.drafter.model = "tiny";
      break;
    case MatrixDrafter::kLongSpecChain:
      options.drafter = DrafterConfig::parse("longspec:tiny");
      options.drafter.tree_widths = {1, 1, 1, 1};
      for (TokenId token = 0; token < kMatrixVocab; token += 1 + token % 3) options.draft_vocabulary.push_back(token);
      break;
    case MatrixDrafter::kLongSpecTree:
      options.drafter = DrafterConfig::parse("longspec:tiny");
      options.drafter.tree_widths = {3, 6, 6, 5};
      options.max_draft_tokens = std::nullopt;
      break;
    case MatrixDrafter::kDFlash:
      options.drafter = DrafterConfig::parse("dflash:tiny");
      options.max_draft_tokens = std::nullopt;
      break;
    case MatrixDrafter::kDFlashWindow:
      options.drafter = DrafterConfig::parse("dflash:tiny");
      options.drafter.window = 7;
      options.drafter.sinks = 2;
      options.drafter.rebase_positions = true;
      options.max_draft_tokens = 3;
      break;
    case MatrixDrafter::kPlantedChain:
      plant(TreeShape::kChain, true);
      break;
    case MatrixDrafter::kPlantedBlock:
      plant(TreeShape::kBlock, true);
      break;
    case MatrixDrafter::kPlantedTree:
      plant(TreeShape::kTree, true);
      break;
    case MatrixDrafter::kAdversarialTree:
      plant(TreeShape::kTree, false);
      break;
  }
  return options;
}

namespace {

/// Drops a random tail of a random running sequence in every owner of its state, and watches what is drawn again.
class RandomTruncation {
 public:
  void operator()(EngineCore& engine) {
    const auto& running = engine.scheduler().running_sequences();
    for (const auto& sequence : running) watch(*sequence);
    if (running.empty() || !std::bernoulli_distribution(0.2)(random_)) return;
    const Sequence& victim = *running[random_() % running.size()];
    const int generated = victim.num_generated();
    engine.runner().truncate(victim.id(), victim.len() - static_cast<int>(random_() % (generated + 1)));
    engine.kv().check_invariants();
    known_[key_of(victim)].length = static_cast<std::size_t>(victim.num_generated());
    ++count;
  }

  /// The first token of each output that came out differently.
  std::map<std::size_t, Redraw> redraws(const std::vector<Request>& requests) const {
    std::map<std::size_t, Redraw> result;
    std::size_t output = 0;
    for (const Request& request : requests) {
      for (int sample = 0; sample < request.sampling.n; ++sample, ++output) {
        const auto found = known_.find({*request.sampling.seed, static_cast<std::uint32_t>(sample)});
        if (found == known_.end()) continue;
        const Known& known = found->second;
        if (known.redraw) {
          result[output] = *known.redraw;
        } else if (known.length < known.tokens.size()) {
          result[output] = {known.length, -1};
        }
      }
    }
    return result;
  }

  int count = 0;

 private:
  using Key = std::pair<std::uint64_t, std::uint32_t>;  // seed, sample
  struct Known {
    std::vector<TokenId> tokens;  // generated, as the caller has them
    std::size_t length = 0;       // of them, what the sequence had when it was last seen
    std::optional<Redraw> redraw;
  };

  static Key key_of(const Sequence& sequence) {
    const SamplingRule rule = sequence.rule();
    return {rule.seed, rule.sample_index};
  }

  void watch(const Sequence& sequence) {
    // Provisional tokens are nobody's yet: that a dense pass draws others is no redraw.
    const std::span<const TokenId> generated = std::span(sequence.tokens())
                                                   .first(static_cast<std::size_t>(sequence.shown_len()))
                                                   .subspan(static_cast<std::size_t>(sequence.prompt_len()));
    Known& known = known_[key_of(sequence)];
    for (std::size_t i = 0; i < std::min(generated.size(), known.tokens.size()) && !known.redraw; ++i) {
      if (generated[i] != known.tokens[i]) known.redraw = Redraw{i, generated[i]};
    }
    for (std::size_t i = known.tokens.size(); i < generated.size(); ++i) known.tokens.push_back(generated[i]);
    known.length = generated.size();
  }

  std::mt19937_64 random_{3};
  std::map<Key, Known> known_;
};

void disturb(HarnessOptions& options, Disturbance disturbance) {
  if (disturbance == Disturbance::kChunks) {
    options.max_num_seqs = std::min(options.max_num_seqs, 4);
    options.max_batch_rows = 9;
  }
  if (disturbance == Disturbance::kPreemption) {
    options.num_pages = 26;
    options.max_model_len = 104;
  }
}

constexpr std::size_t kNumNotHeld = 2;  // which have one sample each: samples share where they happen to run together

/// Has the engine hold the prompts of the requests behind these, and forgets that in its statistics.
std::vector<RequestId> hold_prompts(EngineCore& engine, const std::vector<Request>& requests) {
  std::vector<RequestId> held;
  for (std::size_t i = kNumNotHeld; i < requests.size(); ++i) {
    Request request;
    request.prompt_token_ids = requests[i].prompt_token_ids;
    request.hold = true;
    held.push_back(engine.submit(request));
  }
  while (engine.has_work()) engine.step();
  engine.reset_stats();
  return held;
}

}  // namespace

std::int64_t prompt_rows_on_held(const std::vector<Request>& requests) {
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const int prompt_len = static_cast<int>(requests[i].prompt_token_ids.size());
    const int page_size = HarnessOptions().page_size;
    const int shared = (prompt_len - 1) / page_size * page_size;
    rows += requests[i].sampling.n * (i < kNumNotHeld ? prompt_len : prompt_len - shared);
  }
  return rows;
}

MatrixRun run_matrix_case(const MatrixCase& matrix_case, const HarnessOptions& base,
                          const std::vector<Request>& requests, const Outputs& plain, Coverage* coverage) {
  HarnessOptions options = matrix_options(matrix_case.setting, requests, plain, coverage);
  options.device = base.device;
  options.dtype = base.dtype;
  options.replays = base.replays;
  options.pipelined = base.pipelined;
  options.has_windows = base.has_windows;
  options.sparse = base.sparse;
  options.max_num_seqs = matrix_case.batch;
  disturb(options, matrix_case.disturbance);
  const bool holds = matrix_case.disturbance == Disturbance::kHeld;
  if (holds) options.max_num_seqs += static_cast<int>(requests.size() - kNumNotHeld);
  const auto engine = make_engine(std::move(options));
  const std::vector<RequestId> held = holds ? hold_prompts(*engine, requests) : std::vector<RequestId>{};
  RandomTruncation truncation;
  MatrixRun result;
  std::int64_t prompt_rows = 0;
  const auto between = [&](EngineCore& core) {
    const std::int64_t seen = core.stats().prompt_rows;
    if (seen > prompt_rows) ++result.prompt_steps;
    prompt_rows = seen;
    if (matrix_case.disturbance == Disturbance::kTruncation) truncation(core);
  };
  const int arrivals = matrix_case.disturbance == Disturbance::kChunks ? 1 : 0;
  result.outputs = run(*engine, requests, arrivals, between);
  engine->check_invariants();
  result.stats = engine->stats();
  for (const RequestId request : held) engine->cancel(request);
  while (engine->has_work()) engine->step();
  engine->check_invariants();
  result.truncations = truncation.count;
  result.redraws = truncation.redraws(requests);
  return result;
}

std::string describe(const MatrixCase& matrix_case, float temperature, bool penalties) {
  static const char* const kDrafters[] = {"none",          "ngram",        "standalone",      "longspec chain",
                                          "longspec tree", "dflash",       "dflash window",   "planted chain",
                                          "planted block", "planted tree", "adversarial tree"};
  static const char* const kNames[] = {"", ", chunks", ", preemption", ", truncation", ", held prompts"};
  std::ostringstream text;
  text << kDrafters[static_cast<int>(matrix_case.setting.drafter)] << " p " << matrix_case.setting.probability
       << ", batch " << matrix_case.batch << ", T " << temperature << (penalties ? ", penalties" : "")
       << ", row budget " << matrix_case.setting.row_budget
       << (matrix_case.setting.objective == BudgetObjective::kPaper ? " (paper)" : "")
       << kNames[static_cast<int>(matrix_case.disturbance)];
  return text.str();
}

Coverage* MatrixReach::coverage_of(const MatrixCase& matrix_case) {
  const bool adversarial = matrix_case.setting.drafter == MatrixDrafter::kAdversarialTree;
  if (matrix_case.disturbance != Disturbance::kNone || adversarial) return nullptr;
  return matrix_case.setting.drafter == MatrixDrafter::kPlantedTree ? &trees_ : &chains_;
}

void MatrixReach::add(const MatrixCase& matrix_case, const MatrixRun& run) {
  truncations_ += run.truncations;
  if (matrix_case.disturbance == Disturbance::kPreemption) preemptions_ += run.stats.preemptions;
  if (matrix_case.disturbance != Disturbance::kNone) return;
  if (std::string(matrix_case.setting.row_budget) != "off") {
    cut_rows_ += run.stats.drafted_tokens - run.stats.verified_tokens;
    passes_undrafted_ += run.stats.budget.passes_undrafted;
    cut_accepted_ += run.stats.accepted_tokens;
    return;
  }
  if (matrix_case.setting.drafter == MatrixDrafter::kStandalone) accepted_standalone_ += run.stats.accepted_tokens;
  if (matrix_case.setting.drafter == MatrixDrafter::kNgram) accepted_ngram_ += run.stats.accepted_tokens;
  if (matrix_case.setting.drafter == MatrixDrafter::kLongSpecChain)
    accepted_longspec_chain_ += run.stats.accepted_tokens;
  if (matrix_case.setting.drafter == MatrixDrafter::kLongSpecTree) accepted_longspec_tree_ += run.stats.accepted_tokens;
  if (matrix_case.setting.drafter == MatrixDrafter::kDFlash) accepted_dflash_ += run.stats.accepted_tokens;
  if (matrix_case.setting.drafter == MatrixDrafter::kDFlashWindow) accepted_dflash_window_ += run.stats.accepted_tokens;
}

void MatrixReach::merge(const MatrixReach& other) {
  const auto join = [](Coverage& target, const Coverage& source) {
    target.accepted_lengths.insert(source.accepted_lengths.begin(), source.accepted_lengths.end());
    target.child_indices.insert(source.child_indices.begin(), source.child_indices.end());
    target.end_places.insert(source.end_places.begin(), source.end_places.end());
    target.duplicate_siblings += source.duplicate_siblings;
  };
  join(trees_, other.trees_);
  join(chains_, other.chains_);
  accepted_standalone_ += other.accepted_standalone_;
  accepted_ngram_ += other.accepted_ngram_;
  accepted_longspec_chain_ += other.accepted_longspec_chain_;
  accepted_longspec_tree_ += other.accepted_longspec_tree_;
  accepted_dflash_ += other.accepted_dflash_;
  accepted_dflash_window_ += other.accepted_dflash_window_;
  preemptions_ += other.preemptions_;
  cut_rows_ += other.cut_rows_;
  passes_undrafted_ += other.passes_undrafted_;
  cut_accepted_ += other.cut_accepted_;
  truncations_ += other.truncations_;
}

std::string MatrixReach::missing(int batch) const {
  std::ostringstream text;
  const auto more_than = [&](std::int64_t seen, std::int64_t least, const char* what) {
    if (seen <= least) text << what << ": " << seen << ", more than " << least << " expected\n";
  };
  const auto all_of = [&](const std::set<int>& seen, int first, int last, const char* what) {
    for (int value = first; value <= last; ++value) {
      if (!seen.contains(value)) text << what << ": no " << value << '\n';
    }
  };
  more_than(truncations_, 20, "truncations");
  more_than(accepted_standalone_, 20, "accepted tokens of the standalone drafter");
  more_than(accepted_ngram_, 0, "accepted tokens of the n-gram drafter");
  more_than(accepted_longspec_chain_, 20, "accepted tokens of LongSpec's chains");
  more_than(accepted_longspec_tree_, accepted_longspec_chain_, "accepted tokens of LongSpec's trees");
  more_than(accepted_dflash_, 20, "accepted tokens of DFlash's blocks");
  more_than(accepted_dflash_window_, 20, "accepted tokens of DFlash's blocks over a window");
  more_than(cut_rows_, 1000, "rows cut by a row budget");
  more_than(passes_undrafted_, 100, "passes that a row budget let nobody draft for");
  more_than(cut_accepted_, 1000, "accepted tokens under a row budget");
  if (batch >= 3) more_than(preemptions_, 20, "preemptions");
  all_of(trees_.accepted_lengths, 0, 4, "accepted lengths of trees");
  all_of(chains_.accepted_lengths, 0, 6, "accepted lengths of chains");
  all_of(trees_.child_indices, 0, 2, "accepted children");
  all_of(trees_.end_places, 1, 5, "ends in accepted runs of trees");
  all_of(chains_.end_places, 1, 7, "ends in accepted runs of chains");
  more_than(trees_.duplicate_siblings, 100, "duplicate siblings");
  return text.str();
}

}  // namespace fastspec::testing
