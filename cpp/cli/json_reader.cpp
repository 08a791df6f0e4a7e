// Looks over the brackets first: the parser itself has no limits, and its callbacks take quadratic time.
#include "cli/json_reader.h"

#include <fastspec/error.h>

#include <type_traits>
#include <vector>

#include "cli/report.h"

namespace fastspec::cli {
namespace {

constexpr std::size_t kMaxDepth = 100;  // of lists and objects: copies of a document go as deep as it does
constexpr int kMaxOrderedMembers = 1000;

/// Exact up to the first error of syntax, which the parser reports.
void check_limits(std::string_view text, const std::string& what, bool ordered) {
  std::vector<int> members(kMaxDepth + 1);  // seen so far in what is open at each depth
  std::size_t depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    if (quoted) {
      if (letter == '\\') ++i;
      quoted = letter != '"';
    } else if (letter == '"') {
      quoted = true;
    } else if (letter == '[' || letter == '{') {
      if (++depth > kMaxDepth) throw Error(ErrorCode::kInvalidFile, what + ": JSON nested too deeply");
      members[depth] = 0;
    } else if (letter == ']' || letter == '}') {
      depth -= depth > 0 ? 1 : 0;
    } else if (letter == ':' && ++members[depth] > kMaxOrderedMembers && ordered) {
      throw Error(ErrorCode::kInvalidFile, what + ": a JSON object of more than a thousand members");
    }
  }
}

}  // namespace

template <typename Json>
Json parse_json(std::string_view text, const std::string& what) {
  check_limits(text, what, std::is_same_v<Json, nlohmann::ordered_json>);
  try {
    return Json::parse(text);
  } catch (const typename Json::exception& error) {
    throw Error(ErrorCode::kInvalidFile, what + ": " + printable(std::string(error.what()).substr(0, 300)));
  }
}

template nlohmann::json parse_json(std::string_view, const std::string&);
template nlohmann::ordered_json parse_json(std::string_view, const std::string&);

}  // namespace fastspec::cli
