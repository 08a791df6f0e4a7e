// Broken and malicious tokenizer.json files: an error that names the file and the field, never a crash or a hang, and
// no allocation of sizes that the file merely claims.
#include <fastspec/error.h>
#include <fastspec/tokenizer.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <optional>

#include "support/allocation_watch.h"
#include "support/mutations.h"
#include "support/tokenizer_json.h"

namespace fastspec {
namespace {

using nlohmann::json;
using test::byte_fallback_json;
using test::byte_level_json;

// A file may leave some gaps between its ids, so a claim of tens of thousands is honoured; all hostile ones are far
// above.
constexpr std::size_t kAllocationLimit = std::size_t{4} << 20;

const char* const kSample = "Hello ab ab 日本 😀 <|end|> </s> 12\n\n  x";

/// Loads the text and, where that works, uses the tokenizer. Returns the error, if any.
std::optional<Error> try_out(const std::string& text) {
  static const test::TemporaryDirectory directory;
  const std::filesystem::path path = directory.write("tokenizer.json", text);
  const test::AllocationWatch watch;
  std::optional<Error> result;
  try {
    const auto tokenizer = Tokenizer::load(path);
    const std::vector<TokenId> ids = tokenizer->encode(kSample);
    tokenizer->decode(ids);
    tokenizer->id_to_token(tokenizer->vocab_size() - 1);
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).rfind(path.string() + ": ", 0), 0u) << error.what();
    EXPECT_NE(error.code(), ErrorCode::kInternal) << error.what();
    result = error;
  }
  EXPECT_LT(watch.largest(), kAllocationLimit);
  return result;
}

struct Mutation {
  const char* pointer;   // where (JSON pointer)
  json value;            // what is put there
  const char* expected;  // part of the message
};

void expect_refused(const json& base, const std::vector<Mutation>& mutations) {
  for (const Mutation& mutation : mutations) {
    json file = base;
    file[json::json_pointer(mutation.pointer)] = mutation.value;
    const std::optional<Error> error = try_out(file.dump());
    ASSERT_TRUE(error) << mutation.pointer << " = " << mutation.value;
    EXPECT_NE(std::string(error->what()).find(mutation.expected), std::string::npos)
        << mutation.pointer << " = " << mutation.value << ": " << error->what();
  }
}

