// The fingerprint of a model: its value by definition, what changes it, what does not, and what is refused.
#include <fastspec/fingerprint.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "support/checkpoint_files.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace fastspec::test {
namespace {

constexpr std::size_t kSample = 4096;
constexpr std::size_t kSampled = 64 * kSample;  // files with more data are sampled

/// FNV-1a by its definition.
std::string digits_of(const std::string& bytes) {
  std::uint64_t state = 14695981039346656037u;
  for (const char byte : bytes) {
    state ^= static_cast<unsigned char>(byte);
    state *= 1099511628211u;
  }
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(state));
  return text;
}

std::string data_of(std::size_t size) {
  std::string data(size, '\0');
  for (std::size_t i = 0; i < size; ++i) data[i] = static_cast<char>(i * 31 + i / 257);
  return data;
}

class FingerprintTest : public testing::Test {
 protected:
  std::string fingerprint() { return model_fingerprint(directory_.path().string()); }
  TemporaryDirectory directory_;
};

TEST_F(FingerprintTest, IsTheHashOfHeadersAndDataInOrderOfNames) {
  EXPECT_EQ(digits_of("foobar"), "85944171f73967e8");  // a published value of the hash
  std::string all;
  for (char name = 'a'; name < 'm'; ++name) all += "{\"" + std::string(1, name) + "\":1}  data" + name;
  for (const char name : std::string("gcalbkdjeifh")) {  // a directory gives them in an order of its own
    const std::string letter(1, name);
    directory_.write(letter + ".safetensors", frame_safetensors("{\"" + letter + "\":1}  ", "data" + letter));
  }
  directory_.write("config.json", "{}");
  EXPECT_EQ(fingerprint(), digits_of(all));
}

TEST_F(FingerprintTest, SamplesLargeFilesFromFirstToLastByte) {
  const std::string whole = data_of(kSampled);
  directory_.write("model.safetensors", frame_safetensors("{}", whole));
  EXPECT_EQ(fingerprint(), digits_of("{}" + whole));

  const std::string data = data_of(3 * kSampled + 1234);
  std::string sampled = "{}";
  for (std::size_t i = 0; i < 64; ++i) sampled += data.substr(i * (data.size() - kSample) / 63, kSample);
  directory_.write("model.safetensors", frame_safetensors("{}", data));
  EXPECT_EQ(fingerprint(), digits_of(sampled));
  for (const std::size_t changed : {std::size_t{0}, data.size() - 1}) {
    std::string other = data;
    other[changed] ^= 1;
    directory_.write("model.safetensors", frame_safetensors("{}", other));
    EXPECT_NE(fingerprint(), digits_of(sampled)) << "byte " << changed;
  }
}

TEST_F(FingerprintTest, RefusesWhatIsNoModel) {
  const std::string path = directory_.path().string();
  expect_error(ErrorCode::kNotFound, {path, "*.safetensors"}, [&] { fingerprint(); });
  expect_error(ErrorCode::kNotFound, {path + "/absent"}, [&] { model_fingerprint(path + "/absent"); });
  directory_.write("model.safetensors", "short");
  expect_error(ErrorCode::kInvalidFile, {"model.safetensors", "5 bytes"}, [&] { fingerprint(); });
  std::string framed = frame_safetensors("{}", "");
  framed[7] = '\x7f';
  directory_.write("model.safetensors", framed);
  expect_error(ErrorCode::kInvalidFile, {"model.safetensors", "past the end"}, [&] { fingerprint(); });
  directory_.remove("model.safetensors");
  std::filesystem::create_directory(directory_.path() / "model.safetensors");
  expect_error(ErrorCode::kNotFound, {"model.safetensors", "no regular file"}, [&] { fingerprint(); });
}

}  // namespace
}  // namespace fastspec::test
