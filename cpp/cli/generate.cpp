// fastspec-cli generate: one prompt to text, streamed, or to one JSON object.
#include <cstdio>
#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/files.h"
#include "cli/options.h"
#include "cli/output_json.h"
#include "cli/session.h"

namespace fastspec::cli {
namespace {

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

struct GenerateOptions {
  EngineOptions engine;
  SamplingOptions sampling{greedy()};
  std::optional<std::string> prompt;
  std::optional<std::string> prompt_file;
  std::vector<TokenId> token_ids;
  bool no_special_tokens = false;
  bool json = false;
  bool stats = false;
};

Request make_request(const GenerateOptions& options) {
  const int given =
      int(options.prompt.has_value()) + int(options.prompt_file.has_value()) + int(!options.token_ids.empty());
  if (given != 1) {
    throw Error(ErrorCode::kInvalidArgument, "give one of --prompt, --prompt-file and --token-ids");
  }
  Request request;
  request.sampling = options.sampling.params();
  request.add_special_tokens = !options.no_special_tokens;
  request.prompt_token_ids = options.token_ids;
  if (options.prompt) request.prompt = *options.prompt;
  if (options.prompt_file) request.prompt = read_text(*options.prompt_file);
  return request;
}

void print_json(const std::vector<Output>& outputs, const Engine& engine) {
  nlohmann::ordered_json result;
  if (outputs.size() == 1) {
    result = to_json(outputs.front());
  } else {
    for (const Output& output : outputs) result["samples"].push_back(to_json(output));
  }
  if (engine.config().sparse.enabled()) result["sparse"] = to_json(engine.stats().sparse);
  if (engine.config().speculation.enabled()) result["row_budget"] = row_budget_json(engine.stats());
  write_output(dump(result) + "\n");
}

int generate(const GenerateOptions& options) {
  const Request request = make_request(options);
  const std::unique_ptr<Engine> engine = options.engine.load();
  if (engine->tokenizer() == nullptr && options.token_ids.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--model " + options.engine.model() + " has no tokenizer.json: give --token-ids");
  }
  const bool streaming = !options.json && request.sampling.n == 1;
  const std::vector<Output> outputs = run_requests(*engine, {request}, [&](const Output& delta) {
    if (streaming) write_output(delta.text);
  });
  if (options.json) {
    print_json(outputs, *engine);
  } else if (streaming) {
    write_output("\n");
  } else {
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      write_output("--- sample " + std::to_string(i) + "\n" + outputs[i].text + "\n");
    }
  }
  if (options.stats) std::fprintf(stderr, "%s\n", engine->stats().to_string().c_str());
  for (const Output& output : outputs) {
    if (output.finish_reason == FinishReason::kError) throw Error(ErrorCode::kInternal, output.error);
  }
  return take_interrupt() ? kInterrupted : 0;
}

}  // namespace

Command add_generate(CLI::App& program) {
  CLI::App* app = program.add_subcommand("generate", "Continue a prompt");
  auto options = std::make_shared<GenerateOptions>();
  app->add_option("--prompt", options->prompt, "Text to continue");
  app->add_option("--prompt-file", options->prompt_file, "File with the text; -: standard input");
  add_integers(*app, "--token-ids", options->token_ids, "The prompt as token ids: 1,2,3 or 1 2 3");
  app->add_flag("--no-special-tokens", options->no_special_tokens, "No leading BOS and the like before the text");
  app->add_flag(
      "--json", options->json,
      "Print one object: text, token_ids, finish_reason, seed, guarantee, stats ({samples: [...]} for --n > 1), and "
      "row_budget with a drafter, sparse with sparse passes");
  app->add_flag("--stats", options->stats, "Print the engine's statistics to standard error");
  options->engine.add_to(*app);
  options->sampling.add_to(*app);
  app->footer(R"(Examples:
  fastspec-cli generate --model DIR --prompt "The capital of France is" --max-tokens 32
  fastspec-cli generate --model DIR --prompt-file notes.txt --drafter ngram --stats
  fastspec-cli generate --model DIR --drafter standalone:DRAFT_DIR --prompt "Once" --temperature 0.8 --seed 7
  fastspec-cli generate --model DIR --prompt-file book.txt --drafter ngram --sparse streaming --kv-budget 1024 --stats
  fastspec-cli generate --model DIR --token-ids 1,2,3 --json)");
  return {app, [options] { return generate(*options); }};
}

}  // namespace fastspec::cli