json regex_split(const std::string& regex) {
  return {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
}

TEST(HostileTokenizer, ModelFields) {
  const std::int64_t too_large = std::int64_t{1} << 31;
  expect_refused(
      byte_level_json(),
      {
          {"/model", nullptr, "field \"model\": expected object, got null"},
          {"/model", json::array(), "field \"model\": expected object, got array"},
          {"/model/type", "Unigram", "model type \"Unigram\" is not supported"},
          {"/model/type", 3, "field \"model.type\": expected string, got integer"},
          {"/model/vocab", json::array(), "field \"model.vocab\": expected object"},
          {"/model/vocab", json::object(), "field \"model.vocab\": the vocabulary is empty"},
          {"/model/vocab/ab", -1, "field \"model.vocab.ab\": value -1 lies outside"},
          {"/model/vocab/ab", "7", "field \"model.vocab.ab\": expected integer, got string"},
          {"/model/vocab/ab", 1.5, "field \"model.vocab.ab\": expected integer"},
          {"/model/vocab/ab", too_large, "field \"model.vocab.ab\": value 2147483648 lies outside"},
          {"/model/vocab/ab", too_large - 1, "field \"model.vocab.ab\": value 2147483647 lies outside"},
          {"/model/vocab/ab", 1 << 20, "field \"model.vocab.ab\": value 1048576 lies outside"},
          {"/model/vocab/ab", 18446744073709551615ULL, "field \"model.vocab.ab\": value 18446744073709551615"},
          {"/model/vocab/ab", 256, "field \"model.vocab\": id 256 belongs to both"},
          {"/model/merges", json::object(), "field \"model.merges\": expected array"},
          {"/model/merges/1", "a b c", "field \"model.merges[1]\": merge \"a b c\" is not two tokens"},
          {"/model/merges/1", "ab", "field \"model.merges[1]\": merge \"ab\" is not two tokens"},
          {"/model/merges/1", "a zz", "field \"model.merges[1]\": token \"zz\" is not in the vocabulary"},
          {"/model/merges/1", "b a", "field \"model.merges[1]\": token \"ba\" is not in the vocabulary"},
          {"/model/merges/1", json::array({"a"}), "field \"model.merges[1]\": expected"},
          {"/model/merges/1", json::array({"a", 1}), "field \"model.merges[1]\": expected"},
          {"/model/merges/1", 7, "field \"model.merges[1]\": expected"},
          {"/model/unk_token", "<unk>", "field \"model.unk_token\": token \"<unk>\" is not in the vocabulary"},
          {"/model/dropout", 0.1, "field \"model.dropout\": 0.1 is not supported"},
          {"/model/continuing_subword_prefix", "##", "field \"model.continuing_subword_prefix\": \"##\""},
          {"/model/end_of_word_suffix", "</w>", "field \"model.end_of_word_suffix\": \"</w>\""},
          {"/model/byte_fallback", "yes", "field \"model.byte_fallback\": expected boolean, got string"},
          {"/model/ignore_merges", 1, "field \"model.ignore_merges\": expected boolean"},
      });
}

TEST(HostileTokenizer, AddedTokens) {
  const json token = byte_level_json()["added_tokens"][0];
  const auto with = [&](const char* name, const json& value) {
    json changed = token;
    changed[name] = value;
    return changed;
  };
  expect_refused(
      byte_level_json(),
      {
          {"/added_tokens", json::object(), "field \"added_tokens\": expected array"},
          {"/added_tokens/0", "x", "field \"added_tokens[0]\": expected object"},
          {"/added_tokens/0", json::object(), "field \"added_tokens[0].content\" is missing"},
          {"/added_tokens/0", with("id", -1), "field \"added_tokens[0].id\": value -1"},
          {"/added_tokens/0", with("id", nullptr), "field \"added_tokens[0].id\": expected integer, got null"},
          {"/added_tokens/0", with("id", std::int64_t{1} << 31), "field \"added_tokens[0].id\": value 2147483648"},
          {"/added_tokens/0", with("id", 100'000'000), "field \"added_tokens[0].id\": value 100000000"},
          {"/added_tokens/0", with("id", 7), "field \"added_tokens[0]\": id 7 of token \"<|end|>\" belongs to"},
          {"/added_tokens/0", with("content", "ab"), "field \"added_tokens[0]\": token \"ab\" has id 259, but 257"},
          {"/added_tokens/0", with("special", 1), "field \"added_tokens[0].special\": expected boolean"},
          {"/added_tokens/0", with("lstrip", "no"), "field \"added_tokens[0].lstrip\": expected boolean"},
          {"/added_tokens/0", with("content", std::string(5000, 'x')), "field \"added_tokens[0].content\": 5000 bytes"},
          {"/added_tokens/1", token, "field \"added_tokens[1]\": token \"<|end|>\" occurs twice"},
          {"/added_tokens/1", with("content", "other"), "field \"added_tokens[1]\": id 259 occurs twice"},
      });
}

TEST(HostileTokenizer, PartsOfUnknownKinds) {
  expect_refused(
      byte_level_json(),
      {
          {"/normalizer", {{"type", "BertNormalizer"}}, "field \"normalizer\": normalizer type \"BertNormalizer\""},
          {"/normalizer", "NFC", "field \"normalizer\": expected object"},
          {"/normalizer", json::object(), "field \"normalizer.type\" is missing"},
          {"/normalizer",
           {{"type", "Sequence"}, {"normalizers", {{{"type", "Nmt"}}}}},
           "field \"normalizer.normalizers[0]\""},
          {"/normalizer", {{"type", "Prepend"}}, "field \"normalizer.prepend\" is missing"},
          {"/normalizer", {{"type", "Replace"}, {"pattern", "x"}, {"content", ""}}, "field \"normalizer.pattern\""},
          {"/normalizer", {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", ""}}, "pattern is empty"},
          {"/pre_tokenizer", {{"type", "BertPreTokenizer"}}, "pre-tokenizer type \"BertPreTokenizer\""},
          {"/pre_tokenizer", json::array(), "field \"pre_tokenizer\": expected object"},
          {"/pre_tokenizer/use_regex", "x", "field \"pre_tokenizer.use_regex\": expected boolean"},
          {"/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "ab"}}, "field \"pre_tokenizer.replacement\""},
          {"/pre_tokenizer",
           {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "last"}},
           "field \"pre_tokenizer.prepend_scheme\""},
          {"/pre_tokenizer",
           {{"type", "Split"}, {"pattern", {{"String", "a"}}}},
           "field \"pre_tokenizer.behavior\" is missing"},
          {"/pre_tokenizer",
           {{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Odd"}},
           "field \"pre_tokenizer.behavior\": split behavior \"Odd\""},
          {"/post_processor", {{"type", "RobertaProcessing"}}, "post-processor type \"RobertaProcessing\""},
          {"/post_processor", {{"type", "BertProcessing"}}, "post-processor type \"BertProcessing\""},
          {"/decoder", {{"type", "WordPiece"}}, "field \"decoder\": decoder type \"WordPiece\""},
          {"/decoder", {{"type", "Sequence"}}, "field \"decoder.decoders\" is missing"},
          {"/decoder",
           {{"type", "Sequence"}, {"decoders", {{{"type", "Fuse"}}, {{"type", "ByteFallback"}}}}},
           "field \"decoder.decoders[1]\": decoder type \"ByteFallback\" after the tokens were fused"},
          {"/decoder",
           {{"type", "Strip"}, {"content", " "}, {"start", -1}, {"stop", 0}},
           "field \"decoder.start\": value -1"},
          {"/decoder",
           {{"type", "Strip"}, {"content", ""}, {"start", 1}, {"stop", 0}},
           "field \"decoder.content\": expected one character"},
      });
}

TEST(HostileTokenizer, Templates) {
  const json text_b = {{"Sequence", {{"id", "B"}, {"type_id", 0}}}};
  expect_refused(
      byte_fallback_json(),
      {
          {"/post_processor/single", nullptr, "field \"post_processor.single\": expected array"},
          {"/post_processor/single/0", 5, "field \"post_processor.single[0]\": expected object"},
          {"/post_processor/single/1", text_b, "field \"post_processor.single[1].Sequence.id\""},
          {"/post_processor/special_tokens", json::object(), "field \"post_processor.special_tokens.<s>\" is missing"},
          {"/post_processor/special_tokens/<s>/ids", json::array({999}), "special_tokens.<s>.ids[0]\": value 999"},
          {"/post_processor/special_tokens/<s>/ids", json::array({-1}), "special_tokens.<s>.ids[0]\": value -1"},
          {"/post_processor/special_tokens/<s>/ids", json::array({"1"}),
           "special_tokens.<s>.ids[0]\": expected integer"},
      });
}

TEST(HostileTokenizer, PipelinesThatGrow) {
  const auto repeat = [](const json& step, int count) { return json(std::vector<json>(count, step)); };
  const auto replace = [](const char* from, int count) {
    return json{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", std::string(count, *from)}};
  };
  const json text_a = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}};
  const json nested = {{"type", "Sequence"}, {"normalizers", json::array({{{"type", "NFC"}}})}};
  expect_refused(
      byte_level_json(),
      {
          {"/normalizer", {{"type", "Sequence"}, {"normalizers", repeat({{"type", "NFC"}}, 65)}}, "65 steps, at most"},
          {"/normalizer", {{"type", "Sequence"}, {"normalizers", {nested}}}, "a Sequence inside another"},
          {"/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", repeat(byte_level, 5000)}}, "5000 steps"},
          {"/decoder", {{"type", "Sequence"}, {"decoders", repeat({{"type", "Fuse"}}, 65)}}, "65 steps"},
      });
  expect_refused(byte_fallback_json(), {{"/post_processor/single", {text_a, text_a}, "the text occurs twice"},
                                        {"/post_processor/single", repeat(text_a, 100), "100 steps"}});

  // What only shows with a text: a few letters become gigabytes.
  const auto error_of = [](const json& file, const auto& use) {
    const test::TemporaryDirectory directory;
    const auto tokenizer = Tokenizer::load(directory.write("tokenizer.json", file.dump()));
    try {
      use(*tokenizer);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  json growing = byte_level_json();
  growing["normalizer"] = {{"type", "Sequence"}, {"normalizers", repeat(replace("a", 1000), 12)}};
  EXPECT_NE(error_of(growing, [](const Tokenizer& t) { t.encode("aaaa"); }).find("replacing makes more than"),
            std::string::npos);
  growing = byte_level_json();
  growing["decoder"] = {{"type", "Sequence"}, {"decoders", repeat(replace("a", 1000), 12)}};
  EXPECT_NE(error_of(growing, [](const Tokenizer& t) { t.decode(t.encode("aaaa")); }).find("replacing makes more than"),
            std::string::npos);
}

TEST(HostileTokenizer, RegularExpressions) {
  const std::string where = "field \"pre_tokenizer.pattern.Regex\"";
  std::vector<Mutation> mutations;
  const char* const kBad[] = {
      "(",        ")",         "[a",     "a**",     "*a",          "[[a]b]",    "[a&&b]",   "\\b",   "\\h",
      "\\R",      "\\1",       "\\k<n>", "(?<n>a)", "(?P<n>a)",    "(*ACCEPT)", "(?C1)",    "(?R)",  "(?x:a)",
      "a(?i)b",   "\\p{Nope}", "\\pL",   "\\p{",    "\\x{110000}", "\\xff",     "\\",       "a{3}+", "a{2}?",
      "a{99999}", "[z-a]",     "[]",     "(?#x)",   "\\Q",         "\\C",       "(?<=a*)b", "\\u12", "[[:alpha:]]",
  };
  for (const char* regex : kBad) mutations.push_back({"/pre_tokenizer", regex_split(regex), where.c_str()});
  const std::string open_groups = std::string(5000, '(') + std::string(5000, ')');
  const std::string long_pattern(1 << 20, 'a');
  mutations.push_back({"/pre_tokenizer", regex_split(open_groups), where.c_str()});
  mutations.push_back({"/pre_tokenizer", regex_split(long_pattern), where.c_str()});
  mutations.push_back({"/pre_tokenizer", regex_split("(?:(?:(?:a{900}){900}){900})"), where.c_str()});
  expect_refused(byte_level_json(), mutations);
}

TEST(HostileTokenizer, CatastrophicExpressionsGiveUp) {
  const std::string text = std::string(3000, 'a') + "!b";
  for (const char* regex : {"(?:a|aa)+$", "(?:a|a)*b", "(?:a+)+b", "(a?){40}a{40}b", "(?:a*)*b|a", "(?:a|a){22}c|a"}) {
    json file = byte_level_json();
    file["pre_tokenizer"] = regex_split(regex);
    const auto tokenizer = test::load_tokenizer(file);
    const auto start = std::chrono::steady_clock::now();
    try {
      tokenizer->encode(text);
      ADD_FAILURE() << regex << " did not give up";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("field \"pre_tokenizer.pattern.Regex\""), std::string::npos)
          << error.what();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5)) << regex;
  }
}

TEST(HostileTokenizer, NestingAndDuplicateNames) {
  std::string nested, closing;
  for (int i = 0; i < 10'000; ++i) {
    nested += "{\"type\":\"Sequence\",\"normalizers\":[";
    closing += "]}";
  }
  nested += "{\"type\":\"NFC\"}" + closing;
  std::string text = byte_level_json().dump();
  const std::string null_normalizer = "\"normalizer\":null";
  const std::size_t place = text.find(null_normalizer);
  ASSERT_NE(place, std::string::npos);
  std::optional<Error> error = try_out(text.replace(place, null_normalizer.size(), "\"normalizer\":" + nested));
  ASSERT_TRUE(error);
  EXPECT_NE(std::string(error->what()).find("nested deeper"), std::string::npos) << error->what();

  text = byte_level_json().dump();
  const std::size_t token = text.find("\"ab\":257");
  ASSERT_NE(token, std::string::npos);
  error = try_out(text.insert(token, "\"ab\":12,"));
  ASSERT_TRUE(error);
  EXPECT_NE(std::string(error->what()).find("name \"ab\" occurs twice"), std::string::npos) << error->what();
}

TEST(HostileTokenizer, TruncatedAtEveryFewBytes) {
  for (const json& base : {byte_level_json(), byte_fallback_json()}) {
    const std::string text = base.dump();
    for (std::size_t length = 0; length < text.size(); length += 37) {
      const std::optional<Error> error = try_out(text.substr(0, length));
      ASSERT_TRUE(error) << length;
      EXPECT_EQ(error->code(), ErrorCode::kInvalidFile);
    }
  }
}

void collect_pointers(const json& value, const json::json_pointer& at, std::vector<json::json_pointer>& out) {
  out.push_back(at);
  std::size_t visited = 0;
  if (value.is_object()) {
    for (const auto& [name, member] : value.items()) {
      if (++visited <= 12) collect_pointers(member, at / name, out);
    }
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) collect_pointers(value[i], at / i, out);
  }
}

