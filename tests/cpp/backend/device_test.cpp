// Host memory, the thread pool, 16-bit conversions and the choice of backends.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/cpu_device.h"
#include "backend/cpu/half.h"
#include "backend/cpu/thread_pool.h"
#include "base/check.h"
#include "support/oracle.h"

namespace fastspec::cpu {
namespace {

TEST(CpuDeviceTest, AllocatesAlignedWritableMemory) {
  CpuDevice device;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{100}, std::size_t{9} << 20}) {
    const Buffer buffer = device.allocate(bytes, "test");
    ASSERT_NE(buffer.data(), nullptr);
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u);
    std::memset(buffer.data(), 1, bytes);
  }
}

TEST(CpuDeviceTest, AbsurdSizesAreRefusedByName) {
  CpuDevice device;
  for (const std::size_t bytes : {std::size_t{1} << 60, std::numeric_limits<std::size_t>::max(),
                                  std::numeric_limits<std::size_t>::max() - 100, device.available_bytes() * 2}) {
    try {
      device.allocate(bytes, "the K/V pool");
      FAIL() << bytes;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
      EXPECT_NE(std::string(error.what()).find("the K/V pool"), std::string::npos);
      EXPECT_NE(std::string(error.what()).find(std::to_string(bytes)), std::string::npos);
    }
  }
}

TEST(CpuDeviceTest, KnowsHowMuchIsLeftAndCopies) {
  CpuDevice device;
  EXPECT_GT(device.available_bytes(), std::size_t{1} << 20);
  EXPECT_LT(device.available_bytes(), std::size_t{1} << 50);
  const Buffer buffer = device.allocate(12, "test");
  const int in[3] = {1, 2, 3};
  int out[3] = {};
  device.copy_to_device(buffer.data(), in, 12);
  device.copy_to_host(out, buffer.data(), 12);
  EXPECT_EQ(out[2], 3);
}

TEST(ThreadPoolTest, CoversEveryIndexOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (const std::int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (const std::int64_t grain : {1, 3, 16}) {
        std::vector<std::atomic<int>> hits(static_cast<std::size_t>(count));
        pool.parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end, int thread) {
          ASSERT_LT(thread, threads);
          ASSERT_TRUE(begin == 0 || begin % grain == 0);
          for (std::int64_t i = begin; i < end; ++i) hits[static_cast<std::size_t>(i)] += 1;
        });
        for (const auto& hit : hits) ASSERT_EQ(hit.load(), 1);
      }
    }
  }
}

TEST(ThreadPoolTest, ManyShortLoops) {
  ThreadPool pool(3);
  std::atomic<std::int64_t> sum{0};
  for (int i = 0; i < 3000; ++i) {
    pool.parallel_for(3, 1, [&](std::int64_t begin, std::int64_t, int) { sum += begin; });
  }
  EXPECT_EQ(sum.load(), 3 * 3000);
}

TEST(ThreadPoolTest, WhoIsDoneTakesOverWhatNobodyHasBegun) {
  ThreadPool pool(8);
  std::atomic<int> taken_over{0};
  for (int i = 0; i < 1000 && taken_over.load() == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // workers park and wake too late for so short a loop
    pool.parallel_for(8, 1, [&](std::int64_t begin, std::int64_t, int thread) { taken_over += begin != thread; });
  }
  EXPECT_GT(taken_over.load(), 0);
}

TEST(ThreadPoolTest, NoThreadRunsTwoRangesAtATime) {
  ThreadPool pool(5);
  std::array<std::atomic<int>, 5> running{};
  for (int i = 0; i < 2000; ++i) {
    pool.parallel_for(5, 1, [&](std::int64_t, std::int64_t, int thread) {
      ASSERT_EQ(running[static_cast<std::size_t>(thread)]++, 0);
      if (i % 7 == thread) std::this_thread::yield();
      running[static_cast<std::size_t>(thread)]--;
    });
  }
}

