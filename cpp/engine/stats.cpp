// Printable forms of EngineStats and EngineInfo.
#include <fastspec/engine.h>

#include <iomanip>
#include <sstream>

namespace fastspec {

namespace {

double share(double part, double whole) {
  return whole > 0 ? 100.0 * part / whole : 0.0;
}

}  // namespace

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
  text << "seconds " << step_seconds << ": plan " << plan_seconds << ", draft " << draft_seconds << ", budget "
       << budget_seconds << ", verify " << verify_seconds << ", accept " << accept_seconds << ", commit "
       << commit_seconds << ", emit " << emit_seconds << "; outside operations "
       << share(step_seconds - operation_seconds, step_seconds) << "%\n";
  text << "pages used " << pages_used << " of " << pages_total << ", running " << sequences_running << ", waiting "
       << sequences_waiting << ", preemptions " << preemptions << ", draft failures " << draft_failures << "\n";
  if (graph_replays + graph_captures + graph_eager_passes > 0) {
    text << "passes replayed as graphs " << graph_replays << ", captured " << graph_captures << ", eager "
         << graph_eager_passes << "\n";
  }
  return text.str();
}

std::string EngineInfo::to_string() const {
  constexpr double kMiB = 1024.0 * 1024.0;
  std::ostringstream text;
  text << std::fixed << std::setprecision(1);
  text << "architecture   " << architecture << "\n"
       << "device         " << device << ", " << fastspec::to_string(dtype) << "\n"
       << "parameters     " << static_cast<double>(num_parameters) / 1e6 << " M, "
       << static_cast<double>(weight_bytes) / kMiB << " MiB\n"
       << "vocabulary     " << vocab_size << "\n"
       << "drafter        " << drafter;
  if (draft_weight_bytes > 0) text << ", " << static_cast<double>(draft_weight_bytes) / kMiB << " MiB";
  if (draft_kv_bytes > 0) {
    text << ", K/V " << static_cast<double>(draft_kv_bytes) / kMiB << " MiB whatever the context";
  }
  text << "\n"
       << "max_model_len  " << max_model_len << " tokens\n"
       << "KV cache       " << kv_bytes_per_token << " bytes a token, " << num_pages << " pages of " << page_size
       << " tokens, " << static_cast<double>(kv_cache_bytes) / kMiB << " MiB\n";
  return text.str();
}

}  // namespace fastspec
