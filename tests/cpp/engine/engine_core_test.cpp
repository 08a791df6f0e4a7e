// Who may step an engine, and when: one at a time, not from a callback, not after a fork.
#include "engine/engine_core.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/engine_harness.h"

namespace fastspec::testing {
namespace {

Request make_request() {
  Request request;
  request.prompt_token_ids = {1, 2, 3};
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 5;
  request.sampling.ignore_eos = true;
  return request;
}

TEST(EngineCore, RefusesToStepInsideItsOwnCallback) {
  const auto engine = make_engine({});
  EXPECT_THROW(engine->generate({make_request()},
                                [&](const Output&) {
                                  engine->step();
                                  return true;
                                }),
               Error);
  // The refused call left nothing behind: what it had submitted is cancelled, the engine serves on.
  const std::vector<Output> outputs = engine->generate({make_request()}, {});
  EXPECT_EQ(outputs[0].token_ids.size(), 5U);
  EXPECT_EQ(outputs[0].finish_reason, FinishReason::kLength);
  engine->check_invariants();
}

TEST(EngineCore, LongSpecsOwnMemoryIsTheSameAt1KAnd128K) {
  EngineInfo infos[2];
  for (const bool is_long : {false, true}) {
    HarnessOptions options;
    options.drafter = DrafterConfig::parse("longspec:tiny");
    options.max_draft_tokens = std::nullopt;
    options.max_num_seqs = 2;
    options.max_model_len = is_long ? 131072 : 1024;
    infos[is_long] = make_engine(std::move(options))->info();
  }
  EXPECT_EQ(infos[0].drafter, "longspec");
  EXPECT_EQ(infos[0].draft_own_kv_bytes, infos[1].draft_own_kv_bytes);
  EXPECT_GT(infos[0].draft_own_kv_bytes, 0u);
  EXPECT_EQ(infos[0].kv_bytes_per_token, infos[1].kv_bytes_per_token);
  EXPECT_EQ(infos[1].max_model_len, 131072);
  EXPECT_GT(infos[1].kv_cache_bytes, 100 * infos[0].kv_cache_bytes / 2);
}

TEST(EngineCore, ABlockDraftersContextIsInTheTargetsSlotsOrInARingOfOneSize) {
  const auto info_of = [](int window, int max_model_len) {
    HarnessOptions options;
    options.drafter = DrafterConfig::parse("dflash:tiny");
    options.drafter.window = window;
    options.max_num_seqs = 2;
    options.max_model_len = max_model_len;
    return make_engine(std::move(options))->info();
  };
  const EngineInfo plain = make_engine({})->info();
  const EngineInfo shared = info_of(0, 1024), ring = info_of(12, 1024), long_ring = info_of(12, 131072);
  EXPECT_EQ(shared.drafter, "dflash");
  EXPECT_EQ(shared.kv_bytes_per_token, 2 * plain.kv_bytes_per_token);  // as many layers as the target
  EXPECT_EQ(2 * shared.draft_kv_cache_bytes, shared.kv_cache_bytes);
  EXPECT_EQ(ring.kv_bytes_per_token, plain.kv_bytes_per_token);
  EXPECT_EQ(ring.draft_kv_cache_bytes, 0u);
  // Two blocks of six rows and a spare slot; with a ring, three pages of four slots a sequence beside them.
  EXPECT_EQ(shared.draft_own_kv_bytes, 16 * plain.kv_bytes_per_token);
  EXPECT_EQ(ring.draft_own_kv_bytes, (16 + 2 * 12) * plain.kv_bytes_per_token);
  EXPECT_EQ(long_ring.draft_own_kv_bytes, ring.draft_own_kv_bytes);
  EXPECT_GT(shared.activation_bytes, plain.activation_bytes);
}

TEST(EngineCore, RefusesWorkInAForkedProcess) {
  const auto engine = make_engine({});
  const pid_t child = fork();
  if (child == 0) {
    int refused = 0;
    try {
      engine->submit(make_request());
    } catch (const Error& error) {
      refused += error.code() == ErrorCode::kInvalidArgument ? 1 : 0;
    }
    try {
      engine->step();
    } catch (const Error& error) {
      refused += error.code() == ErrorCode::kInvalidArgument ? 1 : 0;
    }
    _exit(refused);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 2) << status;
  EXPECT_EQ(engine->generate({make_request()}, {})[0].token_ids.size(), 5U);
}

}  // namespace
}  // namespace fastspec::testing
