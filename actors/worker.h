// A worker of another process: joins a run, generates or grades for it, comes back when it loses it. No CAF here.
#pragma once

#include <functional>
#include <set>
#include <string>

namespace troupe {

struct RlTopology;  // actors/topology.h

/// What a worker may be.
const std::set<std::string>& known_worker_roles();

struct WorkerOptions {
  std::string host;
  int port = 0;
  std::string role = "rollout";  // of known_worker_roles()
  std::string token;             // "" where the run asks for none
  std::string model_path;        // "": whatever the run trains; else the run must train this model
  int num_threads = 0;           // 0: every core this process may use
  double heartbeat_s = 1;
  double lost_after_s = 10;  // without a word from the run
  double retry_s = 60;       // for so long it tries to join, at the start and after a loss
  bool handle_signals = true;
  /// Of roles reference and critic: the run's configuration, as text, with what this worker has otherwise (paths).
  std::function<RlTopology(const std::string& config)> read_config = nullptr;
  std::string folder = {};  // the run's, where this worker sees it under another path; "": as the run says
};

/// Returns the program's exit code: 0 the run is over, 1 refused, or no run within `retry_s` (the cause is logged), 130
/// interrupted. Throws Error where the model at `model_path` cannot be opened.
int run_worker(const WorkerOptions& options);

}  // namespace troupe
