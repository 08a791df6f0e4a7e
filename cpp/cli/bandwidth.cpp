// Sums a large buffer; the additions are free beside the reads.
#include "cli/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace fastspec::cli {
namespace {

constexpr std::size_t kBufferBytes = 512u << 20;
constexpr int kPasses = 7;

std::uint64_t sum(const std::uint64_t* data, std::size_t count) {
  // Independent sums, so that additions do not wait for one another.
  std::uint64_t sums[32] = {};
  for (std::size_t i = 0; i + 32 <= count; i += 32) {
    for (std::size_t lane = 0; lane < 32; ++lane) sums[lane] += data[i + lane];
  }
  std::uint64_t total = 0;
  for (const std::uint64_t each : sums) total += each;
  return total;
}

}  // namespace

double measure_read_bandwidth(int threads) {
  if (threads <= 0) threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const std::size_t words = kBufferBytes / sizeof(std::uint64_t) / static_cast<std::size_t>(threads);
  std::vector<std::vector<std::uint64_t>> parts(static_cast<std::size_t>(threads));
  std::atomic<std::uint64_t> total = 0;
  const auto on_all = [&](const auto& work) {
    std::vector<std::thread> running;
    for (auto& part : parts) running.emplace_back([&work, &part] { work(part); });
    for (std::thread& thread : running) thread.join();
  };
  // Written by the thread that reads it: pages lie where they are used.
  on_all([&](std::vector<std::uint64_t>& part) { part.assign(words, 1); });
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    on_all([&](const std::vector<std::uint64_t>& part) { total += sum(part.data(), part.size()); });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(words * sizeof(std::uint64_t) * parts.size()) / seconds.count());
  }
  return total == 0 ? 0 : best;
}

}  // namespace fastspec::cli
