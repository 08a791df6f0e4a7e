// Command line options that several commands take, and what they become.
#pragma once

#include <fastspec/engine.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

namespace fastspec::cli {

/// Reads a number that is written in full and fits its type. @return what is wrong with the text, or nothing.
template <typename Number>
std::string read_number(std::string_view text, Number& value) {
  const std::string_view digits = text.starts_with('+') ? text.substr(1) : text;
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value);
  if (error == std::errc::result_out_of_range) return "\"" + std::string(text) + "\" is out of range";
  if (error == std::errc() && stop == end) return "";
  const char* const expected = std::is_floating_point_v<Number> ? "number"
                               : std::is_unsigned_v<Number>     ? "whole number of 0 or more"
                                                                : "whole number";
  return "\"" + std::string(text) + "\" is no " + expected;
}

/// An option of one number. CLI11 by itself wraps and cuts off what does not fit.
template <typename Number>
CLI::Option* add_number(CLI::App& app, const std::string& name, Number& value, const std::string& text) {
  const auto fault = [](std::string& given) {
    Number ignored{};
    return read_number(given, ignored);
  };
  return app.add_option(name, value, text)->check(CLI::Validator(fault, ""));
}

/// An option of whole numbers, one argument each or several in one: 1,2. What `values` hold is the default.
CLI::Option* add_integers(CLI::App& app, const std::string& name, std::vector<int>& values, const std::string& text);

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
  bool has_sparse() const { return !sparse_.empty() && sparse_ != "none"; }
  /// Whether an option was given that a shape, which has no files, has no use for: of drafters, of the row budget, of
  /// what makes the next pass dense.
  bool names_drafting() const;
  /// Sparse passes of a shape: the selector's name alone, no manifest. @throws Error(kInvalidArgument).
  SparseConfig shape_sparse() const;

 private:
  void set_sparse(SparseConfig& sparse) const;
  void refuse_idle_sparse(const SparseConfig& sparse) const;

  EngineConfig config_;
  std::string dtype_ = "auto";
  std::string drafter_;
  CLI::Option* model_ = nullptr;
  CLI::Option* max_draft_tokens_ = nullptr;
  CLI::Option* max_num_seqs_ = nullptr;
  CLI::Option* ngram_min_ = nullptr;
  CLI::Option* ngram_max_ = nullptr;
  CLI::Option* tree_widths_ = nullptr;
  CLI::Option* window_ = nullptr;
  CLI::Option* sinks_ = nullptr;
  CLI::Option* rebase_ = nullptr;
  CLI::Option* row_budget_ = nullptr;
  CLI::Option* budget_objective_ = nullptr;
  CLI::Option* profile_seconds_ = nullptr;
  CLI::Option* kv_budget_ = nullptr;
  CLI::Option* guarantee_ = nullptr;
  CLI::Option* refresh_ = nullptr;
  CLI::Option* min_mass_ = nullptr;
  CLI::Option* min_margin_ = nullptr;
  int draft_tokens_ = 0;
  int shortest_match_ = 0;
  int longest_match_ = 0;
  int context_window_ = 0;
  int context_sinks_ = 0;
  bool rebase_positions_ = false;
  std::vector<int> widths_ = DrafterConfig().tree_widths;
  std::string budget_text_ = BudgetConfig().mode_text();
  std::string objective_text_ = BudgetConfig().objective_text();
  double budget_seconds_ = BudgetConfig().profile_seconds;
  std::string sparse_;
  std::string guarantee_text_ = to_string(SparseConfig().guarantee);
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

/// "1.5 GB": 1000-based, three digits.
std::string format_bytes(double bytes);

}  // namespace fastspec::cli
