// Copies of K and V tiles to shared memory, and the ring of tiles of kernels whose warps both copy and compute. One
// pointer a key, so that pages, slots and the pass's own rows are one thing. Knows nothing of queries.
#pragma once

#include "attention/tile_traits.cuh"
#include "common/async_copy.cuh"

namespace fastspec::cuda {

/// One warp's part of the copies: kLoadKeys keys of every tile of a piece.
template <typename Traits>
class KeyLoader {
 public:
  using T = typename Traits::T;

  /// @param first_load first key that this warp copies, within its key group; `first_in_tile`: within the tile.
  __device__ KeyLoader(const KvView& kv, int first_load, int first_in_tile)
      : kv_(kv),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize),
        first_load_(first_load),
        first_in_tile_(first_in_tile) {}

  __device__ void start(const Item& item, const Piece& piece) {
    first_unit_ = piece.begin;
    num_tiles_ = (piece.end - piece.begin) * Traits::kTilesPerUnit;
    next_ = 0;
    head_base_ = static_cast<const T*>(kv_.base) + item.kv_head * kv_.head_stride;
    look_up(item, 0);
  }

  __device__ int num_tiles() const { return num_tiles_; }
  __device__ bool more() const { return next_ < num_tiles_; }
  __device__ int next() const { return next_; }

  /// Requests the next tile: K to shared-memory address `stage`, V to kMatrixBytes behind. Keys that do not exist
  /// become zeros: nothing past the end is read, and 0 x NaN cannot arise.
  __device__ void copy_next(const Item& item, std::uint32_t stage) {
    const int part = next_ % kTilesALookUp;
    if (part == 0) {
      address_ = key_address(item);
      look_up(item, next_ + kTilesALookUp);
    }
    constexpr int kRounds = Traits::kLoadKeys * Traits::kChunks / kWarpSize;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int index = round * kWarpSize + lane_;
      const int key = index / Traits::kChunks;
      const int chunk = index % Traits::kChunks;
      const T* row = reinterpret_cast<const T*>(
          __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(address_), part * Traits::kLoadKeys + key));
      const bool valid = row != nullptr && chunk * kChunkElements < kv_.head_dim;
      const T* source = valid ? row + chunk * kChunkElements : head_base_;
      const std::uint32_t target = stage + chunk_offset(Traits::kGroupKeys, first_load_ + key, chunk);
      copy_async_16(target, source, valid);
      copy_async_16(target + Traits::kMatrixBytes, valid ? source + kv_.value_offset : source, valid);
    }
    ++next_;
  }

 private:
  // Lanes look up keys of several tiles at once, and the entries are used that many tiles later: little waits for them.
  static constexpr int kTilesALookUp = kWarpSize / Traits::kLoadKeys;

  /// Reads the list's entries for tile `tile` and those behind it that one look-up serves.
  __device__ void look_up(const Item& item, int tile) {
    const int own_tile = tile + lane_ / Traits::kLoadKeys;
    key_ = item.num_keys;
    if (own_tile >= num_tiles_) return;
    key_ = tile_first_key<Traits>(item, first_unit_, own_tile) + first_in_tile_ + lane_ % Traits::kLoadKeys;
    if (key_ >= item.num_keys) return;
    const Slot* entry = key_ >= item.list_length ? item.slots + (key_ - item.list_length)
                        : item.pages             ? item.entries + (key_ >> kv_.page_shift)
                                                 : item.entries + key_;
    entry_ = __ldg(reinterpret_cast<const long long*>(entry));
  }

  /// K of key_ by its entry; null where there is none.
  __device__ const T* key_address(const Item& item) const {
    if (key_ >= item.num_keys) return nullptr;
    const bool is_page = item.pages && key_ < item.list_length;
    const Slot page = is_page ? entry_ : entry_ >> kv_.page_shift;
    const int in_page = (is_page ? key_ : static_cast<int>(entry_)) & ((1 << kv_.page_shift) - 1);
    return head_base_ + page * kv_.page_stride + in_page * kv_.slot_stride;
  }

  const KvView& kv_;
  const int lane_;
  const int first_load_;
  const int first_in_tile_;
  int first_unit_ = 0;
  int num_tiles_ = 0;
  int next_ = 0;  // next tile to request
  const T* head_base_ = nullptr;
  const T* address_ = nullptr;  // of this lane's key among the tiles being copied
  int key_ = 0;                 // the same for the look-up ahead
  Slot entry_ = 0;
};

/// Every key group of warps has a ring of its own and meets at its own barrier; a group of one warp needs none.
template <typename Traits>
class KeyRing {
 public:
  /// @param ring shared-memory address of all groups' rings.
  __device__ KeyRing(const KvView& kv, std::uint32_t ring, int row_warp, int key_warp)
      : loader_(kv, row_warp * Traits::kLoadKeys, key_warp * Traits::kGroupKeys + row_warp * Traits::kLoadKeys),
        group_ring_(ring + key_warp * Traits::kGroupRingBytes),
        key_warp_(key_warp) {}

  /// Starts on the tiles of a piece and requests as many as the ring can hold ahead.
  __device__ void start(const Item& item, const Piece& piece) {
    stage_ = 0;
    loader_.start(item, piece);
#pragma unroll 1
    for (int ahead = 0; ahead < Traits::kStages - 1; ++ahead) request(item);
  }

  /// Waits for the next tile and requests one further ahead; returns the shared-memory address of its K (V follows
  /// at kMatrixBytes). What take() returned before is overwritten from here on.
  __device__ std::uint32_t take(const Item& item) {
    wait_copies<Traits::kStages - 2>();
    group_barrier();
    const std::uint32_t tile = group_ring_ + stage_ * Traits::kStageBytes;
    request(item);
    stage_ = stage_ + 1 == Traits::kStages ? 0 : stage_ + 1;
    return tile;
  }

  __device__ int num_tiles() const { return loader_.num_tiles(); }

 private:
  /// Copies the next tile into the stage that was consumed last, or adds an empty group after the last tile.
  __device__ void request(const Item& item) {
    if (loader_.more()) {
      loader_.copy_next(item, group_ring_ + loader_.next() % Traits::kStages * Traits::kStageBytes);
    }
    commit_copies();
  }

  __device__ void group_barrier() const {
    if constexpr (Traits::kRowWarps == 1) {
      __syncwarp();
    } else {
      named_barrier(1 + key_warp_, Traits::kRowWarps * kWarpSize);
    }
  }

  KeyLoader<Traits> loader_;
  const std::uint32_t group_ring_;
  const int key_warp_;
  int stage_ = 0;  // of the next tile to take
};

}  // namespace fastspec::cuda
