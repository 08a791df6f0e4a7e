// Hundreds of broken safetensors files and indexes: each loads or is refused by an Error that names the file. Nothing
// crashes and nothing is allocated in a claimed size.
#include <fastspec/error.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "io/safetensors.h"
#include "support/allocation_watch.h"
#include "support/checkpoint_files.h"
#include "support/mutations.h"
#include "support/temporary_directory.h"

namespace fastspec::test {
namespace {

constexpr std::size_t kHeaderLengthBytes = 8;
// What parsing a file of ~3 KB takes; every hostile size in the mutations is far above it.
constexpr std::size_t kAllocationLimit = 100'000;

struct Tally {
  int cases = 0;
  int refused = 0;
};

/// Reads everything that the directory offers. Counts, and checks what must hold in either outcome.
void open_hostile(const std::filesystem::path& directory, const std::string& what, Tally& tally) {
  ++tally.cases;
  const AllocationWatch watch;
  try {
    const SafetensorsDirectory files(directory);
    unsigned sum = 0;
    for (const std::string& name : files.names()) {
      const TensorInfo* tensor = files.find(name);
      ASSERT_NE(tensor, nullptr) << what;
      ASSERT_EQ(tensor->data.size(), static_cast<std::size_t>(tensor->num_elements()) * size_of(tensor->dtype)) << what;
      for (std::byte byte : tensor->data) sum += std::to_integer<unsigned>(byte);
    }
    EXPECT_LT(sum, 1u << 30) << what;  // the bytes were read
  } catch (const Error& error) {
    ++tally.refused;
    EXPECT_NE(std::string(error.what()).find(directory.string()), std::string::npos) << what << ": " << error.what();
    EXPECT_NE(error.code(), ErrorCode::kInternal) << what << ": " << error.what();
  }
  EXPECT_LT(watch.largest(), kAllocationLimit) << what;
}

TEST(HostileSafetensors, MutatedHeadersLoadOrAreRefused) {
  const std::string valid = safetensors_file(tiny_tensors());
  const auto header_bytes = static_cast<std::size_t>(static_cast<unsigned char>(valid[0])) +
                            256 * static_cast<std::size_t>(static_cast<unsigned char>(valid[1]));
  const std::string header = valid.substr(kHeaderLengthBytes, header_bytes);
  const std::string data = valid.substr(kHeaderLengthBytes + header_bytes);
  const nlohmann::json document = nlohmann::json::parse(header);

  const TemporaryDirectory directory;
  Tally bytes, frames, documents;
  Random random(20240611);
  for (int i = 0; i < 300; ++i) {
    const std::string what = "case " + std::to_string(i);
    // Faults anywhere before the data, the header's length included.
    const std::string front = mutate_bytes(valid.substr(0, kHeaderLengthBytes + header_bytes), random);
    directory.write("model.safetensors", front + data);
    open_hostile(directory.path(), "bytes " + what, bytes);
    // Faults in a header whose length is right, so that they reach the checks behind the frame.
    directory.write("model.safetensors", frame_safetensors(mutate_bytes(header, random), data));
    open_hostile(directory.path(), "framed " + what, frames);
    directory.write("model.safetensors", frame_safetensors(mutate_json(document, random), data));
    open_hostile(directory.path(), "json " + what, documents);
  }
  for (const Tally& tally : {bytes, frames, documents}) {
    EXPECT_EQ(tally.cases, 300);
    EXPECT_GT(tally.refused, 200);  // a renamed tensor or a flipped bit in a name still loads
  }
}

TEST(HostileSafetensors, EveryTruncationIsRefused) {
  const std::string valid = safetensors_file({test_tensor("a", "F32", {3}), test_tensor("b", "BF16", {5})});
  const TemporaryDirectory directory;
  Tally tally;
  for (std::size_t size = 0; size < valid.size(); ++size) {
    directory.write("model.safetensors", valid.substr(0, size));
    open_hostile(directory.path(), "cut to " + std::to_string(size), tally);
  }
  EXPECT_EQ(tally.refused, tally.cases);
}

TEST(HostileSafetensors, MutatedIndexesLoadOrAreRefused) {
  const TemporaryDirectory directory;
  directory.write("one.safetensors", safetensors_file({test_tensor("a", "F32", {3}), test_tensor("b", "F32", {2})}));
  directory.write("two.safetensors", safetensors_file({test_tensor("c", "F16", {2, 2})}));
  const nlohmann::json index = {
      {"metadata", {{"total_size", 28}}},
      {"weight_map", {{"a", "one.safetensors"}, {"b", "one.safetensors"}, {"c", "two.safetensors"}}}};
  Tally bytes, documents;
  Random random(7);
  for (int i = 0; i < 200; ++i) {
    directory.write("model.safetensors.index.json", mutate_bytes(index.dump(2), random));
    open_hostile(directory.path(), "bytes case " + std::to_string(i), bytes);
    directory.write("model.safetensors.index.json", mutate_json(index, random));
    open_hostile(directory.path(), "json case " + std::to_string(i), documents);
  }
  EXPECT_GT(bytes.refused, 100);  // whitespace and the metadata are free to change
  EXPECT_GT(documents.refused, 100);
}

}  // namespace
}  // namespace fastspec::test
