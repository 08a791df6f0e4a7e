// See linear.h. Row-major output[rows, out] = input[rows, in] * weight[out, in]^T is, read column by column as cuBLASLt
// does, output[out, rows] = weight[in, out]^T * input[in, rows].
#include "backend/cuda/linear.h"

#include <algorithm>
#include <string>

#include "backend/cuda/cuda_error.h"
#include "base/log.h"
#include "layers/layers.h"
#include "step/row_tiers.h"

namespace fastspec::cuda {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
constexpr int kTunedCandidates = 16;
constexpr int kTunedRuns = 7;
constexpr std::int64_t kSearchedElements = 1 << 20;  // of the weight; smaller ones are not worth the time

void check_cublas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail(ErrorCode::kDeviceFailure, call, ": ", cublasLtGetStatusString(status));
}

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return CUDA_R_16BF;
    case DType::kFloat16:
      return CUDA_R_16F;
    case DType::kFloat32:
      break;
  }
  return CUDA_R_32F;
}

unsigned alignment_of(const void* pointer) {
  unsigned alignment = 256;
  while (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) alignment /= 2;
  return alignment;
}

class Layout {
 public:
  Layout(DType dtype, int rows, int cols, std::int64_t leading) {
    check_cublas(cublasLtMatrixLayoutCreate(&layout_, data_type(dtype), static_cast<std::uint64_t>(rows),
                                            static_cast<std::uint64_t>(cols), leading),
                 "cublasLtMatrixLayoutCreate");
  }
  ~Layout() { (void)cublasLtMatrixLayoutDestroy(layout_); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  cublasLtMatrixLayout_t get() const { return layout_; }

 private:
  cublasLtMatrixLayout_t layout_ = nullptr;
};

class Operation {
 public:
  Operation() {
    check_cublas(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check_cublas(
        cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
        "cublasLtMatmulDescSetAttribute");
  }
  ~Operation() { (void)cublasLtMatmulDescDestroy(operation_); }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  cublasLtMatmulDesc_t get() const { return operation_; }

 private:
  cublasLtMatmulDesc_t operation_ = nullptr;
};

class Preference {
 public:
  Preference() { check_cublas(cublasLtMatmulPreferenceCreate(&preference_), "cublasLtMatmulPreferenceCreate"); }
  ~Preference() { (void)cublasLtMatmulPreferenceDestroy(preference_); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  template <typename T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    check_cublas(cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof(value)),
                 "cublasLtMatmulPreferenceSetAttribute");
  }
  cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  cublasLtMatmulPreference_t preference_ = nullptr;
};

/// Events around timed work, destroyed whatever happens.
class Timer {
 public:
  explicit Timer(cudaStream_t stream) : stream_(stream) {
    check_cuda(cudaEventCreate(&begin_), "cudaEventCreate");
    check_cuda(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~Timer() {
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  template <typename Work>
  float microseconds(Work&& work) {
    check_cuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    work();
    check_cuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return milliseconds * 1e3f;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace

struct Linear::Plan {
  explicit Plan(const Shape& shape)
      : weight(shape.input_dtype, shape.in_features, shape.out_features, shape.in_features),
        input(shape.input_dtype, shape.in_features, shape.rows, shape.input_stride),
        output(shape.output_dtype, shape.out_features, shape.rows, shape.output_stride) {}

  Operation operation;
  Layout weight, input, output;
  cublasLtMatmulAlgo_t algorithm{};
};

Linear::Linear(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {
  context_->activate();
  workspace_ = context_->allocate(kWorkspaceBytes, "workspace of the linear layers");
  check_cublas(cublasLtCreate(&handle_), "cublasLtCreate");
}

Linear::~Linear() {
  plans_.clear();
  if (handle_ != nullptr) (void)cublasLtDestroy(handle_);
}

std::vector<cublasLtMatmulHeuristicResult_t> Linear::candidates(const Shape& shape, const Plan& plan, int most) const {
  Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kWorkspaceBytes});
  // Partial sums of a split product meet in float32 and in a fixed order, or not at all.
  preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::uint32_t{shape.weight_alignment});
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, std::uint32_t{shape.input_alignment});
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, std::uint32_t{shape.output_alignment});
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, std::uint32_t{shape.output_alignment});
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(most));
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle_, plan.operation.get(), plan.weight.get(),
                                                               plan.input.get(), plan.output.get(), plan.output.get(),
                                                               preference.get(), most, results.data(), &found);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check_cublas(status, "cublasLtMatmulAlgoGetHeuristic");
  results.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<std::size_t>(found) : 0);
  std::erase_if(results, [](const auto& result) { return result.state != CUBLAS_STATUS_SUCCESS; });
  if (results.empty()) {
    fail(ErrorCode::kUnsupported, "linear: cuBLASLt has no algorithm for [", shape.rows, ", ", shape.in_features,
         "] times [", shape.out_features, ", ", shape.in_features, "] transposed, ", to_string(shape.input_dtype),
         " to ", to_string(shape.output_dtype));
  }
  return results;
}

