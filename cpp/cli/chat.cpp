// fastspec-cli chat: a conversation in the terminal, in the model's own template.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/chat_template.h"
#include "cli/command.h"
#include "cli/files.h"
#include "cli/json_reader.h"
#include "cli/options.h"
#include "cli/report.h"
#include "cli/session.h"

namespace fastspec::cli {
namespace {

using jinja::Json;

SamplingParams chat_defaults() {
  SamplingParams params;
  params.temperature = 0.7f;
  params.top_p = 0.95f;
  params.max_tokens = 512;
  return params;
}

struct ChatOptions {
  EngineOptions engine;
  SamplingOptions sampling{chat_defaults()};
  std::optional<std::string> system;
  std::optional<std::string> show_prompt;
  bool stats = false;
};

Json message(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

class Conversation {
 public:
  explicit Conversation(const std::optional<std::string>& system) : system_(system) { reset(); }

  void reset() {
    messages_ = Json::array();
    if (system_) messages_.push_back(message("system", *system_));
  }
  void add(const char* role, const std::string& content) { messages_.push_back(message(role, content)); }
  void drop_last() { messages_.erase(messages_.size() - 1); }
  const Json& messages() const { return messages_; }

 private:
  std::optional<std::string> system_;
  Json messages_;
};

int show_prompt(const ChatTemplate& chat_template, const std::string& file) {
  const Json messages = parse_json<Json>(read_text(file), "--show-prompt " + file);
  if (!messages.is_array() || messages.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "--show-prompt " + file + ": expected an array of messages");
  }
  write_output(chat_template.render(messages));
  return 0;
}

/// Streams one answer; returns its text. Ctrl-C keeps what is there. @throws Error(kInvalidArgument) for a prompt that
/// the engine refuses or cannot finish.
std::string answer(Engine& engine, const std::string& prompt, const SamplingParams& params, bool stats) {
  Request request;
  // The template wrote the special tokens itself.
  request.add_special_tokens = false;
  request.prompt = prompt;
  request.sampling = params;
  const std::vector<Output> outputs =
      run_requests(engine, {request}, [](const Output& delta) { write_output(delta.text); });
  write_output("\n");
  const Output& output = outputs.front();
  if (output.finish_reason == FinishReason::kError) throw Error(ErrorCode::kInvalidArgument, output.error);
  if (take_interrupt()) std::fprintf(stderr, "[stopped]\n");
  if (stats) {
    std::fprintf(stderr, "[%d tokens, %.1f tokens/s, acceptance length %.2f]\n", output.stats.completion_tokens,
                 output.stats.completion_tokens / std::max(output.stats.seconds, 1e-9),
                 output.stats.acceptance_length());
  }
  return output.text;
}

/// Adds a question and its answer. What is refused leaves the conversation as it was: false.
bool take_turn(Engine& engine, const ChatTemplate& chat_template, const ChatOptions& options,
               const SamplingParams& params, const std::string& question, Conversation& conversation) {
  conversation.add("user", question);
  try {
    const std::string prompt = chat_template.render(conversation.messages());
    conversation.add("assistant", answer(engine, prompt, params, options.stats));
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument && error.code() != ErrorCode::kUnsupported) throw;
    report(error.what() + std::string("; the message is dropped, /reset forgets those before"), kBadInput);
    conversation.drop_last();
    return false;
  }
}

int chat(const ChatOptions& options) {
  const SamplingParams params = options.sampling.params();
  if (params.n != 1) throw Error(ErrorCode::kInvalidArgument, "--n: a conversation has one answer");
  const std::filesystem::path directory = options.engine.config().model;
  const ChatTemplate chat_template = ChatTemplate::load(directory);
  if (options.show_prompt) return show_prompt(chat_template, *options.show_prompt);

  // A template that cannot be rendered is refused before the model loads, not in the second question.
  Conversation trial(options.system);
  for (const char* role : {"user", "assistant", "user"}) trial.add(role, "Hello");
  chat_template.render(trial.messages());

  const std::unique_ptr<Engine> engine = options.engine.load();
  if (engine->tokenizer() == nullptr) {
    throw Error(ErrorCode::kNotFound, directory.string() + " has no tokenizer.json");
  }
  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal) {
    std::fprintf(stderr, "/reset forgets the conversation, /exit or Ctrl-D ends it, Ctrl-C stops an answer\n");
  }
  Conversation conversation(options.system);
  std::string line;
  int result = 0;
  while (true) {
    if (terminal) write_output("> ");
    if (interrupted() || !std::getline(std::cin, line)) return take_interrupt() ? kInterrupted : result;
    if (line == "/exit") return result;
    if (line == "/reset") {
      conversation.reset();
    } else if (!line.empty()) {
      // A script sees in the exit code that a question went without answer.
      if (!take_turn(*engine, chat_template, options, params, line, conversation)) result = kBadInput;
    }
  }
}

}  // namespace

Command add_chat(CLI::App& program) {
  CLI::App* app = program.add_subcommand("chat", "Talk with a model, in its own chat template");
  auto options = std::make_shared<ChatOptions>();
  app->add_option("--system", options->system, "System prompt");
  app->add_option("--show-prompt", options->show_prompt,
                  "Print the prompt of a conversation ([{\"role\", \"content\"}, ...] in a JSON file; -: standard "
                  "input) and exit");
  app->add_flag("--stats", options->stats, "Print tokens/s and acceptance length after each answer");
  options->engine.add_to(*app);
  options->sampling.add_to(*app);
  app->footer(R"(/reset forgets the conversation, /exit or Ctrl-D ends it, Ctrl-C stops an answer.

Templates are read from the model's directory (ChatML, Llama 2 and 3, Vicuna, Mistral and what is written like them).
One that this program cannot render is refused; `python -m fastspec chat --model DIR` renders every template.

Examples:
  fastspec-cli chat --model DIR --drafter ngram
  fastspec-cli chat --model DIR --system "You answer in one sentence." --temperature 0
  echo "What is a prime number?" | fastspec-cli chat --model DIR
  fastspec-cli chat --model DIR --show-prompt conversation.json)");
  return {app, [options] { return chat(*options); }};
}

}  // namespace fastspec::cli
