// Runs cases, prints a line for each, and counts. A case that throws fails alone.
#pragma once

#include <cmath>
#include <cstdio>
#include <exception>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace fastspec::gpu_check {

/// What a case found.
struct Outcome {
  std::string failure;  // empty = ok: what is wrong, and where first
  double error = 0;     // largest
  int near_ties = 0;
  int compared = 0;
};

class Report {
 public:
  /// @param filter only cases whose names contain it run.
  /// @param small cases are to be few and small, fit for compute-sanitizer.
  explicit Report(std::string filter, bool small = false) : filter_(std::move(filter)), small_(small) {}

  bool small() const { return small_; }

  void run(const std::string& name, const std::function<Outcome()>& body) {
    if (name.find(filter_) == std::string::npos) return;
    Outcome outcome;
    try {
      outcome = body();
    } catch (const std::exception& error) {
      outcome.failure = std::string("threw: ") + error.what();
    }
    ++num_cases_;
    near_ties_ += outcome.near_ties;
    compared_ += outcome.compared;
    if (outcome.failure.empty()) {
      std::printf("ok    %-64s max error %.2e", name.c_str(), outcome.error);
      if (outcome.compared > 0) std::printf("  near ties %d of %d", outcome.near_ties, outcome.compared);
      std::printf("\n");
    } else {
      ++num_failed_;
      failed_.push_back(name);
      std::printf("FAIL  %-64s max error %.2e  %s\n", name.c_str(), outcome.error, outcome.failure.c_str());
    }
    std::fflush(stdout);
  }

  /// The exit code.
  int finish() const {
    std::printf("%d cases, %d failed, %d near ties of %d draws\n", num_cases_, num_failed_, near_ties_, compared_);
    for (const std::string& name : failed_) std::printf("failed: %s\n", name.c_str());
    return num_failed_ == 0 && num_cases_ > 0 ? 0 : 1;
  }

 private:
  std::string filter_;
  bool small_;
  int num_cases_ = 0, num_failed_ = 0, near_ties_ = 0, compared_ = 0;
  std::vector<std::string> failed_;
};

template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

/// Compares element by element: error |a - b| / (1 + |b|), NaN anywhere is a failure.
inline void compare(const std::vector<float>& seen, const std::vector<float>& expected, double tolerance,
                    const char* what, Outcome& outcome) {
  std::size_t bad = 0, first = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (seen[i] == expected[i]) continue;
    const double error = std::fabs(double{seen[i]} - expected[i]) / (1 + std::fabs(double{expected[i]}));
    if (error <= tolerance) {
      outcome.error = std::max(outcome.error, error);
      continue;
    }
    outcome.error = std::isnan(error) ? error : std::max(outcome.error, error);
    if (bad++ == 0) first = i;
  }
  if (bad > 0 && outcome.failure.empty()) {
    outcome.failure = text(what, ": ", bad, " of ", expected.size(), " wrong, first at ", first, ": ", seen[first],
                           ", expected ", expected[first]);
  }
}

}  // namespace fastspec::gpu_check