TEST(ThreadPoolTest, CarriesExceptionsToTheCallerAndGoesOn) {
  ThreadPool pool(2);
  for (const std::int64_t bad : {0, 1}) {  // the caller's part, a worker's part
    EXPECT_THROW(pool.parallel_for(2, 1,
                                   [&](std::int64_t begin, std::int64_t, int) {
                                     if (begin == bad) throw std::runtime_error("planted");
                                   }),
                 std::runtime_error);
  }
  std::atomic<int> calls{0};
  pool.parallel_for(2, 1, [&](std::int64_t, std::int64_t, int) { calls += 1; });
  EXPECT_EQ(calls.load(), 2);
}

TEST(ThreadPoolTest, RefusesAbsurdNumbers) {
  EXPECT_THROW(ThreadPool(-1), Error);
  EXPECT_THROW(ThreadPool(1 << 20), Error);
  EXPECT_EQ(ThreadPool(0).num_threads(), available_cores());
}

template <typename T>
void expect_all_patterns_round_trip(DType dtype) {
  for (int bits = 0; bits < 65536; ++bits) {
    const T value{static_cast<std::uint16_t>(bits)};
    const float wide = to_float(value);
    const double expected = oracle::read_element(&value, dtype, 0);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide)) << bits;
      T narrow;
      from_float(wide, narrow);
      ASSERT_TRUE(std::isnan(to_float(narrow))) << bits;
      continue;
    }
    ASSERT_EQ(wide, expected) << bits;
    T narrow;
    from_float(wide, narrow);
    ASSERT_EQ(narrow.bits, value.bits);
  }
}

template <typename T>
void expect_rounds_to_nearest_even(DType dtype) {
  for (int bits = 0; bits < 0x7bff; ++bits) {  // finite in both types
    const T low{static_cast<std::uint16_t>(bits)}, high{static_cast<std::uint16_t>(bits + 1)};
    const float middle = to_float(low) / 2 + to_float(high) / 2;
    for (const float value : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e30f), -middle}) {
      T narrow, expected;
      from_float(value, narrow);
      oracle::write_element(&expected, dtype, 0, value);
      ASSERT_EQ(narrow.bits, expected.bits) << bits << " " << value;
    }
  }
}

TEST(HalfTest, AllPatterns) {
  expect_all_patterns_round_trip<BFloat16>(DType::kBFloat16);
  expect_all_patterns_round_trip<Float16>(DType::kFloat16);
}

TEST(HalfTest, RoundsToNearestEven) {
  expect_rounds_to_nearest_even<BFloat16>(DType::kBFloat16);
  expect_rounds_to_nearest_even<Float16>(DType::kFloat16);
}

TEST(HalfTest, LargeValuesBecomeInfinite) {
  Float16 half;
  from_float(65519.0f, half);
  EXPECT_EQ(to_float(half), 65504.0f);
  from_float(65520.0f, half);
  EXPECT_TRUE(std::isinf(to_float(half)));
  BFloat16 brain;
  from_float(std::numeric_limits<float>::max(), brain);
  EXPECT_TRUE(std::isinf(to_float(brain)));
}

TEST(BackendTest, MakesWhatIsThereAndRefusesTheRest) {
  for (const char* name : {"cpu", "cpu:reference"}) {
    const Backend backend = make_backend(name, DType::kFloat32, 1);
    EXPECT_EQ(backend.device->name(), "cpu");
    EXPECT_EQ(backend.ops->activation_dtype(), DType::kFloat32);
  }
  constexpr ErrorCode kMade = ErrorCode::kInternal;
  const auto code_of = [](const char* name) {
    try {
      make_backend(name, DType::kFloat32, 1);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("cpu:reference"), std::string::npos) << error.what();
      return error.code();
    }
    return kMade;
  };
  // Made where there is a GPU and the backend for it.
  if (const ErrorCode code = code_of("cuda:0"); code != kMade) {
    EXPECT_EQ(code, ErrorCode::kUnsupported);
  }
  EXPECT_EQ(code_of("cuda"), code_of("cuda:0"));
  EXPECT_EQ(code_of("tpu"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of("cpu:fast"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(""), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace fastspec::cpu
