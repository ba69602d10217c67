// Where the newest weights hang inside a process: immutable, counted snapshots behind shared pointers (invariant 3).
// At most readers + 1 exist; whoever makes one more waits until a reader lets go, and the wait is metered.
// Messages carry only the version, so that no mailbox keeps a snapshot alive.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "rollout/packed_model.h"

namespace troupe {

class WeightBoard {
 public:
  using Pointer = std::shared_ptr<const PackedModel>;

  /// `num_readers`: engines that may each hold a version of their own.
  explicit WeightBoard(int num_readers) : num_readers_(num_readers) {}

  /// Blocks until one more snapshot may exist. Returns the seconds waited; throws Error after `limit`, naming the
  /// count, and where the board is closed.
  double wait_for_room(std::chrono::milliseconds limit);
  /// Nobody reads here any more: ends the wait for room, now and from now on.
  void close();
  /// Hangs up a snapshot; the previous one lives on with its readers. Returns nothing to wait for.
  void publish(Pointer model);
  /// Newest snapshot; null before the first.
  Pointer latest() const;
  int64_t version() const;  // -1 before the first
  /// Snapshots alive now, and the most ever.
  int num_alive() const;
  int most_alive() const;

 private:
  void prune() const;

  int num_readers_;
  mutable std::mutex mutex_;
  std::condition_variable released_;
  Pointer latest_;
  mutable std::vector<std::weak_ptr<const PackedModel>> alive_;
  int most_alive_ = 0;
  bool is_closed_ = false;
};

}  // namespace troupe
