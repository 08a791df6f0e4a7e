// The facade: forwards to EngineCore so that the installed headers show nothing of it.
#include <fastspec/engine.h>

#include "engine/engine_core.h"

namespace fastspec {

std::unique_ptr<Engine> Engine::create(const EngineConfig& config, const LoadProgressCallback& progress) {
  return std::unique_ptr<Engine>(new Engine(std::make_unique<EngineCore>(config, EngineCore::load(config, progress))));
}

Engine::Engine(std::unique_ptr<EngineCore> core) : core_(std::move(core)) {}
Engine::~Engine() = default;

RequestId Engine::submit(const Request& request) {
  return core_->submit(request);
}
void Engine::cancel(RequestId request) {
  core_->cancel(request);
}
bool Engine::has_work() const {
  return core_->has_work();
}
StepReport Engine::step() {
  return core_->step();
}
std::vector<Output> Engine::generate(const std::vector<Request>& requests, const OutputCallback& callback) {
  return core_->generate(requests, callback);
}
CostProfile Engine::profile() {
  return core_->profile();
}
void Engine::set_row_budget(const std::string& mode) {
  core_->set_row_budget(mode);
}
EngineStats Engine::stats() const {
  return core_->stats();
}
void Engine::reset_stats() {
  core_->reset_stats();
}
void Engine::start_trace() {
  core_->start_trace();
}
StepTrace Engine::stop_trace(int max_steps) {
  return core_->stop_trace(max_steps);
}
const EngineInfo& Engine::info() const {
  return core_->info();
}
const EngineConfig& Engine::config() const {
  return core_->config();
}
std::shared_ptr<const Tokenizer> Engine::tokenizer() const {
  return core_->tokenizer();
}

}  // namespace fastspec
