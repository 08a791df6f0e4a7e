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
    const double time = prices.dense + prices.row * length + prices.sparse * std::ceil(length / sparse_tokens);
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
  const double mean_keys = keys_ / steps_, mean_rows = rows_ / steps_, mean_seconds = seconds_ / steps_;
  const double keys_variance = keys_squared_ / steps_ - mean_keys * mean_keys;
  // Steps that are all alike say nothing of what a dense pass costs.
  if (!(keys_variance > 1e-6 * keys_squared_ / steps_)) return std::nullopt;
  const double keys_seconds = keys_seconds_ / steps_ - mean_keys * mean_seconds;
  const double rows_variance = rows_squared_ / steps_ - mean_rows * mean_rows;
  const double rows_seconds = rows_seconds_ / steps_ - mean_rows * mean_seconds;
  const double keys_rows = keys_rows_ / steps_ - mean_keys * mean_rows;
  double per_key = keys_seconds / keys_variance, per_row = 0;
  // Where runs are always as long, their rows come with the keys and cannot be told from them.
  const double told_apart = keys_variance * rows_variance - keys_rows * keys_rows;
  if (told_apart > 1e-2 * keys_variance * rows_variance) {
    const double price = (rows_seconds * keys_variance - keys_seconds * keys_rows) / told_apart;
    if (price > 0) {
      per_row = price;
      per_key = (keys_seconds * rows_variance - rows_seconds * keys_rows) / told_apart;
    }
  }
  per_key = std::max(0.0, per_key);
  const double fixed = mean_seconds - per_key * mean_keys - per_row * mean_rows;
  if (!(fixed > 0)) return std::nullopt;
  const double sparse = fixed * steps_ / sequences_;
  return PassPrices{.sparse = sparse, .dense = sparse + per_key * keys, .row = per_row};
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

void RunLength::observe_step(double seconds, int num_sequences, double dense_keys, double rows) {
  for (double* sum : {&steps_, &sequences_, &keys_, &rows_, &seconds_, &keys_squared_, &rows_squared_, &keys_rows_,
                      &keys_seconds_, &rows_seconds_}) {
    *sum *= kStepFade;
  }
  steps_ += 1;
  sequences_ += num_sequences;
  keys_ += dense_keys;
  rows_ += rows;
  seconds_ += seconds;
  keys_squared_ += dense_keys * dense_keys;
  rows_squared_ += rows * rows;
  keys_rows_ += dense_keys * rows;
  keys_seconds_ += dense_keys * seconds;
  rows_seconds_ += rows * seconds;
}

}  // namespace fastspec
