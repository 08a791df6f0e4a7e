// See load_bar.h.
#include "cli/load_bar.h"

#include <unistd.h>

#include <cstdio>
#include <string>

#include "cli/options.h"

namespace fastspec::cli {
namespace {

constexpr std::chrono::milliseconds kShownAfter{1000};
constexpr std::chrono::milliseconds kRedrawnAfter{100};
constexpr std::size_t kCells = 30;

}  // namespace

LoadBar::LoadBar() : terminal_(isatty(STDERR_FILENO) != 0), start_(Clock::now()), drawn_(start_) {}

LoadBar::~LoadBar() {
  if (width_ > 0) std::fprintf(stderr, "\r%*s\r", static_cast<int>(width_), "");
}

void LoadBar::show(std::size_t done, std::size_t total) {
  const Clock::time_point now = Clock::now();
  if (!terminal_ || total == 0 || now - start_ < kShownAfter || now - drawn_ < kRedrawnAfter) return;
  drawn_ = now;
  const double share = static_cast<double>(done) / static_cast<double>(total);
  const auto filled = static_cast<std::size_t>(share * kCells);
  std::string line = "loading [" + std::string(filled, '#') + std::string(kCells - filled, '.') + "] " +
                     std::to_string(static_cast<int>(100 * share)) + " % of " +
                     format_bytes(static_cast<double>(total));
  if (line.size() < width_) line.resize(width_, ' ');  // over what a longer line left
  width_ = line.size();
  std::fprintf(stderr, "\r%s", line.c_str());
}

}  // namespace fastspec::cli
