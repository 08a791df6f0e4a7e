// Adds the time until its end to a counter. Times of failed steps count too: they were spent.
#pragma once

#include <chrono>

#include "engine/sequence.h"

namespace fastspec {

class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds), start_(Clock::now()) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  Clock::time_point start_;
};

}  // namespace fastspec
