// Takes weights from the run that a worker has joined (weight_publisher.h), on a thread of its own.
//
//   want ──> begin ──> chunk + more ... ──> end ──whole and right──> on_weights ──> ack applied ──> want
//     ▲                                       └──anything wrong──> ack mismatch, the old version stays ──┐
//     └───────────────── a pause, where the same version failed before ──────────────────────────────────┘
//
// A sender that falls silent in the middle leaves nothing behind: what was staged is dropped and asked for anew.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "models/config.h"
#include "models/weights.h"

namespace troupe {

struct WeightSubscriberOptions {
  std::string endpoint;  // "tcp://host:port"
  std::string ticket;
  std::chrono::milliseconds silence_limit{10'000};  // in the middle of a transfer
  /// A whole version, called on the thread. What it throws counts as a mismatch: the old version stays.
  std::function<void(WeightSnapshot)> on_weights;
};

class WeightSubscriber {
 public:
  WeightSubscriber(const ModelConfig& config, WeightSubscriberOptions options);
  ~WeightSubscriber();
  WeightSubscriber(const WeightSubscriber&) = delete;
  WeightSubscriber& operator=(const WeightSubscriber&) = delete;

  int64_t version() const { return version_; }  // of the newest whole one; -1 before the first
  int64_t num_failures() const { return num_failures_; }

 private:
  class Loop;

  std::atomic<int64_t> version_{-1}, num_failures_{0};
  std::atomic<bool> is_stopping_{false};
  int wake_ = -1;  // eventfd
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace troupe
