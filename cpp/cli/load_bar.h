// The progress bar of loading, on standard error where that is a terminal. Knows no engine.
#pragma once

#include <chrono>
#include <cstddef>

namespace fastspec::cli {

/// Appears once a load has taken a second, and goes when it dies.
class LoadBar {
 public:
  LoadBar();
  ~LoadBar();
  LoadBar(const LoadBar&) = delete;
  LoadBar& operator=(const LoadBar&) = delete;
  void show(std::size_t done, std::size_t total);

 private:
  using Clock = std::chrono::steady_clock;
  bool terminal_;
  Clock::time_point start_;
  Clock::time_point drawn_;
  std::size_t width_ = 0;  // of the line on the terminal
};

}  // namespace fastspec::cli
