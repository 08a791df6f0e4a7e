// Builds the documents part by part; tests then change what they are about.
#include "support/tokenizer_json.h"

#include <cstdio>

#include "text/byte_alphabet.h"

namespace fastspec::test {

using nlohmann::json;

json byte_level_json() {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) {
    std::string character;
    text::append_byte_characters(std::string(1, static_cast<char>(byte)), character);
    vocab[character] = byte;
  }
  vocab["Ġa"] = 256;
  vocab["ab"] = 257;
  vocab["Ġab"] = 258;
  json result;
  result["version"] = "1.0";
  result["added_tokens"] = json::array({{{"id", 259},
                                         {"content", "<|end|>"},
                                         {"single_word", false},
                                         {"lstrip", false},
                                         {"rstrip", false},
                                         {"normalized", false},
                                         {"special", true}}});
  result["normalizer"] = nullptr;
  result["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  result["post_processor"] = {{"type", "ByteLevel"}, {"trim_offsets", true}};
  result["decoder"] = {{"type", "ByteLevel"}};
  result["model"] = {
      {"type", "BPE"},
      {"vocab", vocab},
      {"merges", json::array({json::array({"Ġ", "a"}), json::array({"a", "b"}), json::array({"Ġa", "b"})})}};
  return result;
}

json byte_fallback_json() {
  json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", byte);
    vocab[name] = 3 + byte;
  }
  const char* tokens[] = {"▁", "a", "b", "▁a", "ab", "▁ab"};
  for (int i = 0; i < 6; ++i) vocab[tokens[i]] = 259 + i;
  json result;
  result["added_tokens"] = json::array();
  for (const char* token : {"<unk>", "<s>", "</s>"}) {
    result["added_tokens"].push_back(
        {{"id", vocab[token]}, {"content", token}, {"normalized", false}, {"special", true}});
  }
  const json mark_to_space = {{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}};
  const json space_to_mark = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}};
  result["normalizer"] = {{"type", "Sequence"},
                          {"normalizers", json::array({{{"type", "Prepend"}, {"prepend", "▁"}}, space_to_mark})}};
  result["pre_tokenizer"] = nullptr;
  result["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", json::array({{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                              {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}})},
      {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", json::array({1})}, {"tokens", json::array({"<s>"})}}}}}};
  result["decoder"] = {{"type", "Sequence"},
                       {"decoders", json::array({mark_to_space,
                                                 {{"type", "ByteFallback"}},
                                                 {{"type", "Fuse"}},
                                                 {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}})}};
  result["model"] = {{"type", "BPE"},         {"unk_token", "<unk>"}, {"fuse_unk", true},
                     {"byte_fallback", true}, {"vocab", vocab},       {"merges", json::array({"▁ a", "a b", "▁a b"})}};
  return result;
}

}  // namespace fastspec::test
