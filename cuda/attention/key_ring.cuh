// The ring of K and V tiles in shared memory and the copies that fill it: one pointer a key, so that pages, slots and
// the pass's own rows are one thing. Knows nothing of queries.
//
// Every key group of warps has a ring of its own and meets at its own barrier; a group of one warp needs none.
#pragma once

#include "attention/tile_traits.cuh"
#include "common/async_copy.cuh"

namespace fastspec::cuda {

template <typename Traits>
class KeyRing {
 public:
  using T = typename Traits::T;

  /// @param ring shared-memory address of all groups' rings.
  __device__ KeyRing(const KvView& kv, std::uint32_t ring, int row_warp, int key_warp)
      : kv_(kv),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize),
        group_ring_(ring + key_warp * Traits::kGroupRingBytes),
        first_load_(row_warp * Traits::kLoadKeys),
        first_in_tile_(key_warp * Traits::kGroupKeys + row_warp * Traits::kLoadKeys),
        key_warp_(key_warp) {}

  /// Starts on the tiles of a piece and requests as many as the ring can hold ahead.
  __device__ void start(const Item& item, const Piece& piece) {
    first_unit_ = piece.begin;
    num_tiles_ = (piece.end - piece.begin) * Traits::kTilesPerUnit;
    next_ = 0;
    stage_ = 0;
    head_base_ = static_cast<const T*>(kv_.base) + item.kv_head * kv_.head_stride;
    look_up(item);
#pragma unroll
    for (int ahead = 0; ahead < Traits::kStages - 1; ++ahead) request(item);
  }

  /// Waits for the next tile and requests one further ahead; returns the shared-memory address of its K (V follows
  /// at kMatrixBytes). What take() returned before is overwritten from here on.
  __device__ std::uint32_t take(const Item& item) {
    wait_copies<Traits::kStages - 2>();
    if constexpr (Traits::kHopper) fence_for_matrix_unit();
    group_barrier();
    const std::uint32_t tile = group_ring_ + stage_ * Traits::kStageBytes;
    request(item);
    stage_ = stage_ + 1 == Traits::kStages ? 0 : stage_ + 1;
    return tile;
  }

  __device__ int num_tiles() const { return num_tiles_; }

  /// First key of tile `tile` of the piece, within the sequence.
  __device__ int first_key_of(const Item& item, int tile) const {
    return first_key(item.sink_units, item.hidden_units, first_unit_ + tile / Traits::kTilesPerUnit) +
           tile % Traits::kTilesPerUnit * Traits::kTileKeys;
  }

 private:
  /// Copies the next tile into the stage that was consumed last, or adds an empty group after the last tile.
  __device__ void request(const Item& item) {
    if (next_ < num_tiles_) {
      copy_tile(item, group_ring_ + next_ % Traits::kStages * Traits::kStageBytes);
      ++next_;
      look_up(item);
    }
    commit_copies();
  }

  /// The key of tile next_ that this lane looks up for the warp; num_keys or more where there is none.
  __device__ int own_key(const Item& item) const {
    const int key = first_key_of(item, next_) + first_in_tile_ + lane_;
    return lane_ < Traits::kLoadKeys ? key : item.num_keys;
  }

  /// Reads the list's entry of own_key(). The value is used one tile later, so that nothing waits for it here.
  __device__ void look_up(const Item& item) {
    const int key = own_key(item);
    if (key >= item.num_keys) return;
    const Slot* entry = key >= item.list_length ? item.slots + (key - item.list_length)
                        : item.pages            ? item.entries + (key >> kv_.page_shift)
                                                : item.entries + key;
    entry_ = __ldg(reinterpret_cast<const long long*>(entry));
  }

  /// K of own_key() by its entry; null where there is none.
  __device__ const T* key_address(const Item& item) const {
    const int key = own_key(item);
    if (key >= item.num_keys) return nullptr;
    const bool is_page = item.pages && key < item.list_length;
    const Slot page = is_page ? entry_ : entry_ >> kv_.page_shift;
    const int in_page = (is_page ? key : static_cast<int>(entry_)) & ((1 << kv_.page_shift) - 1);
    return head_base_ + page * kv_.page_stride + in_page * kv_.slot_stride;
  }

  /// Keys that do not exist become zeros: nothing past the end is read, and 0 x NaN cannot arise.
  __device__ void copy_tile(const Item& item, std::uint32_t stage) const {
    const T* address = key_address(item);
    constexpr int kRounds = Traits::kLoadKeys * Traits::kChunks / kWarpSize;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int index = round * kWarpSize + lane_;
      const int key = index / Traits::kChunks;
      const int chunk = index % Traits::kChunks;
      const T* row =
          reinterpret_cast<const T*>(__shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(address), key));
      const bool valid = row != nullptr && chunk * kChunkElements < kv_.head_dim;
      const T* source = valid ? row + chunk * kChunkElements : head_base_;
      const std::uint32_t target = stage + chunk_offset(Traits::kGroupKeys, first_load_ + key, chunk);
      copy_async_16(target, source, valid);
      copy_async_16(target + Traits::kMatrixBytes, valid ? source + kv_.value_offset : source, valid);
    }
  }

  /// Makes copied data visible to the warpgroup instructions of all threads behind the next barrier.
  __device__ static void fence_for_matrix_unit() {
#if FS_HOPPER_DEVICE
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
#endif
  }

  __device__ void group_barrier() const {
    if constexpr (Traits::kRowWarps == 1) {
      __syncwarp();
    } else {
      named_barrier(1 + key_warp_, Traits::kRowWarps * kWarpSize);
    }
  }

  const KvView& kv_;
  const int lane_;
  const std::uint32_t group_ring_;
  const int first_load_;     // first key that this warp copies, within its key group
  const int first_in_tile_;  // the same within the tile
  const int key_warp_;
  int first_unit_ = 0;
  int num_tiles_ = 0;
  int next_ = 0;   // next tile to request
  int stage_ = 0;  // of the next tile to take
  const T* head_base_ = nullptr;
  Slot entry_ = 0;  // what look_up() read
};

}  // namespace fastspec::cuda
