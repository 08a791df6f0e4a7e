// Lays a RowBatch out in one block and copies it.
#include "model/pass.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace fastspec {

namespace {

constexpr std::size_t kAlignment = 64;
constexpr int kFewUpdates = 4;             // of one table; more are copied at once
constexpr std::size_t kUpdatesBegin = 64;  // behind their number

EntryUpdate* updates_in(const Buffer& memory) {
  return reinterpret_cast<EntryUpdate*>(memory.as<std::byte>() + kUpdatesBegin);
}

}  // namespace

void pad_batch(int num_rows, int num_logit_rows, int num_sequences, Slot padding_slot, RowBatch& batch) {
  FS_CHECK(batch.num_rows() <= num_rows && std::ssize(batch.logit_rows) <= num_logit_rows &&
               batch.num_sequences() <= num_sequences,
           batch.num_rows(), " rows of ", batch.num_sequences(), " sequences, ", batch.logit_rows.size(),
           " with logits, padded to ", num_rows, " of ", num_sequences, ", ", num_logit_rows, " with logits");
  while (batch.num_sequences() < num_sequences) {
    batch.kv.lists.push_back({});
    if (!batch.kv.tables.empty()) batch.kv.tables.push_back({});
    if (!batch.kv.contexts.empty()) batch.kv.contexts.push_back({});
    batch.end_sequence(NewMask::kCausal);
  }
  batch.tokens.resize(num_rows, 0);
  batch.positions.resize(num_rows, 0);
  batch.slots.resize(num_rows, padding_slot);
  while (std::ssize(batch.logit_rows) < num_logit_rows) {
    batch.logit_rows.push_back(std::min(static_cast<int>(batch.logit_rows.size()), num_rows - 1));
  }
  batch.mask_bits.resize(batch.tokens.size() * kMaskWords, 0);
}

std::size_t PassBuffers::array_bytes(const PassLimits& limits) {
  const auto rows = static_cast<std::size_t>(limits.max_rows);
  const auto sequences = static_cast<std::size_t>(limits.max_sequences);
  constexpr int kNumArrays = 9;
  return rows * (sizeof(TokenId) + sizeof(Slot) + 2 * sizeof(std::int32_t) + kMaskWords * sizeof(std::uint64_t)) +
         sequences * (sizeof(std::int32_t) + sizeof(NewMask) + 2 * sizeof(KvList)) + sizeof(std::int32_t) +
         kNumArrays * kAlignment;
}

std::size_t PassBuffers::device_bytes(const PassLimits& limits) {
  // Tables have places of their own, and lists that name their entries may take as many again.
  const std::int64_t entries = std::max(limits.max_list_entries, limits.slot_entries) + tables_of(limits).entries;
  return array_bytes(limits) + static_cast<std::size_t>(entries) * sizeof(Slot);
}

PassLimits::Tables PassBuffers::tables_of(const PassLimits& limits) {
  return limits.tables.value_or(PassLimits::Tables{limits.max_sequences, limits.max_list_entries});
}

PassBuffers::PassBuffers(Device& device, const PassLimits& limits)
    : device_(device),
      limits_(limits),
      table_entries_(tables_of(limits).entries / std::max(tables_of(limits).count, 1)),
      places_(static_cast<std::size_t>(tables_of(limits).count)),
      last_places_(places_.size(), 0) {
  const std::size_t bytes = array_bytes(limits);
  host_ = device.allocate_host(bytes, "staging of pass arrays");
  device_memory_ = device.allocate(bytes, "pass arrays");
  host_updates_ = device.allocate_host(kUpdatesBegin + kFewUpdates * places_.size() * sizeof(EntryUpdate),
                                       "staging of page tables");
  constexpr std::int64_t kUsualEntries = 1 << 12;
  reserve_entries(
      static_cast<std::size_t>(std::max(std::min(limits.max_list_entries, kUsualEntries), limits.slot_entries)));
}

void PassBuffers::reserve_entries(std::size_t count) {
  const std::size_t in_tables = places_.size() * static_cast<std::size_t>(table_entries_);
  device_entries_ = device_.allocate((in_tables + count) * sizeof(Slot), "KV list entries");
  num_own_entries_ = count;
  forget_tables();
  ++generation_;
}

void PassBuffers::forget_tables() {
  std::fill(places_.begin(), places_.end(), Place{});
}

int PassBuffers::find_place(std::uint64_t version, std::size_t list) {
  const bool known = version != 0;
  if (known && places_[last_places_[list]].version == version) return last_places_[list];
  int oldest = 0;
  for (int place = 0; place < static_cast<int>(places_.size()); ++place) {
    if (known && places_[place].version == version) return place;
    if (places_[place].last_use < places_[oldest].last_use) oldest = place;
  }
  places_[oldest] = {.version = version};
  return oldest;
}

