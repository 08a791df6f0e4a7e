// Linear layers through cuBLASLt: one algorithm for each shape, found on first use and kept. Own handle and a fixed
// workspace, so that nothing else in the process disturbs it.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "backend/cuda/cuda_context.h"
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
  std::vector<cublasLtMatmulHeuristicResult_t> candidates(const Shape& shape, const Plan& plan, int most) const;
  void multiply(const LinearParams& params, const Plan& plan, const cublasLtMatmulAlgo_t& algorithm) const;

  std::shared_ptr<CudaContext> context_;
  cublasLtHandle_t handle_ = nullptr;
  Buffer workspace_;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
};

}  // namespace fastspec::cuda
