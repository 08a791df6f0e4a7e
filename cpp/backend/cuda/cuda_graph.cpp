// See cuda_graph.h; recording by CudaContext::capture.
#include "backend/cuda/cuda_graph.h"

#include "backend/cuda/cuda_error.h"
#include "base/log.h"

namespace fastspec::cuda {

CudaGraph::~CudaGraph() {
  (void)cudaSetDevice(context_->ordinal());
  (void)cudaGraphExecDestroy(graph_);
}

void CudaGraph::launch() {
  context_->activate();
  // The recorded plans of attention overwrite those that eager passes made.
  ++context_->num_uploads_;
  check_cuda(cudaGraphLaunch(graph_, context_->stream()), "cudaGraphLaunch");
}

std::unique_ptr<Graph> CudaContext::capture(const std::function<void()>& work) {
  activate();
  ++num_uploads_;
  check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  is_capturing_ = true;
  const auto end = [&] {
    is_capturing_ = false;
    ++num_uploads_;
    cudaGraph_t graph = nullptr;
    const cudaError_t status = cudaStreamEndCapture(stream_, &graph);
    return std::pair(graph, status);
  };
  try {
    work();
  } catch (...) {
    if (const cudaGraph_t graph = end().first; graph != nullptr) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    throw;
  }
  const auto [graph, status] = end();
  check_cuda(status, "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t instantiated = cudaGraphInstantiate(&executable, graph, 0);
  (void)cudaGraphDestroy(graph);
  if (instantiated == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    log(LogLevel::kWarning, "no memory for one more CUDA graph: passes of its shape are launched kernel by kernel");
    return nullptr;
  }
  check_cuda(instantiated, "cudaGraphInstantiate");
  return std::make_unique<CudaGraph>(shared_from_this(), executable);
}

}  // namespace fastspec::cuda
