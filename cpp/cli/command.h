// What the commands of fastspec-cli share: how they register, how they fail, how Ctrl-C reaches them.
#pragma once

#include <CLI/CLI.hpp>
#include <exception>
#include <functional>

namespace fastspec::cli {

/// Exit codes: 0, a failure, bad input, Ctrl-C.
inline constexpr int kFailed = 1;
inline constexpr int kBadInput = 2;
inline constexpr int kInterrupted = 130;

/// A subcommand and what runs when it was chosen; `run` returns the exit code.
struct Command {
  CLI::App* app = nullptr;
  std::function<int()> run;
};

Command add_generate(CLI::App& program);
Command add_bench(CLI::App& program);
Command add_chat(CLI::App& program);
Command add_info(CLI::App& program);
Command add_profile(CLI::App& program);

/// Thrown where Ctrl-C ends the command at once.
struct Interrupted : std::exception {
  const char* what() const noexcept override { return "interrupted"; }
};

/// Ctrl-C sets a flag from now on; a second one, before the flag was taken, ends the process as usual.
void catch_interrupts();
/// True after Ctrl-C, until take_interrupt().
bool interrupted() noexcept;
/// Reads and clears the flag.
bool take_interrupt() noexcept;

}  // namespace fastspec::cli
