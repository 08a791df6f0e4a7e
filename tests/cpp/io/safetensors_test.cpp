// Safetensors files: what valid ones give, and that each kind of fault is refused by its name.
#include "io/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "support/allocation_watch.h"
#include "support/checkpoint_files.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace fastspec::test {
namespace {

class SafetensorsTest : public testing::Test {
 protected:
  void write(const std::string& content) { directory_.write("model.safetensors", content); }
  SafetensorsDirectory open() { return SafetensorsDirectory(directory_.path()); }

  /// Expects that a file with this header and `data_bytes` bytes of data is refused.
  void refuses(const std::string& header, std::size_t data_bytes, std::initializer_list<std::string> parts,
               ErrorCode code = ErrorCode::kInvalidFile) {
    write(frame_safetensors(header, std::string(data_bytes, 'x')));
    const std::string message = expect_error(code, parts, [&] { open(); });
    EXPECT_NE(message.find("model.safetensors"), std::string::npos) << message;
  }

  TemporaryDirectory directory_;
};

TEST_F(SafetensorsTest, GivesTensorsOfOneFile) {
  const TestTensor matrix = test_tensor("a.weight", "BF16", {2, 3});
  const TestTensor scalar = test_tensor("scalar", "F32", {});
  const TestTensor empty = test_tensor("empty", "F16", {0, 7});
  write(safetensors_file({matrix, empty, scalar}));
  const SafetensorsDirectory files = open();
  EXPECT_EQ(files.names(), (std::vector<std::string>{"a.weight", "empty", "scalar"}));
  const TensorInfo* info = files.find("a.weight");
  ASSERT_NE(info, nullptr);
  EXPECT_EQ(info->dtype, DType::kBFloat16);
  EXPECT_EQ(info->shape_text(), "[2, 3]");
  EXPECT_EQ(info->num_elements(), 6);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(info->data.data()), info->data.size()), matrix.data);
  EXPECT_EQ(info->file, (directory_.path() / "model.safetensors").string());
  EXPECT_EQ(files.find("scalar")->num_elements(), 1);
  EXPECT_EQ(files.find("empty")->data.size(), 0u);
  EXPECT_EQ(files.find("absent"), nullptr);
}

TEST_F(SafetensorsTest, AcceptsMetadataPaddingAndNoTensors) {
  write(frame_safetensors(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}   )",
                          "abcd"));
  EXPECT_EQ(open().names(), std::vector<std::string>{"a"});
  write(frame_safetensors("{}", ""));
  EXPECT_TRUE(open().names().empty());
}

TEST_F(SafetensorsTest, DataSurvivesAMove) {
  write(safetensors_file({test_tensor("a", "F32", {4})}));
  SafetensorsDirectory first = open();
  const TensorInfo* info = first.find("a");
  const SafetensorsDirectory second = std::move(first);
  EXPECT_EQ(second.find("a"), info);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(info->data.data()), 16), test_tensor("a", "F32", {4}).data);
}

TEST_F(SafetensorsTest, RefusesOtherDtypesWhenFoundOnly) {
  write(frame_safetensors(R"({"i":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})", "12345678"));
  const SafetensorsDirectory files = open();
  EXPECT_EQ(files.names(), std::vector<std::string>{"i"});
  expect_error(ErrorCode::kUnsupported, {"model.safetensors", "\"i\"", "I64"}, [&] { files.find("i"); });
}

TEST_F(SafetensorsTest, RefusesWrongHeaderLengths) {
  write("");
  expect_error(ErrorCode::kInvalidFile, {"model.safetensors", "0 bytes"}, [&] { open(); });
  write("1234567");
  expect_error(ErrorCode::kInvalidFile, {"model.safetensors", "7 bytes"}, [&] { open(); });
  const std::string lengths[] = {std::string("\x03\0\0\0\0\0\0\0", 8), std::string(8, '\xFF'),
                                 std::string("\0\0\0\0\0\0\0\x80", 8)};
  for (const std::string& length : lengths) {
    write(length + "{}");
    const AllocationWatch watch;
    expect_error(ErrorCode::kInvalidFile, {"header length", "past the end", "(10 bytes)"}, [&] { open(); });
    EXPECT_LT(watch.largest(), 10000u);
  }
  write(frame_safetensors("{" + std::string((16 << 20) + 1, ' ') + "}", ""));
  expect_error(ErrorCode::kInvalidFile, {"header length 16777219", "limit of 16777216"}, [&] { open(); });
}

