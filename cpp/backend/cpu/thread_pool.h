// Persistent worker threads for data-parallel loops. The caller takes part; workers spin briefly, then park. A range
// waits for no thread: who is done takes over what nobody has begun, so that a worker that the system does not run
// costs its help and no more. Knows nothing of tensors. One loop runs at a time: parallel_for is called from one thread
// and not from within a loop.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace fastspec::cpu {

/// Cores that this process may run on.
int available_cores();

class ThreadPool {
 public:
  /// @param num_threads the caller included; 0 = available_cores().
  /// @throws Error(kInvalidArgument) for a negative or absurd number.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const noexcept { return num_threads_; }

  /// Splits [0, count) into at most num_threads() contiguous ranges of equal size, in multiples of `grain`, and calls
  /// function(begin, end, thread) for each; `thread` says who runs it, and no two ranges at a time have the same.
  /// Returns when all are done; rethrows the first exception.
  template <typename Function>
  void parallel_for(std::int64_t count, std::int64_t grain, Function&& function) {
    using Body = std::remove_reference_t<Function>;
    const auto call = [](void* context, std::int64_t begin, std::int64_t end, int thread) {
      (*static_cast<Body*>(context))(begin, end, thread);
    };
    run(count, grain, call, const_cast<void*>(static_cast<const void*>(&function)));
  }

 private:
  using Call = void (*)(void*, std::int64_t begin, std::int64_t end, int thread);

  /// The last loop in which a range was taken, on a cache line of its own.
  struct alignas(64) Claim {
    std::atomic<std::uint32_t> epoch{0};
  };

  void run(std::int64_t count, std::int64_t grain, Call call, void* context);
  void run_parts(int thread, std::uint32_t epoch);
  void run_part(int part, int thread);
  void work(int thread);
  void stop();

  int num_threads_;
  std::vector<std::thread> workers_;

  // The loop being run; written by the caller before it advances epoch_.
  Call call_ = nullptr;
  void* context_ = nullptr;
  std::int64_t count_ = 0;
  std::int64_t share_ = 0;

  std::vector<Claim> claims_;  // of every range

  alignas(64) std::atomic<std::uint32_t> epoch_{0};
  alignas(64) std::atomic<int> pending_{0};  // ranges that are not done
  std::atomic<bool> stopping_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

}  // namespace fastspec::cpu
