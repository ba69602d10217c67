// The gate actor: lets workers of other processes in. What they do afterwards is between them and the director, which
// sees one kind of worker.
//
//   guest ──hello──> gate: rules ──welcome (seat, ticket, director, reward)──> guest ──> its rollout ──arrive──>
//   director
//                     │  ▲                                                       │
//                     │  └──────────── down: the ticket is revoked ──────────────┤
//                     └──── ended / who asks them was replaced ─────────────────>┘
#pragma once

#include <atomic>

#include "actors/interfaces.h"
#include "actors/run_recorder.h"
#include "actors/weight_publisher.h"

namespace troupe {

struct GateSetup {
  JoinRules rules;
  WorkerSettings settings;
  GraderSettings grader;                          // for workers of role "reward", where the rules take them
  std::map<std::string, std::string> judges;      // JudgeSettings as JSON, by role "reference", "critic"
  std::map<std::string, std::string> text_files;  // of the tokenizer
  std::shared_ptr<WeightPublisher> publisher;
  std::shared_ptr<ObserverGate> observer;
  std::shared_ptr<std::atomic<int>> num_joined;  // rollout workers that are here now
  int32_t first_seat = 0;                        // those below belong to the run's own workers
  std::string bind = "127.0.0.1";
  int port = 0;  // 0: any
  std::chrono::milliseconds farewell_limit{3'000};
};

/// Listens at `bind`:`port` when this returns. Throws Error where the port cannot be had.
gate_actor spawn_gate(caf::actor_system& system, director_actor director, reward_actor reward, GateSetup setup);

}  // namespace troupe
