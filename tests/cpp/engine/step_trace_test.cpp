// From spans of kernels to busy and idle time: intervals that meet, overlap and nest, steps that are cut off, names.
#include "engine/step_trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "support/expect_error.h"

namespace fastspec::test {
namespace {

constexpr std::int64_t kMicrosecond = 1000;

/// In microseconds.
DeviceSpan span(const char* name, std::int64_t begin, std::int64_t end, bool ends_step = false) {
  return {name, begin * kMicrosecond, end * kMicrosecond, ends_step};
}

double microseconds(double milliseconds) {
  return 1e3 * milliseconds;
}

TEST(StepTrace, GapsAreInsideOrBetweenSteps) {
  const StepTrace trace = summarize(
      {
          span("end", 90, 100, true),
          span("a", 107, 110),
          span("b", 110, 130),
          span("c", 133, 140),
          span("end", 141, 142, true),  // 7 | 0, 3, 1
          span("a", 142, 160),
          span("b", 165, 180),
          span("end", 180, 182, true),  // 0 | 5, 0
      },
      10);
  EXPECT_EQ(trace.steps, 2);
  EXPECT_DOUBLE_EQ(microseconds(trace.milliseconds), (182.0 - 100) / 2);
  EXPECT_DOUBLE_EQ(microseconds(trace.idle_between_milliseconds), 7.0 / 2);
  EXPECT_DOUBLE_EQ(microseconds(trace.idle_inside_milliseconds), (3.0 + 1 + 5) / 2);
  EXPECT_DOUBLE_EQ(microseconds(trace.busy_milliseconds), (82.0 - 7 - 9) / 2);
}

TEST(StepTrace, OverlappingKernelsAreBusyOnce) {
  const StepTrace trace = summarize(
      {
          span("end", 0, 10, true),
          span("early", 8, 20),  // begins while the step before ends: no idle time between
          span("long", 15, 60),
          span("nested", 20, 30),
          span("nested", 40, 50),  // ends before what began earlier
          span("late", 64, 70),
          span("end", 70, 71, true),
      },
      10);
  EXPECT_DOUBLE_EQ(microseconds(trace.milliseconds), 61);
  EXPECT_DOUBLE_EQ(microseconds(trace.idle_between_milliseconds), 0);
  EXPECT_DOUBLE_EQ(microseconds(trace.idle_inside_milliseconds), 4);
  EXPECT_DOUBLE_EQ(microseconds(trace.busy_milliseconds), 57);
  ASSERT_EQ(trace.kernels.size(), 5u);
  EXPECT_EQ(trace.kernels[0].name, "long");
  EXPECT_EQ(trace.kernels[1].name, "nested");
  EXPECT_DOUBLE_EQ(trace.kernels[1].launches, 2);
  EXPECT_DOUBLE_EQ(microseconds(trace.kernels[1].milliseconds), 20);
  EXPECT_DOUBLE_EQ(trace.kernels[1].share, 20.0 / 61);
}

TEST(StepTrace, OnlyTheLastWholeStepsCount) {
  std::vector<DeviceSpan> spans = {span("before", 0, 5)};
  for (int step = 0; step < 5; ++step) {
    const int start = 100 * step, idle = step == 1 ? 50 : 2;  // the first whole step waits long
    spans.push_back(span("work", start + idle, start + 90));
    spans.push_back(span("end", start + 90, start + 100, true));
  }
  spans.push_back(span("cut off", 700, 800));
  EXPECT_DOUBLE_EQ(microseconds(summarize(spans, 3).idle_between_milliseconds), 2);
  EXPECT_EQ(summarize(spans, 3).steps, 3);
  EXPECT_EQ(summarize(spans, 3).kernels.size(), 2u);
  EXPECT_DOUBLE_EQ(microseconds(summarize(spans, 9).idle_between_milliseconds), (50.0 + 3 * 2) / 4);
  EXPECT_EQ(summarize(spans, 9).steps, 4);
}

TEST(StepTrace, OrderOfTheRecordDoesNotMatter) {
  std::vector<DeviceSpan> spans;
  for (int i = 0; i < 60; ++i) spans.push_back(span(i % 2 == 0 ? "a" : "b", 10 * i, 10 * i + 5 + i % 7, i % 6 == 0));
  const std::string expected = summarize(spans, 100).to_string();
  std::mt19937 random(3);
  for (int i = 0; i < 5; ++i) {
    std::shuffle(spans.begin(), spans.end(), random);
    EXPECT_EQ(summarize(spans, 100).to_string(), expected);
  }
}

/// Every nanosecond by itself, against the walk over sorted spans.
TEST(StepTrace, RandomRecordsAddUp) {
  std::mt19937 random(11);
  const auto pick = [&](int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); };
  for (int round = 0; round < 50; ++round) {
    std::vector<DeviceSpan> spans = {{"end", 0, 3, true}};
    std::vector<char> covered(3, 1), is_between(3, 0);
    const int steps = pick(1, 4);
    for (int step = 0; step < steps; ++step) {
      const int from = static_cast<int>(covered.size());
      int last = from, first = 1 << 20;
      for (int i = pick(0, 6); i > 0; --i) {
        const int begin = from + pick(0, 30), end = begin + pick(1, 12);
        spans.push_back({"work", begin, end, false});
        first = std::min(first, begin);
        last = std::max(last, end);
        covered.resize(std::max<std::size_t>(covered.size(), end), 0);
        std::fill(covered.begin() + begin, covered.begin() + end, 1);
      }
      const int begin = last + pick(0, 5), end = begin + pick(1, 3);
      spans.push_back({"end", begin, end, true});
      first = std::min(first, begin);
      covered.resize(end, 0);
      std::fill(covered.begin() + begin, covered.begin() + end, 1);
      is_between.resize(end, 0);
      std::fill(is_between.begin() + from, is_between.begin() + first, 1);
    }
    double busy = 0, inside = 0, between = 0;
    for (std::size_t t = 3; t < covered.size(); ++t) (covered[t] ? busy : is_between[t] ? between : inside) += 1e-6;
    std::shuffle(spans.begin(), spans.end(), random);
    const StepTrace trace = summarize(spans, 100);
    EXPECT_EQ(trace.steps, steps);
    EXPECT_NEAR(trace.busy_milliseconds * steps, busy, 1e-12);
    EXPECT_NEAR(trace.idle_inside_milliseconds * steps, inside, 1e-12);
    EXPECT_NEAR(trace.idle_between_milliseconds * steps, between, 1e-12);
  }
}

TEST(StepTrace, RefusesARecordWithoutAWholeStep) {
  expect_error(ErrorCode::kUnsupported, {"0 kernels", "no whole step"}, [] { summarize({}, 3); });
  expect_error(ErrorCode::kUnsupported, {"2 kernels"}, [] { summarize({span("a", 1, 2), span("e", 3, 4, true)}, 3); });
}

TEST(StepTrace, NamesAreShort) {
  EXPECT_EQ(short_kernel_name("void fastspec::cuda::(anonymous namespace)::rms_norm_kernel<float, 3>(Args<int>)"),
            "rms_norm_kernel");
  EXPECT_EQ(short_kernel_name("fastspec::cuda::plan_kernel(int)"), "plan_kernel");
  EXPECT_EQ(short_kernel_name("void cutlass::Kernel2<cutlass_80_gemm>(cutlass_80_gemm::Params)"), "cutlass::Kernel2");
  EXPECT_EQ(short_kernel_name("nvjet_tst_128x8_64x12_TNT"), "nvjet_tst_128x8_64x12_TNT");
  EXPECT_EQ(short_kernel_name("memcpy"), "memcpy");
  EXPECT_EQ(short_kernel_name("<odd>"), "<odd>");
}

TEST(StepTrace, TableNamesTheLongestAndSumsTheRest) {
  std::vector<DeviceSpan> spans = {span("end", 0, 1, true)};
  for (int i = 0; i < 14; ++i)
    spans.push_back(span(("kernel_" + std::to_string(i)).c_str(), 10 * i + 1, 10 * i + 11 - (i % 3)));
  spans.push_back(span("end", 145, 161, true));
  const std::string text = summarize(spans, 1).to_string();
  EXPECT_NE(text.find("1 steps of 0.160 ms"), std::string::npos) << text;
  EXPECT_NE(text.find("3 others"), std::string::npos) << text;
  EXPECT_LT(text.find("  end "), text.find("kernel_0")) << text;
}

}  // namespace
}  // namespace fastspec::test
