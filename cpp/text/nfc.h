// Unicode normalization form C (canonical composition). Nothing of the other forms.
#pragma once

#include <string>
#include <string_view>

namespace fastspec::text {

/// NFC of valid UTF-8, by the tables that the reference tokenizer uses (see make_nfc_tables.py).
std::string to_nfc(std::string_view text);

}  // namespace fastspec::text
