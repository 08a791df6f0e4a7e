// The lossless matrix (cpp/README.md, "Promises"): drafter x batch x temperature x penalties x (whole prompts, small
// chunks, preemption, random truncation). Makes the cases and runs one; what equal means, its callers decide: bit for
// bit on the reference (tests/cpp/engine/lossless_matrix_test.cpp), up to near-ties elsewhere
// (tests/cuda/lossless_check.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "support/engine_harness.h"

namespace fastspec::testing {

constexpr int kMatrixVocab = 61;

/// Requests that use every sampling feature; seeds differ, so that the planted drafter can tell them apart.
std::vector<Request> matrix_requests(int count, float temperature, bool penalties);

enum class MatrixDrafter {
  kNone,
  kNgram,
  kStandalone,
  kLongSpecChain,
  kLongSpecTree,
  kDFlash,
  kDFlashWindow,  // context in a ring, sinks that move with it
  kPlantedChain,
  kPlantedBlock,
  kPlantedTree,
  kAdversarialTree
};

struct MatrixSetting {
  MatrixDrafter drafter = MatrixDrafter::kNone;
  double probability = 0.8;  // planted: that the true token is offered
  const char* row_budget = "off";
  BudgetObjective objective = BudgetObjective::kThroughput;
};

/// Every drafter of the matrix, and every mode and objective of the row budget.
const std::vector<MatrixSetting>& matrix_settings();

/// How a case disturbs its engine.
enum class Disturbance {
  kNone,        // together, whole prompts
  kChunks,      // small chunks mixed with decoding rows, fewer rows than drafted tokens, one arrival a step
  kPreemption,  // pages for little more than the longest sequence
  kTruncation,  // sequences cut at random points
  kHeld,        // all but the first two requests start on held prompts
};
constexpr Disturbance kDisturbances[] = {Disturbance::kNone, Disturbance::kChunks, Disturbance::kPreemption,
                                         Disturbance::kTruncation, Disturbance::kHeld};

struct MatrixCase {
  MatrixSetting setting;
  int batch = 8;  // sequences in a pass
  Disturbance disturbance = Disturbance::kNone;
};

/// A token that was drawn again after a cut and came out differently. What the caller has of the sequence is then no
/// longer what the sequence has.
struct Redraw {
  std::size_t place = 0;  // among the generated tokens
  TokenId token = -1;     // -1 = not known: the sequence ended in the same step
};

/// What a case gave.
struct MatrixRun {
  Outputs outputs;
  EngineStats stats;
  int truncations = 0;
  std::map<std::size_t, Redraw> redraws;  // the first of an output, by its index; none where results are exact
  std::int64_t prompt_steps = 0;          // steps with rows of prompts
};

/// The engine of a case but for its disturbance. `plain` are the outputs of run_plain_alone on the same backend, for
/// the planted drafters; `coverage` may be null.
HarnessOptions matrix_options(const MatrixSetting& setting, const std::vector<Request>& requests, const Outputs& plain,
                              Coverage* coverage);

/// Runs a case to its end and checks the engine's invariants. `base` gives device, dtype, replays and pipelined;
/// coverage is recorded where nothing disturbs the case. @throws Error.
MatrixRun run_matrix_case(const MatrixCase& matrix_case, const HarnessOptions& base,
                          const std::vector<Request>& requests, const Outputs& plain, Coverage* coverage);

/// Rows of prompts in a run of Disturbance::kHeld whose requests really start on what they may.
std::int64_t prompt_rows_on_held(const std::vector<Request>& requests);

std::string describe(const MatrixCase& matrix_case, float temperature, bool penalties);

/// What the cases of one batch size reached, added up.
class MatrixReach {
 public:
  /// Where the case's coverage goes; null where a case has none to add.
  Coverage* coverage_of(const MatrixCase& matrix_case);
  void add(const MatrixCase& matrix_case, const MatrixRun& run);
  /// Adds what another one saw.
  void merge(const MatrixReach& other);
  /// What the matrix should have reached and did not, one a line: it is worth what it reached.
  std::string missing(int batch) const;

 private:
  Coverage trees_;
  Coverage chains_;
  std::int64_t accepted_standalone_ = 0;
  std::int64_t accepted_ngram_ = 0;
  std::int64_t accepted_longspec_chain_ = 0;
  std::int64_t accepted_longspec_tree_ = 0;
  std::int64_t accepted_dflash_ = 0;
  std::int64_t accepted_dflash_window_ = 0;
  std::int64_t preemptions_ = 0;
  std::int64_t cut_rows_ = 0;          // drafted and not verified, by a row budget where nothing else forces a cut
  std::int64_t passes_undrafted_ = 0;  // of sequences that it did not let draft
  std::int64_t cut_accepted_ = 0;      // accepted all the same
  int truncations_ = 0;
};

}  // namespace fastspec::testing
