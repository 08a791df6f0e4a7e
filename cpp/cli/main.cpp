// fastspec-cli: generate, chat, bench, info, profile. Sees <fastspec/...> and nothing else of the engine.
#include <fastspec/error.h>
#include <fastspec/version.h>

#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/files.h"
#include "cli/report.h"

namespace fastspec::cli {
namespace {

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
    case ErrorCode::kInvalidFile:
    case ErrorCode::kUnsupported:
    case ErrorCode::kOutOfMemory:  // what was asked for does not fit: less of it does
      return kBadInput;
    case ErrorCode::kDeviceFailure:
    case ErrorCode::kInternal:
      return kFailed;
  }
  return kFailed;
}

int run(int argc, char** argv) {
  CLI::App program("Text generation with exact speculative decoding.", "fastspec-cli");
  program.set_version_flag("--version", version());
  program.require_subcommand(1);
  program.get_formatter()->column_width(32);
  program.footer("fastspec-cli COMMAND --help shows the options of a command and examples.");
  const std::vector<Command> commands = {add_generate(program), add_chat(program), add_bench(program),
                                         add_info(program), add_profile(program)};
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help and version are "errors" of CLI11 with exit code 0.
    if (error.get_exit_code() == 0) {
      std::ostringstream text;
      program.exit(error, text);
      write_output(text.str());
      return 0;
    }
    const std::vector<std::string> unknown = program.remaining();
    if (program.get_subcommands().empty() && !unknown.empty()) {
      return report("\"" + unknown.front() + "\" is no subcommand: generate, chat, bench, info or profile", kBadInput);
    }
    return report(error.what(), kBadInput);
  }
  catch_interrupts();
  for (const Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  return kBadInput;  // not reached: a subcommand is required
}

}  // namespace
}  // namespace fastspec::cli

int main(int argc, char** argv) {
  using namespace fastspec::cli;
  reserve_standard_streams();
  try {
    return run(argc, argv);
  } catch (const fastspec::Error& error) {
    return report(error.what(), exit_code(error.code()));
  } catch (const Interrupted& error) {
    return report(error.what(), kInterrupted);
  } catch (const std::bad_alloc&) {
    return report("out of memory", kFailed);
  } catch (const std::exception& error) {
    return report(error.what(), kFailed);
  }
}
