// Runs requests through an EngineCore made of a tiny model, and compares outputs. Used by the lossless matrix, the
// fault tests and the fuzz.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_core.h"
#include "support/planted_drafter.h"

namespace fastspec::testing {

constexpr std::uint64_t kTargetSeed = 11;  // of the target's weights
/// What manifests call the models, which have no files.
constexpr const char* kTargetFingerprint = "0000000000000011";
constexpr const char* kDraftFingerprint = "0000000000000022";

struct HarnessOptions {
  std::string device = "cpu:reference";
  DType dtype = DType::kFloat32;
  int max_num_seqs = 8;
  int max_batch_rows = 256;
  int page_size = 4;
  int num_pages = 0;  // 0 = as many as are needed
  int max_model_len = 256;
  int vocab_size = 61;
  DrafterConfig drafter;  // ngram, standalone for a noisy copy of the target, longspec for one of its last layer,
                          // dflash for a random block drafter
  std::vector<TokenId> draft_vocabulary;  // of longspec; empty = all
  float draft_noise = 0.05f;
  std::optional<int> max_draft_tokens = 5;
  BudgetConfig budget;
  std::optional<CostParameters> costs;  // of kAuto; unset = measured, or what the cache holds
  std::unique_ptr<Drafter> own_drafter;
  bool has_windows = true;  // of the target's layers; without them it can have sparse passes
  SparseConfig sparse;
  std::unique_ptr<KvSelector> own_selector;  // `sparse` says how it is used
  bool bypasses = true;                      // false: sparse passes also where the context fits the budget
  /// Wraps the operations: a fault, for instance.
  std::function<std::unique_ptr<Ops>(std::unique_ptr<Ops>)> wrap_ops;
  bool replays = false;    // decoding passes are padded, recorded and replayed (replaying_device.h)
  bool pipelined = false;  // and the device runs behind the host, so that steps are launched ahead (deferring_ops.h)
};

std::unique_ptr<EngineCore> make_engine(HarnessOptions options);

/// One sample's whole output, as (request in order of submission, sample).
struct WholeOutput {
  std::vector<TokenId> tokens;
  std::string text;
  std::vector<PositionLogprobs> logprobs;
  std::vector<float> margins;  // of each token where a step gave one token (plain decoding), else the run's smallest
  FinishReason finish = FinishReason::kNone;
  std::string error;
  OutputStats stats;
  Guarantee guarantee = Guarantee::kExact;
};
using Outputs = std::vector<WholeOutput>;

/// Submits all requests at once, `arrivals` a step when given, and steps until nothing is left. `between` runs after
/// every step.
Outputs run(EngineCore& engine, const std::vector<Request>& requests, int arrivals = 0,
            const std::function<void(EngineCore&)>& between = {});

/// Every request alone in a plain engine of the same model.
Outputs run_plain_alone(const HarnessOptions& options, const std::vector<Request>& requests);

/// Empty when tokens, text, log-probabilities and finish are equal bit for bit, else the first difference.
std::string difference(const Outputs& expected, const Outputs& seen);

/// Plain outputs by (seed, sample), prompt included, for the planted drafter.
std::map<std::pair<std::uint64_t, std::uint32_t>, std::vector<TokenId>> truths_of(const std::vector<Request>& requests,
                                                                                  const Outputs& plain);

}  // namespace fastspec::testing