void PassBuffers::copy_table(const PageTable& table, int index, bool staged) {
  FS_CHECK(table.num_pages <= table_entries_, table.num_pages, " pages of a sequence, limit ", table_entries_);
  Place& place = places_[index];
  const int first = std::min(place.num_valid, table.num_pages);
  const int count = table.num_pages - first;
  const std::int64_t begin = index * table_entries_ + first;
  auto& num_updates = *host_updates_.as<std::int64_t>();
  if (staged && count <= kFewUpdates) {
    EntryUpdate* updates = updates_in(host_updates_) + num_updates;
    for (int i = 0; i < count; ++i) updates[i] = {.index = begin + i, .value = table.pages[first + i]};
    num_updates += count;
  } else if (count > 0) {
    widened_.assign(table.pages + first, table.pages + table.num_pages);
    device_.copy_to_device(device_entries_.as<Slot>() + begin, widened_.data(), widened_.size() * sizeof(Slot));
  }
  // A shorter table of the same version has no say over what lies behind it.
  place.num_valid = table.version == 0 ? 0 : std::max(first, table.num_lasting);
  place.last_use = num_uses_;
}

void PassBuffers::place_lists(const RowBatch& batch, bool staged) {
  ++num_uses_;
  *host_updates_.as<std::int64_t>() = 0;
  lists_ = batch.kv.lists;
  contexts_ = batch.kv.contexts;
  const std::vector<Slot>& entries = batch.kv.entries;
  const std::size_t count = entries.size() + static_cast<std::size_t>(batch.kv.num_unwritten);
  if (count > num_own_entries_) {
    FS_CHECK(std::ssize(entries) + batch.kv.num_unwritten <= limits_.max_list_entries, count, " list entries, limit ",
             limits_.max_list_entries);
    reserve_entries(std::min(2 * count, static_cast<std::size_t>(limits_.max_list_entries)));
  }
  const std::int64_t own_begin = std::ssize(places_) * table_entries_;
  if (!entries.empty()) {
    device_.copy_to_device(device_entries_.as<Slot>() + own_begin, entries.data(), entries.size() * sizeof(Slot));
  }
  for (std::size_t i = 0; i < lists_.size(); ++i) {
    const bool has_table = i < batch.kv.tables.size() && batch.kv.tables[i].pages != nullptr;
    const bool by_table = has_table && lists_[i].pages;
    if (!by_table) lists_[i].offset += own_begin;
    if (!by_table && (!has_table || contexts_.empty())) continue;
    const int place = last_places_[i] = find_place(batch.kv.tables[i].version, i);
    copy_table(batch.kv.tables[i], place, staged);
    if (by_table) lists_[i].offset = place * table_entries_;
    if (!contexts_.empty()) contexts_[i].offset = place * table_entries_;
  }
}

template <typename T>
const T* PassBuffers::lay(const std::vector<T>& values) {
  const std::size_t offset = (used_ + kAlignment - 1) / kAlignment * kAlignment;
  const std::size_t bytes = values.size() * sizeof(T);
  FS_CHECK(offset + bytes <= host_.bytes(), "arrays of a pass take ", offset + bytes, " bytes, they have ",
           host_.bytes());
  if (bytes > 0) std::memcpy(host_.as<std::byte>() + offset, values.data(), bytes);
  used_ = offset + bytes;
  return reinterpret_cast<const T*>(device_memory_.as<std::byte>() + offset);
}

Pass PassBuffers::lay_out(const RowBatch& batch, bool staged) {
  FS_CHECK(batch.num_rows() <= limits_.max_rows && batch.num_sequences() <= limits_.max_sequences, batch.num_rows(),
           " rows of ", batch.num_sequences(), " sequences, limits ", limits_.max_rows, " and ", limits_.max_sequences);
  place_lists(batch, staged);
  used_ = 0;
  Pass pass;
  pass.num_rows = batch.num_rows();
  pass.num_sequences = batch.num_sequences();
  pass.num_logit_rows = static_cast<int>(batch.logit_rows.size());
  pass.host = {batch.row_offsets.data(), lists_.data(), batch.masks.data()};
  pass.tokens = lay(batch.tokens);
  pass.positions = lay(batch.positions);
  pass.slots = lay(batch.slots);
  pass.row_offsets = lay(batch.row_offsets);
  pass.masks = lay(batch.masks);
  pass.logit_rows = lay(batch.logit_rows);
  pass.lists = lay(lists_);
  if (!contexts_.empty()) pass.contexts = lay(contexts_);
  pass.mask_bits = lay(batch.mask_bits);
  pass.entries = device_entries_.as<const Slot>();
  return pass;
}

Pass PassBuffers::upload(const RowBatch& batch) {
  const Pass pass = lay_out(batch, false);
  device_.copy_to_device(device_memory_.data(), host_.data(), used_);
  return pass;
}

Pass PassBuffers::stage(const RowBatch& batch) {
  return lay_out(batch, true);
}

void PassBuffers::copy_staged() {
  device_.copy_staged({.destination = device_memory_.data(),
                       .source = host_.data(),
                       .bytes = used_,
                       .entries = device_entries_.as<Slot>(),
                       .updates = updates_in(host_updates_),
                       .num_updates = host_updates_.as<const std::int64_t>()});
}

}  // namespace fastspec