TEST_F(SafetensorsTest, RefusesMalformedHeaders) {
  refuses("", 0, {"does not start with"});
  refuses(" {}", 0, {"does not start with"});
  refuses("[]", 0, {"does not start with"});
  refuses("{\"a\":", 0, {"malformed JSON"});
  refuses("{} x", 0, {"malformed JSON"});
  refuses(
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
      4, {"\"a\" occurs twice"});
  refuses(R"({"a":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}})", 4, {"\"dtype\" occurs twice"});
  refuses("{\"\xFF\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, {"malformed JSON", "UTF-8"});
  refuses(R"({"a":)" + std::string(50000, '[') + std::string(50000, ']') + "}", 0, {"nested deeper than 8"});
  refuses(R"({"a":7})", 0, {"tensor \"a\"", "expected object, got integer"});
  refuses(R"({"__metadata__":{"format":3}})", 0, {"__metadata__.format", "expected string"});
  refuses(R"({"__metadata__":[]})", 0, {"__metadata__", "expected object"});
}

TEST_F(SafetensorsTest, RefusesWrongEntries) {
  refuses(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, {"tensor \"a\"", "\"dtype\" is missing"});
  refuses(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, {"tensor \"a\"", "\"shape\" is missing"});
  refuses(R"({"a":{"dtype":"F32","shape":[1]}})", 4, {"tensor \"a\"", "\"data_offsets\" is missing"});
  refuses(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1}})", 4, {"unknown field \"more\""});
  refuses(R"({"a":{"dtype":"Q4","shape":[1],"data_offsets":[0,4]}})", 4, {"unknown dtype \"Q4\""},
          ErrorCode::kUnsupported);
  refuses(R"({"a":{"dtype":3,"shape":[1],"data_offsets":[0,4]}})", 4, {"\"dtype\"", "expected string"});
  refuses(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, {"\"shape[0]\"", "-1"});
  refuses(R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, {"\"shape[0]\"", "expected integer"});
  refuses(R"({"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})", 4, {"\"shape[0]\"", "expected integer"});
  refuses(R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", 4, {"\"shape\"", "expected array"});
  refuses(R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", 4, {"rank 9"},
          ErrorCode::kUnsupported);
  refuses(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1, {"whole bytes"});
}

TEST_F(SafetensorsTest, RefusesShapesThatOverflow) {
  for (const std::string shape : {"[4611686018427387904,4]", "[4294967296,4294967296]", "[9223372036854775807]",
                                  "[9223372036854775807,9223372036854775807,0]"}) {
    refuses(R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":[0,0]}})", 0, {"tensor \"a\"", "overflows"});
  }
  refuses(R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4,
          {"\"shape[0]\"", "18446744073709551615"});
}

TEST_F(SafetensorsTest, RefusesWrongOffsets) {
  refuses(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, {"expected [begin, end]"});
  refuses(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 8, {"expected [begin, end]"});
  refuses(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7, {"\"data_offsets[1]\"", "8", "[0, 7]"});
  refuses(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, {"\"data_offsets[1]\""});
  refuses(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", 4, {"\"data_offsets[0]\"", "-4"});
  refuses(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4.5]}})", 5, {"\"data_offsets[1]\"", "integer"});
  refuses(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, {"[2] of F32 takes 8 bytes", "cover 4"});
  refuses(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,18446744073709551615]}})", 4,
          {"\"data_offsets[0]\""});
}

TEST_F(SafetensorsTest, RefusesOverlapAndGaps) {
  const auto entry = [](const std::string& name, int begin, int end) {
    return "\"" + name + "\":{\"dtype\":\"F32\",\"shape\":[" + std::to_string((end - begin) / 4) +
           "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
  };
  refuses("{" + entry("a", 0, 8) + "," + entry("b", 4, 12) + "}", 12, {"\"a\" and \"b\" overlap at data byte 4"});
  refuses("{" + entry("a", 0, 8) + "," + entry("b", 0, 8) + "}", 8, {"overlap at data byte 0"});
  refuses("{" + entry("a", 0, 8) + "," + entry("b", 4, 4) + "}", 8, {"overlap at data byte 4"});
  refuses("{" + entry("a", 4, 8) + "}", 8, {"bytes 0 to 4", "belong to no tensor"});
  refuses("{" + entry("a", 0, 4) + "," + entry("b", 8, 12) + "}", 12, {"bytes 4 to 8", "\"b\""});
  refuses("{" + entry("a", 0, 4) + "}", 9, {"last 5 bytes"});
  refuses("{}", 1, {"last 1 bytes"});
}

TEST_F(SafetensorsTest, RefusesWhatIsNoFile) {
  expect_error(ErrorCode::kNotFound, {directory_.path().string(), "neither"}, [&] { open(); });
  expect_error(ErrorCode::kNotFound, {"/nonexistent-directory"},
               [&] { SafetensorsDirectory("/nonexistent-directory"); });
  std::filesystem::create_directory(directory_.path() / "model.safetensors");
  expect_error(ErrorCode::kNotFound, {"model.safetensors", "no regular file"}, [&] { open(); });
  directory_.remove("model.safetensors");
  ASSERT_EQ(::mkfifo((directory_.path() / "model.safetensors").c_str(), 0600), 0);
  expect_error(ErrorCode::kNotFound, {"model.safetensors", "no regular file"}, [&] { open(); });  // and does not wait
}

