// Options of an engine. Every option does something; an impossible one is refused by validate().
#pragma once

#include <fastspec/tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fastspec {

/// Which drafter proposes, and its own options.
struct DrafterConfig {
  std::string kind;   // "" = none, "ngram", "standalone", "longspec", "dflash"
  std::string model;  // all but ngram: directory of the draft model
  int ngram_min = 2;  // ngram: shortest and longest match looked up in the sequence
  int ngram_max = 4;
  std::vector<int> tree_widths{4, 16, 16, 16, 16};  // longspec: nodes of each level of a tree; 1,1,1,1 is a chain
  bool coupled = true;  // longspec: drafts with the target's own noise; false only to measure what that is worth
  int window = 0;       // dflash: tokens before a block that it sees; 0 = all. With a window its memory is one size
  int sinks = 0;        // dflash, with a window: first tokens of the sequence that it sees too
  bool rebase_positions = false;  // dflash, with sinks: they take the positions just before the window

  /// "none" or "", "ngram", "standalone:DIR", "longspec:DIR", "dflash:DIR". @throws Error(kInvalidArgument) naming what
  /// is possible.
  static DrafterConfig parse(const std::string& text);
  std::string to_string() const;
};

struct SpeculationConfig {
  DrafterConfig drafter;
  /// Tokens a drafter may propose for one sequence and step; unset = 8, or the whole tree or block with longspec
  /// and dflash.
  std::optional<int> max_draft_tokens;

  bool enabled() const { return !drafter.kind.empty(); }
};

struct EngineConfig {
  std::string model;                    // a Hugging Face directory
  std::string device = "cpu";           // "cpu", "cpu:reference", "cuda:N"
  std::optional<DType> dtype;           // of weights and K/V; unset = the checkpoint's
  int max_model_len = 0;                // tokens of one sequence; 0 = the model's limit
  int max_num_seqs = 16;                // sequences in one pass
  int max_batch_rows = 512;             // rows in one pass: prompt chunks, roots and drafted tokens together
  int page_size = 16;                   // KV slots a page; a power of two
  double gpu_memory_utilization = 0.9;  // share of a GPU's memory that the engine may take in all; 0 to 1
  std::int64_t kv_cache_bytes = 0;      // 0 = what max_num_seqs sequences need, at most what gpu_memory_utilization
                                        // leaves, or on a CPU a third of the free memory
  int num_threads = 0;                  // CPU threads; 0 = all cores
  SpeculationConfig speculation;

  /// @throws Error(kInvalidArgument) naming the option, its value and what is possible.
  void validate() const;
  /// Every option, as a JSON object with the names above.
  std::string to_json() const;
  /// @throws Error(kInvalidArgument) naming an unknown or mistyped option.
  static EngineConfig from_json(const std::string& text);
};

}  // namespace fastspec
