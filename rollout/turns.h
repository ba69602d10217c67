// Samples of several turns: an engine, and an environment that answers between two turns.
//
//   add ──> engine ──turn ended──> environment (a few threads) ──done, limit of turns or of length──> finished
//              ^                        │
//              └── same sample, longer ─┘   tokens, masks, log-probs and versions of the turns before stay as they are
//
// While an environment works, the engine goes on with the other samples. Without an environment this is the engine.
#pragma once

#include <map>

#include "rollout/engine.h"
#include "rollout/environment.h"
#include "rollout/turn_text.h"

namespace troupe {

struct TurnSetup {
  EnvironmentOptions environment;
  std::string chat_template;  // its source; empty: none
  nlohmann::json tokenizer_config = nlohmann::json::object();
};

class TurnEngine {
 public:
  /// As Engine, with the environment's own errors (UsageError).
  TurnEngine(ModelConfig config, EngineOptions options, const Tokenizer* tokenizer, const TurnSetup& setup);
  ~TurnEngine();

  void set_weights(std::shared_ptr<const PackedModel> model) { engine_.set_weights(std::move(model)); }
  int64_t version() const { return engine_.version(); }
  void add(GenerationRequest request);
  /// As Engine::step; where only the environment has work it waits for it a moment. A sample whose environment failed
  /// comes with FinishReason::kError and the reason as its text.
  std::vector<Trajectory> step();
  bool idle() const { return engine_.idle() && num_away_ == 0; }
  /// As Engine::unfinished, but of samples in their first turn: what an environment remembers of later ones is gone
  /// with it.
  std::vector<Trajectory> unfinished() const;
  /// Gives up everything that is unfinished; how many samples.
  size_t drain();
  const EngineMetrics& metrics() const { return engine_.metrics(); }

 private:
  struct Desk;
  void ask(Trajectory trajectory);
  /// True where the sample ends with this answer; else its next turn is added.
  bool go_on(Trajectory& trajectory, const TurnAnswer& answer);

  Engine engine_;
  EnvironmentOptions options_;
  int64_t max_context_length_ = 0;
  std::map<uint64_t, SamplingOptions> sampling_;  // of the samples here, where there is an environment
  std::unique_ptr<TurnText> text_;
  std::shared_ptr<Desk> desk_;  // null: no environment
  int64_t num_away_ = 0;        // samples that the environment has
};

}  // namespace troupe
