// The division of memory into pages, and the pool's addresses.
#include "memory/memory_planner.h"

#include <gtest/gtest.h>

#include <set>

#include "backend/backend.h"
#include "memory/kv_pool.h"
#include "support/expect_error.h"

namespace fastspec::test {
namespace {

MemoryRequest small_request() {
  return {.kv_bytes_per_token = 10,
          .page_size = 16,
          .max_model_len = 100,  // 7 pages
          .max_num_seqs = 3,
          .num_scratch_slots = 17,  // 2 pages
          .kv_cache_bytes = 0,
          .available_bytes = 1 << 20};
}

TEST(MemoryPlannerTest, TakesWhatEverySequenceAtFullLengthNeeds) {
  const MemoryPlan plan = plan_memory(small_request());
  EXPECT_EQ(plan.num_pages, 21);
  EXPECT_EQ(plan.num_scratch_pages, 2);
  EXPECT_EQ(plan.bytes, 23u * 160);
}

TEST(MemoryPlannerTest, TakesAtMostAThirdOfWhatIsAvailable) {
  MemoryRequest request = small_request();
  request.available_bytes = 3 * 160 * 10 + 2;
  const MemoryPlan plan = plan_memory(request);
  EXPECT_EQ(plan.num_pages, 8);
  EXPECT_EQ(plan.bytes, 10u * 160);
}

TEST(MemoryPlannerTest, GivenBytesAreObeyedButNotWasted) {
  MemoryRequest request = small_request();
  request.kv_cache_bytes = 160 * 5 + 159;
  EXPECT_EQ(plan_memory(request).num_pages, 3);
  EXPECT_EQ(plan_memory(request).bytes, 5u * 160);
  request.kv_cache_bytes = 160 * 500;
  EXPECT_EQ(plan_memory(request).num_pages, 21) << "no more than could ever be used";
}

TEST(MemoryPlannerTest, NoScratchWithoutDrafting) {
  MemoryRequest request = small_request();
  request.num_scratch_slots = 0;
  request.kv_cache_bytes = 160;
  const MemoryPlan plan = plan_memory(request);
  EXPECT_EQ(plan.num_pages, 1);
  EXPECT_EQ(plan.num_scratch_pages, 0);
}

TEST(MemoryPlannerTest, RefusalsNameTheSizes) {
  MemoryRequest request = small_request();
  request.kv_cache_bytes = 2 * 160 + 159;
  expect_error(ErrorCode::kOutOfMemory, {"479 bytes", "page of 16", "160", "320", "kv_cache_bytes"},
               [&] { plan_memory(request); });
  request.kv_cache_bytes = (1 << 20) + 1;
  expect_error(ErrorCode::kOutOfMemory, {"kv_cache_bytes is 1048577", "1048576"}, [&] { plan_memory(request); });
  request.kv_cache_bytes = 0;
  request.available_bytes = 0;
  expect_error(ErrorCode::kOutOfMemory, {"0 bytes"}, [&] { plan_memory(request); });
}

TEST(MemoryPlannerTest, HugeLimitsDoNotOverflow) {
  MemoryRequest request = small_request();
  request.max_model_len = 1 << 24;
  request.max_num_seqs = 4096;
  request.kv_bytes_per_token = 1 << 20;
  request.page_size = 1024;
  request.available_bytes = std::size_t{80} << 30;
  const MemoryPlan plan = plan_memory(request);
  EXPECT_LE(plan.bytes, request.available_bytes / 3);
  EXPECT_GT(plan.num_pages, 20);
  request.kv_bytes_per_token = 1;
  request.page_size = 1;
  request.available_bytes = std::size_t{1} << 50;
  EXPECT_GT(plan_memory(request).num_pages, 1 << 29) << "page ids are int";
}

/// A GPU of 1 GiB, of which 900 MiB are free, weights of 100 MiB among what is taken.
MemoryRequest gpu_request() {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  return {.kv_bytes_per_token = 48 << 10,
          .draft_kv_bytes_per_token = 16 << 10,  // with the target's 64 KiB, 1 MiB a page
          .page_size = 16,
          .max_model_len = 1 << 20,
          .max_num_seqs = 4,
          .num_scratch_slots = 32,
          .needs = {.weights = 80 * kMiB,
                    .draft_weights = 20 * kMiB,
                    .activations = 30 * kMiB,
                    .workspaces = 40 * kMiB,
                    .graphs = 50 * kMiB},
          .available_bytes = 900 * kMiB,
          .total_bytes = 1024 * kMiB,
          .utilization = 0.5};
}

TEST(MemoryPlannerTest, OfAGpuTakesTheShareLessEverythingElse) {
  const MemoryPlan plan = plan_memory(gpu_request());
  EXPECT_EQ(plan.limit_bytes, std::size_t{512} << 20);
  EXPECT_EQ(plan.bytes, std::size_t{512 - 100 - 120} << 20);
  EXPECT_EQ(plan.num_scratch_pages, 2);
  EXPECT_EQ(plan.num_pages, 292 - 2);
  EXPECT_EQ(plan.draft_bytes, plan.bytes / 4);
  EXPECT_EQ(plan.scratch_bytes, std::size_t{2} << 20);
}

TEST(MemoryPlannerTest, OfAGpuTakesNoMoreThanIsFree) {
  MemoryRequest request = gpu_request();
  request.utilization = 1;
  EXPECT_EQ(plan_memory(request).limit_bytes, std::size_t{1000} << 20) << "another program has the rest";
  EXPECT_EQ(plan_memory(request).bytes, std::size_t{900 - 120} << 20);
  request.max_model_len = 160;  // 10 pages
  EXPECT_EQ(plan_memory(request).num_pages, 40) << "no more than could ever be used";
}

TEST(MemoryPlannerTest, GivenBytesOnAGpuStandAsLongAsTheRestFits) {
  MemoryRequest request = gpu_request();
  request.kv_cache_bytes = std::size_t{780} << 20;
  EXPECT_EQ(plan_memory(request).bytes, request.kv_cache_bytes) << "beyond the share, which counts for no given bytes";
  ++request.kv_cache_bytes;
  expect_error(ErrorCode::kOutOfMemory, {"kv_cache_bytes is 817889281", "activations 30 MiB", "graphs 50 MiB"},
               [&] { plan_memory(request); });
}

TEST(MemoryPlannerTest, AGpuThatIsTooSmallIsRefusedWithTheSums) {
  MemoryRequest request = gpu_request();
  request.utilization = 0.2;  // 204.8 MiB; 220 are taken
  expect_error(ErrorCode::kOutOfMemory,
               {"204 MiB", "1024 MiB", "gpu_memory_utilization 0.2", "weights 80 MiB", "draft weights 20 MiB",
                "workspaces 40 MiB"},
               [&] { plan_memory(request); });
  request.utilization = 222.5 / 1024;  // 2 pages: the scratch rows'
  expect_error(ErrorCode::kOutOfMemory, {"scratch rows", "weights 80 MiB"}, [&] { plan_memory(request); });
}

TEST(KvPoolTest, EveryElementOfEveryLayerHasItsOwnAddress) {
  const Backend backend = make_backend("cpu:reference", DType::kFloat32, 1);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const KvShape shape{.num_layers = 2, .num_kv_heads = 3, .head_dim = 4, .dtype = dtype};
    EXPECT_EQ(shape.bytes_per_token(), 2u * 2 * 3 * 4 * size_of(dtype));
    const int num_pages = 3;
    const int page_size = 2;
    const KvPool pool(*backend.device, shape, num_pages, page_size);
    ASSERT_EQ(pool.layers().size(), 2u);
    std::set<const std::byte*> addresses;
    for (int layer = 0; layer < 2; ++layer) {
      const KvView& view = pool.layer(layer);
      EXPECT_EQ(view.dtype, dtype);
      EXPECT_EQ(1 << view.page_shift, page_size);
      for (Slot slot = 0; slot < num_pages * page_size; ++slot) {
        for (int head = 0; head < 3; ++head) {
          for (int which = 0; which < 2; ++which) {
            for (int d = 0; d < 4; ++d) {
              const std::int64_t element = (slot >> view.page_shift) * view.page_stride + head * view.head_stride +
                                           which * view.value_offset + (slot & (page_size - 1)) * view.slot_stride + d;
              auto* address = static_cast<std::byte*>(view.base) + element * static_cast<std::int64_t>(size_of(dtype));
              for (std::size_t byte = 0; byte < size_of(dtype); ++byte) address[byte] = std::byte{1};  // in bounds
              addresses.insert(address);
            }
          }
        }
      }
    }
    const std::size_t elements = std::size_t{2} * num_pages * page_size * 3 * 2 * 4;
    EXPECT_EQ(addresses.size(), elements);
    EXPECT_EQ(*addresses.rbegin() - *addresses.begin() + static_cast<std::ptrdiff_t>(size_of(dtype)),
              static_cast<std::ptrdiff_t>(elements * size_of(dtype)))
        << "dense: as many bytes as the planner counts";
  }
}

TEST(KvPoolTest, PageSizeMustBeAPowerOfTwo) {
  const Backend backend = make_backend("cpu:reference", DType::kFloat32, 1);
  const KvShape shape{.num_layers = 1, .num_kv_heads = 1, .head_dim = 2, .dtype = DType::kFloat32};
  for (const int page_size : {0, -4, 3, 24}) {
    expect_error(ErrorCode::kInternal, {"page size " + std::to_string(page_size)},
                 [&] { KvPool(*backend.device, shape, 2, page_size); });
  }
}

}  // namespace
}  // namespace fastspec::test
