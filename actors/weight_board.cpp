#include "actors/weight_board.h"

#include "base/error.h"

namespace troupe {
namespace {
using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLook{2};
}  // namespace

void WeightBoard::prune() const {
  std::erase_if(alive_, [](const auto& model) { return model.expired(); });
}

double WeightBoard::wait_for_room(std::chrono::milliseconds limit) {
  const auto start = Clock::now();
  std::unique_lock lock(mutex_);
  // Readers drop plain shared pointers, which notify nobody: looks every 2 ms, only while the board is full.
  while (true) {
    require(!is_closed_, "weights: nobody takes them here any more");
    prune();
    if (static_cast<int>(alive_.size()) <= num_readers_) break;
    if (Clock::now() - start > limit) {
      std::string held;
      for (const auto& model : alive_)
        if (const auto one = model.lock())
          held += concat(held.empty() ? "" : ", ", "version ", one->version(), " by ", model.use_count() - 1);
      fail("weights: ", alive_.size(), " snapshots are still held after ", limit.count(), " ms (", held, "); at most ",
           num_readers_ + 1, " may exist");
    }
    released_.wait_for(lock, kLook);
  }
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void WeightBoard::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  released_.notify_all();
}

void WeightBoard::publish(Pointer model) {
  const std::lock_guard lock(mutex_);
  require(latest_ == nullptr || model->version() > latest_->version(), "weights: version ", model->version(),
          " is not newer than what is published");
  alive_.push_back(model);
  latest_ = std::move(model);
  prune();
  most_alive_ = std::max(most_alive_, static_cast<int>(alive_.size()));
}

WeightBoard::Pointer WeightBoard::latest() const {
  const std::lock_guard lock(mutex_);
  return latest_;
}

int64_t WeightBoard::version() const {
  const std::lock_guard lock(mutex_);
  return latest_ == nullptr ? -1 : latest_->version();
}

int WeightBoard::num_alive() const {
  const std::lock_guard lock(mutex_);
  prune();
  return static_cast<int>(alive_.size());
}

int WeightBoard::most_alive() const {
  const std::lock_guard lock(mutex_);
  return most_alive_;
}

}  // namespace troupe
