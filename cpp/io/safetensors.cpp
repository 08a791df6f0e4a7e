// A model directory's tensors: which files hold them, and one table over all of them.
#include "io/safetensors.h"

#include <cstring>
#include <map>
#include <set>

#include "base/check.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "io/safetensors_header.h"

namespace fastspec {

namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr std::size_t kMaxIndexBytes = std::size_t{32} << 20;

std::optional<DType> known_dtype(const std::string& name) {
  if (name == "F32") return DType::kFloat32;
  if (name == "BF16") return DType::kBFloat16;
  if (name == "F16") return DType::kFloat16;
  return std::nullopt;
}

/// A shard's name must stay inside the directory. Symbolic links are followed: download caches are made of them.
void check_shard_name(const std::string& name, const JsonView& view) {
  bool inside = !name.empty() && name.front() != '/';
  for (char c : name) inside = inside && static_cast<unsigned char>(c) >= 0x20 && c != '\\' && c != 0x7F;
  for (const fs::path& part : fs::path(name)) inside = inside && part != ".." && part != ".";
  if (!inside) view.refuse(ErrorCode::kInvalidFile, "\"", shown(name), "\" is no file name inside the directory");
}

/// Tensor name -> shard name.
std::map<std::string, std::string, std::less<>> read_index(const fs::path& path) {
  const Json document = parse_json_file(path, {.max_bytes = kMaxIndexBytes, .max_depth = 8});
  const JsonView weight_map = JsonView(document, path.string()).at("weight_map");
  std::map<std::string, std::string, std::less<>> shards;
  for (const std::string& tensor : weight_map.names()) {
    const JsonView entry = weight_map.at(tensor);
    check_shard_name(entry.as_string(), entry);
    shards.emplace(tensor, entry.as_string());
  }
  if (shards.empty()) weight_map.refuse(ErrorCode::kInvalidFile, "names no tensor");
  return shards;
}

}  // namespace

struct SafetensorsDirectory::Impl {
  struct Tensor {
    TensorInfo info;
    std::string stored_dtype;
    bool usable = false;  // stored_dtype is a DType
  };

  std::vector<MappedFile> files;
  std::map<std::string, Tensor, std::less<>> tensors;

  void add_file(const fs::path& path) {
    MappedFile file(path);
    for (SafetensorsEntry& entry : read_safetensors_header(file.bytes(), path.string())) {
      Tensor tensor;
      const std::optional<DType> dtype = known_dtype(entry.dtype);
      tensor.usable = dtype.has_value();
      tensor.stored_dtype = std::move(entry.dtype);
      tensor.info.name = entry.name;
      tensor.info.file = path.string();
      tensor.info.dtype = dtype.value_or(DType::kFloat32);
      tensor.info.shape = std::move(entry.shape);
      tensor.info.data = file.bytes().subspan(entry.begin, entry.end - entry.begin);
      const auto [place, inserted] = tensors.emplace(std::move(entry.name), std::move(tensor));
      if (!inserted) {
        fail(ErrorCode::kInvalidFile, path.string(), ": tensor \"", shown(place->first), "\" is also in ",
             place->second.info.file);
      }
    }
    files.push_back(std::move(file));
  }

  void add_shards(const fs::path& directory, const fs::path& index_path) {
    const auto index = read_index(index_path);
    std::set<std::string> shard_names;
    for (const auto& [tensor, shard] : index) {
      if (!shard_names.insert(shard).second) continue;
      std::error_code status;  // also set where the name is too long for the file system
      if (!fs::is_regular_file(directory / shard, status)) {
        fail(ErrorCode::kNotFound, index_path.string(), ": names shard \"", shown(shard), "\" for tensor \"",
             shown(tensor), "\", but ", (directory / shard).string(), " is no file");
      }
      add_file(directory / shard);
    }
    for (const auto& [tensor, shard] : index) {
      const auto found = tensors.find(tensor);
      if (found == tensors.end() || found->second.info.file != (directory / shard).string()) {
        fail(ErrorCode::kInvalidFile, index_path.string(), ": places tensor \"", shown(tensor), "\" in \"",
             shown(shard), "\", which does not hold it");
      }
    }
    for (const auto& [name, tensor] : tensors) {
      if (!index.contains(name)) {
        fail(ErrorCode::kInvalidFile, tensor.info.file, ": tensor \"", shown(name), "\" is not named by ", kIndexFile);
      }
    }
  }
};

SafetensorsDirectory::SafetensorsDirectory(const fs::path& directory) : impl_(std::make_unique<Impl>()) {
  const fs::path single = directory / kSingleFile;
  const fs::path index = directory / kIndexFile;
  std::error_code status;  // an unreadable place counts as absent and is named below
  if (fs::exists(single, status)) {
    impl_->add_file(single);
  } else if (fs::exists(index, status)) {
    impl_->add_shards(directory, index);
  } else {
    fail(ErrorCode::kNotFound, directory.string(), ": holds neither ", kSingleFile, " nor ", kIndexFile);
  }
}

SafetensorsDirectory::~SafetensorsDirectory() = default;
SafetensorsDirectory::SafetensorsDirectory(SafetensorsDirectory&&) noexcept = default;
SafetensorsDirectory& SafetensorsDirectory::operator=(SafetensorsDirectory&&) noexcept = default;

const TensorInfo* SafetensorsDirectory::find(std::string_view name) const {
  const auto found = impl_->tensors.find(name);
  if (found == impl_->tensors.end()) return nullptr;
  const Impl::Tensor& tensor = found->second;
  if (!tensor.usable) {
    fail(ErrorCode::kUnsupported, tensor.info.file, ": tensor \"", shown(name), "\" has dtype ", tensor.stored_dtype,
         "; only F32, F16 and BF16 are read");
  }
  return &tensor.info;
}

std::optional<std::vector<std::int32_t>> SafetensorsDirectory::find_integers(std::string_view name) const {
  const auto found = impl_->tensors.find(name);
  if (found == impl_->tensors.end()) return std::nullopt;
  const Impl::Tensor& tensor = found->second;
  if (tensor.stored_dtype != "I32" || tensor.info.shape.size() != 1) {
    fail(ErrorCode::kInvalidFile, tensor.info.file, ": tensor \"", shown(name), "\" has dtype ", tensor.stored_dtype,
         " and shape ", tensor.info.shape_text(), ", expected one dimension of I32");
  }
  std::vector<std::int32_t> values(tensor.info.data.size() / sizeof(std::int32_t));
  if (!values.empty()) std::memcpy(values.data(), tensor.info.data.data(), tensor.info.data.size());
  return values;
}

std::vector<std::string> SafetensorsDirectory::names() const {
  std::vector<std::string> result;
  result.reserve(impl_->tensors.size());
  for (const auto& [name, tensor] : impl_->tensors) result.push_back(name);
  return result;
}

std::int64_t TensorInfo::num_elements() const {
  std::int64_t elements = 1;
  for (std::int64_t dimension : shape) elements *= dimension;
  return elements;
}

std::string TensorInfo::shape_text() const {
  return fastspec::shape_text(shape);
}

}  // namespace fastspec
