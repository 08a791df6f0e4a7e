// What a caller asks for.
#include <fastspec/request.h>

#include "bind.h"
#include "record.h"

namespace py = pybind11;

namespace fastspec::python {
namespace {

constexpr const char* kSamplingDoc = R"(How tokens are chosen; every argument is a keyword.

Order: penalties and bias, temperature, then top_k, top_p, min_p. The token is the argmax of logit / temperature plus
Gumbel noise that is a pure function of (seed, sample, position, token), so speculation cannot change the outcome.

temperature: 0 = greedy
top_k: 0 = off
top_p: in (0, 1]
min_p: in [0, 1], relative to the most likely token
seed: int or None (drawn, and returned in the output)
n: samples of one prompt
max_tokens, min_tokens: limits of the output; EOS and stop_token_ids cannot be drawn before min_tokens
stop: str or list of str; the text ends before the first of these
stop_token_ids: list of int
ignore_eos: go on after the end-of-sequence token
logprobs: None, 0 (of the chosen token) or N (and of the N most likely); from the target's raw logits
repetition_penalty: > 0, over prompt and output
presence_penalty, frequency_penalty: in [-2, 2], over the output
logit_bias: dict of token id to float
skip_special_tokens: in the text

Raises InvalidArgumentError naming the field and its value.)";

void bind_sampling(py::module_& module) {
  Record<SamplingParams> sampling(module, "SamplingParams", kSamplingDoc);
  sampling.field("temperature", &SamplingParams::temperature, "float")
      .field("top_k", &SamplingParams::top_k, "int")
      .field("top_p", &SamplingParams::top_p, "float")
      .field("min_p", &SamplingParams::min_p, "float")
      .field("seed", &SamplingParams::seed, "int in [0, 2**64) or None")
      .field("n", &SamplingParams::n, "int")
      .field("max_tokens", &SamplingParams::max_tokens, "int")
      .field("min_tokens", &SamplingParams::min_tokens, "int")
      .property(
          "stop", "str or list of str", [](const SamplingParams& self) { return self.stop; },
          [](SamplingParams& self, const py::object& value) {
            if (py::isinstance<py::str>(value)) {
              self.stop = {from_python<std::string>(value)};
            } else {
              self.stop = from_python<std::vector<std::string>>(value);
            }
          })
      .field("stop_token_ids", &SamplingParams::stop_token_ids, "list of int")
      .field("ignore_eos", &SamplingParams::ignore_eos, "bool")
      .field("logprobs", &SamplingParams::logprobs, "int or None")
      .field("repetition_penalty", &SamplingParams::repetition_penalty, "float")
      .field("presence_penalty", &SamplingParams::presence_penalty, "float")
      .field("frequency_penalty", &SamplingParams::frequency_penalty, "float")
      .property(
          "logit_bias", "dict of int to float",
          [](const SamplingParams& self) {
            py::dict bias;
            for (const auto& [token, value] : self.logit_bias) bias[py::int_(token)] = shortest_double(value);
            return bias;
          },
          [](SamplingParams& self, const py::object& value) {
            if (!py::isinstance<py::dict>(value)) throw py::cast_error();
            std::vector<std::pair<TokenId, float>> bias;
            for (const auto& [token, amount] : value.cast<py::dict>()) {
              bias.emplace_back(from_python<TokenId>(token), from_python<float>(amount));
            }
            self.logit_bias = std::move(bias);
          })
      .field("skip_special_tokens", &SamplingParams::skip_special_tokens, "bool")
      .finish_options([](const SamplingParams& value) { value.validate(); });
  sampling.python_class().def("validate", &SamplingParams::validate,
                              "Raises InvalidArgumentError naming the field and its value.");
}

}  // namespace

void bind_request(py::module_& module) {
  bind_sampling(module);

  Record<RequestSpeculation> speculation(module, "RequestSpeculation", R"(Speculation switches of one request.

enabled: False = plain decoding for this request
max_draft_tokens: int, or None for the engine's)");
  speculation.field("enabled", &RequestSpeculation::enabled, "bool")
      .field("max_draft_tokens", &RequestSpeculation::max_draft_tokens, "int or None")
      .finish_options();

  Record<Request> request(module, "Request", R"(One request.

prompt: text, used when prompt_token_ids is empty
prompt_token_ids: list of int
add_special_tokens: apply the tokenizer's post-processor (a leading BOS, for instance) to prompt
sampling: SamplingParams
speculation: RequestSpeculation
sparse: whether sparse passes may decode it; None = where the engine has them
guarantee: "exact" or "sparse", of sparse passes; None = the engine's. "exact" takes an engine that was made for it
hold: compute the prompt and keep it until the request is cancelled, decoding nothing: requests with equal prompts start
    on it. Gives its pages back where others lack some)");
  request.field("prompt", &Request::prompt, "str")
      .field("prompt_token_ids", &Request::prompt_token_ids, "list of int")
      .field("add_special_tokens", &Request::add_special_tokens, "bool")
      .field("sampling", &Request::sampling, "SamplingParams")
      .field("speculation", &Request::speculation, "RequestSpeculation")
      .field("sparse", &Request::sparse, "bool or None")
      .property(
          "guarantee", "str or None",
          [](const Request& self) -> py::object {
            if (!self.guarantee) return py::none();
            return py::str(to_string(*self.guarantee));
          },
          [](Request& self, const py::object& value) {
            const auto text = from_python<std::optional<std::string>>(value);
            self.guarantee = text ? std::optional(parse_guarantee(*text)) : std::nullopt;
          })
      .field("hold", &Request::hold, "bool")
      .finish_options();
}

}  // namespace fastspec::python
