// Validation of sampling parameters, and spellings.
#include <fastspec/request.h>

#include <cmath>

#include "base/check.h"

namespace fastspec {

namespace {

template <typename Number>  // whole numbers are written as such
void check(bool valid, const char* field, Number value, const char* expected) {
  if (!valid) fail(ErrorCode::kInvalidArgument, "sampling parameter ", field, " is ", value, ", expected ", expected);
}

}  // namespace

void SamplingParams::validate() const {
  check(std::isfinite(temperature) && temperature >= 0, "temperature", temperature, "0 (greedy) or more");
  check(top_k >= 0, "top_k", top_k, "0 (off) or more");
  check(top_p > 0 && top_p <= 1, "top_p", top_p, "more than 0, at most 1");
  check(min_p >= 0 && min_p <= 1, "min_p", min_p, "0 to 1");
  check(n >= 1 && n <= 4096, "n", n, "1 to 4096");
  check(max_tokens >= 1, "max_tokens", max_tokens, "1 or more");
  check(min_tokens >= 0 && min_tokens <= max_tokens, "min_tokens", min_tokens, "0 to max_tokens");
  check(!logprobs || *logprobs >= 0, "logprobs", logprobs.value_or(0), "0 or more");
  check(std::isfinite(repetition_penalty) && repetition_penalty > 0, "repetition_penalty", repetition_penalty,
        "more than 0");
  check(std::abs(presence_penalty) <= 2, "presence_penalty", presence_penalty, "-2 to 2");
  check(std::abs(frequency_penalty) <= 2, "frequency_penalty", frequency_penalty, "-2 to 2");
  for (const auto& [token, bias] : logit_bias) check(std::isfinite(bias), "logit_bias", bias, "finite values");
  for (const std::string& text : stop) {
    if (text.empty()) fail(ErrorCode::kInvalidArgument, "sampling parameter stop holds an empty string");
  }
}

const char* to_string(FinishReason reason) noexcept {
  switch (reason) {
    case FinishReason::kNone:
      return "";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

const char* to_string(Guarantee guarantee) noexcept {
  return guarantee == Guarantee::kExact ? "exact" : "sparse";
}

Guarantee parse_guarantee(const std::string& text) {
  for (const Guarantee guarantee : {Guarantee::kExact, Guarantee::kSparse}) {
    if (text == to_string(guarantee)) return guarantee;
  }
  fail(ErrorCode::kInvalidArgument, "guarantee \"", text, "\": expected exact or sparse");
}

}  // namespace fastspec