Linear::Plan& Linear::plan_for(const LinearParams& params) {
  const Shape shape{.rows = params.input.rows,
                    .in_features = params.weight.in_features,
                    .out_features = params.weight.out_features,
                    .input_stride = params.input.stride,
                    .output_stride = params.output.stride,
                    .input_dtype = params.input.dtype,
                    .output_dtype = params.output.dtype,
                    .accumulate = params.accumulate || params.bias.data != nullptr,
                    .weight_alignment = alignment_of(params.weight.data),
                    .input_alignment = alignment_of(params.input.data),
                    .output_alignment = alignment_of(params.output.data)};
  const auto found = plans_.find(shape);
  if (found != plans_.end()) return *found->second;
  auto plan = std::make_unique<Plan>(shape);
  plan->algorithm = candidates(shape, *plan, 1).front().algo;
  const bool recurs = row_tier(shape.rows, kMaxRowTier) == shape.rows;
  const bool is_large = std::int64_t{shape.in_features} * shape.out_features >= kSearchedElements;
  if (recurs && is_large && !context_->is_capturing()) {
    search_on_first_use(params, shape, *plan);
  }
  return *plans_.emplace(shape, std::move(plan)).first->second;
}

void Linear::search_on_first_use(const LinearParams& params, const Shape& shape, Plan& plan) const {
  if (!params.accumulate) {
    search(params, shape, plan);
    return;
  }
  LinearParams scratch = params;
  Buffer memory;
  try {
    memory = context_->allocate(static_cast<std::size_t>(params.output.rows) *
                                    static_cast<std::size_t>(params.output.stride) * size_of(params.output.dtype),
                                "output of the search for a linear layer's algorithm");
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) throw;
    log(LogLevel::kWarning, "a linear layer keeps the library's first choice: ", error.what());
    return;
  }
  scratch.output.data = memory.data();
  search(scratch, shape, plan);
}

void Linear::multiply(const LinearParams& params, const Plan& plan, const cublasLtMatmulAlgo_t& algorithm) const {
  const float alpha = 1.0f;
  const float beta = params.accumulate || params.bias.data != nullptr ? 1.0f : 0.0f;
  check_cublas(
      cublasLtMatmul(handle_, plan.operation.get(), &alpha, params.weight.data, plan.weight.get(), params.input.data,
                     plan.input.get(), &beta, params.output.data, plan.output.get(), params.output.data,
                     plan.output.get(), &algorithm, workspace_.data(), kWorkspaceBytes, context_->stream()),
      "cublasLtMatmul");
}

void Linear::run(const LinearParams& params) {
  if (params.input.rows == 0) return;
  const Plan& plan = plan_for(params);
  // Biases are float32 and the library takes them in the output's type only: the product is added to them instead.
  if (params.bias.data != nullptr) {
    launch_bias(params.output, params.bias, params.accumulate, context_->stream());
    check_launch("bias");
  }
  multiply(params, plan, plan.algorithm);
}

std::size_t Linear::workspace_bytes(const WorkspaceLimits& limits) {
  const int rows = std::min(limits.max_rows, kMaxRowTier);
  return kWorkspaceBytes +
         static_cast<std::size_t>(rows) * static_cast<std::size_t>(limits.hidden_size) * sizeof(float);
}

double Linear::tune(const LinearParams& params) {
  if (params.input.rows == 0) return 0;
  Plan& plan = plan_for(params);
  const Shape* shape = nullptr;
  for (const auto& [key, value] : plans_) {
    if (value.get() == &plan) shape = &key;
  }
  return search(params, *shape, plan);
}

double Linear::search(const LinearParams& params, const Shape& shape, Plan& plan) const {
  Timer timer(context_->stream());
  double best = 0;
  for (const auto& candidate : candidates(shape, plan, kTunedCandidates)) {
    multiply(params, plan, candidate.algo);  // loads the kernel
    std::vector<float> times;
    for (int i = 0; i < kTunedRuns; ++i) {
      times.push_back(timer.microseconds([&] { multiply(params, plan, candidate.algo); }));
    }
    std::nth_element(times.begin(), times.begin() + kTunedRuns / 2, times.end());
    const double median = times[kTunedRuns / 2];
    if (best != 0 && median >= best) continue;
    best = median;
    plan.algorithm = candidate.algo;
  }
  return best;
}

}  // namespace fastspec::cuda
