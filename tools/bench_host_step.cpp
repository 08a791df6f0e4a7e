// Host time of a decoding step without the device's: an engine on operations that do nothing, so that what is left is
// plan, rows, commit and report. Prints microseconds of a step by verb; "critical" is from a step's tokens to the next
// launch, which the device would wait for, the rest overlaps it.
//   bench_host_step [STEPS]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "backend/backend.h"
#include "engine/engine_core.h"
#include "model/random_weights.h"

namespace fastspec {
namespace {

/// Replays by doing nothing, and runs behind the host.
class IdleDevice final : public Device {
 public:
  std::string name() const override { return "idle"; }
  Buffer allocate(std::size_t bytes, const char* what) override { return memory_.device->allocate(bytes, what); }
  Buffer allocate_host(std::size_t bytes, const char* what) override { return allocate(bytes, what); }
  void copy_to_device(void* destination, const void* source, std::size_t bytes) override {
    memory_.device->copy_to_device(destination, source, bytes);
  }
  void copy_to_host(void*, const void*, std::size_t) override {}
  std::size_t available_bytes() const override { return std::size_t{4} << 30; }
  bool has_graphs() const override { return true; }
  bool is_asynchronous() const override { return true; }
  std::unique_ptr<Graph> capture(const std::function<void()>&) override {
    struct Nothing final : Graph {
      void launch() override {}
    };
    return std::make_unique<Nothing>();
  }

 private:
  Backend memory_ = make_backend("cpu:reference", DType::kFloat32, 1);
};

/// Accepts every drafted token of a chain, and draws token 5 behind it.
class IdleOps final : public Ops {
 public:
  void embed(const EmbeddingParams&) override {}
  void rms_norm(const RmsNormParams&) override {}
  void linear(const LinearParams&) override {}
  void rope_store(const RopeStoreParams&) override {}
  void attention(const AttentionParams&) override {}
  void merge(const MergeParams&) override {}
  void score_keys(const ScoreKeysParams&) override {}
  void score_pages(const ScorePagesParams&) override {}
  void update_page_bounds(const PageBoundsParams&) override {}
  void select_slots(const SelectSlotsParams&) override {}
  void silu_mul(const SiluMulParams&) override {}
  void copy_slots(const CopySlotsParams&) override {}
  void copy_rows(const CopyRowsParams&) override {}
  void accept(const AcceptParams& params) override {
    for (int i = 0; i < params.num_trees; ++i) {
      const AcceptTree& tree = params.trees[i];
      params.results[i].num_accepted = tree.num_nodes - 1;
      for (int node = 1; node < tree.num_nodes; ++node) {
        params.results[i].path[node - 1] = node;
        params.results[i].sampled[node - 1] = {tree.tokens[node], 0, 1};
      }
      params.results[i].sampled[tree.num_nodes - 1] = {5, 0, 1};
    }
  }
  void await_accept() override {}
  int set_rules(const ProposalRules&) override { return 0; }
  void propose(const ProposeParams&) override {}
  void grow_beam(const GrowBeamParams&) override {}
  void await_proposals() override {}
  DType activation_dtype() const override { return DType::kFloat32; }
};

ModelConfig small_model(int length) {
  ModelConfig model;
  model.architecture = "LlamaForCausalLM";
  model.vocab_size = 64;
  model.hidden_size = 8;
  model.num_layers = 1;
  model.num_heads = 1;
  model.num_kv_heads = 1;
  model.head_dim = 8;
  model.intermediate_size = 8;
  model.max_position_embeddings = length;
  model.window = {0};
  return model;
}

void measure(int batch, int context, const char* drafter, int steps) {
  EngineParts parts;
  parts.backend = {std::make_unique<IdleDevice>(), std::make_unique<IdleOps>()};
  parts.model = small_model(context + 10 * steps + 64);
  parts.weights = random_weights(parts.model, DType::kFloat32, *parts.backend.device);
  EngineConfig config;
  config.model = "idle";
  config.max_num_seqs = batch;
  config.max_batch_rows = 1024;
  config.speculation.drafter.kind = drafter;
  EngineCore engine(config, std::move(parts));
  Request request;
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.sampling.max_tokens = 10 * steps + 32;
  for (int i = 0; i < batch; ++i) {
    request.prompt_token_ids.assign(static_cast<std::size_t>(context), 5);
    engine.submit(request);
  }
  engine.start_on_noise();
  for (int i = 0; i < 10; ++i) engine.step();
  engine.reset_stats();
  for (int i = 0; i < steps; ++i) engine.step();
  const EngineStats stats = engine.stats();
  const auto each = [&](double seconds) { return 1e6 * seconds / static_cast<double>(stats.steps); };
  std::printf("%5d %7d  %-6s %9.1f %9.1f   %7.1f %7.1f %7.1f %7.1f %7.1f %7.1f\n", batch, context,
              *drafter == 0 ? "plain" : drafter, each(stats.turnaround_seconds), each(stats.step_seconds),
              each(stats.plan_seconds), each(stats.draft_seconds), each(stats.verify_seconds),
              each(stats.accept_seconds), each(stats.commit_seconds), each(stats.emit_seconds));
}

}  // namespace
}  // namespace fastspec

int main(int count, char** arguments) {
  const int steps = count > 1 ? std::atoi(arguments[1]) : 500;
  std::printf("batch context  drafter  critical      step      plan   draft  verify  accept  commit    emit\n");
  for (const char* drafter : {"", "ngram"}) {
    fastspec::measure(1, 1024, drafter, steps);
    fastspec::measure(16, 8192, drafter, steps);
    fastspec::measure(16, 32768, drafter, steps);
    fastspec::measure(64, 2048, drafter, steps);
  }
  return 0;
}
