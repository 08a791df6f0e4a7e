// Runs requests through an engine and prints every tree that was verified, for a reference that drafts by itself.
//   fastspec_print_trees CONFIG.json REQUESTS.json
// CONFIG.json: EngineConfig::from_json. REQUESTS.json: [{"prompt_token_ids", "temperature", "seed", "max_tokens",
// ...}]. Prints a JSON line a tree, {"seed", "sample", "root_position", "tokens", "parents"}, one an output, {"seed",
// "sample", "output"}, and {"preemptions"}.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "backend/intercepted_ops.h"
#include "engine/engine_core.h"

namespace fastspec::testing {
namespace {

using Json = nlohmann::json;

class TreePrinter final : public InterceptedOps {
 public:
  using InterceptedOps::InterceptedOps;
  void accept(const AcceptParams& params) override {
    for (int i = 0; i < params.num_trees; ++i) {
      const AcceptTree& tree = params.trees[i];
      const Json line = {{"seed", tree.rule.seed},
                         {"sample", tree.rule.sample_index},
                         {"root_position", tree.root_position},
                         {"tokens", std::vector<TokenId>(tree.tokens, tree.tokens + tree.num_nodes)},
                         {"parents", std::vector<std::int32_t>(tree.parents, tree.parents + tree.num_nodes)}};
      std::cout << line << "\n";
    }
    InterceptedOps::accept(params);
  }

 private:
  void before() override {}
  void after() override {}
};

std::string read(const char* path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Request read_request(const Json& json) {
  Request request;
  request.prompt_token_ids = json.at("prompt_token_ids").get<std::vector<TokenId>>();
  SamplingParams& sampling = request.sampling;
  sampling.temperature = json.at("temperature");
  sampling.seed = json.at("seed").get<std::uint64_t>();
  sampling.max_tokens = json.at("max_tokens");
  sampling.n = json.value("n", sampling.n);
  sampling.ignore_eos = true;
  sampling.top_k = json.value("top_k", sampling.top_k);
  sampling.top_p = json.value("top_p", sampling.top_p);
  sampling.min_p = json.value("min_p", sampling.min_p);
  sampling.repetition_penalty = json.value("repetition_penalty", sampling.repetition_penalty);
  sampling.presence_penalty = json.value("presence_penalty", sampling.presence_penalty);
  sampling.frequency_penalty = json.value("frequency_penalty", sampling.frequency_penalty);
  for (const auto& [token, bias] : json.value("logit_bias", std::vector<std::pair<TokenId, float>>{})) {
    sampling.logit_bias.emplace_back(token, bias);
  }
  return request;
}

void run(const char* config_path, const char* requests_path) {
  const EngineConfig config = EngineConfig::from_json(read(config_path));
  EngineParts parts = EngineCore::load(config, {});
  parts.backend.ops = std::make_unique<TreePrinter>(std::move(parts.backend.ops));
  EngineCore engine(config, std::move(parts));
  std::vector<Request> requests;
  for (const Json& json : Json::parse(read(requests_path))) requests.push_back(read_request(json));
  const std::vector<Output> outputs = engine.generate(requests, {});
  auto output = outputs.begin();
  for (const Request& request : requests) {
    for (int sample = 0; sample < request.sampling.n; ++sample, ++output) {
      std::cout << Json{{"seed", *request.sampling.seed}, {"sample", sample}, {"output", output->token_ids}} << "\n";
    }
  }
  std::cout << Json{{"preemptions", engine.stats().preemptions}} << "\n";
}

}  // namespace
}  // namespace fastspec::testing

int main(int argc, char** argv) {
  try {
    if (argc != 3) throw std::invalid_argument("usage: fastspec_print_trees CONFIG.json REQUESTS.json");
    fastspec::testing::run(argv[1], argv[2]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
