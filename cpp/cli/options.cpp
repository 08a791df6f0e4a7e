// Declares the shared options and turns them into EngineConfig and SamplingParams.
#include "cli/options.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>

#include "cli/command.h"
#include "cli/load_bar.h"

namespace fastspec::cli {
namespace {

/// @param named how `python -m fastspec fetch` is asked for it.
void check_directory(const std::string& option, const std::string& directory, const std::string& named) {
  std::error_code error;
  const bool found = std::filesystem::is_directory(directory, error);
  // What cannot be entered looks empty to everything behind.
  if (error == std::errc::permission_denied || (found && access(directory.c_str(), X_OK) != 0)) {
    throw Error(ErrorCode::kNotFound, option + directory + ": permission denied");
  }
  if (found) return;
  throw Error(ErrorCode::kNotFound,
              option + directory + ": no such directory (of a hub name or a .gguf file, `python -m fastspec fetch " +
                  named + "` prints the directory)");
}

}  // namespace

CLI::Option* add_integers(CLI::App& app, const std::string& name, std::vector<int>& values, const std::string& text) {
  std::string defaults;
  for (const int value : values) defaults += (defaults.empty() ? "" : ",") + std::to_string(value);
  const auto read = [&values, name](const std::vector<std::string>& entries) {
    values.clear();
    for (std::string_view rest : entries) {
      while (true) {
        const std::size_t comma = rest.find(',');
        const std::string fault = read_number(rest.substr(0, comma), values.emplace_back());
        if (!fault.empty()) throw CLI::ValidationError(name, fault);
        if (comma == std::string_view::npos) break;
        rest.remove_prefix(comma + 1);
      }
    }
  };
  return app.add_option_function<std::vector<std::string>>(name, read, text)->type_name("INT")->default_str(defaults);
}

void EngineOptions::add_to(CLI::App& app) {
  const std::string group = "Engine";
  model_ = app.add_option("--model", config_.model, "Hugging Face directory")->required()->group(group);
  app.add_option(
         "--drafter", drafter_,
         "none, ngram, standalone:DIR (a small model), longspec:DIR (trees), dflash:DIR (blocks) or self_sparse (the "
         "model itself, over --kv-budget of its keys); changes the speed, never the tokens")
      ->group(group);
  max_draft_tokens_ = add_number(app, "--max-draft-tokens", draft_tokens_,
                                 "Tokens drafted for one sequence and step; default 8, or the whole tree or block of "
                                 "longspec and dflash")
                          ->group(group);
  tree_widths_ = add_integers(app, "--tree-widths", widths_,
                              "Nodes of each level of the tree that longspec drafts, 1,1,1,1 for a chain")
                     ->group(group);
  window_ = add_number(app, "--draft-window", context_window_,
                       "Tokens before a block that dflash sees, 0: all; with a window its memory does not grow")
                ->group(group);
  sinks_ =
      add_number(app, "--draft-sinks", context_sinks_, "First tokens that it sees beside the window")->group(group);
  rebase_ =
      app.add_flag("--rebase-positions", rebase_positions_, "Gives the sinks the positions just before the window")
          ->group(group);
  ngram_min_ =
      add_number(app, "--ngram-min", shortest_match_, "Shortest match that the ngram drafter looks up")->group(group);
  ngram_max_ = add_number(app, "--ngram-max", longest_match_, "Longest match")->group(group);
  row_budget_ = app.add_option("--row-budget", budget_text_,
                               "Drafted tokens that are verified: off (all), fixed:RHO (a share of the rows), or auto: "
                               "what gives most tokens for its time, nothing where drafting does not pay")
                    ->capture_default_str()
                    ->group(group);
  budget_objective_ = app.add_option("--row-budget-objective", objective_text_,
                                     "Of auto: throughput, or paper: without the token that is sure anyway")
                          ->capture_default_str()
                          ->group(group);
  profile_seconds_ = add_number(app, "--profile-seconds", budget_seconds_,
                                "Of auto: the time to measure what steps cost, unless an earlier start has")
                         ->capture_default_str()
                         ->group(group);
  app.add_option("--sparse", sparse_,
                 "Decoding passes that read a few cached keys: none, streaming (the first and the last), history or "
                 "history:MANIFEST, quest, dustin:MANIFEST; what the output is worth --guarantee says")
      ->group(group);
  kv_budget_ =
      add_number(app, "--kv-budget", config_.sparse.kv_budget, "Cached keys that such a pass reads of a sequence")
          ->capture_default_str()
          ->group(group);
  guarantee_ = app.add_option("--guarantee", guarantee_text_,
                              "exact: dense passes confirm every token before it is shown; sparse: it is shown at once")
                   ->capture_default_str()
                   ->group(group);
  refresh_ = add_number(app, "--refresh-interval", config_.sparse.refresh_interval,
                        "Tokens between two dense passes; 0: with exact as many as pay, with sparse no dense pass")
                 ->capture_default_str()
                 ->group(group);
  min_mass_ = add_number(app, "--min-mass", config_.sparse.min_mass,
                         "Share of attention inside the keys read, as far as the selector knows it, below which the "
                         "next pass is dense; 0: whatever it is")
                  ->capture_default_str()
                  ->group(group);
  min_margin_ = add_number(app, "--min-margin", config_.sparse.min_margin,
                           "By how much a token of such a pass must win; one that does not is left to the next pass, "
                           "which is dense; 0: none is")
                    ->capture_default_str()
                    ->group(group);
  app.add_option("--dtype", dtype_, "float32, bfloat16, float16, or auto: the checkpoint's")
      ->capture_default_str()
      ->group(group);
  app.add_option("--device", config_.device, "cpu, cuda:N, or cpu:reference: slow, results independent of the batch")
      ->capture_default_str()
      ->group(group);
  add_number(app, "--max-model-len", config_.max_model_len, "Tokens of one sequence; 0: the model's limit")
      ->capture_default_str()
      ->group(group);
  max_num_seqs_ = add_number(app, "--max-num-seqs", config_.max_num_seqs, "Sequences in one pass")
                      ->capture_default_str()
                      ->group(group);
  add_number(app, "--max-batch-rows", config_.max_batch_rows, "Rows in one pass: prompt chunks and drafted tokens")
      ->capture_default_str()
      ->group(group);
  add_number(app, "--page-size", config_.page_size, "KV slots a page, a power of two")
      ->capture_default_str()
      ->group(group);
  add_number(app, "--gpu-memory-utilization", config_.gpu_memory_utilization, "Share of the GPU's memory, 0 to 1")
      ->capture_default_str()
      ->group(group);
  add_number(app, "--kv-cache-bytes", config_.kv_cache_bytes, "Bytes of the KV cache; 0: what --max-num-seqs need")
      ->capture_default_str()
      ->group(group);
  add_number(app, "--threads", config_.num_threads, "CPU threads; 0: all cores")->capture_default_str()->group(group);
}

bool EngineOptions::names_drafting() const {
  const CLI::Option* const options[] = {max_draft_tokens_, row_budget_, budget_objective_,
                                        profile_seconds_,  min_mass_,   min_margin_};
  const auto is_given = [](const CLI::Option* option) { return option->count() > 0; };
  return has_drafter() || std::any_of(std::begin(options), std::end(options), is_given);
}

SparseConfig EngineOptions::shape_sparse() const {
  SparseConfig sparse = config_.sparse;
  if (has_sparse()) sparse.selector = sparse_;
  sparse.set_guarantee(guarantee_text_);
  refuse_idle_sparse(sparse);
  return sparse;
}

void EngineOptions::set_sparse(SparseConfig& sparse) const {
  sparse.set_selector(sparse_);
  sparse.set_guarantee(guarantee_text_);
  refuse_idle_sparse(sparse);
}

void EngineOptions::refuse_idle_sparse(const SparseConfig& sparse) const {
  if (!sparse.enabled() && drafter_ != "self_sparse" &&
      kv_budget_->count() + guarantee_->count() + refresh_->count() + min_mass_->count() + min_margin_->count() > 0) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "--kv-budget, --guarantee, --refresh-interval, --min-mass and --min-margin have no effect without --sparse or "
        "--drafter self_sparse");
  }
}

