// A CUDA graph, ready to be launched on the context's stream.
#pragma once

#include <cuda_runtime_api.h>

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

 private:
  std::shared_ptr<CudaContext> context_;
  cudaGraphExec_t graph_;
};

}  // namespace fastspec::cuda
