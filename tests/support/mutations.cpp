// See mutations.h. Choices use the generator's raw numbers: distributions differ between standard libraries.
#include "support/mutations.h"

#include <algorithm>
#include <array>
#include <vector>

namespace fastspec::test {

namespace {

using nlohmann::json;

std::size_t below(std::size_t limit, Random& random) {
  return random() % limit;
}

/// All values of the document, itself included.
void collect(json& value, std::vector<json*>& values) {
  values.push_back(&value);
  if (value.is_structured()) {
    for (json& child : value) collect(child, values);
  }
}

json hostile_value(const json& original, Random& random) {
  static const std::array<const char*, 24> kValues{"null",
                                                   "true",
                                                   "0",
                                                   "-1",
                                                   "1",
                                                   "3",
                                                   "2.5",
                                                   "4294967296",
                                                   "2147483648",
                                                   "9223372036854775807",
                                                   "18446744073709551615",
                                                   "-9223372036854775808",
                                                   "1e300",
                                                   "\"\"",
                                                   "\"x\"",
                                                   "\"../model.safetensors\"",
                                                   "[]",
                                                   "{}",
                                                   "[-1]",
                                                   "[[[[[1]]]]]",
                                                   "[9,0]",
                                                   "1e18",
                                                   "\"F64\"",
                                                   "\"/etc/passwd\""};
  if (original.is_number_integer() && below(2, random) == 0) {  // a plausible number is the harder case
    const std::array<std::int64_t, 6> deltas{1, -1, 8, -8, 1 << 20, 255};
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(original.get<std::int64_t>()) +
                                     static_cast<std::uint64_t>(deltas[below(deltas.size(), random)]));
  }
  return json::parse(kValues[below(kValues.size(), random)]);
}

/// The document's text with one member of its top object written twice.
std::string with_doubled_member(const json& document, Random& random) {
  auto member = document.begin();
  std::advance(member, static_cast<std::ptrdiff_t>(below(document.size(), random)));
  const std::string text = document.dump();
  return text.substr(0, text.size() - 1) + "," + json(member.key()).dump() + ":" + member.value().dump() + "}";
}

}  // namespace

std::string mutate_bytes(std::string bytes, Random& random) {
  if (bytes.empty()) return "\x01";
  const std::size_t place = below(bytes.size(), random);
  const std::size_t length = std::min(bytes.size() - place, 1 + below(16, random));
  switch (below(7, random)) {
    case 0:
      bytes[place] = static_cast<char>(bytes[place] ^ (1 << below(8, random)));
      break;
    case 1:
      for (std::size_t i = 0; i < length; ++i) bytes[place + i] = static_cast<char>(random());
      break;
    case 2:
      bytes.replace(place, length, length, below(2, random) == 0 ? '\0' : '\xFF');
      break;
    case 3:
      bytes.erase(place, length);
      break;
    case 4:
      bytes.insert(place, length, static_cast<char>(random()));
      break;
    case 5:
      bytes.insert(place, bytes.substr(place, length));
      break;
    default:
      bytes.resize(place);
      break;
  }
  return bytes;
}

std::string mutate_json(const nlohmann::json& document, Random& random) {
  json copy = document;
  std::vector<json*> values;
  collect(copy, values);
  json& value = *values[below(values.size(), random)];
  const bool has_members = value.is_object() && !value.empty();
  switch (below(has_members ? 5 : 1, random)) {
    case 1: {  // remove or rename a member
      auto member = value.begin();
      std::advance(member, static_cast<std::ptrdiff_t>(below(value.size(), random)));
      const json kept = member.value();
      const std::string name = member.key();
      value.erase(name);
      if (below(2, random) == 0) value[name + "x"] = kept;
      break;
    }
    case 2:
      value["unknown_field"] = hostile_value(value, random);
      break;
    case 3:
      if (document.is_object() && !document.empty()) return with_doubled_member(document, random);
      break;
    case 4: {
      auto member = value.begin();
      std::advance(member, static_cast<std::ptrdiff_t>(below(value.size(), random)));
      member.value() = hostile_value(member.value(), random);
      break;
    }
    default:
      value = hostile_value(value, random);
      break;
  }
  return copy.dump();
}

}  // namespace fastspec::test
