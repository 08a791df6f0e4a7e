// See step_trace.h.
#include "engine/step_trace.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <map>

#include "base/check.h"

namespace fastspec {
namespace {

constexpr std::size_t kMostLines = 12;  // of the table
constexpr double kMilliseconds = 1e-6;  // of a nanosecond

/// Nanoseconds and launches of whole steps.
struct Sums {
  std::int64_t all = 0, inside = 0, between = 0;
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> kernels;  // launches, nanoseconds
};

/// Adds the step whose spans are [begin, end), in order of their begins. @param from end of the step before.
/// @returns its own end.
std::int64_t add_step(const DeviceSpan* begin, const DeviceSpan* end, std::int64_t from, Sums& sums) {
  std::int64_t covered = from;  // until here there is no more idle time to find
  for (const DeviceSpan* span = begin; span != end; ++span) {
    if (span->begin > covered) (span == begin ? sums.between : sums.inside) += span->begin - covered;
    covered = std::max(covered, span->end);
    auto& [launches, nanoseconds] = sums.kernels[short_kernel_name(span->name)];
    ++launches;
    nanoseconds += span->end - span->begin;
  }
  sums.all += covered - from;
  return covered;
}

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...) {
  char text[512];
  std::va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof(text), pattern, arguments);
  va_end(arguments);
  return text;
}

void replace_all(std::string& text, std::string_view what) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at)) text.erase(at, what.size());
}

}  // namespace

std::string short_kernel_name(std::string_view name) {
  std::string text(name);
  for (const char* noise : {"(anonymous namespace)::", "fastspec::cuda::"}) replace_all(text, noise);
  if (text.starts_with("void ")) text.erase(0, 5);
  text.resize(std::min(text.size(), text.find_first_of("<(")));
  return text.empty() ? std::string(name) : text;
}

StepTrace summarize(std::vector<DeviceSpan> spans, int max_steps) {
  std::stable_sort(spans.begin(), spans.end(), [](const DeviceSpan& a, const DeviceSpan& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  std::vector<std::size_t> ends;  // one past the span that ends a step
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].ends_step) ends.push_back(i + 1);
  }
  if (ends.size() < 2) {
    fail(ErrorCode::kUnsupported, "the record of ", spans.size(), " kernels and copies holds no whole step");
  }
  const std::size_t steps = std::min(ends.size() - 1, static_cast<std::size_t>(max_steps));
  const std::size_t first = ends.size() - 1 - steps;
  Sums sums;
  std::int64_t covered = spans[ends[first] - 1].end;
  for (std::size_t step = first; step < first + steps; ++step) {
    covered = add_step(spans.data() + ends[step], spans.data() + ends[step + 1], covered, sums);
  }

  StepTrace trace;
  trace.steps = static_cast<int>(steps);
  const double scale = kMilliseconds / static_cast<double>(steps);
  trace.milliseconds = scale * static_cast<double>(sums.all);
  trace.idle_inside_milliseconds = scale * static_cast<double>(sums.inside);
  trace.idle_between_milliseconds = scale * static_cast<double>(sums.between);
  trace.busy_milliseconds = scale * static_cast<double>(sums.all - sums.inside - sums.between);
  for (const auto& [name, sum] : sums.kernels) {
    const auto& [launches, nanoseconds] = sum;
    trace.kernels.push_back(
        {.name = name,
         .launches = static_cast<double>(launches) / static_cast<double>(steps),
         .milliseconds = scale * static_cast<double>(nanoseconds),
         .share = static_cast<double>(nanoseconds) / static_cast<double>(std::max<std::int64_t>(sums.all, 1))});
  }
  std::stable_sort(trace.kernels.begin(), trace.kernels.end(),
                   [](const KernelTime& a, const KernelTime& b) { return a.milliseconds > b.milliseconds; });
  return trace;
}

std::string StepTrace::to_string() const {
  const auto percent = [&](double part) { return milliseconds > 0 ? 100 * part / milliseconds : 0.0; };
  std::string text = format(
      "%d steps of %.3f ms: kernels run %.1f %%; idle between the kernels of a step %.1f us (%.1f %%), between "
      "steps %.1f us (%.1f %%)\n",
      steps, milliseconds, percent(busy_milliseconds), 1e3 * idle_inside_milliseconds,
      percent(idle_inside_milliseconds), 1e3 * idle_between_milliseconds, percent(idle_between_milliseconds));
  text += format("  %-56s %9s %9s %8s\n", "kernel", "a step", "ms", "share");
  KernelTime rest{.name = "others"};
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    const KernelTime& kernel = kernels[i];
    if (i < kMostLines) {
      text += format("  %-56.56s %9.1f %9.3f %6.1f %%\n", kernel.name.c_str(), kernel.launches, kernel.milliseconds,
                     100 * kernel.share);
    } else {
      rest.launches += kernel.launches;
      rest.milliseconds += kernel.milliseconds;
      rest.share += kernel.share;
    }
  }
  if (kernels.size() > kMostLines) {
    const std::string name = format("%zu others", kernels.size() - kMostLines);
    text += format("  %-56s %9.1f %9.3f %6.1f %%\n", name.c_str(), rest.launches, rest.milliseconds, 100 * rest.share);
  }
  return text;
}

}  // namespace fastspec
