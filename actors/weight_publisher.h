// Gives published weights to the workers of other processes, over ZeroMQ. A thread of its own; nobody waits for it.
//
//   trainer ──publish v──> [newest] ──> session A: chunks of v, as fast as A asks ──> worker A
//                              └──────> session B: still at v-1, skips to v when it is done ──> worker B
//
//   worker: want {ticket, have}   publisher: begin {manifest}, chunk {tensor, offset} + bytes ..., end
//           more {count}                     (at most kWindow chunks ahead of what the worker has taken)
//           ack {version, result}
//
// Every session has a place of its own in the chunks of one shared publication: a version is hashed once, whatever the
// number of workers, its bytes are the snapshot's own, and a slow worker holds nobody back. A worker that asks is
// served the newest version; those in between are never sent. Words without a ticket that is valid are dropped and
// counted.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "models/weights.h"

namespace troupe {

struct WeightPublisherOptions {
  std::string bind = "127.0.0.1";
  int port = 0;                                  // 0: any
  std::chrono::milliseconds lost_after{10'000};  // a session that is served and says nothing for so long is dropped
};

class WeightPublisher {
 public:
  /// Throws Error where the port cannot be had.
  explicit WeightPublisher(WeightPublisherOptions options);
  ~WeightPublisher();
  WeightPublisher(const WeightPublisher&) = delete;
  WeightPublisher& operator=(const WeightPublisher&) = delete;

  int port() const { return port_; }
  /// The newest version from now on. The tensors must not change any more.
  void publish(WeightSnapshotPointer snapshot);
  /// A new ticket: who shows it is served.
  std::string admit();
  void revoke(const std::string& ticket);

  /// Versions hashed and cut into chunks; those that at least one worker asked for.
  int64_t num_serialized() const { return num_serialized_; }
  /// Whole versions that workers acknowledged.
  int64_t num_applied() const { return num_applied_; }
  int64_t num_mismatches() const { return num_mismatches_; }
  /// Messages that made no sense or showed no valid ticket.
  int64_t num_strangers() const { return num_strangers_; }

 private:
  class Loop;

  WeightPublisherOptions options_;
  int port_ = 0;
  int wake_ = -1;  // eventfd
  std::mutex mutex_;
  WeightSnapshotPointer newest_;
  std::set<std::string> tickets_;
  bool is_stopping_ = false;
  std::atomic<int64_t> num_serialized_{0}, num_applied_{0}, num_mismatches_{0}, num_strangers_{0};
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace troupe
