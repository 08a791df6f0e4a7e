// What a drafter's confidences are worth, on real drafts: how well they rank, how far they are from chances before and
// after calibration, and how many tokens the same number of verified rows accepts when every sequence gets the same
// share and when all are ranked together. Drafts are verified in full, so that every fate is known; a sequence counts
// until a run of 16 tokens comes a second time, because small models loop.
// --help has the options.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "backend/intercepted_ops.h"
#include "base/check.h"
#include "budget/calibration.h"
#include "budget/row_budget.h"
#include "engine/engine_core.h"

namespace fastspec {
namespace {

constexpr int kFitted = 2000;  // labels that calibration sees
constexpr int kJudged = 20000;
constexpr int kBins = 15;

/// A draft and what came of it.
struct Fate {
  TokenTree tree{0};
  std::vector<float> margins;  // [num_nodes] score over the best other proposal's at its place; NaN: not known
  std::vector<int> path;       // accepted nodes, in order
};

/// Notes by how much each proposal's (perturbed) score is above the best other one. Asks for two where one is wanted.
class MarginOps final : public InterceptedOps {
 public:
  using InterceptedOps::InterceptedOps;

  void propose(const ProposeParams& params) override {
    const auto rows = static_cast<std::size_t>(params.logits.rows);
    const auto wanted = static_cast<std::size_t>(params.top_k), asked = std::max<std::size_t>(wanted, 2);
    tokens_.resize(rows * asked);
    confidences_.resize(rows * asked);
    ProposeParams both = params;
    both.top_k = static_cast<int>(asked);
    both.tokens = tokens_.data();
    both.confidences = confidences_.data();
    InterceptedOps::propose(both);
    for (std::size_t row = 0; row < rows; ++row) {
      const float* found = &confidences_[row * asked];
      for (std::size_t rank = 0; rank < wanted; ++rank) {
        params.tokens[row * wanted + rank] = tokens_[row * asked + rank];
        params.confidences[row * wanted + rank] = found[rank];
        margins_[std::min(found[rank], 1.0f)] = std::log(found[rank]) - std::log(found[rank == 0 ? 1 : 0]);
      }
    }
  }
  /// By confidence, to the last bit: two proposals of a step that share it share nearly everything.
  float margin(float confidence) const {
    const auto found = margins_.find(confidence);
    return found == margins_.end() ? std::numeric_limits<float>::quiet_NaN() : found->second;
  }
  void forget() { margins_.clear(); }

 private:
  void before() override {}
  void after() override {}
  std::vector<TokenId> tokens_;
  std::vector<float> confidences_;
  std::unordered_map<float, float> margins_;
};

/// Keeps every draft of another drafter, with its fate.
class RecordingDrafter final : public Drafter {
 public:
  /// @param margins null: not known.
  RecordingDrafter(std::unique_ptr<Drafter> inner, MarginOps* margins, std::vector<std::vector<Fate>>& steps)
      : inner_(std::move(inner)), margins_(margins), steps_(steps) {}

  std::string name() const override { return inner_->name(); }
  DrafterNeeds needs() const override { return inner_->needs(); }
  DraftShape shape() const override { return inner_->shape(); }
  void draft(std::span<const DraftRequest> requests, std::span<TokenTree> trees) override {
    if (margins_ != nullptr) margins_->forget();
    inner_->draft(requests, trees);
    pending_.clear();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (repeats(requests[i].tokens)) continue;
      Fate& fate = pending_[requests[i].seq];
      fate.tree = trees[i];
      for (const float confidence : trees[i].confidence) {
        fate.margins.push_back(margins_ == nullptr ? NAN : margins_->margin(confidence));
      }
    }
  }
  void observe(std::span<const Observation> observations) override {
    inner_->observe(observations);
    std::vector<Fate> step;
    for (const Observation& seen : observations) {
      const auto found = pending_.find(seen.seq);
      if (found == pending_.end()) continue;
      Fate& fate = step.emplace_back(std::move(found->second));
      for (int i = 1; i <= seen.num_accepted; ++i) {
        const int above = fate.path.empty() ? 0 : fate.path.back();
        const TokenId token = seen.tokens[static_cast<std::size_t>(seen.first_position + i)];
        int node = above + 1;
        while (fate.tree.parents[node] != above || fate.tree.tokens[node] != token) ++node;
        fate.path.push_back(node);
      }
    }
    pending_.clear();
    if (!step.empty()) steps_.push_back(std::move(step));
  }
  void truncate(SeqId seq, int length) override { inner_->truncate(seq, length); }
  void forget(SeqId seq) noexcept override { inner_->forget(seq); }
  void share(SeqId from, SeqId to, int length) override { inner_->share(from, to, length); }

