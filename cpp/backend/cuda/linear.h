// Linear layers through cuBLASLt: one algorithm for each shape, found on first use and kept: by time where the shape
// will recur (the row tiers of recorded passes), else the library's first choice. Own handle and a fixed workspace, so
// that nothing else in the process disturbs it.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "backend/cuda/cuda_context.h"
#include "backend/ops.h"
#include "backend/params.h"

namespace fastspec::cuda {

class Linear {
 public:
  explicit Linear(std::shared_ptr<CudaContext> context);
  ~Linear();
  Linear(const Linear&) = delete;
  Linear& operator=(const Linear&) = delete;

  /// Float32 inputs are multiplied in full float32. Input and weight have one element type; the output has the same, or
  /// is float32.
  void run(const LinearParams& params);

  /// Times the candidates for these shapes and keeps the fastest. Waits for the device, and spoils the output.
  /// @returns microseconds of the one kept.
  double tune(const LinearParams& params);

  /// Device memory beside arguments: the library's workspace, and scratch outputs while an algorithm is searched.
  static std::size_t workspace_bytes(const WorkspaceLimits& limits);

 private:
  /// What an algorithm depends on.
  struct Shape {
    int rows, in_features, out_features;
    std::int64_t input_stride, output_stride;
    DType input_dtype, output_dtype;
    bool accumulate;
    unsigned weight_alignment, input_alignment, output_alignment;  // bytes
    auto operator<=>(const Shape&) const = default;
  };
  struct Plan;

  Plan& plan_for(const LinearParams& params);
  /// search() with an output that may be spoiled: its own where that is about to be overwritten, else a scratch one,
  /// and no search where there is no memory for that.
  void search_on_first_use(const LinearParams& params, const Shape& shape, Plan& plan) const;
  /// Keeps the candidate that multiplies `params` fastest; returns its microseconds.
  double search(const LinearParams& params, const Shape& shape, Plan& plan) const;
  std::vector<cublasLtMatmulHeuristicResult_t> candidates(const Shape& shape, const Plan& plan, int most) const;
  void multiply(const LinearParams& params, const Plan& plan, const cublasLtMatmulAlgo_t& algorithm) const;

  std::shared_ptr<CudaContext> context_;
  cublasLtHandle_t handle_ = nullptr;
  Buffer workspace_;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
};

}  // namespace fastspec::cuda
