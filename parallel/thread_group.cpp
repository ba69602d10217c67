#include "parallel/thread_group.h"

#include <sstream>
#include <thread>

#include "base/error.h"

namespace troupe {
namespace {

constexpr int kNumSpins = 400;       // some microseconds: a peer that is on time is met without sleeping
constexpr size_t kBoxCapacity = 64;  // messages under way between two ranks

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

std::string describe(const ThreadCall& call) {
  std::string text = concat(call.operation, " '", call.label, "' of ");
  if (call.numel >= 0) text += concat(call.numel, " ");
  text += c10::toString(call.dtype);
  if (call.root >= 0) text += concat(" from rank ", call.root);
  return text;
}

}  // namespace

ThreadGroup::ThreadGroup(int size, std::chrono::milliseconds timeout)
    : size_(size), timeout_(timeout), members_(static_cast<size_t>(size)), boxes_(static_cast<size_t>(size) * size) {}

template <class Ready>
bool ThreadGroup::wait(const Ready& ready, Clock::time_point deadline) {
  for (int spin = 0; spin < kNumSpins; ++spin) {
    if (ready()) return true;
    pause_briefly();
  }
  std::unique_lock lock(mutex_);
  // Announced before the last look: whoever changes the state afterwards sees a sleeper and notifies under the lock.
  num_sleeping_.fetch_add(1);
  const bool is_ready = changed_.wait_until(lock, deadline, ready);
  num_sleeping_.fetch_sub(1);
  return is_ready;
}

void ThreadGroup::wake_all() {
  if (num_sleeping_.load() == 0) return;
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void ThreadGroup::meet(int rank, Clock::time_point deadline) {
  throw_if_failed(rank);
  auto& own = members_[static_cast<size_t>(rank)].num_meetings;
  const uint64_t meeting = own.fetch_add(1) + 1;
  if (num_arrived_.fetch_add(1) + 1 == size_) {
    num_arrived_.store(0);
    generation_.fetch_add(1);
    wake_all();
    return;
  }
  const bool in_time = wait([&] { return generation_.load() >= meeting || failed_.load(); }, deadline);
  if (generation_.load() >= meeting) return;  // done, whatever happened afterwards
  if (!in_time) {
    std::string missing;
    for (int peer = 0; peer < size_; ++peer) {
      if (members_[static_cast<size_t>(peer)].num_meetings.load() < meeting)
        missing += concat(missing.empty() ? "" : ", ", peer);
    }
    time_out(rank, missing);
  }
  leave_failed(rank);
}

void ThreadGroup::check_same(int rank) {
  const auto& reference = members_[0].call;
  for (int peer = 1; peer < size_; ++peer) {
    const auto& call = members_[static_cast<size_t>(peer)].call;
    if (std::string_view(call.operation) == reference.operation && call.label == reference.label &&
        call.dtype == reference.dtype && call.numel == reference.numel && call.root == reference.root) {
      continue;
    }
    const auto reason = concat("ranks ask for different collectives: rank 0 ", describe(reference), ", rank ", peer,
                               " ", describe(call));
    // Every rank finds the same; each leaves only when all have read the board.
    meet(rank, deadline());
    fail_group(reason);
    throw Error(reason);
  }
}

ThreadGroup::CopyGuard::CopyGuard(ThreadGroup& group, int rank) : group_(group) {
  // Counted before the look at `failed_`, while a leaving rank looks at the count after it is set: one of the two sees.
  group_.num_copying_.fetch_add(1);
  if (!group_.failed_.load()) return;
  group_.num_copying_.fetch_sub(1);
  group_.leave_failed(rank);
}

ThreadGroup::CopyGuard::~CopyGuard() { group_.num_copying_.fetch_sub(1); }

void ThreadGroup::post(int from, int to, Message message, Clock::time_point deadline) {
  {
    std::unique_lock lock(mutex_);
    num_sleeping_.fetch_add(1);
    const bool in_time =
        changed_.wait_until(lock, deadline, [&] { return box(from, to).size() < kBoxCapacity || failed_.load(); });
    num_sleeping_.fetch_sub(1);
    if (failed_.load() || !in_time) {
      lock.unlock();
      if (failed_.load()) leave_failed(from);
      time_out(from, std::to_string(to));
    }
    box(from, to).push_back(std::move(message));
  }
  wake_all();
}

ThreadGroup::Message ThreadGroup::take(int from, int to, Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  num_sleeping_.fetch_add(1);
  const bool in_time = changed_.wait_until(lock, deadline, [&] { return !box(from, to).empty() || failed_.load(); });
  num_sleeping_.fetch_sub(1);
  if (box(from, to).empty()) {
    lock.unlock();
    if (in_time) leave_failed(to);
    time_out(to, std::to_string(from));
  }
  auto message = std::move(box(from, to).front());
  box(from, to).pop_front();
  changed_.notify_all();
  return message;
}

void ThreadGroup::fail_group(const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (!failed_.load()) {
    reason_ = reason;
    failed_.store(true);
  }
  changed_.notify_all();
}

void ThreadGroup::throw_if_failed(int rank) {
  if (failed_.load()) leave_failed(rank);
}

void ThreadGroup::drain() {
  while (num_copying_.load() != 0) std::this_thread::yield();  // ends by itself: peers only copy memory meanwhile
}

void ThreadGroup::fail_and_drain(const std::string& reason) {
  fail_group(reason);
  drain();
}

void ThreadGroup::leave_failed(int rank) {
  drain();
  const auto& recorder = members_[static_cast<size_t>(rank)].recorder;
  std::string reason;
  {
    std::lock_guard lock(mutex_);
    reason = reason_;
  }
  fail("rank ", rank, ", ", recorder->describe(1), ": ended because ", reason);
}

void ThreadGroup::time_out(int rank, const std::string& missing) {
  std::ostringstream text;
  text << "rank " << rank << " waited " << timeout_.count() << " ms in "
       << members_[static_cast<size_t>(rank)].recorder->describe(1) << " for rank " << missing << "; last collectives:";
  for (int peer = 0; peer < size_; ++peer) {
    text << "\n  rank " << peer << ": " << members_[static_cast<size_t>(peer)].recorder->describe(4);
  }
  fail_and_drain(text.str());
  throw Error(text.str());
}

}  // namespace troupe