std::optional<DType> EngineOptions::dtype() const {
  if (dtype_ == "auto") return std::nullopt;
  return parse_dtype(dtype_);
}

EngineConfig EngineOptions::config() const {
  EngineConfig config = config_;
  check_directory("--model ", config.model, config.model);
  config.dtype = dtype();
  set_sparse(config.sparse);
  DrafterConfig& drafter = config.speculation.drafter;
  drafter = DrafterConfig::parse(drafter_);
  if (!drafter.model.empty()) {
    check_directory("--drafter " + drafter.kind + ":", drafter.model,
                    drafter.kind == "longspec" ? drafter.to_string() : drafter.model);
  }
  if (max_draft_tokens_->count() > 0) {
    if (!has_drafter()) {
      throw Error(ErrorCode::kInvalidArgument, "--max-draft-tokens has no effect without --drafter");
    }
    config.speculation.max_draft_tokens = draft_tokens_;
  }
  if (ngram_min_->count() + ngram_max_->count() > 0 && drafter.kind != "ngram") {
    throw Error(ErrorCode::kInvalidArgument, "--ngram-min and --ngram-max have no effect without --drafter ngram");
  }
  if (tree_widths_->count() > 0) {
    if (drafter.kind != "longspec") {
      throw Error(ErrorCode::kInvalidArgument, "--tree-widths has no effect without --drafter longspec:DIR");
    }
    drafter.tree_widths = widths_;
  }
  if (window_->count() + sinks_->count() + rebase_->count() > 0 && drafter.kind != "dflash") {
    throw Error(ErrorCode::kInvalidArgument,
                "--draft-window, --draft-sinks and --rebase-positions have no effect without --drafter dflash:DIR");
  }
  if (window_->count() > 0) drafter.window = context_window_;
  if (sinks_->count() > 0) drafter.sinks = context_sinks_;
  drafter.rebase_positions = rebase_positions_;
  const std::size_t budget_options = row_budget_->count() + budget_objective_->count() + profile_seconds_->count();
  if (budget_options > 0 && !has_drafter()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--row-budget, --row-budget-objective and --profile-seconds have no effect without --drafter");
  }
  config.speculation.budget.set_mode(budget_text_);
  config.speculation.budget.set_objective(objective_text_);
  config.speculation.budget.profile_seconds = budget_seconds_;
  if (ngram_min_->count() > 0) drafter.ngram_min = shortest_match_;
  if (ngram_max_->count() > 0) drafter.ngram_max = longest_match_;
  return config;
}

