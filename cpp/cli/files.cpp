// Reads by descriptor: Ctrl-C must end a read that waits, and the size is looked at before the content.
#include "cli/files.h"

#include <fastspec/error.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "cli/command.h"

namespace fastspec::cli {
namespace {

constexpr std::size_t kMaxBytes = 16 << 20;

[[noreturn]] void fail_read(const std::string& name) {
  const int error = errno;
  if (error == EINTR && interrupted()) throw Interrupted();
  throw Error(ErrorCode::kNotFound, name + ": " + std::generic_category().message(error));
}

[[noreturn]] void fail_size(const std::string& name, const std::string& size) {
  throw Error(ErrorCode::kInvalidFile, name + ": " + size + " bytes, the limit is " + std::to_string(kMaxBytes));
}

std::string read_all(int descriptor, const std::string& name) {
  struct stat status{};
  if (fstat(descriptor, &status) != 0) fail_read(name);
  if (S_ISDIR(status.st_mode)) throw Error(ErrorCode::kInvalidFile, name + ": is a directory, expected a file");
  if (status.st_size > static_cast<off_t>(kMaxBytes)) fail_size(name, std::to_string(status.st_size));
  std::string text;
  char block[1 << 16];
  while (true) {
    const ssize_t count = read(descriptor, block, sizeof(block));
    if (count < 0) fail_read(name);
    if (count == 0) return text;
    text.append(block, static_cast<std::size_t>(count));
    if (text.size() > kMaxBytes) fail_size(name, "more than " + std::to_string(kMaxBytes));
  }
}

class Descriptor {
 public:
  explicit Descriptor(const std::string& file) : value_(open(file.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (value_ < 0) fail_read(file);
  }
  ~Descriptor() { close(value_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int value() const { return value_; }

 private:
  int value_;
};

}  // namespace

std::string read_text(const std::string& file) {
  if (file == "-") return read_all(STDIN_FILENO, "standard input");
  return read_all(Descriptor(file).value(), file);
}

void write_output(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (std::fflush(stdout) != 0 || !written) {
    throw std::system_error(errno, std::generic_category(), "standard output");
  }
}

void reserve_standard_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) != -1) continue;
    // The lowest free number is the one looked at; the direction is the one that fails.
    static_cast<void>(open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY));
  }
}

}  // namespace fastspec::cli
