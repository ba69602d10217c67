#include "actors/admission.h"

#include <algorithm>

#include "base/error.h"

namespace troupe {

AdmissionLedger::AdmissionLedger(AdmissionOptions options, int64_t version) : options_(options), version_(version) {
  if (options.num_groups_per_step < 1)
    throw UsageError(
        concat("async_loop.num_prompts_per_train_step = ", options.num_groups_per_step, " must be at least 1"));
  if (options.max_lag < 0)
    throw UsageError(concat("async_loop.target_offpolicy_steps = ", options.max_lag, " must not be negative"));
  if (options.window < 1)
    throw UsageError(concat("async_loop.window_groups = ", options.window, " must be at least 1"));
}

int64_t AdmissionLedger::staleness_bound() const {
  const auto p = options_.num_groups_per_step;
  return options_.max_lag + (options_.window - 1 + p - 1) / p;
}

const Admission& AdmissionLedger::admit(uint64_t group) {
  require(num_free() > 0, "group ", group, " cannot be admitted: all ", capacity(), " slots are taken");
  const auto [at, fresh] = live_.try_emplace(group, Admission{group, next_index_, version_});
  require(fresh, "group ", group, " is live already");
  ++next_index_;
  return at->second;
}

void AdmissionLedger::restore(const Admission& admission) {
  require(num_free() > 0, "group ", admission.group, " of the checkpoint finds no slot: all ", capacity(),
          " are taken");
  require(admission.version <= version_, "group ", admission.group, " of the checkpoint was admitted at version ",
          admission.version, ", after the version ", version_, " of the weights");
  require(live_.try_emplace(admission.group, admission).second, "group ", admission.group,
          " stands twice in the checkpoint");
  next_index_ = std::max(next_index_, admission.index + 1);
}

void AdmissionLedger::train(const std::vector<uint64_t>& groups, int64_t version) {
  require(version > version_, "version ", version, " was published after version ", version_);
  for (const auto group : groups) remove(group, "trained");
  version_ = version;
}

void AdmissionLedger::drop(uint64_t group, const std::string& reason) {
  remove(group, "dropped");
  ++dropped_[reason];
}

void AdmissionLedger::remove(uint64_t group, const char* why) {
  require(live_.erase(group) == 1, "group ", group, " was ", why, " but is not live: it would count twice");
}

const Admission& AdmissionLedger::at(uint64_t group) const {
  const auto found = live_.find(group);
  require(found != live_.end(), "group ", group, " is not live");
  return found->second;
}

std::vector<Admission> AdmissionLedger::in_order() const {
  std::vector<Admission> all;
  for (const auto& [group, admission] : live_) all.push_back(admission);
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.index < b.index; });
  return all;
}

}  // namespace troupe
