// Every implementation of Ops that this machine can run, by name, and comparisons with the oracles.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/fast_ops.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/reference_ops.h"
#include "backend/ops.h"

namespace fastspec::test {

/// "reference", and "fast_" + the name of a kernel table.
inline std::vector<std::string> all_ops() {
  std::vector<std::string> names = {"reference"};
  for (auto table = cpu::runnable_kernels(); *table != nullptr; ++table) {
    names.push_back(std::string("fast_") + (*table)->name);
  }
  return names;
}

inline std::unique_ptr<Ops> make_ops(const std::string& name, int num_threads) {
  for (auto table = cpu::runnable_kernels(); *table != nullptr; ++table) {
    if (name == std::string("fast_") + (*table)->name) return std::make_unique<cpu::FastOps>(num_threads, **table);
  }
  return std::make_unique<cpu::ReferenceOps>(num_threads);
}

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();

/// Largest |actual - expected| / (1 + |expected|); infinite where one is NaN, or they are different infinities.
inline double relative_error(double actual, double expected) {
  if (actual == expected) return 0;
  const double error = std::fabs(actual - expected) / (1 + std::fabs(expected));
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

/// Worst error of a matrix against a dense row-major expectation.
inline double worst_error(const Matrix& actual, const std::vector<double>& expected) {
  double worst = 0;
  for (int row = 0; row < actual.rows; ++row) {
    for (int i = 0; i < actual.cols; ++i) {
      const double value = actual.row<float>(row)[i];
      worst = std::max(worst, relative_error(value, expected[static_cast<std::size_t>(row) * actual.cols + i]));
    }
  }
  return worst;
}

class OpsTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Ops> ops(int num_threads = 2) const { return make_ops(GetParam(), num_threads); }
};

#define FASTSPEC_FOR_ALL_OPS(suite)                                                   \
  INSTANTIATE_TEST_SUITE_P(, suite, ::testing::ValuesIn(::fastspec::test::all_ops()), \
                           [](const auto& instance) { return instance.param; })

}  // namespace fastspec::test
