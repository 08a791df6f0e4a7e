// fastspec-cli bench: plain decoding beside speculation or sparse passes, on one engine, in one run.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>

#include "cli/bench_measure.h"
#include "cli/bench_prompt.h"
#include "cli/bench_report.h"
#include "cli/bench_shape.h"
#include "cli/bench_trace.h"
#include "cli/command.h"
#include "cli/files.h"
#include "cli/options.h"
#include "cli/output_json.h"

namespace fastspec::cli {
namespace {

struct BenchOptions {
  EngineOptions engine;
  std::vector<int> batches = {1};
  std::vector<std::string> context_texts = {"128"};
  std::vector<int> contexts;  // of the texts
  std::string shape;
  int steps = 20;
  double rate = 0;  // TB/s
  int synthetic_rows = 0;
  double synthetic_acceptance = 0;
  std::string synthetic_drafter = "none";
  int max_tokens = 64;
  int repetitions = 5;
  int trace_steps = 10;
  std::optional<std::string> prompt_file;
  bool json = false;
};

void check_positive(const char* name, int value) {
  if (value < 1) {
    throw Error(ErrorCode::kInvalidArgument, std::string(name) + " " + std::to_string(value) + ": must be positive");
  }
}

/// Whether there is more than plain decoding to measure.
bool speculates(const EngineConfig& config) {
  return config.speculation.enabled() || config.sparse.enabled();
}

/// The engine's options, made large enough for the largest case and no larger.
EngineConfig fitting_config(const BenchOptions& options) {
  EngineConfig config = options.engine.config();
  const int batch = *std::max_element(options.batches.begin(), options.batches.end());
  const std::int64_t length =
      std::int64_t{*std::max_element(options.contexts.begin(), options.contexts.end())} + options.max_tokens;
  if (length > std::numeric_limits<int>::max()) {
    throw Error(ErrorCode::kInvalidArgument, "--context and --max-tokens: " + std::to_string(length) + " are too many");
  }
  if (!options.engine.has_max_num_seqs()) config.max_num_seqs = batch;
  if (config.max_num_seqs < batch) {
    throw Error(ErrorCode::kInvalidArgument, "--max-num-seqs " + std::to_string(config.max_num_seqs) +
                                                 " cannot run --batch " + std::to_string(batch));
  }
  if (config.max_model_len == 0) config.max_model_len = static_cast<int>(length);
  return config;
}

/// "none", "longspec", "longspec:VOCABULARY" or "dflash:LAYERS".
void set_synthetic_drafter(const std::string& text, ShapeBenchmarkConfig& config) {
  const std::size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  int number = 0;
  const bool has_number = colon != std::string::npos;
  const std::string fault = has_number ? read_number(std::string_view(text).substr(colon + 1), number) : "";
  if (kind == "longspec" && fault.empty() && (!has_number || number > 0)) {
    config.longspec = true;
    config.draft_vocabulary = number;
  } else if (kind == "dflash" && has_number && fault.empty() && number > 0) {
    config.dflash_layers = number;
  } else if (text != "none") {
    throw Error(ErrorCode::kInvalidArgument,
                "--synthetic-drafter " + text + ": expected none, longspec, longspec:VOCABULARY or dflash:LAYERS");
  }
}

int bench_shape(const BenchOptions& options) {
  const EngineConfig& engine = options.engine.raw_config();
  if (!engine.model.empty() || options.engine.names_drafting()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--shape measures steps without files: give no --model, no --drafter, and no options of a row budget, "
                "--min-mass or --min-margin; --synthetic-rows and --synthetic-drafter show a drafter's gain");
  }
  if (options.prompt_file) throw Error(ErrorCode::kInvalidArgument, "--prompt-file belongs to --model");
  check_positive("--steps", options.steps);
  ShapeBenchmarkConfig config{.shape = options.shape,
                              .device = engine.device,
                              .dtype = options.engine.dtype().value_or(DType::kBFloat16),
                              .page_size = engine.page_size,
                              .num_threads = engine.num_threads,
                              .synthetic_rows = options.synthetic_rows,
                              .synthetic_acceptance = options.synthetic_acceptance,
                              .sparse = options.engine.shape_sparse()};
  set_synthetic_drafter(options.synthetic_drafter, config);
  return run_shape_bench({.config = config,
                          .batches = options.batches,
                          .contexts = options.contexts,
                          .steps = options.steps,
                          .repetitions = options.repetitions,
                          .trace_steps = options.trace_steps,
                          .bytes_per_second = 1e12 * options.rate,
                          .json = options.json});
}

using MakePrompts = std::function<std::vector<std::vector<TokenId>>(int batch, int context)>;

/// @param cases of the grid in order, which get their records.
void trace_cases(Engine& engine, const MakePrompts& prompts, const BenchOptions& options,
                 nlohmann::ordered_json& cases) {
  if (!options.json) write_output(trace_heading());
  std::size_t next = 0;
  for (const int batch : options.batches) {
    for (const int context : options.contexts) {
      nlohmann::ordered_json& json = cases[next++];
      for (const bool speculative : {false, true}) {
        if (speculative && !speculates(engine.config())) continue;
        const char* mode = speculative ? "speculative" : "plain";
        const Traced traced = try_trace([&] {
          return trace_decoding(engine, prompts(batch, context), options.max_tokens, options.trace_steps, speculative);
        });
        json[mode]["trace"] = to_json(traced);
        if (!options.json) write_output(trace_lines(batch, context, mode, traced));
      }
    }
  }
}

int bench(BenchOptions options) {
  for (const int batch : options.batches) check_positive("--batch", batch);
  options.contexts = parse_lengths("--context", options.context_texts);
  check_positive("--repeat", options.repetitions);
  if (options.trace_steps < 0) throw Error(ErrorCode::kInvalidArgument, "--trace-steps: must not be negative");
  if (!options.shape.empty()) return bench_shape(options);
  if (options.synthetic_rows != 0 || options.synthetic_acceptance != 0 || options.synthetic_drafter != "none") {
    throw Error(ErrorCode::kInvalidArgument,
                "--synthetic-rows, --synthetic-acceptance and --synthetic-drafter belong to --shape");
  }
  if (options.engine.model().empty()) throw Error(ErrorCode::kInvalidArgument, "give --model DIR or --shape SHAPE");
  if (options.max_tokens < 2) throw Error(ErrorCode::kInvalidArgument, "--max-tokens: decoding begins with the second");
  const EngineConfig config = fitting_config(options);
  const std::string passage = options.prompt_file ? read_text(*options.prompt_file) : std::string();
  const std::unique_ptr<Engine> engine = options.engine.load(config);
  const auto tokenizer = engine->tokenizer();
  const EngineInfo& info = engine->info();
  const std::string source = tokenizer == nullptr  ? "synthetic (no tokenizer): a repeated pattern of token ids"
                             : options.prompt_file ? "a copying task on " + *options.prompt_file
                                                   : "a copying task";
  const BenchMachine machine = describe_machine(config.num_threads, info.device, 1e12 * options.rate);

  nlohmann::ordered_json report = {{"machine",
                                    {{"processor", machine.processor},
                                     {"threads", machine.threads},
                                     {"read_bytes_per_second", machine.read_bytes_per_second}}},
                                   {"engine", to_json(info)},
                                   {"max_tokens", options.max_tokens},
                                   {"repetitions", options.repetitions},
                                   {"prompts", source},
                                   {"cases", nlohmann::ordered_json::array()}};
  if (!options.json) {
    write_output(bench_heading(machine, info, source, options.max_tokens, options.repetitions));
  }
  const bool has_both = speculates(config);
  const MakePrompts make_prompts = [&](int batch, int context) {
    return make_bench_prompts(tokenizer.get(), info.vocab_size, passage, batch, context);
  };
  for (const int batch : options.batches) {
    for (const int context : options.contexts) {
      const auto prompts = make_prompts(batch, context);
      std::vector<BenchRun> plain;
      std::vector<BenchRun> speculative;
      // Memory is touched and, on a GPU, passes are recorded before anything is timed.
      const bool records = !info.device.starts_with("cpu");
      run_bench(*engine, prompts, records ? options.max_tokens : 2, has_both);
      if (records && has_both) run_bench(*engine, prompts, options.max_tokens, false);
      for (int i = 0; i < options.repetitions; ++i) {
        plain.push_back(run_bench(*engine, prompts, options.max_tokens, false));
        if (has_both) speculative.push_back(run_bench(*engine, prompts, options.max_tokens, true));
      }
      const BenchCase result = {batch, context, &median(plain), has_both ? &median(speculative) : nullptr};
      report["cases"].push_back(bench_json(result, machine, info));
      if (!options.json) write_output(bench_lines(result, machine, info));
    }
  }
  if (options.trace_steps > 0 && !info.device.starts_with("cpu")) {
    trace_cases(*engine, make_prompts, options, report["cases"]);
  }
  if (options.json) write_output(dump(report) + "\n");
  return 0;
}

}  // namespace