 private:
  static bool repeats(std::span<const TokenId> tokens) {
    constexpr std::size_t kRun = 16;
    if (tokens.size() <= kRun) return false;
    const auto last = tokens.last(kRun);
    return std::search(tokens.begin(), tokens.end() - 1, last.begin(), last.end()) != tokens.end() - 1;
  }
  std::unique_ptr<Drafter> inner_;
  MarginOps* margins_;
  std::vector<std::vector<Fate>>& steps_;
  std::unordered_map<SeqId, Fate> pending_;
};

struct Options {
  EngineConfig engine;
  std::string prompts, csv;
  int max_tokens = 128;
  float temperature = 0;
  int labels = kFitted + kJudged;
  double minutes = 600;  // at most
};

void add_options(CLI::App& app, Options& options) {
  EngineConfig& engine = options.engine;
  engine.dtype = DType::kBFloat16;
  engine.max_batch_rows = 4096;
  engine.max_model_len = 1024;
  app.add_option("--model", engine.model, "Hugging Face directory")->required();
  app.add_option_function<std::string>(
         "--drafter", [&engine](const std::string& text) { engine.speculation.drafter = DrafterConfig::parse(text); },
         "standalone:DIR, longspec:DIR or dflash:DIR")
      ->required();
  app.add_option("--prompts", options.prompts, "A file with a JSON array of token ids in every line")->required();
  app.add_option("--batch", engine.max_num_seqs, "Sequences at once")->capture_default_str();
  app.add_option("--max-tokens", options.max_tokens, "Generated for each prompt")->capture_default_str();
  app.add_option("--temperature", options.temperature, "Of sampling")->capture_default_str();
  app.add_option_function<std::string>(
         "--dtype", [&engine](const std::string& text) { engine.dtype = parse_dtype(text); }, "Of weights and K/V")
      ->default_str(to_string(*engine.dtype));
  app.add_option("--tree-widths", engine.speculation.drafter.tree_widths, "Nodes of each level of the tree: 1,1,1,1")
      ->delimiter(',');
  app.add_option("--max-draft-tokens", engine.speculation.max_draft_tokens,
                 "Drafted for one sequence and step; default: as the engine");
  app.add_option("--labels", options.labels, "Stop after this many drafted tokens whose fate is known")
      ->capture_default_str();
  app.add_option("--minutes", options.minutes, "And after this time")->capture_default_str();
  app.add_option("--device", engine.device, "cpu or cuda:N")->capture_default_str();
  app.add_option("--threads", engine.num_threads, "CPU threads; 0: all cores")->capture_default_str();
  app.add_option("--csv", options.csv, "Gets a line for every drafted token; margins are seen on a CPU");
}

/// Calls `use(node, depth, accepted)` for every node whose path was accepted.
template <typename Use>
void for_labels(const Fate& fate, const Use& use) {
  const std::vector<int> depths = fate.tree.depths();
  for (int node = 1; node < fate.tree.num_nodes(); ++node) {
    const std::size_t above = static_cast<std::size_t>(depths[node]) - 1;
    if (above > fate.path.size() || (above > 0 ? fate.path[above - 1] : 0) != fate.tree.parents[node]) continue;
    use(node, depths[node], above < fate.path.size() && fate.path[above] == node);
  }
}

int num_labels(std::span<const Fate> step) {
  int count = 0;
  for (const Fate& fate : step) for_labels(fate, [&](int, int, bool) { ++count; });
  return count;
}

std::vector<std::vector<Fate>> record(const Options& options) {
  std::vector<std::vector<Fate>> steps;
  EngineParts parts = EngineCore::load(options.engine, {});
  MarginOps* margins = nullptr;
  if (options.engine.device.starts_with("cpu")) {
    auto ops = std::make_unique<MarginOps>(std::move(parts.backend.ops));
    margins = ops.get();
    parts.backend.ops = std::move(ops);
  }
  parts.wrap_drafter = [margins, &steps](std::unique_ptr<Drafter> inner) {
    return std::make_unique<RecordingDrafter>(std::move(inner), margins, steps);
  };
  EngineCore engine(options.engine, std::move(parts));
  std::ifstream file(options.prompts);
  std::uint64_t seed = 0;
  for (std::string line; std::getline(file, line);) {
    Request request;
    request.prompt_token_ids = nlohmann::json::parse(line).get<std::vector<TokenId>>();
    request.sampling.temperature = options.temperature;
    request.sampling.max_tokens = options.max_tokens;
    request.sampling.seed = ++seed;
    engine.submit(request);
  }
  if (seed == 0) fail(ErrorCode::kInvalidArgument, "--prompts ", options.prompts, ": no line could be read");
  int labels = 0;
  std::size_t counted = 0;
  const auto start = std::chrono::steady_clock::now();
  const auto end = start + std::chrono::duration<double, std::ratio<60>>(options.minutes);
  while (engine.has_work() && labels < options.labels && std::chrono::steady_clock::now() < end) {
    engine.step();
    for (; counted < steps.size(); ++counted) labels += num_labels(steps[counted]);
  }
  std::printf("%s of %s, batch %d, temperature %g: %d labels in %zu steps, tau %.2f, drafted %.1f a pass\n",
              engine.info().drafter.c_str(), options.engine.model.c_str(), options.engine.max_num_seqs,
              static_cast<double>(options.temperature), labels, steps.size(), engine.stats().acceptance_length(),
              double(engine.stats().drafted_tokens) / double(engine.stats().decoding_passes));
  return steps;
}

/// Chance that an accepted token's score is above a refused one's; ties count half.
double ranking_power(std::vector<Prediction> predictions) {
  std::sort(predictions.begin(), predictions.end(), [](const auto& a, const auto& b) { return a.chance < b.chance; });
  double refused = 0, accepted = 0, won = 0;
  for (std::size_t begin = 0; begin < predictions.size();) {
    double ties_refused = 0, ties_accepted = 0;
    std::size_t end = begin;
    for (; end < predictions.size() && predictions[end].chance == predictions[begin].chance; ++end) {
      (predictions[end].accepted ? ties_accepted : ties_refused) += 1;
    }
    won += ties_accepted * (refused + 0.5 * ties_refused);
    refused += ties_refused;
    accepted += ties_accepted;
    begin = end;
  }
  return won / (accepted * refused);
}

void print_calibration(std::span<const std::vector<Fate>> steps, bool sampled) {
  Calibration frozen, online;
  std::vector<Prediction> raw, once, always;
  std::vector<float> chances_once, chances_always;
  int seen = 0;
  for (const std::vector<Fate>& step : steps) {
    for (const Fate& fate : step) {
      frozen.chances(fate.tree, sampled, chances_once);
      online.chances(fate.tree, sampled, chances_always);
      const bool is_judged = seen >= kFitted;
      for_labels(fate, [&](int node, int, bool accepted) {
        ++seen;
        if (!is_judged) return;
        const float confidence = fate.tree.confidence[node];
        raw.push_back({std::isnan(confidence) ? 1 : confidence, accepted});
        once.push_back({chances_once[node], accepted});
        always.push_back({chances_always[node], accepted});
      });
      if (!is_judged) frozen.observe(fate.tree, fate.path, sampled);
      online.observe(fate.tree, fate.path, sampled);
    }
  }
  const auto error = [](std::span<const Prediction> predictions) {
    return 100 * calibration_error(reliability(predictions, kBins));
  };
  std::printf(
      "expected calibration error over the %zu labels after the first %d: raw %.2f %%, fitted to those %.2f %%, "
      "fitted on and on %.2f %%; ranking power (AUC) raw %.3f, fitted %.3f\n",
      raw.size(), kFitted, error(raw), error(once), error(always), ranking_power(raw), ranking_power(once));
  for (const ReliabilityBin& bin : reliability(once, kBins)) {
    std::printf("  %.3f predicted, %.3f came\n", bin.predicted, bin.observed);
  }
}

/// Accepted tokens of a step of which these nodes are verified.
int accepted_of(std::span<const Fate> step, const std::vector<std::vector<bool>>& kept) {
  int accepted = 0;
  for (std::size_t i = 0; i < step.size(); ++i) {
    for (const int node : step[i].path) {
      if (!kept[i][static_cast<std::size_t>(node)]) break;
      ++accepted;
    }
  }
  return accepted;
}

/// Marks the best nodes of a ranking: `count` in all, or of every tree its share of them.
std::vector<std::vector<bool>> mark(std::span<const Fate> step, std::span<const RankedNode> ranking, int count,
                                    bool is_uniform) {
  std::vector<std::vector<bool>> kept;
  std::vector<int> left;
  const int trees = static_cast<int>(step.size());
  for (int i = 0; i < trees; ++i) {
    kept.emplace_back(step[static_cast<std::size_t>(i)].tree.tokens.size(), false);
    left.push_back(is_uniform ? count / trees + (i < count % trees ? 1 : 0) : count);
  }
  for (const RankedNode& node : ranking) {
    if (count <= 0 || left[node.tree] <= 0) continue;
    --left[node.tree];
    --count;
    kept[static_cast<std::size_t>(node.tree)][static_cast<std::size_t>(node.node)] = true;
  }
  return kept;
}

void print_budget_use(std::span<const std::vector<Fate>> steps, bool sampled, int batch) {
  constexpr double kShares[] = {0.25, 0.5, 0.75, 1.0};
  Calibration calibration;
  double uniform[4] = {}, raw[4] = {}, fitted[4] = {}, rows = 0;
  int seen = 0, counted = 0;
  for (const std::vector<Fate>& step : steps) {
    const bool counts = seen >= kFitted && static_cast<int>(step.size()) >= batch / 2;
    std::vector<TokenTree> trees;
    std::vector<std::vector<float>> own, chances;
    int drafted = 0;
    for (const Fate& fate : step) {
      trees.push_back(fate.tree);
      drafted += fate.tree.num_drafted();
      own.push_back(survival(fate.tree));
      std::vector<float> learned;
      calibration.chances(fate.tree, sampled, learned);
      survival(fate.tree, learned, chances.emplace_back());
    }
    RowRanking raw_ranking, fitted_ranking;
    const std::span<const RankedNode> by_confidence = raw_ranking.rank(trees, own);
    const std::span<const RankedNode> by_chance = fitted_ranking.rank(trees, chances);
    const int roots = static_cast<int>(step.size());
    for (int i = 0; i < 4 && counts; ++i) {
      const int kept = rows_of_share(kShares[i], roots, drafted);
      uniform[i] += accepted_of(step, mark(step, by_confidence, kept, true));
      raw[i] += accepted_of(step, mark(step, by_confidence, kept, false));
      fitted[i] += accepted_of(step, mark(step, by_chance, kept, false));
    }
    counted += counts ? 1 : 0;
    rows += counts ? roots + drafted : 0;
    for (const Fate& fate : step) calibration.observe(fate.tree, fate.path, sampled);
    seen += num_labels(step);
  }
  std::printf(
      "accepted tokens a step, over %d steps of %.0f rows in the mean:\n"
      "  share of rows   the same for each   ranked by confidence   ranked by fitted chance\n",
      counted, rows / counted);
  for (int i = 0; i < 4; ++i) {
    std::printf("  %12.0f %%   %17.2f   %20.2f   %23.2f\n", 100 * kShares[i], uniform[i] / counted, raw[i] / counted,
                fitted[i] / counted);
  }
}

void write_csv(const std::string& path, std::span<const std::vector<Fate>> steps) {
  std::ofstream file(path);
  file << "step,tree,node,parent,depth,confidence,margin,labelled,accepted\n";
  for (std::size_t s = 0; s < steps.size(); ++s) {
    for (std::size_t t = 0; t < steps[s].size(); ++t) {
      const Fate& fate = steps[s][t];
      const std::vector<int> depths = fate.tree.depths();
      std::vector<int> labels(fate.tree.tokens.size(), -1);
      for_labels(fate, [&](int node, int, bool accepted) { labels[node] = accepted ? 1 : 0; });
      for (int node = 1; node < fate.tree.num_nodes(); ++node) {
        file << s << ',' << t << ',' << node << ',' << fate.tree.parents[node] << ',' << depths[node] << ','
             << fate.tree.confidence[node] << ',' << fate.margins[node] << ',' << (labels[node] >= 0) << ','
             << (labels[node] == 1) << '\n';
      }
    }
  }
  if (!file) fail(ErrorCode::kInvalidArgument, "--csv ", path, ": cannot be written");
}

}  // namespace
}  // namespace fastspec

int main(int count, char** arguments) try {
  using namespace fastspec;
  CLI::App app("What a drafter's confidences are worth, on real drafts");
  Options options;
  add_options(app, options);
  CLI11_PARSE(app, count, arguments);
  const std::vector<std::vector<Fate>> steps = record(options);
  print_calibration(steps, options.temperature > 0);
  print_budget_use(steps, options.temperature > 0, options.engine.max_num_seqs);
  if (!options.csv.empty()) write_csv(options.csv, steps);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "study_drafts: %s\n", error.what());
  return 2;
}
