#include "actors/work_ledger.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/trajectory.h"

namespace troupe {

GroupToWorker parse_group_to_worker(const std::string& name) {
  if (name == "least_loaded") return GroupToWorker::kLeastLoaded;
  if (name == "sticky") return GroupToWorker::kSticky;
  if (name == "fixed") return GroupToWorker::kFixed;
  throw UsageError("rollout.group_to_worker = \"" + name + "\" is not one of \"least_loaded\", \"sticky\", \"fixed\"");
}

void WorkLedger::join(int worker, int credit, int64_t version) {
  require(credit > 0, "worker ", worker, " has no room for a sequence");
  require(workers_.try_emplace(worker, Worker{credit, credit, version, {}}).second, "worker ", worker, " joined twice");
}

int64_t WorkLedger::leave(int worker, bool is_loss) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return 0;
  workers_.erase(found);
  int64_t num_lost = 0;
  // Also samples that are being scored: their bytes may have died with the worker. Should the answer come all the same,
  // it is the first and counts; the repeated one is then the duplicate.
  for (auto& [group, work] : groups_) {
    for (auto& [id, sample] : work.samples) {
      if (sample.state == State::kWaiting || sample.worker != worker) continue;
      ++num_lost;
      sample.losses += is_loss;
      if (sample.losses > options_.max_losses) {
        given_up_.push_back({id, concat(sample.losses, " workers died under it")});
      } else {
        wait_again(work, sample);
      }
    }
  }
  for (const auto& given : given_up_) {
    const auto at = groups_.find(group_of_sample(given.sample_id));
    if (at != groups_.end()) erase(at->second, given.sample_id);
  }
  return num_lost;
}

void WorkLedger::acknowledge(int worker, int64_t version) {
  const auto found = workers_.find(worker);
  if (found != workers_.end()) found->second.version = std::max(found->second.version, version);
}

void WorkLedger::add_group(uint64_t group, int64_t order, int64_t min_version, const std::vector<uint64_t>& missing) {
  Group work{order, min_version, {}, 0};
  for (const auto id : missing) {
    require(group_of_sample(id) == group, "sample ", id, " does not belong to group ", group);
    work.samples.try_emplace(id);
  }
  const auto num_samples = static_cast<int64_t>(work.samples.size());
  const auto [at, fresh] = groups_.try_emplace(group, std::move(work));
  require(fresh, "group ", group, " is under way already");
  require(order_.try_emplace(order, group).second, "place ", order, " in the order is taken");
  note_waiting(at->second, num_samples);
}

void WorkLedger::remove_group(uint64_t group) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return;
  order_.erase(found->second.order);
  waiting_.erase(found->second.order);
  groups_.erase(found);
}

bool WorkLedger::can_take(const Worker& worker, const Group& work, int64_t num_samples) const {
  return worker.version >= work.min_version && worker.credit >= std::min<int64_t>(num_samples, worker.capacity);
}

std::optional<int> WorkLedger::choose(uint64_t group, const Group& work, int64_t num_samples) const {
  const int home = static_cast<int>(group % static_cast<uint64_t>(std::max(options_.num_workers, 1)));
  if (options_.group_to_worker != GroupToWorker::kLeastLoaded) {
    const auto found = workers_.find(home);
    if (found != workers_.end() && can_take(found->second, work, num_samples)) return home;
    if (options_.group_to_worker == GroupToWorker::kFixed) return std::nullopt;
  }
  std::optional<int> best;
  for (const auto& [id, worker] : workers_) {
    if (!can_take(worker, work, num_samples)) continue;
    if (!best || worker.held.size() < workers_.at(*best).held.size()) best = id;
  }
  return best;
}

std::vector<WorkIssue> WorkLedger::issue() {
  std::vector<WorkIssue> issues;
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const auto group = next->second;
    ++next;  // the group may leave the list
    auto& work = groups_.at(group);
    bool placed = true;
    while (work.num_waiting > 0 && placed) {  // more than once only where the group is larger than a worker
      const auto chosen = choose(group, work, work.num_waiting);
      placed = chosen.has_value();
      if (!placed) break;
      auto& worker = workers_.at(*chosen);
      WorkIssue issue{*chosen, group, work.min_version, {}, {}};
      for (auto& [id, sample] : work.samples) {
        if (sample.state != State::kWaiting || worker.credit == 0) continue;
        sample.state = State::kAtWorker;
        sample.worker = *chosen;
        issue.sample_ids.push_back(id);
        issue.attempts.push_back(sample.next_attempt);
        worker.held[id] = sample.next_attempt++;
        --worker.credit;
      }
      note_waiting(work, -static_cast<int64_t>(issue.sample_ids.size()));
      issues.push_back(std::move(issue));
    }
    // Older groups come first: nobody takes the room that the oldest waits for. With fixed homes the others do not
    // compete.
    if (!placed && options_.group_to_worker != GroupToWorker::kFixed) break;
  }
  return issues;
}

