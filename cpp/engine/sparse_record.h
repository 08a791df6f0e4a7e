// What was decided for a sequence's next pass, dense or sparse, and why. Data only; the sequence keeps it.
#pragma once

#include "budget/run_length.h"
#include "step/step_plan.h"

namespace fastspec {

struct SparseRecord {
  KvMode next = KvMode::kDense;  // of the next decoding pass
  bool refreshes = false;        // before it, K/V that sparse passes computed is computed anew; kSparse only
  AgreementRecord agreement;
  bool dense_is_due = false;  // something in a sparse pass asks for a dense one: an end, a failure, too little mass
};

}  // namespace fastspec
