// Options of an engine.
#include <fastspec/config.h>

#include "bind.h"
#include "record.h"

namespace py = pybind11;

namespace fastspec::python {
namespace {

void bind_speculation(py::module_& module) {
  Record<DrafterConfig> drafter(module, "DrafterConfig", R"(Which drafter proposes tokens.

kind: "" (none), "ngram" (prompt lookup), "standalone" (a small model), "longspec" (trees from one block over the
    target's last keys and values) or "dflash" (blocks predicted in one pass from the target's hidden states)
model: directory of the draft model, for all but "ngram"
ngram_min, ngram_max: shortest and longest match looked up in the sequence, in tokens, for "ngram"
tree_widths: nodes of each level of a tree, for "longspec"; [1, 1, 1, 1] is a chain
coupled: "longspec" drafts with the target's own sampling noise; False only to measure what that is worth
window: tokens before a block that it sees, for "dflash"; 0 = all. With a window memory does not grow with the context
sinks: first tokens of the sequence that it sees too, for "dflash" with a window
rebase_positions: whether the sinks take the positions just before the window)");
  drafter.field("kind", &DrafterConfig::kind, "str")
      .field("model", &DrafterConfig::model, "str")
      .field("ngram_min", &DrafterConfig::ngram_min, "int")
      .field("ngram_max", &DrafterConfig::ngram_max, "int")
      .field("tree_widths", &DrafterConfig::tree_widths, "list of int")
      .field("coupled", &DrafterConfig::coupled, "bool")
      .field("window", &DrafterConfig::window, "int")
      .field("sinks", &DrafterConfig::sinks, "int")
      .field("rebase_positions", &DrafterConfig::rebase_positions, "bool")
      .finish_options();
  drafter.python_class()
      .def_static(
          "parse", [](const Strict<std::string>& text) { return DrafterConfig::parse(text.value); }, py::arg("text"),
          R"("none", "ngram", "standalone:DIR", "longspec:DIR" or "dflash:DIR"; InvalidArgumentError otherwise.)")
      .def("__str__", &DrafterConfig::to_string);

  Record<SpeculationConfig> speculation(module, "SpeculationConfig", R"(Speculative decoding.

drafter: DrafterConfig
max_draft_tokens: tokens a drafter may propose for one sequence and step; None = 8, or the whole tree or
    block with longspec and dflash
row_budget: drafted tokens that are verified: "off" (all), "fixed:RHO" (a share of the rows, 0 < RHO <= 1), or "auto":
    what gives most tokens for its time, and nothing where drafting does not pay
row_budget_objective: of "auto": "throughput", or "paper": without the token that every sequence gets anyway
row_budget_ratios: of "auto": shares to choose from, ascending
row_budget_min_saving: of "auto": what a change must gain, 0.03 = 3 %
profile_seconds: of "auto": time to measure what steps cost, at most, unless an earlier start has)");
  using Config = SpeculationConfig;
  speculation.field("drafter", &SpeculationConfig::drafter, "DrafterConfig")
      .field("max_draft_tokens", &SpeculationConfig::max_draft_tokens, "int or None")
      .property(
          "row_budget", "str", [](const Config& self) { return self.budget.mode_text(); },
          [](Config& self, const py::object& value) { self.budget.set_mode(from_python<std::string>(value)); })
      .property(
          "row_budget_objective", "str", [](const Config& self) { return self.budget.objective_text(); },
          [](Config& self, const py::object& value) { self.budget.set_objective(from_python<std::string>(value)); })
      .property(
          "row_budget_ratios", "list of float", [](const Config& self) { return self.budget.ratios; },
          [](Config& self, const py::object& value) { self.budget.ratios = from_python<std::vector<double>>(value); })
      .property(
          "row_budget_min_saving", "float", [](const Config& self) { return self.budget.min_saving; },
          [](Config& self, const py::object& value) { self.budget.min_saving = from_python<double>(value); })
      .property(
          "profile_seconds", "float", [](const Config& self) { return self.budget.profile_seconds; },
          [](Config& self, const py::object& value) { self.budget.profile_seconds = from_python<double>(value); })
      .finish_options();
  speculation.python_class().def_property_readonly("enabled", &SpeculationConfig::enabled,
                                                   "True when a drafter is configured.");
}

void bind_sparse(py::module_& module) {
  Record<SparseConfig> sparse(module, "SparseConfig",
                              R"(Sparse passes: decoding passes that read a few cached keys of a sequence.

selector: "none", "streaming" (the first and the last), "history" or "history:MANIFEST", "quest", "dustin:MANIFEST"
kv_budget: cached keys that a sparse pass reads; a context that fits is read whole
sinks, recent: of these, the first of the sequence and its last, which are always read
guarantee: "exact": what sparse passes accept is shown only once a dense pass has drawn the same; "sparse": at once
refresh_interval: tokens that sparse passes accept between two dense ones; 0 = with "exact" as many as pay, with
    "sparse" no dense pass. With "sparse" the dense pass computes keys and values of these tokens anew
min_mass: less attention than this inside the keys read makes the next pass dense; 0 = never
min_margin: a token whose score (logit over temperature, noise included) beats the next best by less in a sparse pass is
    left, with all behind it, to the next pass, which is dense; 0 = none is)");
  using Config = SparseConfig;
  sparse
      .property(
          "selector", "str", [](const Config& self) { return self.selector_text(); },
          [](Config& self, const py::object& value) { self.set_selector(from_python<std::string>(value)); })
      .field("kv_budget", &Config::kv_budget, "int")
      .field("sinks", &Config::sinks, "int")
      .field("recent", &Config::recent, "int")
      .property(
          "guarantee", "str", [](const Config& self) { return std::string(to_string(self.guarantee)); },
          [](Config& self, const py::object& value) { self.set_guarantee(from_python<std::string>(value)); })
      .field("refresh_interval", &Config::refresh_interval, "int")
      .field("min_mass", &Config::min_mass, "float")
      .field("min_margin", &Config::min_margin, "float")
      .finish_options();
  sparse.python_class().def_property_readonly("enabled", &Config::enabled, "True when a selector is configured.");
}

}  // namespace

void bind_config(py::module_& module) {
  bind_speculation(module);
  bind_sparse(module);
  Record<EngineConfig> config(module, "EngineConfig", R"(Options of an engine.

model: a Hugging Face directory
device: "cpu", "cpu:reference" or "cuda:N"
dtype: "float32", "bfloat16", "float16", of weights and K/V; None = the checkpoint's
max_model_len: tokens of one sequence; 0 = the model's limit
max_num_seqs: sequences in one pass
max_batch_rows: rows in one pass (prompt chunks, roots and drafted tokens together)
page_size: KV slots a page, a power of two
gpu_memory_utilization: share of a GPU's memory that the engine may take in all, more than 0 and at most 1
kv_cache_bytes: bytes of the KV pools; 0 = what max_num_seqs sequences need, at most what gpu_memory_utilization leaves,
    or on a CPU a third of the free memory
num_threads: CPU threads; 0 = all cores
speculation: SpeculationConfig
sparse: SparseConfig)");
  config.field("model", &EngineConfig::model, "str")
      .field("device", &EngineConfig::device, "str")
      .property(
          "dtype", "str or None",
          [](const EngineConfig& self) -> py::object {
            if (!self.dtype) return py::none();
            return py::str(to_string(*self.dtype));
          },
          [](EngineConfig& self, const py::object& value) {
            self.dtype = value.is_none() ? std::nullopt : std::optional(parse_dtype(from_python<std::string>(value)));
          })
      .field("max_model_len", &EngineConfig::max_model_len, "int")
      .field("max_num_seqs", &EngineConfig::max_num_seqs, "int")
      .field("max_batch_rows", &EngineConfig::max_batch_rows, "int")
      .field("page_size", &EngineConfig::page_size, "int")
      .field("gpu_memory_utilization", &EngineConfig::gpu_memory_utilization, "float")
      .field("kv_cache_bytes", &EngineConfig::kv_cache_bytes, "int")
      .field("num_threads", &EngineConfig::num_threads, "int")
      .field("speculation", &EngineConfig::speculation, "SpeculationConfig")
      .field("sparse", &EngineConfig::sparse, "SparseConfig")
      .finish_options();
  config.python_class()
      .def("validate", &EngineConfig::validate,
           "Raises InvalidArgumentError naming the option, its value and what is possible.")
      .def("to_json", &EngineConfig::to_json, "Every option, as a JSON object.")
      .def_static(
          "from_json", [](const Strict<std::string>& text) { return EngineConfig::from_json(text.value); },
          py::arg("text"), "The reverse of to_json(); InvalidArgumentError for an unknown or mistyped option.");
}

}  // namespace fastspec::python
