// Tile kernels for fp16 and heads padded to 256.
#include "attention/tile_instances.cuh"

namespace fastspec::cuda {
template cudaError_t launch_tiles<Fp16, 256>(const AttentionConfig&, const TileLaunch&, cudaStream_t);
}
