// NFC in segments: a segment starts at a character that can never combine with what stands before it. Segments of one
// character, nearly all of any text, are copied; the others are decomposed, ordered and composed again.
#include "text/nfc.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "text/unicode.h"

namespace fastspec::text {

namespace {

struct CombiningRange {
  char32_t first, last;
  int combining_class;
};
struct Decomposition {
  char32_t code, first, second;  // second is 0 when the decomposition is a single character
};
struct Composition {
  char32_t first, second, composed;
};

#include "text/nfc_tables.inc"

// Hangul syllables compose by arithmetic (Unicode standard, section 3.12).
constexpr char32_t kSyllableBase = 0xAC00, kLeadBase = 0x1100, kVowelBase = 0x1161, kTrailBase = 0x11A7;
constexpr char32_t kNumLeads = 19, kNumVowels = 21, kNumTrails = 28;
constexpr char32_t kNumSyllables = kNumLeads * kNumVowels * kNumTrails;

int combining_class(char32_t c) {
  if (c < 0x300) return 0;
  auto range = std::lower_bound(std::begin(kCombiningRanges), std::end(kCombiningRanges), c,
                                [](const CombiningRange& r, char32_t code) { return r.last < code; });
  return range != std::end(kCombiningRanges) && range->first <= c ? range->combining_class : 0;
}

const Decomposition* find_decomposition(char32_t c) {
  auto row = std::lower_bound(std::begin(kDecompositions), std::end(kDecompositions), c,
                              [](const Decomposition& d, char32_t code) { return d.code < code; });
  return row != std::end(kDecompositions) && row->code == c ? row : nullptr;
}

/// The composition of a pair, or 0.
char32_t compose(char32_t first, char32_t second) {
  if (first - kLeadBase < kNumLeads && second - kVowelBase < kNumVowels) {
    return kSyllableBase + ((first - kLeadBase) * kNumVowels + (second - kVowelBase)) * kNumTrails;
  }
  const bool open_syllable = first - kSyllableBase < kNumSyllables && (first - kSyllableBase) % kNumTrails == 0;
  if (open_syllable && second > kTrailBase && second < kTrailBase + kNumTrails) return first + (second - kTrailBase);
  auto row = std::lower_bound(std::begin(kCompositions), std::end(kCompositions), Composition{first, second, 0},
                              [](const Composition& a, const Composition& b) {
                                return a.first != b.first ? a.first < b.first : a.second < b.second;
                              });
  const bool found = row != std::end(kCompositions) && row->first == first && row->second == second;
  return found ? row->composed : 0;
}

/// Characters that may stand second in a composition.
bool may_compose_backwards(char32_t c) {
  static const std::vector<char32_t> seconds = [] {
    std::vector<char32_t> all;
    for (const Composition& row : kCompositions) all.push_back(row.second);
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }();
  const bool vowel_or_trail = c - kVowelBase < kNumVowels || (c > kTrailBase && c < kTrailBase + kNumTrails);
  return vowel_or_trail || std::binary_search(seconds.begin(), seconds.end(), c);
}

/// True for a character that is its own NFC and combines with nothing before it.
bool starts_segment(char32_t c) {
  if (c < 0x300) return true;
  if ((c >= 0x3400 && c <= 0x9FFF) || c - kSyllableBase < kNumSyllables) return true;  // ideographs, Hangul
  if (combining_class(c) != 0 || may_compose_backwards(c)) return false;
  const Decomposition* row = find_decomposition(c);
  return row == nullptr || (row->second != 0 && compose(row->first, row->second) == c);
}

void decompose(char32_t c, std::u32string& out) {
  if (c - kSyllableBase < kNumSyllables) {
    const char32_t index = c - kSyllableBase;
    out += kLeadBase + index / (kNumVowels * kNumTrails);
    out += kVowelBase + index % (kNumVowels * kNumTrails) / kNumTrails;
    if (index % kNumTrails != 0) out += kTrailBase + index % kNumTrails;
    return;
  }
  const Decomposition* row = find_decomposition(c);
  if (row == nullptr) {
    out += c;
    return;
  }
  decompose(row->first, out);
  if (row->second != 0) decompose(row->second, out);
}

/// Canonical ordering: every run of combining marks sorted by class, equal classes in their given order.
void order_marks(std::u32string& segment) {
  std::vector<std::pair<int, std::size_t>> order;  // class and place of every mark of a run
  std::u32string sorted;
  for (std::size_t begin = 0; begin < segment.size();) {
    order.clear();
    std::size_t end = begin;
    for (; end < segment.size(); ++end) {
      const int mark_class = combining_class(segment[end]);
      if (mark_class == 0) break;
      order.emplace_back(mark_class, end);
    }
    if (order.size() > 1) {
      std::sort(order.begin(), order.end());
      sorted.clear();
      for (const auto& [mark_class, place] : order) sorted += segment[place];
      segment.replace(begin, sorted.size(), sorted);
    }
    begin = std::max(end, begin + 1);
  }
}

/// Canonical composition in place: a mark joins the last starter unless one of its own or a higher class stands
/// between.
void compose_all(std::u32string& segment) {
  std::size_t length = 0;
  std::size_t starter = segment.size();  // none yet
  int last_class = 0;
  for (char32_t c : segment) {
    const int mark_class = combining_class(c);
    const bool adjacent = starter + 1 == length;
    if (starter < length && (adjacent || last_class < mark_class)) {
      if (const char32_t composed = compose(segment[starter], c); composed != 0) {
        segment[starter] = composed;
        continue;
      }
    }
    if (mark_class == 0) starter = length;
    last_class = mark_class;
    segment[length++] = c;
  }
  segment.resize(length);
}

void append_segment(std::u32string& segment, std::string& out) {
  std::u32string decomposed;
  for (char32_t c : segment) decompose(c, decomposed);
  order_marks(decomposed);
  compose_all(decomposed);
  for (char32_t c : decomposed) append_utf8(out, c);
}

}  // namespace

std::string to_nfc(std::string_view text) {
  // Everything below U+0300 (lead bytes below CC) is its own NFC.
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0xCC; });
  if (plain) return std::string(text);

  std::string result;
  result.reserve(text.size());
  std::u32string segment;
  std::size_t segment_begin = 0;
  const auto flush = [&](std::size_t end) {
    if (segment.size() == 1 && starts_segment(segment[0])) {
      result.append(text.substr(segment_begin, end - segment_begin));
    } else {
      append_segment(segment, result);
    }
    segment.clear();
    segment_begin = end;
  };
  for (std::size_t position = 0; position < text.size();) {
    const std::size_t begin = position;
    const char32_t c = next_code_point(text, position);
    if (!segment.empty() && starts_segment(c)) flush(begin);
    segment += c;
  }
  flush(text.size());
  return result;
}

}  // namespace fastspec::text
