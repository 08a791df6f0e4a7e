// A CUDA graph, ready to be launched on the context's stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "backend/cuda/cuda_context.h"
#include "backend/graph.h"

namespace fastspec::cuda {

class CudaGraph final : public Graph {
 public:
  CudaGraph(std::shared_ptr<CudaContext> context, cudaGraphExec_t graph)
      : context_(std::move(context)), graph_(graph) {}
  ~CudaGraph() override;
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  void launch() override;
  std::size_t bytes() const override { return bytes_; }
  /// Device memory that went when it was made.
  void set_bytes(std::size_t bytes) { bytes_ = bytes; }

 private:
  std::shared_ptr<CudaContext> context_;
  cudaGraphExec_t graph_;
  std::size_t bytes_ = 0;
};

}  // namespace fastspec::cuda
