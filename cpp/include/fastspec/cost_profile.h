// What steps of an engine cost, as measured on its own passes: the parts of which the row budget adds the price of a
// step up. Plain data.
#pragma once

#include <string>
#include <vector>

namespace fastspec {

/// Milliseconds at some numbers of rows or sequences; straight lines between and beyond them.
struct CostTable {
  std::vector<int> counts;           // ascending
  std::vector<double> milliseconds;  // [counts]
  bool operator==(const CostTable&) const = default;
};

/// A pass costs linear(rows) + per_tile_key x tiles x keys + per_key x keys + per_sequence, the last three for each of
/// its sequences; drafting costs draft(sequences) + draft_per_key x keys.
struct CostParameters {
  int rows_per_tile = 1;  // rows of a sequence that make a tile of attention; its tiles are rounded up
  CostTable linear;       // by rows of a pass: all that is neither attention nor a sequence's own
  double per_tile_key = 0;
  double per_key = 0;
  double per_sequence = 0;
  CostTable draft;  // by sequences that a draft is made for
  double draft_per_key = 0;
  bool operator==(const CostParameters&) const = default;
};

/// A pass that was measured after the costs, and what they predict for it.
struct CostCheck {
  int num_sequences = 0;
  int num_rows = 0;   // of all together
  int keys_each = 0;  // cached tokens
  double measured_milliseconds = 0;
  double predicted_milliseconds = 0;
};

struct CostProfile {
  std::string key;  // what the costs depend on: device, model, dtype, version and limits
  CostParameters costs;
  std::vector<CostCheck> checks;
  double seconds = 0;      // that it all took
  std::string cache_file;  // where the costs are kept; empty: nowhere
};

}  // namespace fastspec
