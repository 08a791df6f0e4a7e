// One pass's rows in device memory. Brings a RowBatch into memory that is allocated once; computes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <vector>

#include "backend/device.h"
#include "backend/params.h"
#include "step/row_batch.h"

namespace fastspec {

/// Device pointers to the arrays of a RowBatch; shapes as there.
struct Pass {
  int num_rows = 0;
  int num_sequences = 0;
  int num_logit_rows = 0;
  int max_rows_per_sequence = 0;  // at least that of the largest sequence; 0 = unknown
  HostSequences host;             // the batch's own arrays, while they live; null in a pass that is recorded
  const TokenId* tokens = nullptr;
  const std::int32_t* positions = nullptr;
  const Slot* slots = nullptr;
  const std::int32_t* row_offsets = nullptr;
  const NewMask* masks = nullptr;
  const std::uint64_t* mask_bits = nullptr;
  const std::int32_t* logit_rows = nullptr;
  const KvList* lists = nullptr;
  const Slot* entries = nullptr;
  const KvList* contexts = nullptr;  // null where the batch has none
};

struct PassLimits {
  int max_rows = 0;
  int max_sequences = 0;
  std::int64_t max_list_entries = 0;  // page ids of all sequences together
  struct Tables {
    int count = 0;
    std::int64_t entries = 0;  // of all of them together
  };
  /// What batches have of page tables, whose memory is taken beforehand; unset: one a sequence, max_list_entries in
  /// all.
  std::optional<Tables> tables;
  std::int64_t slot_entries = 0;  // of slot lists, whose memory is taken beforehand too
};

/// Brings a batch to `num_rows`, `num_logit_rows` and `num_sequences`: by rows of token 0 that belong to no sequence
/// and write to `padding_slot`, by logits of any rows behind the real ones, and by empty sequences.
void pad_batch(int num_rows, int num_logit_rows, int num_sequences, Slot padding_slot, RowBatch& batch);

/// Memory for passes within the limits; each upload replaces the last. Batches of equal numbers of rows, logit rows and
/// sequences have their arrays at equal addresses. Page tables stay on the device from pass to pass, each at a place of
/// its own, and only what is new of them is copied.
class PassBuffers {
 public:
  PassBuffers(Device& device, const PassLimits& limits);
  /// Device memory that passes within the limits take at most.
  static std::size_t device_bytes(const PassLimits& limits);
  /// Copies the batch to the device. @throws Error(kInternal) for a batch beyond the limits.
  Pass upload(const RowBatch& batch);
  /// Lays the batch out for copy_staged(), which can be recorded and replayed for every batch of equal numbers. The
  /// pass is valid behind it. The device must be done with what was staged before.
  Pass stage(const RowBatch& batch);
  void copy_staged();
  /// To be called where a staged pass was not copied after all: what the device holds is not known.
  void forget_tables();
  /// Entries of a batch that names no others: operations write them (SlotLists::num_unwritten).
  Slot* unwritten_entries() const { return device_entries_.as<Slot>() + std::ssize(places_) * table_entries_; }
  /// Grows when an array moves: what holds the pointers of an earlier pass must let go of them.
  int generation() const { return generation_; }

 private:
  /// A place for one page table in the array of entries.
  struct Place {
    std::uint64_t version = 0;  // of the table that lies there; 0 = none
    int num_valid = 0;          // entries that hold as long as the version does
    std::uint64_t last_use = 0;
  };
  static std::size_t array_bytes(const PassLimits& limits);
  static PassLimits::Tables tables_of(const PassLimits& limits);
  template <typename T>
  const T* lay(const std::vector<T>& values);
  Pass lay_out(const RowBatch& batch, bool staged);
  void place_lists(const RowBatch& batch, bool staged);
  /// @param list whose table it is: most often it has the place that it had in the pass before.
  int find_place(std::uint64_t version, std::size_t list);
  void copy_table(const PageTable& table, int place, bool staged);
  void reserve_entries(std::size_t count);

  Device& device_;
  PassLimits limits_;
  std::int64_t table_entries_;  // of one place
  std::size_t used_ = 0;        // bytes of this batch's arrays
  Buffer host_, device_memory_;
  Buffer host_updates_;    // their number, then the updates of tables
  Buffer device_entries_;  // the tables' places, then the batch's own entries
  std::size_t num_own_entries_ = 0;
  std::vector<Place> places_;
  std::vector<int> last_places_;          // of each list
  std::vector<KvList> lists_, contexts_;  // of this batch, with their places
  std::vector<Slot> widened_;             // pages as entries
  std::uint64_t num_uses_ = 0;
  int generation_ = 0;
};

}  // namespace fastspec
