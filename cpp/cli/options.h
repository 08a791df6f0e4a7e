// Command line options that several commands take, and what they become.
#pragma once

#include <fastspec/engine.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fastspec::cli {

/// Options of the engine. `config()` and `load()` may be called after parsing.
class EngineOptions {
 public:
  void add_to(CLI::App& app);
  /// The command can do without --model and asks for it itself.
  void make_model_optional() { model_->required(false); }
  /// @throws Error(kInvalidArgument, kNotFound) naming the option.
  EngineConfig config() const;
  /// As given, unchecked, where the command needs no model directory.
  const EngineConfig& raw_config() const { return config_; }
  /// nullopt for auto. @throws Error(kInvalidArgument).
  std::optional<DType> dtype() const;
  /// Creates the engine; load progress goes to stderr when that is a terminal. @throws Error, Interrupted.
  std::unique_ptr<Engine> load() const { return load(config()); }
  /// The same for a config that the command has changed.
  std::unique_ptr<Engine> load(const EngineConfig& config) const;

  const std::string& model() const { return config_.model; }
  bool has_max_num_seqs() const { return max_num_seqs_->count() > 0; }
  bool has_drafter() const { return !drafter_.empty() && drafter_ != "none"; }

 private:
  EngineConfig config_;
  std::string dtype_ = "auto";
  std::string drafter_;
  CLI::Option* model_ = nullptr;
  CLI::Option* max_draft_tokens_ = nullptr;
  CLI::Option* max_num_seqs_ = nullptr;
  CLI::Option* ngram_min_ = nullptr;
  CLI::Option* ngram_max_ = nullptr;
  int draft_tokens_ = 0;
  int shortest_match_ = 0;
  int longest_match_ = 0;
};

/// Options of sampling, on top of `params`' own values as defaults.
class SamplingOptions {
 public:
  explicit SamplingOptions(const SamplingParams& defaults) : params_(defaults) {}
  void add_to(CLI::App& app);
  /// @throws Error(kInvalidArgument) naming the option.
  SamplingParams params() const;

 private:
  SamplingParams params_;
  std::vector<std::string> logit_bias_;
  std::uint64_t seed_ = 0;
  int logprobs_ = 0;
  CLI::Option* seed_option_ = nullptr;
  CLI::Option* logprobs_option_ = nullptr;
};

/// A whole file, or standard input for "-". @throws Error(kNotFound), Interrupted.
std::string read_text(const std::string& file);

/// "1.5 GB": 1000-based, three digits.
std::string format_bytes(double bytes);

}  // namespace fastspec::cli
