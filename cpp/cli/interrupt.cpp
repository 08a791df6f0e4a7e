// Ctrl-C as a flag. A signal handler reaches nothing but static storage, hence the one static variable of the program.
#include <csignal>

#include "cli/command.h"

namespace fastspec::cli {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;

void on_interrupt(int) {
  g_interrupted = 1;
  std::signal(SIGINT, SIG_DFL);
}

}  // namespace

void catch_interrupts() {
  g_interrupted = 0;
  // Not std::signal: a read that waits for a line must end, not be restarted.
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, nullptr);
}

bool interrupted() noexcept {
  return g_interrupted != 0;
}

bool take_interrupt() noexcept {
  const bool was = interrupted();
  if (was) catch_interrupts();
  return was;
}

}  // namespace fastspec::cli
