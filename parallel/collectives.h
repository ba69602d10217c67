// Collective operations of one group of ranks, whatever carries them: shared memory between threads of this process,
// Gloo between processes, NCCL between GPUs. Every call ends: by success, by an error of a peer, or by the time limit.
#pragma once

#include <deque>
#include <mutex>

#include "models/torch.h"
#include "parallel/flight_recorder.h"

namespace troupe {

/// What one rank's collectives moved; tests hold it against formulas. `bytes` counts the full (gathered) tensor.
struct CollectiveRecord {
  std::string operation;  // "all_gather", "reduce_scatter", ...
  std::string label;      // who asked: "unit 3 forward"
  int64_t bytes = 0;
};

/// Counts are exact for ever; single records are kept for the newest kMaxRecords calls, so a long run costs no memory.
class CollectiveLog {
 public:
  static constexpr size_t kMaxRecords = 4096;
  void add(CollectiveRecord record);
  std::vector<CollectiveRecord> records() const;  // oldest first
  /// Calls and bytes of one operation since the last clear.
  std::pair<int64_t, int64_t> totals(const std::string& operation) const;
  void clear();

 private:
  mutable std::mutex mutex_;
  std::deque<CollectiveRecord> records_;
  std::map<std::string, std::pair<int64_t, int64_t>> totals_;
};

class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// output [size * n] <- every rank's input [n], by rank. Contiguous, same dtype. `input` may be this rank's own part
  /// of `output` (nothing is copied then).
  virtual void all_gather(Tensor& output, const Tensor& input, const std::string& label) = 0;
  /// output [n] <- sum over ranks of their input [size * n], this rank's part. Sums in rank order (repeatable).
  virtual void reduce_scatter(Tensor& output, const Tensor& input, const std::string& label) = 0;
  virtual void all_reduce(Tensor& tensor, const std::string& label) = 0;  // sum in rank order, in place
  virtual void broadcast(Tensor& tensor, int root, const std::string& label) = 0;
  /// output and input are cut along dimension 0 by the sizes (uneven and empty parts allowed).
  virtual void all_to_all(Tensor& output, const Tensor& input, const std::vector<int64_t>& output_sizes,
                          const std::vector<int64_t>& input_sizes, const std::string& label) = 0;
  /// The tensor is copied before this returns; up to 64 messages may be under way between two ranks.
  virtual void send(const Tensor& tensor, int to, const std::string& label) = 0;
  virtual void receive(Tensor& tensor, int from, const std::string& label) = 0;
  virtual void barrier(const std::string& label) = 0;
  /// Ends every peer's running and later calls with an Error that carries `reason` (a rank that throws calls this).
  virtual void abort(const std::string& reason) = 0;

  CollectiveLog& log() { return log_; }
  /// The last calls with their times; every time-out shows it.
  FlightRecorder& recorder() { return *recorder_; }

 protected:
  CollectiveLog log_;
  std::shared_ptr<FlightRecorder> recorder_ = std::make_shared<FlightRecorder>();
};

/// Ranks as threads of this process over shared memory; element r belongs to rank r. `size` 1 is the same code. Every
/// call checks that all ranks ask for the same thing: a different operation, label, dtype or size is an Error that
/// names both. Destroying a rank's object ends its peers' later calls.
std::vector<std::unique_ptr<Collectives>> make_thread_collectives(int size, std::chrono::milliseconds timeout);

/// One rank over Gloo. With `store_port` ranks meet at a TCP store that rank 0 serves there; without it at a store of
/// this process, shared by `group_name`. Throws Error naming the rank that did not come. Sums are bit for bit those of
/// the thread collectives. A SIGPIPE without a handler is ignored from the first call on: a lost peer is an error.
struct GlooOptions {
  int rank = 0, size = 1;
  std::string store_host = "127.0.0.1";
  int store_port = 0;  // 0: an in-process store, shared by name
  std::string group_name = "default";
  std::string interface_address = "127.0.0.1";
  std::chrono::milliseconds timeout{60000};
};
std::unique_ptr<Collectives> make_gloo_collectives(const GlooOptions& options);

}  // namespace troupe
