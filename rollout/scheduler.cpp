#include "rollout/scheduler.h"

#include <algorithm>

#include "base/error.h"

namespace troupe {

Scheduler::Scheduler(const SchedulerOptions& options, EngineMetrics& metrics)
    : options_(options), metrics_(metrics), blocks_(options.num_blocks, options.block_tokens) {
  for (int32_t state = options.max_sequences; options.has_states && state > 0; --state)
    free_states_.push_back(state - 1);
}

void Scheduler::add(std::unique_ptr<Sequence> sequence) {
  // Behind a new one it might wait for ever: that one waits for weights, which wait for this one's end (kFinish).
  const auto place = sequence->resumed
                         ? std::find_if(waiting_.begin(), waiting_.end(), [](const auto& s) { return !s->resumed; })
                         : waiting_.end();
  waiting_.insert(place, std::move(sequence));
}

StepPlan Scheduler::plan(int64_t version, bool admit) {
  StepPlan plan;
  int64_t budget = options_.prefill_chunk_tokens;
  const int64_t preemptions_before = metrics_.preemptions;
  // Oldest first: what is preempted below has always a higher index than what is planned already.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    const int64_t missing = sequence.num_tokens() - sequence.num_computed;
    const int64_t num_rows = missing <= 1 ? 1 : std::min(missing, budget);
    if (num_rows == 0) continue;
    if (!make_room(i, std::min(sequence.num_computed + num_rows, sequence.num_tokens()))) break;
    if (missing > 1) budget -= num_rows;
    plan_rows(sequence, num_rows, plan, version);
  }
  // A preempted sequence that came back at once would only push out the next one.
  if (metrics_.preemptions == preemptions_before) {
    while (!waiting_.empty() && num_running() < options_.max_sequences && (admit || waiting_.front()->resumed) &&
           admit_next(plan, version, budget)) {
    }
  }
  require(!plan.rows.empty() || waiting_.empty() || !running_.empty() || !(admit || waiting_.front()->resumed),
          "the KV cache of ", blocks_.num_blocks(), " blocks is too small for a sequence of ",
          waiting_.empty() ? 0 : waiting_.front()->num_tokens(), " tokens (rollout.kv_cache_mib)");
  return plan;
}

bool Scheduler::make_room(size_t index, int64_t num_tokens) {
  Sequence& sequence = *running_[index];
  while (static_cast<int64_t>(sequence.blocks.size()) < blocks_.num_blocks_for(num_tokens)) {
    const int32_t block = blocks_.allocate();
    if (block >= 0) {
      sequence.blocks.push_back(block);
      continue;
    }
    const bool self = index + 1 == running_.size();
    preempt_last();
    if (self) return false;
  }
  return true;
}

void Scheduler::preempt_last() {
  auto sequence = std::move(running_.back());
  running_.pop_back();
  release_blocks(*sequence);
  sequence->resumed = true;
  ++metrics_.preemptions;
  waiting_.push_front(std::move(sequence));
}

void Scheduler::release_blocks(Sequence& sequence) {
  // The last first: of a cached prefix the end is evicted before the beginning.
  for (auto block = sequence.blocks.rbegin(); block != sequence.blocks.rend(); ++block) blocks_.release(*block);
  sequence.blocks.clear();
  if (sequence.state >= 0) free_states_.push_back(sequence.state);
  sequence.state = -1;
  sequence.num_computed = sequence.num_published = 0;
  sequence.last_identity = 0;
}

void Scheduler::take_state(Sequence& sequence) {
  if (!options_.has_states) return;
  sequence.state = free_states_.back();  // there are as many as sequences can run
  free_states_.pop_back();
}

bool Scheduler::admit_next(StepPlan& plan, int64_t version, int64_t& budget) {
  Sequence& sequence = *waiting_.front();
  sequence.cache_version = version;
  const auto accept = [&] {
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  };
  // Some blocks are left for those that run, so that they do not push this one out again at once.
  const int64_t reserve = num_running() / 2;
  if (blocks_.num_available() > reserve && follow(sequence, plan, version)) {
    metrics_.prefill_tokens_saved += sequence.num_tokens();
    accept();
    return true;
  }
  if (budget <= 0) return false;
  if (!options_.has_states) find_prefix(sequence, version);
  const int64_t num_found = sequence.num_computed;
  const int64_t missing = blocks_.num_blocks_for(sequence.num_tokens()) - static_cast<int64_t>(sequence.blocks.size());
  if (missing + reserve > blocks_.num_available()) {
    release_blocks(sequence);
    return false;
  }
  for (int64_t i = 0; i < missing; ++i) sequence.blocks.push_back(blocks_.allocate());
  metrics_.prefill_tokens_saved += std::min(num_found, sequence.num_tokens() - 1);
  take_state(sequence);
  accept();
  const int64_t num_rows = std::clamp<int64_t>(sequence.num_tokens() - num_found, 1, budget);
  budget -= num_rows;
  plan_rows(sequence, num_rows, plan, version);
  return true;
}

bool Scheduler::follow(Sequence& sequence, StepPlan& plan, int64_t version) {
  for (size_t i = 0; i < plan.drawn.size(); ++i) {
    const Sequence& leader = *plan.drawn[i];
    if (leader.cache_version != version || leader.tokens != sequence.tokens) continue;
    const int64_t in_last = sequence.num_tokens() % options_.block_tokens;
    const size_t num_shared = leader.blocks.size() - (in_last != 0 ? 1 : 0);
    for (size_t b = 0; b < num_shared; ++b) {
      blocks_.share(leader.blocks[b]);
      sequence.blocks.push_back(leader.blocks[b]);
    }
    if (in_last != 0) {
      const int32_t block = blocks_.allocate();
      sequence.blocks.push_back(block);
      plan.copies.push_back({leader.blocks[num_shared], block, in_last});
    }
    take_state(sequence);
    if (options_.has_states) plan.state_copies.push_back({leader.state, sequence.state});
    sequence.num_computed = sequence.num_tokens();
    sequence.num_published = leader.num_published;
    sequence.last_identity = leader.last_identity;
    plan.draws.push_back({plan.draws[i].row, {}, 0});
    plan.drawn.push_back(&sequence);
    return true;
  }
  return false;
}

