// fastspec-cli info: what an engine on this model would be, without running it.
#include <memory>

#include "cli/command.h"
#include "cli/files.h"
#include "cli/options.h"
#include "cli/output_json.h"

namespace fastspec::cli {

Command add_info(CLI::App& program) {
  struct InfoOptions {
    EngineOptions engine;
    bool json = false;
  };
  CLI::App* app =
      program.add_subcommand("info", "Architecture, sizes and memory plan of a model, or why it is refused");
  auto options = std::make_shared<InfoOptions>();
  app->add_flag("--json", options->json, "Print one object");
  options->engine.add_to(*app);
  app->footer(R"(Exit code 2 and one line on standard error when the model is unsupported.

Examples:
  fastspec-cli info --model DIR
  fastspec-cli info --model DIR --max-num-seqs 64 --max-model-len 4096 --json)");
  return {app, [options] {
            const std::unique_ptr<Engine> engine = options->engine.load();
            const std::string text = options->json ? dump(to_json(engine->info())) : engine->info().to_string();
            write_output(text + "\n");
            return 0;
          }};
}

}  // namespace fastspec::cli
