// See cuda_graph.h; recording by CudaContext::capture.
#include "backend/cuda/cuda_graph.h"

#include "backend/cuda/cuda_error.h"

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
  const std::size_t free_before = available_bytes();
  cudaGraphExec_t executable = nullptr;
  const cudaError_t instantiated = cudaGraphInstantiate(&executable, graph, 0);
  (void)cudaGraphDestroy(graph);
  if (instantiated == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return nullptr;
  }
  check_cuda(instantiated, "cudaGraphInstantiate");
  auto made = std::make_unique<CudaGraph>(shared_from_this(), executable);
  // So that the first launch takes neither memory nor time.
  check_cuda(cudaGraphUpload(executable, stream_), "cudaGraphUpload");
  // The driver gives memory to graphs in larger pieces: exact over all of them, not for one.
  const std::size_t free_after = available_bytes();
  made->set_bytes(free_before > free_after ? free_before - free_after : 0);
  return made;
}

}  // namespace fastspec::cuda
