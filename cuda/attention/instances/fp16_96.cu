// Tile kernels for fp16 and heads padded to 96.
#include "attention/tile_instances.cuh"

namespace fastspec::cuda {
template cudaError_t launch_tiles<Fp16, 96>(const AttentionConfig&, const TileLaunch&, cudaStream_t);
}
