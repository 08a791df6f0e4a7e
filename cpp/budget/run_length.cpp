// See run_length.h.
#include "budget/run_length.h"

#include <algorithm>
#include <cmath>

namespace fastspec {

namespace {

constexpr int kUsualLength = 8;  // while too little is known
// Of a sequence, per run: the last 50 or so speak. A pause forgets as slowly.
constexpr double kRunFade = 0.98;
constexpr double kStepFade = 0.98;
constexpr double kTokenFade = 0.95;
// What is believed of a pair of passes before it was seen: 19 of 20 tokens agree.
constexpr double kPriorAgreed = 19;
constexpr double kPriorParted = 1;
constexpr double kEveryoneWeight = 20;  // tokens of all sequences that stand beside a sequence's own
constexpr double kEnoughSteps = 8;

void fade(double factor, AgreementRecord& record) {
  record.agreed *= factor;
  record.parted *= factor;
}

double share(double agreed, double parted) {
  return agreed / (agreed + parted);
}

}  // namespace

double RunLength::expected_tokens(int length, double agreement, double dense_tokens) {
  double tokens = 1;
  double reached = 1;  // chance that all before were confirmed
  for (int i = 0; i < length; ++i) {
    reached *= agreement;
    tokens += reached;
  }
  return tokens + reached * (dense_tokens - 1);  // drafted tokens hang below the whole run
}

int RunLength::best(double agreement, const PassPrices& prices, double sparse_tokens, double dense_tokens,
                    int longest) {
  int best = 0;
  double best_rate = 0;
  for (int length = 0; length <= longest; ++length) {
    const double time = prices.dense + prices.sparse * std::ceil(length / sparse_tokens);
    const double rate = expected_tokens(length, agreement, dense_tokens) / time;
    if (rate <= best_rate) continue;
    best = length;
    best_rate = rate;
  }
  return best;
}

int RunLength::choose(const AgreementRecord& record, std::optional<PassPrices> prices, int longest) const {
  if (!prices) return std::min(kUsualLength, longest);
  return best(agreement(record), *prices, sparse_tokens_, dense_tokens_, longest);
}

double RunLength::agreement(const AgreementRecord& record) const {
  const double all = share(everyone_.agreed + kPriorAgreed, everyone_.parted + kPriorParted);
  return share(record.agreed + kEveryoneWeight * all, record.parted + kEveryoneWeight * (1 - all));
}

std::optional<PassPrices> RunLength::measured_prices(int keys) const {
  if (steps_ < kEnoughSteps) return std::nullopt;
  const double mean_keys = keys_ / steps_;
  const double mean_seconds = seconds_ / steps_;
  const double variance = keys_squared_ / steps_ - mean_keys * mean_keys;
  // Steps that are all alike say nothing of what a dense pass costs.
  if (!(variance > 1e-6 * keys_squared_ / steps_)) return std::nullopt;
  const double covariance = keys_seconds_ / steps_ - mean_keys * mean_seconds;
  const double per_key = std::max(0.0, covariance / variance);
  const double fixed = mean_seconds - per_key * mean_keys;
  if (!(fixed > 0)) return std::nullopt;
  const double sparse = fixed * steps_ / sequences_;
  return PassPrices{.sparse = sparse, .dense = sparse + per_key * keys};
}

void RunLength::observe_run(int confirmed, bool parted, AgreementRecord& record) {
  for (AgreementRecord* seen : {&record, &everyone_}) {
    fade(kRunFade, *seen);
    seen->agreed += confirmed;
    seen->parted += parted ? 1 : 0;
  }
}

void RunLength::observe_pause(AgreementRecord& record) {
  fade(kRunFade, record);
  fade(kRunFade, everyone_);
}

void RunLength::observe_sparse_pass(int tokens) {
  sparse_tokens_ += (1 - kTokenFade) * (std::max(tokens, 1) - sparse_tokens_);
}

void RunLength::observe_dense_pass(int tokens) {
  dense_tokens_ += (1 - kTokenFade) * (std::max(tokens, 1) - dense_tokens_);
}

void RunLength::observe_step(double seconds, int num_sequences, double dense_keys) {
  for (double* sum : {&steps_, &sequences_, &keys_, &seconds_, &keys_squared_, &keys_seconds_}) *sum *= kStepFade;
  steps_ += 1;
  sequences_ += num_sequences;
  keys_ += dense_keys;
  seconds_ += seconds;
  keys_squared_ += dense_keys * dense_keys;
  keys_seconds_ += dense_keys * seconds;
}

}  // namespace fastspec