/// Two shards, "one" with tensor a and "two" with tensor b, and their index.
class ShardsTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_.write("one.safetensors", safetensors_file({test_tensor("a", "F32", {3})}));
    directory_.write("two.safetensors", safetensors_file({test_tensor("b", "F16", {2, 2})}));
  }
  void index(const std::string& weight_map) {
    directory_.write("model.safetensors.index.json",
                     R"({"metadata":{"total_size":20},"weight_map":)" + weight_map + "}");
  }
  void refuses(const std::string& weight_map, std::initializer_list<std::string> parts,
               ErrorCode code = ErrorCode::kInvalidFile) {
    index(weight_map);
    expect_error(code, parts, [&] { SafetensorsDirectory files(directory_.path()); });
  }
  TemporaryDirectory directory_;
};

TEST_F(ShardsTest, GivesTensorsOfAllShards) {
  index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  const SafetensorsDirectory files(directory_.path());
  EXPECT_EQ(files.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_NE(files.find("a")->file.find("one.safetensors"), std::string::npos);
  EXPECT_EQ(files.find("b")->shape_text(), "[2, 2]");
}

TEST_F(ShardsTest, ReadsShardsInFoldersAndThroughLinks) {
  directory_.write("part/three.safetensors", safetensors_file({test_tensor("c", "F32", {1})}));
  const TemporaryDirectory elsewhere;
  const auto blob = elsewhere.write("blob", safetensors_file({test_tensor("d", "F32", {1})}));
  std::filesystem::create_symlink(blob, directory_.path() / "four.safetensors");
  index(R"({"c":"part/three.safetensors","d":"four.safetensors"})");
  EXPECT_EQ(SafetensorsDirectory(directory_.path()).names(), (std::vector<std::string>{"c", "d"}));
}

TEST_F(ShardsTest, PrefersTheSingleFile) {
  index(R"({"a":"one.safetensors"})");
  directory_.write("model.safetensors", safetensors_file({test_tensor("whole", "F32", {1})}));
  EXPECT_EQ(SafetensorsDirectory(directory_.path()).names(), std::vector<std::string>{"whole"});
}

TEST_F(ShardsTest, RefusesNamesThatLeaveTheDirectory) {
  for (const std::string name : {"../one.safetensors", "/etc/passwd", "x/../../one.safetensors", "..", "", ".",
                                 "..\\\\one.safetensors", "one.safetensors\\u0000x", "./one.safetensors"}) {
    refuses(R"({"a":")" + name + R"(","b":"two.safetensors"})", {"index.json", "weight_map.a", "no file name inside"});
  }
  refuses(R"({"a":")" + std::string(5000, 'n') + R"("})", {"index.json", "tensor \"a\"", "is no file"},
          ErrorCode::kNotFound);
}

TEST_F(ShardsTest, RefusesIndexesThatContradictTheShards) {
  refuses(R"({"a":"one.safetensors","b":"absent.safetensors"})", {"index.json", "absent.safetensors", "\"b\""},
          ErrorCode::kNotFound);
  refuses(R"({"a":"one.safetensors","b":"one.safetensors"})", {"index.json", "\"b\"", "does not hold it"});
  refuses(R"({"a":"two.safetensors","b":"one.safetensors"})", {"index.json", "does not hold it"});
  refuses(R"({"a":"one.safetensors","b":"two.safetensors","c":"two.safetensors"})", {"index.json", "\"c\""});
  directory_.write("two.safetensors",
                   safetensors_file({test_tensor("b", "F16", {2, 2}), test_tensor("extra", "F32", {1})}));
  refuses(R"({"a":"one.safetensors","b":"two.safetensors"})", {"two.safetensors", "\"extra\"", "not named by"});
  directory_.write("two.safetensors", safetensors_file({test_tensor("b", "F16", {2}), test_tensor("a", "F32", {1})}));
  refuses(R"({"a":"one.safetensors","b":"two.safetensors"})",
          {"two.safetensors", "\"a\"", "is also in", "one.safetensors"});
}

TEST_F(ShardsTest, RefusesMalformedIndexes) {
  refuses("{}", {"index.json", "weight_map", "names no tensor"});
  refuses("[]", {"index.json", "weight_map", "expected object"});
  refuses("null", {"index.json", "weight_map"});
  refuses(R"({"a":3})", {"index.json", "weight_map.a", "expected string"});
  refuses(R"({"a":"one.safetensors","a":"two.safetensors"})", {"index.json", "\"a\" occurs twice"});
  directory_.write("model.safetensors.index.json", "{}");
  expect_error(ErrorCode::kInvalidFile, {"index.json", "\"weight_map\" is missing"},
               [&] { SafetensorsDirectory files(directory_.path()); });
  directory_.remove("model.safetensors.index.json");
  std::filesystem::create_directory(directory_.path() / "model.safetensors.index.json");
  expect_error(ErrorCode::kInvalidFile, {"index.json"}, [&] { SafetensorsDirectory files(directory_.path()); });
}

}  // namespace
}  // namespace fastspec::test
