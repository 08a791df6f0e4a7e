// See cuda_graph.h; recording by CudaContext::capture.
#include "backend/cuda/cuda_graph.h"

#include "backend/cuda/cuda_error.h"
#include "base/log.h"

namespace fastspec::cuda {

CudaGraph::~CudaGraph() {
  const auto lock = lock_driver();
  (void)cudaSetDevice(context_->ordinal());
  (void)cudaGraphExecDestroy(graph_);
}

void CudaGraph::launch() {
  context_->activate();
  // The recorded plans of attention overwrite those that eager passes made.
  ++context_->num_uploads_;
  check_cuda(cudaGraphLaunch(graph_, context_->stream()), "cudaGraphLaunch");
}

cudaGraph_t CudaContext::record(const std::function<void()>& work) {
  ++num_uploads_;
  check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  is_capturing_ = true;
  const auto end = [&] {
    is_capturing_ = false;
    ++num_uploads_;
    cudaGraph_t graph = nullptr;
    const cudaError_t status = cudaStreamEndCapture(stream_, &graph);
    (void)cudaGetLastError();
    return std::pair(graph, status);
  };
  try {
    work();
  } catch (...) {
    const auto [graph, status] = end();
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    // What failed is the recording, not the work: none of it was launched.
    if (status == cudaErrorStreamCaptureInvalidated) return nullptr;
    throw;
  }
  const auto [graph, status] = end();
  if (status == cudaErrorStreamCaptureInvalidated) return nullptr;
  check_cuda(status, "cudaStreamEndCapture");
  return graph;
}

std::unique_ptr<Graph> CudaContext::capture(const std::function<void()>& work) {
  constexpr int kMostTries = 8;
  const auto lock = lock_driver();
  activate();
  cudaGraph_t graph = nullptr;
  for (int i = 0; graph == nullptr && i < kMostTries; ++i) graph = record(work);
  if (graph == nullptr) {
    log(LogLevel::kWarning, "a pass could not be recorded: ", kMostTries,
        " times other code of this process made the GPU wait meanwhile; its shape is launched operation by operation");
    return nullptr;
  }
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
