// mmap behind RAII. Interprets nothing.
#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/check.h"

namespace fastspec {

namespace {

struct FileDescriptor {
  int value = -1;
  ~FileDescriptor() {
    if (value >= 0) ::close(value);
  }
};

std::string reason(int error) {
  return std::generic_category().message(error);
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer; it has no effect on regular files.
  FileDescriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.value < 0) fail(ErrorCode::kNotFound, path.string(), ": cannot be opened: ", reason(errno));
  struct stat status{};
  if (::fstat(file.value, &status) != 0) fail(ErrorCode::kNotFound, path.string(), ": ", reason(errno));
  if (!S_ISREG(status.st_mode)) fail(ErrorCode::kNotFound, path.string(), ": is no regular file");
  if (status.st_size == 0) return;  // mmap refuses empty files
  const auto size = static_cast<std::size_t>(status.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.value, 0);
  if (data == MAP_FAILED) {
    fail(ErrorCode::kNotFound, path.string(), ": ", size, " bytes cannot be mapped: ", reason(errno));
  }
  ::madvise(data, size, MADV_SEQUENTIAL);  // weights are read once, front to back; failing to advise harms nothing
  data_ = static_cast<const std::byte*>(data);
  size_ = size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace fastspec