Command add_bench(CLI::App& program) {
  CLI::App* app = program.add_subcommand("bench", "Measure plain decoding beside speculation and sparse passes");
  auto options = std::make_shared<BenchOptions>();
  add_integers(*app, "--batch", options->batches, "Sequences at once; several: 1,8");
  app->add_option("--context", options->context_texts, "Tokens of each prompt; several: 128,1K")
      ->delimiter(',')
      ->capture_default_str();
  add_number(*app, "--max-tokens", options->max_tokens, "Tokens generated for each prompt")->capture_default_str();
  add_number(*app, "--repeat", options->repetitions, "Runs of each case; the median counts")->capture_default_str();
  add_number(*app, "--trace-steps", options->trace_steps,
             "On a GPU: steps of each case that are recorded kernel by kernel after the timed runs; 0: none")
      ->capture_default_str();
  app->add_option("--prompt-file", options->prompt_file, "Text of the copying task; -: standard input");
  app->add_option(
      "--shape", options->shape,
      "Instead of --model: decode with random weights of qwen2.5-7b, llama-3.1-8b, qwen3-8b or a config.json");
  add_number(*app, "--steps", options->steps, "With --shape: steps of each run")->capture_default_str();
  app->add_option("--rate", options->rate,
                  "TB/s that the device reads at, for rooflines; 0: on the CPU the measured rate")
      ->capture_default_str();
  add_number(*app, "--synthetic-rows", options->synthetic_rows,
             "With --shape: also speculative steps that verify this many drafted rows a sequence, with a SYNTHETIC "
             "acceptance")
      ->capture_default_str();
  add_number(*app, "--synthetic-acceptance", options->synthetic_acceptance,
             "Drafted rows accepted a sequence and step, in the mean: tau - 1")
      ->capture_default_str();
  app->add_option(
         "--synthetic-drafter", options->synthetic_drafter,
         "With --synthetic-rows: what drafts, with random weights, before its proposals give way: none, longspec "
         "(a chain), longspec:VOCABULARY (of the first tokens alone), dflash:LAYERS")
      ->capture_default_str();
  app->add_flag("--json", options->json, "Print one object");
  options->engine.add_to(*app);
  options->engine.make_model_optional();
  app->footer(R"(The prompts ask for a copy of a passage with one word changed, so that lookup has something to find.

Examples:
  fastspec-cli bench --model DIR
  fastspec-cli bench --model DIR --drafter ngram --batch 1,8 --context 128,1024
  fastspec-cli bench --model DIR --drafter ngram --sparse quest --context 8K
  fastspec-cli bench --shape qwen2.5-7b --device cuda --batch 1,16 --context 1K,32K --rate 4.2
  fastspec-cli bench --shape qwen2.5-7b --device cuda --context 32K --synthetic-rows 7 --synthetic-acceptance 2.5
  fastspec-cli bench --shape qwen2.5-7b --device cuda --batch 16 --context 32K --synthetic-rows 4 \
      --synthetic-acceptance 2 --synthetic-drafter longspec:16384 --sparse dustin --kv-budget 512 --guarantee sparse
  fastspec-cli bench --model DIR --drafter standalone:DRAFT_DIR --dtype bfloat16 --json)");
  return {app, [options] { return bench(*options); }};
}

}  // namespace fastspec::cli
