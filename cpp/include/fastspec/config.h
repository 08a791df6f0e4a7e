// Options of an engine. Every option does something; an impossible one is refused by validate().
#pragma once

#include <fastspec/request.h>  // Guarantee
#include <fastspec/tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fastspec {

/// Which drafter proposes, and its own options.
struct DrafterConfig {
  std::string kind;   // "" = none, "ngram", "standalone", "longspec", "dflash", "self_sparse"
  std::string model;  // standalone, longspec, dflash: directory of the draft model
  int ngram_min = 2;  // ngram: shortest and longest match looked up in the sequence
  int ngram_max = 4;
  std::vector<int> tree_widths{4, 16, 16, 16, 16};  // longspec: nodes of each level of a tree; 1,1,1,1 is a chain
  bool coupled = true;  // longspec: drafts with the target's own noise; false only to measure what that is worth
  int window = 0;       // dflash: tokens before a block that it sees; 0 = all. Bounds what it keeps of a context
  int sinks = 0;        // dflash, with a window: first tokens of the sequence that it sees too
  bool rebase_positions = false;  // dflash, with sinks: they take the positions just before the window

  /// "none" or "", "ngram", "standalone:DIR", "longspec:DIR", "dflash:DIR", "self_sparse". @throws
  /// Error(kInvalidArgument) naming what is possible.
  static DrafterConfig parse(const std::string& text);
  std::string to_string() const;
};

enum class RowBudgetMode {
  kOff,    // every drafted token is verified, as far as the pass has rows
  kFixed,  // a fixed share of the rows
  kAuto    // the share that gives most tokens for its time, by measured costs; none where drafting does not pay
};
enum class BudgetObjective {
  kThroughput,  // expected tokens of the step over its time
  kPaper        // D-cut's (arXiv 2607.14647): without the token that every sequence gets anyway
};

/// How many drafted tokens are verified (D-cut). Changes the speed, never the tokens.
struct BudgetConfig {
  RowBudgetMode mode = RowBudgetMode::kOff;
  double ratio = 1;  // kFixed: share of the rows of decoding sequences, roots included; more than 0, at most 1
  BudgetObjective objective = BudgetObjective::kThroughput;  // kAuto
  std::vector<double> ratios{0.25, 0.5, 0.75, 1.0};          // kAuto: shares to choose from, ascending
  double min_saving = 0.03;     // kAuto: what a change from full verification, or of who drafts, must gain; 0.03 = 3 %
  double profile_seconds = 20;  // kAuto: of the start, at most, to measure costs that are not in the cache

  /// "off", "auto" or "fixed:RHO"; the rest is left as it is. @throws Error(kInvalidArgument) naming what is possible.
  void set_mode(const std::string& text);
  std::string mode_text() const;
  /// "throughput" or "paper". @throws Error(kInvalidArgument).
  void set_objective(const std::string& text);
  std::string objective_text() const;
};

struct SpeculationConfig {
  DrafterConfig drafter;
  BudgetConfig budget;
  /// Tokens a drafter may propose for one sequence and step; unset = 8, or the whole tree or block with longspec
  /// and dflash.
  std::optional<int> max_draft_tokens;

  bool enabled() const { return !drafter.kind.empty(); }
};

/// Sparse passes: decoding passes that read a few cached keys of a sequence instead of all of them. The whole cache is
/// kept.
struct SparseConfig {
  /// "" = dense passes only, "streaming", "history", "quest", "dustin"; and for reports on quality, slower than dense
  /// passes, "oracle", which set_selector() does not know.
  std::string selector;
  std::string manifest;  // dustin, and history where it has one: the layers and heads that are looked at
  int kv_budget = 512;   // cached keys that a sparse pass reads; a context that fits is read whole
  int sinks = 4;         // of these, the first of the sequence, and its last: always read
  int recent = 16;
  /// kExact: what sparse passes accept is shown only once a dense pass has drawn the same. kSparse: at once.
  Guarantee guarantee = Guarantee::kExact;
  /// Tokens that sparse passes accept between two dense ones; 0 = kExact: as many as pay, kSparse: no dense pass. In
  /// kSparse the dense pass computes the K/V of these tokens anew.
  int refresh_interval = 0;
  double min_mass = 0;  // less attention than this inside the keys read makes the next pass dense; 0 = never
  /// A token whose score (logit over temperature, noise included) beats the next best by less in a sparse pass is left,
  /// with all behind it, to the next pass, which is dense; 0 = none is.
  double min_margin = 0;

  bool enabled() const { return !selector.empty(); }
  /// Sets selector and manifest: "none" or "", "streaming", "history", "history:MANIFEST", "quest", "dustin:MANIFEST".
  /// @throws Error(kInvalidArgument) naming what is possible.
  void set_selector(const std::string& text);
  std::string selector_text() const;
  /// "exact" or "sparse". @throws Error(kInvalidArgument).
  void set_guarantee(const std::string& text);
};

/// Provisional tokens of a sequence at most: a dense pass reads them as one tree.
constexpr int kMaxRefreshInterval = 64;

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
  SparseConfig sparse;

  /// @throws Error(kInvalidArgument) naming the option, its value and what is possible.
  void validate() const;
  /// The config that an engine keeps. Drafter "self_sparse" (MagicDec, arXiv 2408.11049: the target drafts for itself
  /// over a few of its keys) is another name for exact sparse passes without a drafter and becomes these: over
  /// "streaming" unless sparse says otherwise, in runs of max_draft_tokens where that is set.
  /// @throws Error(kInvalidArgument) as validate() does.
  EngineConfig resolved() const;
  /// Every option, as a JSON object with the names above.
  std::string to_json() const;
  /// @throws Error(kInvalidArgument) naming an unknown or mistyped option.
  static EngineConfig from_json(const std::string& text);
};

}  // namespace fastspec