TEST(HostileTokenizer, EveryFieldWithEveryWrongType) {
  const json values[] = {nullptr,
                         true,
                         -1,
                         3,
                         1e300,
                         std::int64_t{1} << 31,
                         "x",
                         "",
                         json::array(),
                         json::object(),
                         json::array({json::array()}),
                         {{"type", "ByteLevel"}}};
  int refused = 0;
  for (const json& base : {byte_level_json(), byte_fallback_json()}) {
    std::vector<json::json_pointer> pointers;
    collect_pointers(base, json::json_pointer(), pointers);
    for (const json::json_pointer& pointer : pointers) {
      for (const json& value : values) {
        json file = base;
        file[pointer] = value;
        refused += try_out(file.dump()).has_value();
      }
    }
  }
  EXPECT_GT(refused, 500);
}

TEST(HostileTokenizer, RandomFaultsNeverCrash) {
  test::Random random(11);
  int refused = 0;
  for (const json& base : {byte_level_json(), byte_fallback_json()}) {
    const std::string text = base.dump();
    for (int round = 0; round < 400; ++round) {
      refused += try_out(test::mutate_bytes(text, random)).has_value();
      refused += try_out(test::mutate_json(base, random)).has_value();
    }
  }
  EXPECT_GT(refused, 400);
}

}  // namespace
}  // namespace fastspec
