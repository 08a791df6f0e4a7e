// See thread_pool.h. Waiting is bounded spinning, then a futex through std::atomic::wait.
#include "backend/cpu/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace fastspec::cpu {
namespace {

// About 20 to 50 microseconds: longer than the gap between two operations of a layer, far shorter than a step.
constexpr int kSpins = 2000;
constexpr int kMaxThreads = 1024;

inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

template <typename T>
void wait_while(const std::atomic<T>& value, T unwanted) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != unwanted) return;
    pause_briefly();
  }
  while (value.load(std::memory_order_acquire) == unwanted) value.wait(unwanted, std::memory_order_acquire);
}

}  // namespace

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads == 0 ? available_cores() : num_threads) {
  if (num_threads < 0 || num_threads > kMaxThreads) {
    fail(ErrorCode::kInvalidArgument, "num_threads must be between 0 (one per core) and ", kMaxThreads, ", got ",
         num_threads);
  }
  claims_ = std::vector<Claim>(static_cast<std::size_t>(num_threads_));
  workers_.reserve(static_cast<std::size_t>(num_threads_ - 1));
  try {
    for (int thread = 1; thread < num_threads_; ++thread) workers_.emplace_back([this, thread] { work(thread); });
  } catch (const std::system_error& error) {
    stop();
    fail(ErrorCode::kOutOfMemory, "starting ", num_threads_, " threads failed: ", error.what());
  }
}

ThreadPool::~ThreadPool() {
  stop();
}

void ThreadPool::stop() {
  stopping_.store(true, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_acq_rel);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(std::int64_t count, std::int64_t grain, Call call, void* context) {
  if (count <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  const std::int64_t grains = (count + grain - 1) / grain;
  if (num_threads_ == 1 || grains == 1) {
    call(context, 0, count, 0);
    return;
  }
  call_ = call;
  context_ = context;
  count_ = count;
  share_ = (grains + num_threads_ - 1) / num_threads_ * grain;
  pending_.store(num_threads_, std::memory_order_relaxed);
  const std::uint32_t epoch = epoch_.fetch_add(1, std::memory_order_acq_rel) + 1;
  epoch_.notify_all();
  run_parts(0, epoch);
  for (int left = pending_.load(std::memory_order_acquire); left != 0;
       left = pending_.load(std::memory_order_acquire)) {
    wait_while(pending_, left);
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::run_parts(int thread, std::uint32_t epoch) {
  for (int i = 0; i < num_threads_; ++i) {
    const int part = (thread + i) % num_threads_;  // its own first, whose memory its core has seen before
    // Every loop takes every range, so whoever comes late, loops behind, finds a later epoch and takes nothing; what
    // the loop is may be read by the taker alone, for it cannot end before he is done.
    std::uint32_t last = epoch - 1;
    if (!claims_[static_cast<std::size_t>(part)].epoch.compare_exchange_strong(last, epoch,
                                                                               std::memory_order_acq_rel)) {
      continue;
    }
    run_part(part, thread);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
  }
}

void ThreadPool::run_part(int part, int thread) {
  const std::int64_t begin = std::min(count_, share_ * part);
  const std::int64_t end = std::min(count_, begin + share_);
  if (begin >= end) return;
  try {
    call_(context_, begin, end, thread);
  } catch (...) {
    const std::lock_guard<std::mutex> lock(error_mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

void ThreadPool::work(int thread) {
  std::uint32_t seen = 0;
  for (;;) {
    wait_while(epoch_, seen);
    seen = epoch_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_acquire)) return;
    run_parts(thread, seen);
  }
}

}  // namespace fastspec::cpu
