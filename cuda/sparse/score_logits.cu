// Launch of the kernels of logits.
#include "sparse/score_mma_kernel.cuh"
#include "sparse/score_plain_kernel.cuh"

namespace fastspec::cuda {
namespace {

template <typename T>
void launch_of_keys(const ScoreArguments& arguments, dim3 grid, cudaStream_t stream) {
  const int head_dim = arguments.params.kv.head_dim;
  if constexpr (sizeof(T) == 2) {
    if (head_dim <= 64) return score_mma_kernel<T, 64><<<grid, kScoreThreads, 0, stream>>>(arguments);
    if (head_dim <= 96) return score_mma_kernel<T, 96><<<grid, kScoreThreads, 0, stream>>>(arguments);
    if (head_dim <= 128) return score_mma_kernel<T, 128><<<grid, kScoreThreads, 0, stream>>>(arguments);
    if (head_dim <= 256) return score_mma_kernel<T, 256><<<grid, kScoreThreads, 0, stream>>>(arguments);
  }
  score_plain_kernel<T, PlainKeys<T>><<<grid, kScoreThreads, 0, stream>>>(arguments);
}

template <typename T>
void launch_of_type(const ScoreArguments& arguments, dim3 grid, cudaStream_t stream) {
  if (arguments.bounds == nullptr) return launch_of_keys<T>(arguments, grid, stream);
  score_plain_kernel<T, BoundedPages<T>><<<grid, kScoreThreads, 0, stream>>>(arguments);
}

}  // namespace

void launch_score_logits(const ScoreKeysParams& params, const void* bounds, const ScoreWork& work,
                         const ScoreMemory& memory, ScoreSlice slice, cudaStream_t stream) {
  if (work.num_chunks() == 0 || work.num_units == 0 || slice.count == 0) return;
  const ScoreArguments arguments{params, bounds, work, memory, slice.first};
  const dim3 grid(static_cast<unsigned>(work.num_chunks()), static_cast<unsigned>(work.num_units),
                  static_cast<unsigned>(slice.count));
  switch (params.kv.dtype) {
    case DType::kBFloat16:
      return launch_of_type<Bf16>(arguments, grid, stream);
    case DType::kFloat16:
      return launch_of_type<Fp16>(arguments, grid, stream);
    case DType::kFloat32:
      return launch_of_type<float>(arguments, grid, stream);
  }
}

}  // namespace fastspec::cuda
