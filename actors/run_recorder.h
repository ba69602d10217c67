// Puts a step's numbers together and writes them: metrics.jsonl, journal.jsonl, rollout_samples.jsonl, and the
// observer. Owned by whoever controls the run (director, data actor); one thread at a time.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <set>

#include "actors/messages.h"
#include "actors/topology.h"
#include "actors/trace.h"
#include "base/run_folder.h"

namespace troupe {

/// Calls an observer from several threads, one at a time; a null observer is fine.
class ObserverGate {
 public:
  explicit ObserverGate(RunObserver* observer) : observer_(observer) {}
  template <class F>
  void call(F&& f) {
    if (observer_ == nullptr) return;
    const std::lock_guard lock(mutex_);
    f(*observer_);
  }
  /// A line for the log and for whoever looks on.
  void say(const std::string& line);

 private:
  RunObserver* observer_;
  std::mutex mutex_;
};

class RunRecorder {
 public:
  RunRecorder(std::shared_ptr<RunFolder> folder, std::shared_ptr<Trace> trace, std::shared_ptr<ObserverGate> observer,
              uint64_t seed);

  /// One train step: `metrics` as far as known; adds time, idle shares and memory.
  void step(int64_t step, nlohmann::json metrics, nlohmann::json journal, const nlohmann::json& samples);
  void evaluation(int64_t step, nlohmann::json metrics);
  /// A group that a filter dropped, for the next journal line.
  void dropped(const GroupDrop& drop);
  /// What waits for that line, for a checkpoint, and back.
  const nlohmann::json& pending_drops() const { return dropped_; }
  void set_pending_drops(nlohmann::json drops) { dropped_ = std::move(drops); }
  void status(const WorkerStatus& status);
  /// The worker is gone: it counts for the step under way, not for later ones.
  void gone(int worker) { gone_.insert(worker); }
  /// Seconds of the run before this process (a resumed run's clock goes on).
  void set_time_before(double seconds) { time_before_s_ = seconds; }
  double time_s() const;
  void sync() { folder_->sync(); }

 private:
  void add_worker_metrics(nlohmann::json& metrics, double wall_s);
  void add_idle_shares(nlohmann::json& metrics, double wall_s);

  std::shared_ptr<RunFolder> folder_;
  std::shared_ptr<Trace> trace_;
  std::shared_ptr<ObserverGate> observer_;
  uint64_t seed_;
  std::chrono::steady_clock::time_point start_, last_;
  double time_before_s_ = 0;
  std::map<std::string, double> last_busy_s_;
  std::map<int, WorkerStatus> now_, before_;
  std::set<int> gone_;
  nlohmann::json dropped_ = nlohmann::json::array();
};

}  // namespace troupe
