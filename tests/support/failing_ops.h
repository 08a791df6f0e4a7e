// Operations that fail at a chosen call: what a device does at its worst.
#pragma once

#include <memory>

#include "backend/intercepted_ops.h"
#include "base/check.h"

namespace fastspec::testing {

class FailingOps final : public InterceptedOps {
 public:
  /// @param countdown the operation that brings it to 0 fails; 0 = none does. Shared with the test.
  FailingOps(std::unique_ptr<Ops> inner, std::shared_ptr<int> countdown)
      : InterceptedOps(std::move(inner)), countdown_(std::move(countdown)) {}

 private:
  void before() override {
    if (*countdown_ > 0 && --*countdown_ == 0) fail(ErrorCode::kInternal, "injected failure");
  }
  void after() override {}

  std::shared_ptr<int> countdown_;
};

}  // namespace fastspec::testing