std::unique_ptr<Engine> EngineOptions::load(const EngineConfig& config) const {
  if (config.sparse.enabled() && config.sparse.guarantee == Guarantee::kSparse) {
    std::fprintf(stderr, "guarantee sparse: tokens are shown unconfirmed and may differ from plain decoding's\n");
  }
  LoadBar bar;
  return Engine::create(config, [&](std::size_t done, std::size_t total) {
    if (interrupted()) throw Interrupted();
    bar.show(done, total);
  });
}

void SamplingOptions::add_to(CLI::App& app) {
  const std::string group = "Sampling";
  const auto add = [&](const char* name, auto& value, const char* text) {
    return add_number(app, name, value, text)->group(group);
  };
  add("--max-tokens", params_.max_tokens, "Tokens to generate at most")->capture_default_str();
  add("--min-tokens", params_.min_tokens, "No end of sequence before")->capture_default_str();
  add("--temperature", params_.temperature, "0: greedy")->capture_default_str();
  add("--top-k", params_.top_k, "Keep the k most likely tokens; 0: all")->capture_default_str();
  add("--top-p", params_.top_p, "Keep the most likely tokens of this total probability")->capture_default_str();
  add("--min-p", params_.min_p, "Keep tokens at least this likely, relative to the most likely")->capture_default_str();
  seed_option_ = add("--seed", seed_, "Of the sampling noise; drawn and printed by --json when absent");
  add("--n", params_.n, "Samples of the prompt")->capture_default_str();
  app.add_option("--stop", params_.stop, "End before this text; may be given several times")
      ->allow_extra_args(false)
      ->group(group);
  add_integers(app, "--stop-token-ids", params_.stop_token_ids, "End at these tokens")->group(group);
  app.add_flag("--ignore-eos", params_.ignore_eos, "Go on after the end of sequence")->group(group);
  logprobs_option_ =
      add("--logprobs", logprobs_, "Log-probabilities in --json: 0 of the chosen tokens, N also of the N most likely");
  add("--repetition-penalty", params_.repetition_penalty, "> 1 discourages tokens of prompt and output")
      ->capture_default_str();
  add("--presence-penalty", params_.presence_penalty, "Subtracted from the logits of tokens in the output")
      ->capture_default_str();
  add("--frequency-penalty", params_.frequency_penalty, "The same, times their count")->capture_default_str();
  app.add_option("--logit-bias", logit_bias_, "TOKEN=VALUE, added to a logit; may be given several times")
      ->allow_extra_args(false)
      ->group(group);
}

SamplingParams SamplingOptions::params() const {
  SamplingParams params = params_;
  if (seed_option_->count() > 0) params.seed = seed_;
  if (logprobs_option_->count() > 0) params.logprobs = logprobs_;
  for (const std::string& entry : logit_bias_) {
    const std::size_t equals = entry.find('=');
    std::string fault = "expected TOKEN=VALUE";
    TokenId token = 0;
    float bias = 0;
    if (equals != std::string::npos) {
      fault = read_number(std::string_view(entry).substr(0, equals), token);
      if (fault.empty()) fault = read_number(std::string_view(entry).substr(equals + 1), bias);
    }
    if (!fault.empty()) throw Error(ErrorCode::kInvalidArgument, "--logit-bias " + entry + ": " + fault);
    params.logit_bias.emplace_back(token, bias);
  }
  params.validate();
  return params;
}

std::string format_bytes(double bytes) {
  const char* const units[] = {"B", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  for (; bytes >= 1000 && unit + 1 < std::size(units); ++unit) bytes /= 1000;
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g %s", bytes, units[unit]);
  return text;
}

}  // namespace fastspec::cli
