// Prompts of a stated length for the benchmark.
#pragma once

#include <fastspec/tokenizer.h>

#include <string>
#include <vector>

namespace fastspec::cli {

/// `count` prompts of exactly `length` tokens. The task is copying with a small change, which looks like editing code
/// or text: a passage, then the order to write it again, then its beginning.
/// @param tokenizer may be null: then the prompts are a repeated pattern of ids below vocab_size.
/// @param passage the text to copy; empty = a built-in one.
std::vector<std::vector<TokenId>> make_bench_prompts(const Tokenizer* tokenizer, int vocab_size,
                                                     const std::string& passage, int count, int length);

}  // namespace fastspec::cli
