#include "actors/run_recorder.h"

#include "base/cpu.h"
#include "base/log.h"

namespace troupe {

void ObserverGate::say(const std::string& line) {
  log::info(line);
  call([&](RunObserver& observer) { observer.on_text(line); });
}

RunRecorder::RunRecorder(std::shared_ptr<RunFolder> folder, std::shared_ptr<Trace> trace,
                         std::shared_ptr<ObserverGate> observer, uint64_t seed)
    : folder_(std::move(folder)),
      trace_(std::move(trace)),
      observer_(std::move(observer)),
      seed_(seed),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {}

double RunRecorder::time_s() const {
  return time_before_s_ + std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void RunRecorder::dropped(const GroupDrop& drop) {
  auto samples = nlohmann::json::array();
  for (size_t i = 0; i < drop.sample_ids.size(); ++i)
    samples.push_back({{"id", drop.sample_ids[i]}, {"attempt", drop.attempts[i]}});
  auto given_up = nlohmann::json::array();
  for (size_t i = 0; i < drop.given_up_ids.size(); ++i)
    given_up.push_back({{"id", drop.given_up_ids[i]}, {"reason", drop.given_up_reasons[i]}});
  dropped_.push_back({{"group", drop.group},
                      {"reason", drop.reason},
                      {"samples", std::move(samples)},
                      {"given_up", std::move(given_up)}});
}

void RunRecorder::status(const WorkerStatus& status) {
  // A restarted worker counts from 0 again.
  const auto before = now_.find(status.worker);
  if (before != now_.end() && status.decode_steps < before->second.decode_steps) before_.erase(status.worker);
  now_[status.worker] = status;
  gone_.erase(status.worker);
}

void RunRecorder::add_worker_metrics(nlohmann::json& metrics, double wall_s) {
  WorkerStatus sum;
  for (const auto& [worker, now] : now_) {
    const auto& before = before_[worker];
    sum.decode_steps += now.decode_steps - before.decode_steps;
    sum.decoded_tokens += now.decoded_tokens - before.decoded_tokens;
    sum.prefill_tokens += now.prefill_tokens - before.prefill_tokens;
    sum.prefill_tokens_saved += now.prefill_tokens_saved - before.prefill_tokens_saved;
    sum.preemptions += now.preemptions - before.preemptions;
    sum.recomputed_tokens += now.recomputed_tokens - before.recomputed_tokens;
    sum.busy_s += now.busy_s - before.busy_s;
  }
  if (now_.empty()) return;
  for (const auto worker : gone_) now_.erase(worker);
  gone_.clear();
  before_ = now_;
  metrics["rollout/num_workers"] = now_.size();
  metrics["rollout/decode_steps"] = sum.decode_steps;
  metrics["rollout/decoded_tokens"] = sum.decoded_tokens;
  metrics["rollout/prefill_tokens"] = sum.prefill_tokens;
  metrics["rollout/prefill_tokens_saved"] = sum.prefill_tokens_saved;
  metrics["rollout/preemptions"] = sum.preemptions;
  metrics["rollout/recomputed_tokens"] = sum.recomputed_tokens;
  if (wall_s > 0) metrics["rollout/tokens_per_second"] = static_cast<double>(sum.decoded_tokens) / wall_s;
  if (sum.busy_s > 0) metrics["rollout/tokens_per_busy_second"] = static_cast<double>(sum.decoded_tokens) / sum.busy_s;
}

void RunRecorder::add_idle_shares(nlohmann::json& metrics, double wall_s) {
  const auto busy = trace_->busy_s();
  // Several seats of one role ("rollout 0", "rollout 1") make one share, their mean.
  std::map<std::string, std::pair<double, int>> by_role;
  for (const auto& [seat, seconds] : busy) {
    auto& [sum, count] = by_role[seat.substr(0, seat.find(' '))];
    sum += seconds - last_busy_s_[seat];
    ++count;
  }
  last_busy_s_ = busy;
  if (wall_s <= 0) return;
  for (const auto& [role, share] : by_role)
    metrics["idle/" + role] = std::clamp(1 - share.first / share.second / wall_s, 0.0, 1.0);
}

void RunRecorder::step(int64_t step, nlohmann::json metrics, nlohmann::json journal, const nlohmann::json& samples) {
  const auto now = std::chrono::steady_clock::now();
  const auto wall_s = std::chrono::duration<double>(now - last_).count();
  last_ = now;
  metrics["step"] = step;
  metrics["time_s"] = time_s();
  metrics["policy_version"] = step;
  metrics["time_metrics/end_to_end(s)"] = wall_s;
  if (metrics.contains("train_batch/num_tokens") && wall_s > 0)
    metrics["throughput(tps)"] = metrics["train_batch/num_tokens"].get<double>() / wall_s;
  metrics["memory/resident(GiB)"] = static_cast<double>(resident_memory_bytes()) / (1 << 30);
  metrics["memory/peak(GiB)"] = static_cast<double>(peak_memory_bytes()) / (1 << 30);
  add_worker_metrics(metrics, wall_s);
  add_idle_shares(metrics, wall_s);
  if (!journal.is_null()) {
    journal["seed"] = seed_;
    for (auto& drop : dropped_) journal["dropped"].push_back(std::move(drop));
    dropped_ = nlohmann::json::array();
    folder_->journal().append(journal);
  }
  for (const auto& sample : samples) folder_->samples().append(sample);
  folder_->metrics().append(metrics);
  observer_->call([&](RunObserver& observer) {
    observer.on_step(metrics);
    for (const auto& sample : samples) observer.on_sample(sample);
  });
}

void RunRecorder::evaluation(int64_t step, nlohmann::json metrics) {
  metrics["step"] = step;
  metrics["time_s"] = time_s();
  folder_->metrics().append(metrics);
  observer_->call([&](RunObserver& observer) { observer.on_evaluation(metrics); });
  last_ = std::chrono::steady_clock::now();  // an evaluation is no part of a step
  last_busy_s_ = trace_->busy_s();
}

}  // namespace troupe
