// Header checks of the safetensors format: 8 bytes little-endian length, JSON, data. Every number that the header
// claims is compared with the file before anything is sized by it.
#include "io/safetensors_header.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/check.h"
#include "io/json.h"

namespace fastspec {

namespace {

// About 100,000 tensors in one file. A document in memory takes many times its text, so this bounds what a large file
// of hostile JSON can make us hold.
constexpr std::size_t kMaxHeaderBytes = std::size_t{16} << 20;
constexpr std::size_t kMaxRank = 8;
constexpr int kMaxDepth = 8;  // a valid header nests three levels

struct ElementBits {
  std::string_view dtype;
  unsigned bits;
};

constexpr std::array<ElementBits, 22> kElementBits{{
    {"BOOL", 8},    {"U8", 8},      {"I8", 8},          {"F8_E5M2", 8},     {"F8_E4M3", 8}, {"F8_E8M0", 8},
    {"U16", 16},    {"I16", 16},    {"F16", 16},        {"BF16", 16},       {"U32", 32},    {"I32", 32},
    {"F32", 32},    {"U64", 64},    {"I64", 64},        {"F64", 64},        {"C64", 64},    {"F4", 4},
    {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F8_E5M2FNUZ", 8}, {"F8_E4M3FNUZ", 8},
}};

std::uint64_t little_endian_u64(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 8; ++i) value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  return value;
}

/// Size in bytes of shape x dtype.
std::uint64_t claimed_bytes(const SafetensorsEntry& entry, const JsonView& view) {
  const auto known = std::find_if(kElementBits.begin(), kElementBits.end(),
                                  [&](const ElementBits& element) { return element.dtype == entry.dtype; });
  if (known == kElementBits.end()) {
    view.refuse(ErrorCode::kUnsupported, "unknown dtype \"", shown(entry.dtype), "\"");
  }
  std::uint64_t bits = known->bits;
  for (std::int64_t dimension : entry.shape) {
    if (__builtin_mul_overflow(bits, static_cast<std::uint64_t>(dimension), &bits)) {
      view.refuse(ErrorCode::kInvalidFile, "shape ", shape_text(entry.shape), " of ", entry.dtype,
                  " overflows 64 bits");
    }
  }
  if (bits % 8 != 0) {
    view.refuse(ErrorCode::kInvalidFile, "shape ", shape_text(entry.shape), " of ", entry.dtype,
                " does not fill whole bytes");
  }
  return bits / 8;
}

SafetensorsEntry read_entry(const std::string& name, const JsonView& view, std::size_t data_begin,
                            std::size_t data_size) {
  for (const std::string& field : view.names()) {
    if (field != "dtype" && field != "shape" && field != "data_offsets") {
      view.refuse(ErrorCode::kInvalidFile, "unknown field \"", shown(field), "\"");
    }
  }
  SafetensorsEntry entry;
  entry.name = name;
  entry.dtype = view.at("dtype").as_string();
  const JsonView shape = view.at("shape");
  if (shape.array_size() > kMaxRank) {
    shape.refuse(ErrorCode::kUnsupported, "rank ", shape.array_size(), " is more than ", kMaxRank);
  }
  for (const JsonView& dimension : shape.elements()) entry.shape.push_back(dimension.as_integer(0));

  const JsonView offsets = view.at("data_offsets");
  if (offsets.array_size() != 2) {
    offsets.refuse(ErrorCode::kInvalidFile, "expected [begin, end], got ", offsets.array_size(), " elements");
  }
  const std::int64_t limit = static_cast<std::int64_t>(data_size);
  const std::int64_t begin = offsets.at(std::size_t{0}).as_integer(0, limit);
  const std::int64_t end = offsets.at(std::size_t{1}).as_integer(begin, limit);
  const auto range = static_cast<std::uint64_t>(end - begin);
  if (const std::uint64_t bytes = claimed_bytes(entry, view); bytes != range) {
    view.refuse(ErrorCode::kInvalidFile, "shape ", shape_text(entry.shape), " of ", entry.dtype, " takes ", bytes,
                " bytes, but data_offsets [", begin, ", ", end, "] cover ", range);
  }
  entry.begin = data_begin + static_cast<std::size_t>(begin);
  entry.end = data_begin + static_cast<std::size_t>(end);
  return entry;
}

/// Two readers that disagree about bytes no tensor claims (or two tensors claim) would see different files.
void check_coverage(const std::vector<SafetensorsEntry>& entries, std::size_t data_begin, std::size_t file_size,
                    const std::string& path) {
  std::vector<const SafetensorsEntry*> order;
  order.reserve(entries.size());
  for (const SafetensorsEntry& entry : entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const SafetensorsEntry* a, const SafetensorsEntry* b) {
    return a->begin != b->begin ? a->begin < b->begin : a->end < b->end;
  });
  std::size_t covered = data_begin;
  const SafetensorsEntry* previous = nullptr;
  for (const SafetensorsEntry* entry : order) {
    if (entry->begin < covered) {
      fail(ErrorCode::kInvalidFile, path, ": tensors \"", shown(previous->name), "\" and \"", shown(entry->name),
           "\" overlap at data byte ", entry->begin - data_begin);
    }
    if (entry->begin > covered) {
      fail(ErrorCode::kInvalidFile, path, ": data bytes ", covered - data_begin, " to ", entry->begin - data_begin,
           " before tensor \"", shown(entry->name), "\" belong to no tensor");
    }
    covered = entry->end;
    previous = entry;
  }
  if (covered != file_size) {
    fail(ErrorCode::kInvalidFile, path, ": the last ", file_size - covered, " bytes belong to no tensor");
  }
}

void check_metadata(const JsonView& metadata) {
  for (const std::string& name : metadata.names()) metadata.at(name).as_string();
}

}  // namespace

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::size_t safetensors_data_begin(std::span<const std::byte> file, const std::string& path) {
  if (file.size() < kSafetensorsLengthBytes) {
    fail(ErrorCode::kInvalidFile, path, ": ", file.size(), " bytes are too few for a safetensors file");
  }
  const std::uint64_t length = little_endian_u64(file);
  if (length > file.size() - kSafetensorsLengthBytes) {
    fail(ErrorCode::kInvalidFile, path, ": header length ", length, " reaches past the end of the file (", file.size(),
         " bytes)");
  }
  if (length > kMaxHeaderBytes) {
    fail(ErrorCode::kInvalidFile, path, ": header length ", length, " is more than the limit of ", kMaxHeaderBytes);
  }
  return kSafetensorsLengthBytes + static_cast<std::size_t>(length);
}

std::vector<SafetensorsEntry> read_safetensors_header(std::span<const std::byte> file, const std::string& path) {
  const std::size_t data_begin = safetensors_data_begin(file, path);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kSafetensorsLengthBytes,
                              data_begin - kSafetensorsLengthBytes);
  if (!text.starts_with('{')) fail(ErrorCode::kInvalidFile, path, ": the header does not start with \"{\"");

  const Json header = parse_json(text, path, {.max_bytes = kMaxHeaderBytes, .max_depth = kMaxDepth});
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, value] : header.get_ref<const Json::object_t&>()) {
    if (name == "__metadata__") {
      check_metadata(JsonView(value, path, name));
      continue;
    }
    const JsonView view(value, path + ": tensor \"" + shown(name, 200) + "\"");
    entries.push_back(read_entry(name, view, data_begin, file.size() - data_begin));
  }
  check_coverage(entries, data_begin, file.size(), path);
  return entries;
}

}  // namespace fastspec
