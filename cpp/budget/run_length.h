// How many tokens sparse passes accept before a dense pass is to confirm them: as many as give most confirmed tokens
// for the time, by how often the two agreed and by what passes cost. Arithmetic only; no token depends on it.
#pragma once

#include <optional>

namespace fastspec {

/// How often a sequence's dense passes drew what its sparse passes had; older runs fade.
struct AgreementRecord {
  double agreed = 0;  // provisional tokens that were confirmed
  double parted = 0;  // runs in which one was not
};

/// What the passes of one sequence cost, its share of a step's fixed costs included. Any unit of time.
struct PassPrices {
  double sparse = 0;
  double dense = 0;
  double row = 0;  // that a provisional token adds to the dense pass which reads it
};

class RunLength {
 public:
  /// Tokens that a run of `length` brings: those that are confirmed, and the dense pass's own.
  /// @param agreement chance that a provisional token is confirmed once those before it were.
  /// @param dense_tokens that a dense pass gives behind what it confirms.
  static double expected_tokens(int length, double agreement, double dense_tokens);
  /// The length from 0 (dense passes alone) to `longest` of most tokens for its time; of equal ones the shortest.
  /// @param sparse_tokens that a sparse pass accepts.
  static int best(double agreement, const PassPrices& prices, double sparse_tokens, double dense_tokens, int longest);

  /// For a sequence of this record, by what was seen so far; a usual length while that is too little.
  int choose(const AgreementRecord& record, std::optional<PassPrices> prices, int longest) const;
  /// Chance that a provisional token is confirmed.
  double agreement(const AgreementRecord& record) const;
  /// From measured steps, of a sequence with this many cached keys; nullopt while too few are known.
  std::optional<PassPrices> measured_prices(int keys) const;

  /// A dense pass confirmed `confirmed` provisional tokens; `parted`: it drew another where the next one was.
  void observe_run(int confirmed, bool parted, AgreementRecord& record);
  /// A dense pass of a sequence that had no provisional tokens though it might: what was seen fades, so that a run is
  /// tried again.
  void observe_pause(AgreementRecord& record);
  void observe_sparse_pass(int tokens);
  void observe_dense_pass(int tokens);
  /// A step of decoding passes alone. @param dense_keys that its dense passes read. @param rows of provisional tokens
  /// in them.
  void observe_step(double seconds, int num_sequences, double dense_keys, double rows);

 private:
  AgreementRecord everyone_;                     // speaks for sequences of which little is known
  double sparse_tokens_ = 1, dense_tokens_ = 1;  // means that fade
  // Sums that fade, for the plane seconds = fixed + per_key * dense_keys + per_row * rows.
  double steps_ = 0, sequences_ = 0, keys_ = 0, rows_ = 0, seconds_ = 0;
  double keys_squared_ = 0, rows_squared_ = 0, keys_rows_ = 0, keys_seconds_ = 0, rows_seconds_ = 0;
};

}  // namespace fastspec
