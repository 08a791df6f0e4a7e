// The small integer types that every layer speaks. No behaviour.
#pragma once

#include <fastspec/tokenizer.h>  // TokenId

#include <cstdint>

namespace fastspec {

using SeqId = std::int64_t;   // one running sequence, never reused within an engine
using PageId = std::int32_t;  // one page of the KV pool
using Slot = std::int64_t;    // one token's place in the KV pool: page * page_size + offset

}  // namespace fastspec