WorkLedger::Sample* WorkLedger::find(uint64_t sample_id) {
  const auto group = groups_.find(group_of_sample(sample_id));
  if (group == groups_.end()) return nullptr;
  const auto sample = group->second.samples.find(sample_id);
  return sample == group->second.samples.end() ? nullptr : &sample->second;
}

void WorkLedger::generated(int worker, uint64_t sample_id, uint32_t attempt) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return;
  const auto held = found->second.held.find(sample_id);
  if (held == found->second.held.end() || held->second != attempt) return;
  found->second.held.erase(held);
  ++found->second.credit;
  auto* sample = find(sample_id);
  if (sample != nullptr && sample->worker == worker && sample->state == State::kAtWorker)
    sample->state = State::kScoring;
}

void WorkLedger::finished(uint64_t sample_id) {
  const auto group = groups_.find(group_of_sample(sample_id));
  if (group != groups_.end()) erase(group->second, sample_id);
}

void WorkLedger::note_waiting(Group& group, int64_t change) {
  group.num_waiting += change;
  if (group.num_waiting > 0)
    waiting_.try_emplace(group.order, group_of_sample(group.samples.begin()->first));
  else
    waiting_.erase(group.order);
}

void WorkLedger::wait_again(Group& group, Sample& sample) {
  sample.state = State::kWaiting;
  sample.worker = -1;
  ++num_reissued_;
  note_waiting(group, 1);
}

void WorkLedger::erase(Group& group, uint64_t sample_id) {
  const auto found = group.samples.find(sample_id);
  if (found == group.samples.end()) return;
  if (found->second.state == State::kWaiting) note_waiting(group, -1);
  group.samples.erase(found);
}

void WorkLedger::failed(uint64_t sample_id, uint32_t attempt, const std::string& reason) {
  auto* sample = find(sample_id);
  if (sample == nullptr || sample->state == State::kWaiting || attempt + 1 != sample->next_attempt) return;
  ++num_failures_;
  retry(sample_id, *sample, reason);
}

void WorkLedger::retry(uint64_t sample_id, Sample& sample, const std::string& reason) {
  if (++sample.failures >= options_.max_attempts) {
    given_up_.push_back({sample_id, concat(reason, " (attempt ", sample.failures, " of ", options_.max_attempts, ")")});
    erase(groups_.at(group_of_sample(sample_id)), sample_id);
    return;
  }
  wait_again(groups_.at(group_of_sample(sample_id)), sample);
}

std::vector<GivenUp> WorkLedger::take_given_up() { return std::exchange(given_up_, {}); }

int64_t WorkLedger::version_of(int worker) const {
  const auto found = workers_.find(worker);
  return found == workers_.end() ? -1 : found->second.version;
}

int64_t WorkLedger::oldest_acknowledged() const {
  int64_t oldest = -1;
  for (const auto& [id, worker] : workers_) oldest = oldest < 0 ? worker.version : std::min(oldest, worker.version);
  return oldest;
}

int64_t WorkLedger::num_at(int worker) const {
  const auto found = workers_.find(worker);
  return found == workers_.end() ? 0 : static_cast<int64_t>(found->second.held.size());
}

int64_t WorkLedger::num_waiting() const {
  int64_t count = 0;
  for (const auto& [order, group] : waiting_) count += groups_.at(group).num_waiting;
  return count;
}

int64_t WorkLedger::num_outstanding() const {
  int64_t count = 0;
  for (const auto& [group, work] : groups_) count += static_cast<int64_t>(work.samples.size());
  return count;
}

std::string WorkLedger::describe() const {
  std::string text = concat(num_outstanding(), " samples outstanding, ", num_waiting(), " of them wait for a worker");
  for (const auto& [id, worker] : workers_)
    text += concat("; worker ", id, " at version ", worker.version, " holds ", worker.held.size());
  for (const auto& [order, group] : order_) {
    const auto& work = groups_.at(group);
    if (work.samples.empty()) continue;
    text += concat("; oldest group ", group, " lacks ", work.samples.size(), " samples and needs version ",
                   work.min_version, ":");
    for (const auto& [id, sample] : work.samples)
      text += sample.state == State::kWaiting    ? concat(" ", id, " waits")
              : sample.state == State::kAtWorker ? concat(" ", id, " at ", sample.worker)
                                                 : concat(" ", id, " of ", sample.worker, " in scoring");
    break;
  }
  return text;
}

}  // namespace troupe
