// Engines on a device of a given size: they keep to their share, shrink with it, and say so where nothing fits.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/check.h"
#include "support/engine_harness.h"
#include "support/expect_error.h"
#include "support/tiny_model.h"

namespace fastspec::testing {
namespace {

using test::expect_error;

/// Host memory that counts as a GPU's.
class SizedDevice final : public Device {
 public:
  SizedDevice(std::unique_ptr<Device> inner, std::size_t total) : inner_(std::move(inner)), total_(total) {}

  std::string name() const override { return "sized"; }
  Buffer allocate(std::size_t bytes, const char* what) override {
    if (bytes > available_bytes()) fail(ErrorCode::kOutOfMemory, what, ": ", bytes, " bytes");
    const Buffer buffer = inner_->allocate(bytes, what);
    *used_ += bytes;
    highest_ = std::max(highest_, *used_);
    const std::shared_ptr<void> owner(buffer.data(), [buffer, used = used_, bytes](void*) { *used -= bytes; });
    return Buffer(buffer.data(), bytes, owner);
  }
  Buffer allocate_host(std::size_t bytes, const char* what) override { return inner_->allocate_host(bytes, what); }
  void copy_to_device(void* to, const void* from, std::size_t bytes) override {
    inner_->copy_to_device(to, from, bytes);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes) override { inner_->copy_to_host(to, from, bytes); }
  std::size_t available_bytes() const override { return total_ - *used_; }
  std::size_t total_bytes() const override { return total_; }

  std::size_t highest() const { return highest_; }

 private:
  std::unique_ptr<Device> inner_;
  std::size_t total_;
  std::size_t highest_ = 0;
  std::shared_ptr<std::size_t> used_ = std::make_shared<std::size_t>(0);
};

struct SizedEngine {
  SizedEngine(std::size_t total, EngineConfig config, bool drafts = false) {
    config.model = "tiny";
    EngineParts parts;
    parts.backend = make_backend("cpu:reference", DType::kFloat32, 1);
    auto sized = std::make_unique<SizedDevice>(std::move(parts.backend.device), total);
    device = sized.get();
    parts.backend.device = std::move(sized);
    parts.model = tiny_config(61);
    parts.weights = tiny_weights(parts.model, 11, DType::kFloat32, *device);
    if (drafts) {
      config.speculation.drafter = DrafterConfig::parse("standalone:tiny");
      parts.draft_model = DraftModel{parts.model, tiny_weights(parts.model, 11, DType::kFloat32, *device)};
    }
    engine = std::make_unique<EngineCore>(config, std::move(parts));
  }
  const EngineInfo& info() const { return engine->info(); }
  std::size_t planned() const {
    return info().weight_bytes + info().draft_weight_bytes + info().kv_cache_bytes + info().activation_bytes +
           info().workspace_bytes + info().graph_bytes;
  }

  SizedDevice* device;
  std::unique_ptr<EngineCore> engine;
};

EngineConfig small_config() {
  EngineConfig config;
  config.max_model_len = 256;
  config.max_num_seqs = 8;
  config.max_batch_rows = 64;
  return config;
}

std::vector<Request> requests(int count) {
  std::vector<Request> result(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    result[i].prompt_token_ids.assign(static_cast<std::size_t>(20 + 9 * i), 7 + i);
    result[i].sampling.max_tokens = 30;
    result[i].sampling.ignore_eos = true;
  }
  return result;
}

TEST(EngineMemoryTest, StaysWithinItsShareAndItsPlan) {
  const SizedEngine whole(std::size_t{1} << 30, small_config());
  const std::size_t all = whole.planned();
  EXPECT_EQ(whole.info().device_bytes, std::size_t{1} << 30);
  EXPECT_EQ(whole.info().num_pages, 8 * 256 / 16) << "there is room for all that could ever be used";
  for (const bool drafts : {false, true}) {
    EngineConfig config = small_config();
    config.gpu_memory_utilization = 0.75;
    SizedEngine sized(all, config, drafts);
    EXPECT_LE(sized.planned(), sized.info().memory_limit_bytes);
    EXPECT_LT(sized.info().num_pages, whole.info().num_pages) << "a smaller plan";
    const Outputs outputs = run(*sized.engine, requests(12));
    for (const WholeOutput& output : outputs) EXPECT_EQ(output.tokens.size(), 30u) << output.error;
    EXPECT_LE(sized.device->highest(), sized.planned()) << "nothing is taken that was not planned";
    EXPECT_EQ(sized.info().draft_kv_cache_bytes, drafts ? sized.info().kv_cache_bytes / 2 : 0);
  }
}

TEST(EngineMemoryTest, AShortCacheLowersTheLongestSequence) {
  const SizedEngine whole(std::size_t{1} << 30, small_config());
  EngineConfig config = small_config();
  config.gpu_memory_utilization = 1;
  const std::size_t ten_pages = 160 * whole.info().kv_bytes_per_token;
  const SizedEngine sized(whole.planned() - whole.info().kv_cache_bytes + ten_pages, config);
  EXPECT_EQ(sized.info().num_pages, 10);
  EXPECT_EQ(sized.info().max_model_len, 160);
}

TEST(EngineMemoryTest, WhatCannotFitIsRefusedAtTheStart) {
  const SizedEngine whole(std::size_t{1} << 30, small_config());
  EngineConfig config = small_config();
  config.gpu_memory_utilization = 0.5;
  const std::size_t total = 2 * (whole.planned() - whole.info().kv_cache_bytes);
  expect_error(ErrorCode::kOutOfMemory, {"gpu_memory_utilization 0.5", "KV cache", "activations"},
               [&] { SizedEngine(total, config); });
  config.kv_cache_bytes = static_cast<std::int64_t>(total);
  expect_error(ErrorCode::kOutOfMemory, {"kv_cache_bytes is", "weights"}, [&] { SizedEngine(total, config); });
}

TEST(EngineMemoryTest, InfoSaysWhoTakesWhat) {
  const SizedEngine sized(std::size_t{1} << 30, small_config(), true);
  const std::string text = sized.info().to_string();
  for (const char* part : {"draft weights", "draft KV", "scratch", "activations", "workspaces", "graphs",
                           "921.6 MiB that the engine may take", "device 1024.0 MiB"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

}  // namespace
}  // namespace fastspec::testing
