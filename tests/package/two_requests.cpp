// Serves two requests at once and prints each one's text as it comes. Uses the installed headers and nothing else.
#include <fastspec/engine.h>

#include <iostream>
#include <map>
#include <string>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: two_requests MODEL_DIRECTORY\n";
    return 2;
  }
  try {
    fastspec::EngineConfig config;
    config.model = argv[1];
    config.speculation.drafter = fastspec::DrafterConfig::parse("ngram");
    const auto engine = fastspec::Engine::create(config);

    std::map<fastspec::RequestId, std::string> prompts;
    for (const char* prompt : {"The capital of France is", "One, two, three, one, two, three, one,"}) {
      fastspec::Request request;
      request.prompt = prompt;
      request.sampling.temperature = 0;
      request.sampling.max_tokens = 24;
      prompts[engine->submit(request)] = prompt;
    }
    while (engine->has_work()) {
      for (const fastspec::Output& output : engine->step().outputs) {
        std::cout << output.request << ": " << output.text << '\n';
        if (!output.finished()) continue;
        std::cout << output.request << " ends (" << to_string(output.finish_reason) << ") after "
                  << output.stats.completion_tokens << " tokens; prompt: " << prompts[output.request] << '\n';
        prompts.erase(output.request);
      }
    }
    return prompts.empty() ? 0 : 1;
  } catch (const fastspec::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
