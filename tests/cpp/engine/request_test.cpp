// Sampling parameters: what is refused and what the message names; spellings.
#include <fastspec/request.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "support/expect_error.h"

namespace fastspec::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

void expect_refused(const std::function<void(SamplingParams&)>& spoil, std::initializer_list<std::string> parts) {
  SamplingParams params;
  spoil(params);
  expect_error(ErrorCode::kInvalidArgument, parts, [&] { params.validate(); });
}

void expect_allowed(const std::function<void(SamplingParams&)>& change) {
  SamplingParams params;
  change(params);
  EXPECT_NO_THROW(params.validate());
}

TEST(SamplingParamsTest, DefaultsAreValid) {
  EXPECT_NO_THROW(SamplingParams().validate());
}

TEST(SamplingParamsTest, RefusalsNameTheFieldAndItsValue) {
  expect_refused([](SamplingParams& p) { p.temperature = -0.5f; }, {"temperature", "-0.5"});
  expect_refused([](SamplingParams& p) { p.temperature = kInfinity; }, {"temperature", "inf"});
  expect_refused([](SamplingParams& p) { p.top_k = -1; }, {"top_k", "-1"});
  expect_refused([](SamplingParams& p) { p.top_p = 0; }, {"top_p", "0"});
  expect_refused([](SamplingParams& p) { p.top_p = 1.5f; }, {"top_p", "1.5"});
  expect_refused([](SamplingParams& p) { p.min_p = -0.5f; }, {"min_p", "-0.5"});
  expect_refused([](SamplingParams& p) { p.min_p = 1.5f; }, {"min_p", "1.5"});
  expect_refused([](SamplingParams& p) { p.n = 0; }, {"n is 0"});
  expect_refused([](SamplingParams& p) { p.n = 4097; }, {"n is 4097", "4096"});
  expect_refused([](SamplingParams& p) { p.n = 1 << 20; }, {"n is 1048576"});
  expect_refused([](SamplingParams& p) { p.max_tokens = 0; }, {"max_tokens", "0"});
  expect_refused([](SamplingParams& p) { p.min_tokens = -1; }, {"min_tokens", "-1"});
  expect_refused([](SamplingParams& p) { p.min_tokens = p.max_tokens + 1; }, {"min_tokens", "129", "max_tokens"});
  expect_refused([](SamplingParams& p) { p.logprobs = -1; }, {"logprobs", "-1"});
  expect_refused([](SamplingParams& p) { p.repetition_penalty = 0; }, {"repetition_penalty", "0"});
  expect_refused([](SamplingParams& p) { p.repetition_penalty = kInfinity; }, {"repetition_penalty", "inf"});
  expect_refused([](SamplingParams& p) { p.presence_penalty = 2.5f; }, {"presence_penalty", "2.5"});
  expect_refused([](SamplingParams& p) { p.frequency_penalty = -2.5f; }, {"frequency_penalty", "-2.5"});
  expect_refused([](SamplingParams& p) { p.logit_bias = {{1, 2.0f}, {3, kInfinity}}; }, {"logit_bias", "inf"});
  expect_refused([](SamplingParams& p) { p.stop = {"a", ""}; }, {"stop", "empty"});
}

TEST(SamplingParamsTest, NaNIsNeverInRange) {
  expect_refused([](SamplingParams& p) { p.temperature = kNaN; }, {"temperature", "nan"});
  expect_refused([](SamplingParams& p) { p.top_p = kNaN; }, {"top_p", "nan"});
  expect_refused([](SamplingParams& p) { p.min_p = kNaN; }, {"min_p", "nan"});
  expect_refused([](SamplingParams& p) { p.repetition_penalty = kNaN; }, {"repetition_penalty", "nan"});
  expect_refused([](SamplingParams& p) { p.presence_penalty = kNaN; }, {"presence_penalty", "nan"});
  expect_refused([](SamplingParams& p) { p.frequency_penalty = kNaN; }, {"frequency_penalty", "nan"});
  expect_refused([](SamplingParams& p) { p.logit_bias = {{1, kNaN}}; }, {"logit_bias", "nan"});
}

TEST(SamplingParamsTest, BoundsAreAllowed) {
  expect_allowed([](SamplingParams& p) { p.temperature = 0; });
  expect_allowed([](SamplingParams& p) { p.top_p = 1; });
  expect_allowed([](SamplingParams& p) { p.top_p = std::numeric_limits<float>::denorm_min(); });
  expect_allowed([](SamplingParams& p) { p.min_p = 1; });
  expect_allowed([](SamplingParams& p) { p.n = 4096; });
  expect_allowed([](SamplingParams& p) { p.max_tokens = p.min_tokens = 1; });
  expect_allowed([](SamplingParams& p) { p.max_tokens = std::numeric_limits<int>::max(); });
  expect_allowed([](SamplingParams& p) { p.logprobs = 0; });
  expect_allowed([](SamplingParams& p) { p.presence_penalty = p.frequency_penalty = -2; });
  expect_allowed([](SamplingParams& p) { p.presence_penalty = p.frequency_penalty = 2; });
  expect_allowed([](SamplingParams& p) { p.logit_bias = {{1, -100.0f}}; });
}

TEST(SpellingTest, FinishReasonsAndGuarantees) {
  EXPECT_STREQ(to_string(FinishReason::kNone), "");
  EXPECT_STREQ(to_string(FinishReason::kStop), "stop");
  EXPECT_STREQ(to_string(FinishReason::kLength), "length");
  EXPECT_STREQ(to_string(FinishReason::kCancelled), "cancelled");
  EXPECT_STREQ(to_string(FinishReason::kError), "error");
  EXPECT_STREQ(to_string(Guarantee::kExact), "exact");
  EXPECT_STREQ(to_string(Guarantee::kSparse), "sparse");
}

TEST(OutputStatsTest, AcceptanceLengthCountsTheBonusAndNoPromptPasses) {
  OutputStats stats;
  EXPECT_EQ(stats.acceptance_length(), 0.0);
  stats.decoding_passes = 4;
  stats.decoding_tokens = 10;
  EXPECT_EQ(stats.acceptance_length(), 2.5);
}

}  // namespace
}  // namespace fastspec::test
