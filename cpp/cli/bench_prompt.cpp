// Fits a copying task to a number of tokens.
#include "cli/bench_prompt.h"

#include <fastspec/error.h>

#include <algorithm>
#include <string_view>

namespace fastspec::cli {
namespace {

constexpr std::string_view kPassage =
    "The harbour master kept two books. In the first he wrote the name of every ship that came in, the hour, the state "
    "of the tide and the weight of what it carried. In the second he wrote what the sailors told him: a storm off the "
    "northern cape, a whale asleep in the shipping lane, a lamp that burned green where no lighthouse stood. The first "
    "book went to the office at the end of each month and was never seen again. The second stayed on the shelf above "
    "the stove, and on winter evenings the pilots read it aloud to one another, correcting the dates and adding what "
    "they remembered. When the old man retired, his successor asked which of the two should be continued. Both, he was "
    "told; but if there is ink for one only, then let it be the second, because a weight can be measured again and a "
    "story cannot. ";

std::vector<TokenId> pattern(int vocab_size, int length, int number) {
  // A hundred pseudo-random ids, again and again: something to look up for a drafter, though no text.
  std::vector<TokenId> ids;
  std::uint32_t state = 12345u + static_cast<std::uint32_t>(number);
  for (int i = 0; i < length; ++i) {
    if (i >= 100) {
      ids.push_back(ids[static_cast<std::size_t>(i - 100)]);
      continue;
    }
    state = state * 1664525u + 1013904223u;
    ids.push_back(static_cast<TokenId>((state >> 8) % static_cast<std::uint32_t>(vocab_size)));
  }
  return ids;
}

}  // namespace

std::vector<std::vector<TokenId>> make_bench_prompts(const Tokenizer* tokenizer, int vocab_size,
                                                     const std::string& passage, int count, int length) {
  std::vector<std::vector<TokenId>> prompts;
  if (tokenizer == nullptr) {
    for (int number = 0; number < count; ++number) prompts.push_back(pattern(vocab_size, length, number));
    return prompts;
  }
  const std::string source = passage.empty() ? std::string(kPassage) : passage;
  const std::vector<TokenId> opening = tokenizer->encode("", true);
  const std::vector<TokenId> order =
      tokenizer->encode("\n\nThe same text again, with \"second\" changed to \"other\":\n\n", false);
  const std::vector<TokenId> text = tokenizer->encode(source, false);
  const auto total = static_cast<std::size_t>(length);
  // A few words of the copy are given, so that a base model goes on with it too.
  const std::size_t begun = std::min<std::size_t>(12, text.size());
  const std::size_t fixed = opening.size() + order.size() + begun;
  if (text.empty() || fixed >= total) {
    throw Error(ErrorCode::kInvalidArgument, "--context " + std::to_string(length) +
                                                 ": the copying task needs more than " + std::to_string(fixed) +
                                                 " tokens and a text to copy");
  }
  for (int number = 0; number < count; ++number) {
    // The passage ends the room before the order; the prompts of a batch begin it at different places.
    const std::size_t room = total - fixed;
    const std::size_t shift = static_cast<std::size_t>(number) * 17 % text.size();
    std::vector<TokenId> ids = opening;
    for (std::size_t i = 0; i < room; ++i) ids.push_back(text[(i + shift) % text.size()]);
    ids.insert(ids.end(), order.begin(), order.end());
    for (std::size_t i = 0; i < begun; ++i) ids.push_back(text[(i + shift) % text.size()]);
    prompts.push_back(std::move(ids));
  }
  return prompts;
}

}  // namespace fastspec::cli
