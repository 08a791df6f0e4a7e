// Tile kernels for bf16 and heads padded to 96.
#include "attention/tile_instances.cuh"

namespace fastspec::cuda {
template cudaError_t launch_tiles<Bf16, 96>(const AttentionConfig&, const TileLaunch&, cudaStream_t);
}