void Scheduler::find_prefix(Sequence& sequence, int64_t version) {
  const std::span<const int32_t> tokens(sequence.tokens);
  const int64_t size = options_.block_tokens;
  while (sequence.num_computed + size <= sequence.num_tokens()) {
    const int32_t block = blocks_.find(version, sequence.last_identity, tokens.subspan(sequence.num_computed, size));
    if (block < 0) return;
    sequence.blocks.push_back(block);
    sequence.num_computed += size;
    sequence.last_identity = blocks_.identity(block);
    ++sequence.num_published;
  }
}

void Scheduler::plan_rows(Sequence& sequence, int64_t num_rows, StepPlan& plan, int64_t version) {
  const int64_t size = options_.block_tokens;
  const bool prefill = sequence.num_tokens() - sequence.num_computed > 1 || sequence.log_probs.empty();
  if (prefill) {
    plan.num_prefill_rows += num_rows;
    (sequence.resumed ? metrics_.recomputed_tokens : metrics_.prefill_tokens) += num_rows;
  } else {
    plan.num_decode_rows += num_rows;
  }
  // All is in the cache where a shared prefix covers the whole: only the last token's logits are missing.
  const bool only_logits = sequence.num_computed == sequence.num_tokens();
  const int64_t first = only_logits ? sequence.num_tokens() - 1 : sequence.num_computed;
  for (int64_t position = first; position < first + num_rows; ++position) {
    Row row;
    row.token = sequence.tokens[position];
    row.position = static_cast<int32_t>(position);
    row.slot = only_logits ? -1 : sequence.blocks[position / size] * size + position % size;
    row.blocks = sequence.blocks.data();
    row.state = sequence.state;
    plan.rows.push_back(row);
  }
  sequence.num_computed = first + num_rows;
  publish(sequence, version);
  if (sequence.num_computed == sequence.num_tokens()) {
    plan.draws.push_back({static_cast<int32_t>(plan.rows.size()) - 1, {}, 0});
    plan.drawn.push_back(&sequence);
  }
}

void Scheduler::publish(Sequence& sequence, int64_t version) {
  if (sequence.cache_version != version) return;
  const std::span<const int32_t> tokens(sequence.tokens);
  const int64_t size = options_.block_tokens;
  for (; (sequence.num_published + 1) * size <= sequence.num_computed; ++sequence.num_published) {
    const int32_t block = sequence.blocks[sequence.num_published];
    const auto content = tokens.subspan(sequence.num_published * size, size);
    if (blocks_.identity(block) == 0) blocks_.publish(block, version, sequence.last_identity, content);
    if (blocks_.identity(block) == 0) {
      // An equal block was published by another sequence; what follows hangs on that one.
      const int32_t other = blocks_.find(version, sequence.last_identity, content);
      sequence.last_identity = blocks_.identity(other);
      blocks_.release(other);
    } else {
      sequence.last_identity = blocks_.identity(block);
    }
  }
}

std::unique_ptr<Sequence> Scheduler::finish(Sequence* sequence) {
  const auto found = std::find_if(running_.begin(), running_.end(), [&](const auto& s) { return s.get() == sequence; });
  require(found != running_.end(), "scheduler: a sequence that does not run cannot finish");
  auto taken = std::move(*found);
  running_.erase(found);
  release_blocks(*taken);
  return taken;
}

bool Scheduler::cancel(uint64_t sample_id) {
  const auto matches = [&](const std::unique_ptr<Sequence>& s) { return s->request.sample_id == sample_id; };
  for (auto& sequence : running_) {
    if (matches(sequence)) release_blocks(*sequence);
  }
  return std::erase_if(running_, matches) + std::erase_if(waiting_, matches) > 0;
}

std::vector<std::unique_ptr<Sequence>> Scheduler::take_all() {
  std::vector<std::unique_ptr<Sequence>> all;
  for (auto& sequence : running_) {
    release_blocks(*sequence);
    all.push_back(std::move(sequence));
  }
  for (auto& sequence : waiting_) all.push_back(std::move(sequence));
  running_.clear();
  waiting_.clear();
  return all;
}

std::vector<const Sequence*> Scheduler::all() const {
  std::vector<const Sequence*> sequences;
  for (const auto& sequence : running_) sequences.push_back(sequence.get());
  for (const auto& sequence : waiting_) sequences.push_back(sequence.get());
  return sequences;
}

void Scheduler::weights_changed(bool recompute) {
  blocks_.forget_all();
  if (!recompute) {
    for (auto& sequence : running_) sequence->cache_version = -1;
    return;
  }
  for (auto sequence = running_.rbegin(); sequence != running_.rend(); ++sequence) {
    release_blocks(**sequence);
    (*sequence)->resumed = true;
    waiting_.push_front(std::move(*sequence));
  }
  running_.clear();
}

bool Scheduler::nothing_started() const {
  return running_.empty() && std::none_of(waiting_.begin(), waiting_.end(), [](const auto& s) { return s->resumed; });
}

}  // namespace troupe
