// Printable forms of EngineStats and EngineInfo.
#include <fastspec/engine.h>

#include <iomanip>
#include <sstream>

namespace fastspec {

namespace {

constexpr double kMiB = 1024.0 * 1024.0;

double microseconds(double seconds, std::int64_t count) {
  return count > 0 ? 1e6 * seconds / static_cast<double>(count) : 0.0;
}

double share(double part, double whole) {
  return whole > 0 ? 100.0 * part / whole : 0.0;
}

std::string budget_text(const BudgetStats& budget) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(2) << "row budget: steps by share of rows kept";
  for (const RatioCount& count : budget.ratios) text << " " << count.ratio << ": " << count.steps;
  text << "; undrafted steps " << budget.steps_undrafted << ", passes " << budget.passes_undrafted << ", probes "
       << budget.probe_steps << ", verified in full for calibration " << budget.full_steps << "\n";
  if (budget.predicted_steps > 0) {
    const auto steps = static_cast<double>(budget.predicted_steps);
    text << "cost model: " << 1e3 * budget.predicted_seconds / steps << " ms a decoding step predicted, "
         << 1e3 * budget.measured_seconds / steps << " measured, off by "
         << share(budget.error_seconds, budget.measured_seconds) << "% in the mean\n";
  }
  if (!budget.reliability.empty()) {
    text << "expected calibration error " << 100 * budget.calibration_error << "%, of the raw confidence "
         << 100 * budget.raw_calibration_error << "%\n";
  }
  return text.str();
}

}  // namespace

std::string SparseStats::to_string() const {
  std::ostringstream text;
  text << std::fixed << std::setprecision(2) << "sparse passes " << sparse_passes << ", dense " << dense_passes
       << "; K/V read " << static_cast<double>(kv_bytes_read) / kMiB << " MiB, "
       << share(static_cast<double>(kv_bytes_read), static_cast<double>(kv_bytes_dense))
       << "% of what the same passes would have read densely";
  if (confirmed_tokens + taken_back_tokens > 0) {
    text << "; provisional tokens confirmed " << confirmed_tokens << ", taken back " << taken_back_tokens;
  }
  if (refreshes > 0) text << "; refreshes " << refreshes;
  if (mass_passes > 0) text << "; mean mass recovered " << mean_mass();
  return text.str();
}

std::string EngineStats::to_string() const {
  std::ostringstream text;
  text << std::fixed << std::setprecision(2);
  text << "steps " << steps << ", target rows " << rows << " (prompt " << prompt_rows << "), generated tokens "
       << generated_tokens << "\n";
  text << "acceptance length (bonus included) " << acceptance_length() << " over " << decoding_passes
       << " decoding passes; drafted " << drafted_tokens << ", verified " << verified_tokens << ", accepted "
       << accepted_tokens << "\n";
  if (!offered_by_position.empty()) {
    text << "accepted by position";
    for (std::size_t d = 0; d < offered_by_position.size(); ++d) {
      text << " " << share(static_cast<double>(accepted_by_position[d]), static_cast<double>(offered_by_position[d]))
           << "%";
    }
    text << "\n";
  }
  if (sparse.sparse_passes > 0) text << sparse.to_string() << "\n";
  if (!budget.ratios.empty() || budget.steps_undrafted > 0) text << budget_text(budget);
  text << "seconds " << step_seconds << ": plan " << plan_seconds << ", draft " << draft_seconds << ", budget "
       << budget_seconds << ", select " << select_seconds << ", verify " << verify_seconds << ", accept "
       << accept_seconds << ", commit " << commit_seconds << ", emit " << emit_seconds << "; outside operations "
       << share(step_seconds - operation_seconds, step_seconds) << "%\n";
  text << "pages used " << pages_used << " of " << pages_total << ", running " << sequences_running << ", waiting "
       << sequences_waiting << ", preemptions " << preemptions << ", draft failures " << draft_failures << "\n";
  if (graph_replays + graph_captures + graph_eager_passes > 0) {
    text << "passes replayed as graphs " << graph_replays << ", captured " << graph_captures << ", eager "
         << graph_eager_passes << "; " << graphs << " graphs take " << static_cast<double>(graph_bytes) / kMiB
         << " MiB, recorded in " << graph_capture_seconds << " s\n";
  }
  if (steps_ahead > 0) {
    text << "steps launched ahead " << steps_ahead << ", tokens to launch "
         << microseconds(turnaround_seconds, steps_ahead) << " us";
    if (timed_steps > 0) {
      text << "; the device idles " << microseconds(device_idle_seconds, timed_steps) << " us between steps ("
           << share(device_idle_seconds, device_idle_seconds + device_busy_seconds) << "%)";
    }
    text << "\n";
  }
  return text.str();
}

std::string EngineInfo::memory_text() const {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1);
  const auto line = [&](const char* name, std::size_t bytes, const std::string& note = "") {
    text << "  " << std::left << std::setw(13) << name << std::right << std::setw(10)
         << static_cast<double>(bytes) / kMiB << " MiB" << note << "\n";
  };
  line("weights", weight_bytes);
  if (draft_weight_bytes > 0) line("draft weights", draft_weight_bytes);
  const std::string tokens = std::to_string(std::int64_t{num_pages} * page_size);
  line("KV cache", kv_cache_bytes - draft_kv_cache_bytes, ", " + tokens + " tokens of all sequences together");
  if (draft_kv_cache_bytes > 0) line("draft KV", draft_kv_cache_bytes);
  if (draft_own_kv_bytes > 0) line("draft window", draft_own_kv_bytes, " of K/V, whatever the context");
  if (scratch_bytes > 0) {
    const std::string whole = draft_kv_cache_bytes > 0 ? "these two" : "it";
    line("  scratch", scratch_bytes, ", part of " + whole + ", for drafted rows");
  }
  line("activations", activation_bytes, ", of the largest pass");
  if (device_bytes == 0) return text.str();
  line("workspaces", workspace_bytes, " at most, of operations");
  line("graphs", graph_bytes, " at most, an estimate");
  const std::size_t sum = weight_bytes + draft_weight_bytes + kv_cache_bytes + draft_own_kv_bytes + activation_bytes +
                          workspace_bytes + graph_bytes;
  std::ostringstream limit;
  limit << std::fixed << std::setprecision(1) << " of " << static_cast<double>(memory_limit_bytes) / kMiB
        << " MiB that the engine may take, device " << static_cast<double>(device_bytes) / kMiB
        << " MiB; what the driver itself takes comes on top";
  line("sum", sum, limit.str());
  return text.str();
}

std::string EngineInfo::sparse_text() const {
  if (kv_budget == 0) return selector;
  return selector + ", " + std::to_string(kv_budget) + " keys, guarantee " + fastspec::to_string(guarantee);
}

std::string EngineInfo::to_string() const {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1);
  text << "architecture   " << architecture << "\n"
       << "device         " << device << ", " << fastspec::to_string(dtype) << "\n"
       << "parameters     " << static_cast<double>(num_parameters) / 1e6 << " M\n"
       << "vocabulary     " << vocab_size << "\n"
       << "drafter        " << drafter << "\n"
       << "sparse passes  " << sparse_text() << "\n"
       << "max_model_len  " << max_model_len << " tokens\n"
       << "KV cache       " << kv_bytes_per_token << " bytes a token, " << num_pages << " pages of " << page_size
       << " tokens\n"
       << (device_bytes > 0 ? "prompts        " + prompt_attention + "\n" : "") << "memory\n"
       << memory_text();
  return text.str();
}

}  // namespace fastspec
