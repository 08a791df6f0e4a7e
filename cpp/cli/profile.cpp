// fastspec-cli profile: what steps of an engine cost, measured now and kept for the row budget.
#include <memory>

#include "cli/command.h"
#include "cli/files.h"
#include "cli/format.h"
#include "cli/options.h"
#include "cli/output_json.h"

namespace fastspec::cli {
namespace {

std::string table_text(const char* heading, const CostTable& table) {
  std::string text = heading;
  for (std::size_t i = 0; i < table.counts.size(); ++i) {
    text += format("\n  %6d  %10.3f ms", table.counts[i], table.milliseconds[i]);
  }
  return text + "\n";
}

std::string profile_text(const CostProfile& profile) {
  const CostParameters& costs = profile.costs;
  std::string text = profile.key + format("\nmeasured in %.1f s, ", profile.seconds) +
                     (profile.cache_file.empty() ? "kept nowhere" : "kept in " + profile.cache_file) + "\n";
  text += table_text("a pass, by its rows (attention and sequences apart):", costs.linear);
  text += table_text("a draft, by the sequences that draft:", costs.draft);
  text +=
      format("a key: %.4g us for each tile of %d rows, %.4g us once; a sequence: %.4g us; a key of a draft: %.4g us\n",
             1e3 * costs.per_tile_key, costs.rows_per_tile, 1e3 * costs.per_key, 1e3 * costs.per_sequence,
             1e3 * costs.draft_per_key);
  if (!profile.checks.empty()) text += "other passes, measured and predicted:\n";
  for (const CostCheck& check : profile.checks) {
    text += format("  %4d sequences, %4d rows, %6d keys each: %9.3f ms, %9.3f ms (%+.1f %%)\n", check.num_sequences,
                   check.num_rows, check.keys_each, check.measured_milliseconds, check.predicted_milliseconds,
                   100 * (check.predicted_milliseconds / check.measured_milliseconds - 1));
  }
  return text;
}

}  // namespace

Command add_profile(CLI::App& program) {
  struct ProfileOptions {
    EngineOptions engine;
    bool json = false;
  };
  CLI::App* app = program.add_subcommand("profile", "Measure what steps cost, for the row budget, and keep it");
  auto options = std::make_shared<ProfileOptions>();
  app->add_flag("--json", options->json, "Print one object, which `python -m fastspec profile plot` draws");
  options->engine.add_to(*app);
  app->footer(R"(An engine with --row-budget auto does this by itself at its first start; here it is done anew.

Examples:
  fastspec-cli profile --model DIR --drafter ngram
  fastspec-cli profile --model DIR --drafter longspec:DRAFT_DIR --device cuda:0 --json > costs.json)");
  return {app, [options] {
            EngineConfig config = options->engine.config();
            if (!config.speculation.enabled()) {
              throw Error(ErrorCode::kInvalidArgument, "costs are for the row budget: name a --drafter");
            }
            if (config.speculation.budget.mode == RowBudgetMode::kFixed) {
              throw Error(ErrorCode::kInvalidArgument, "--row-budget " + config.speculation.budget.mode_text() +
                                                           " has no effect here: only auto goes by costs");
            }
            config.speculation.budget.mode = RowBudgetMode::kOff;  // no costs are needed before
            const std::unique_ptr<Engine> engine = options->engine.load(config);
            const CostProfile profile = engine->profile();
            write_output(options->json ? dump(to_json(profile)) + "\n" : profile_text(profile));
            return 0;
          }};
}

}  // namespace fastspec::cli
