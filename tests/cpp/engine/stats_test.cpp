// Printed statistics say what was counted, and nothing divides by zero.
#include <fastspec/engine.h>
#include <gtest/gtest.h>

namespace fastspec::test {
namespace {

void expect_parts(const std::string& text, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in:\n" << text;
  EXPECT_EQ(text.find("nan"), std::string::npos) << text;
  EXPECT_EQ(text.find("inf"), std::string::npos) << text;
}

TEST(EngineStatsTest, NothingYet) {
  const EngineStats stats;
  EXPECT_EQ(stats.acceptance_length(), 0.0);
  expect_parts(stats.to_string(), {"steps 0", "acceptance length (bonus included) 0.00", "outside operations 0.00%"});
  EXPECT_EQ(stats.to_string().find("by position"), std::string::npos);
  EXPECT_EQ(stats.to_string().find("row budget"), std::string::npos);
}

TEST(EngineStatsTest, SaysWhatWasCounted) {
  EngineStats stats;
  stats.steps = 11;
  stats.rows = 222;
  stats.prompt_rows = 33;
  stats.generated_tokens = 44;
  stats.decoding_passes = 20;
  stats.decoding_tokens = 50;
  stats.drafted_tokens = 66;
  stats.verified_tokens = 65;
  stats.accepted_tokens = 30;
  stats.offered_by_position = {20, 10, 0};
  stats.accepted_by_position = {15, 1, 0};
  stats.preemptions = 7;
  stats.draft_failures = 8;
  stats.pages_total = 90;
  stats.pages_used = 12;
  stats.sequences_running = 3;
  stats.sequences_waiting = 4;
  stats.step_seconds = 2.0;
  stats.operation_seconds = 1.5;
  stats.verify_seconds = 1.25;
  stats.graph_replays = 9;
  stats.graphs = 2;
  stats.graph_bytes = 3 << 20;
  stats.graph_capture_seconds = 0.5;
  stats.steps_ahead = 10;
  stats.turnaround_seconds = 150e-6;
  stats.timed_steps = 8;
  stats.device_idle_seconds = 160e-6;
  stats.device_busy_seconds = 0.01584;
  stats.budget.ratios = {{0.25, 3}, {1.0, 5}};
  stats.budget.steps_undrafted = 2;
  stats.budget.passes_undrafted = 6;
  stats.budget.probe_steps = 1;
  stats.budget.full_steps = 4;
  stats.budget.predicted_steps = 10;
  stats.budget.predicted_seconds = 0.2;
  stats.budget.measured_seconds = 0.25;
  stats.budget.error_seconds = 0.05;
  stats.budget.reliability = {{0.5, 0.4, 100}};
  stats.budget.calibration_error = 0.1;
  stats.budget.raw_calibration_error = 0.3;
  expect_parts(stats.to_string(), {"steps 11",
                                   "target rows 222 (prompt 33)",
                                   "generated tokens 44",
                                   "acceptance length (bonus included) 2.50 over 20 decoding passes",
                                   "drafted 66, verified 65, accepted 30",
                                   "accepted by position 75.00% 10.00% 0.00%",
                                   "seconds 2.00",
                                   "verify 1.25",
                                   "outside operations 25.00%",
                                   "pages used 12 of 90",
                                   "running 3, waiting 4",
                                   "preemptions 7",
                                   "draft failures 8",
                                   "replayed as graphs 9",
                                   "2 graphs take 3.00 MiB, recorded in 0.50 s",
                                   "launched ahead 10, tokens to launch 15.00 us",
                                   "the device idles 20.00 us between steps (1.00%)",
                                   "kept 0.25: 3 1.00: 5; undrafted steps 2, passes 6, probes 1",
                                   "in full for calibration 4",
                                   "20.00 ms a decoding step predicted, 25.00 measured, off by 20.00% in the mean",
                                   "calibration error 10.00%, of the raw confidence 30.00%"});
}

TEST(EngineInfoTest, SaysWhatWasLoaded) {
  EngineInfo info;
  info.architecture = "LlamaForCausalLM";
  info.device = "cpu";
  info.dtype = DType::kBFloat16;
  info.num_parameters = 1'500'000;
  info.weight_bytes = 3 << 20;
  info.kv_bytes_per_token = 512;
  info.kv_cache_bytes = 1 << 20;
  info.num_pages = 128;
  info.page_size = 16;
  info.max_model_len = 2048;
  info.vocab_size = 32000;
  info.drafter = "ngram";
  expect_parts(info.to_string(), {"LlamaForCausalLM", "cpu, bfloat16", "1.5 M", "32000", "ngram\n", "2048 tokens",
                                  "512 bytes a token, 128 pages of 16 tokens", "weights             3.0 MiB",
                                  "KV cache            1.0 MiB"});
  EXPECT_EQ(info.to_string().find("workspaces"), std::string::npos) << "of a GPU only";
  info.drafter = "standalone";
  info.draft_weight_bytes = 1 << 19;
  info.draft_kv_cache_bytes = 1 << 18;
  expect_parts(info.to_string(), {"standalone\n", "draft weights       0.5 MiB", "KV cache            0.8 MiB",
                                  "draft KV            0.2 MiB"});
  info.draft_own_kv_bytes = 3 << 20;
  expect_parts(info.to_string(), {"draft window        3.0 MiB of K/V, whatever the context"});
  info.draft_own_kv_bytes = 0;
  info.device_bytes = 64 << 20;
  info.memory_limit_bytes = 32 << 20;
  info.workspace_bytes = 4 << 20;
  info.graph_bytes = 2 << 20;
  info.prompt_attention = "own kernels";
  expect_parts(info.to_string(), {"prompts        own kernels", "workspaces          4.0 MiB", "graphs",
                                  "sum                10.5 MiB of 32.0 MiB", "device 64.0 MiB"});
}

}  // namespace
}  // namespace fastspec::test
