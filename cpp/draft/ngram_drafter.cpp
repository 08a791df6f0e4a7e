// Prompt lookup over an incremental index: a step costs what it appends, not the length of the context.
#include "draft/ngram_drafter.h"

#include <algorithm>

#include "base/check.h"

namespace fastspec {

namespace {

std::uint64_t hash_run(std::span<const TokenId> run) {
  std::uint64_t hash = 0x9E3779B97F4A7C15u;
  for (const TokenId token : run) {
    hash ^= static_cast<std::uint64_t>(token) + 0x9E3779B97F4A7C15u + (hash << 6) + (hash >> 2);
    hash *= 0xFF51AFD7ED558CCDu;
  }
  return hash;
}

}  // namespace

NgramDrafter::NgramDrafter(int min_ngram, int max_ngram, int max_drafted)
    : min_ngram_(min_ngram), max_ngram_(max_ngram), max_drafted_(max_drafted) {
  FS_CHECK(min_ngram >= 1 && max_ngram >= min_ngram && max_drafted >= 1, min_ngram, " ", max_ngram, " ", max_drafted);
}

void NgramDrafter::extend(Index& index, std::span<const TokenId> tokens) const {
  // The run that ends the sequence is what is looked up, so it joins the index only once another token follows it.
  const int end = static_cast<int>(tokens.size()) - 1;
  for (int place = std::max(static_cast<int>(index.previous.size()), 1); place <= end; ++place) {
    index.previous.resize(place + 1, 0);
    index.hashes.resize(place + 1, 0);
    if (place < min_ngram_) continue;
    const std::uint64_t hash = hash_run(tokens.subspan(place - min_ngram_, min_ngram_));
    int& last = index.last[hash];
    index.previous[place] = last;
    index.hashes[place] = hash;
    last = place;
  }
}

NgramDrafter::Match NgramDrafter::find(const Index& index, std::span<const TokenId> tokens) const {
  const int length = static_cast<int>(tokens.size());
  if (length <= min_ngram_) return {};
  const auto found = index.last.find(hash_run(tokens.last(min_ngram_)));
  Match best{.place = 0, .length = min_ngram_ - 1};
  for (int place = found == index.last.end() ? 0 : found->second; place > 0; place = index.previous[place]) {
    int match = 0;
    while (match < max_ngram_ && match < place && tokens[place - 1 - match] == tokens[length - 1 - match]) ++match;
    if (match > best.length) {
      best = {place, match};
      if (match == max_ngram_) break;
    }
  }
  return best;
}

void NgramDrafter::draft(std::span<const DraftRequest> requests, std::span<TokenTree> trees) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const DraftRequest& request = requests[i];
    Index& index = indexes_[request.seq];
    extend(index, request.tokens);
    const Match match = find(index, request.tokens);
    if (match.place == 0) continue;
    // Laplace's rule of succession: as many tokens agreed, none was wrong yet. A longer match is a better sign.
    const float confidence = static_cast<float>(match.length + 1) / static_cast<float>(match.length + 2);
    TokenTree& tree = trees[i];
    const int length = static_cast<int>(request.tokens.size());
    const int num_drafted = std::min({max_drafted_, request.max_drafted, request.max_depth});
    for (int k = 0; k < num_drafted; ++k) {
      // Where the earlier occurrence runs into the end, it goes on with what it proposed: a loop is followed.
      const int source = match.place + k;
      tree.add(source < length ? request.tokens[source] : tree.tokens[source - length + 1], k, confidence);
    }
  }
}

void NgramDrafter::truncate(SeqId seq, int length) {
  const auto found = indexes_.find(seq);
  if (found == indexes_.end()) return;
  Index& index = found->second;
  // A place stays when the token after it does.
  while (static_cast<int>(index.previous.size()) > std::max(length, 1)) {
    const int place = static_cast<int>(index.previous.size()) - 1;
    if (place >= min_ngram_) {
      if (index.previous[place] == 0) {
        index.last.erase(index.hashes[place]);
      } else {
        index.last[index.hashes[place]] = index.previous[place];
      }
    }
    index.previous.pop_back();
    index.hashes.pop_back();
  }
}

void NgramDrafter::forget(SeqId seq) noexcept {
  indexes_.erase(seq);
}

}  // namespace fastspec
