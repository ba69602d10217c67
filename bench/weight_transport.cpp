// How long a new version takes from the trainer's snapshot to every worker process of this machine, hashed, sent over
// ZeroMQ, staged and checked. usage: bench-weight-transport [workers [repeats]]; default 3 and 5, SmolLM2-135M in bf16.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "actors/weight_publisher.h"
#include "actors/weight_subscriber.h"
#include "base/error.h"
#include "models/torch.h"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;

ModelConfig model_of_270_mb() {
  return parse_model_config({{"architectures", {"LlamaForCausalLM"}},
                             {"model_type", "llama"},
                             {"vocab_size", 49152},
                             {"hidden_size", 576},
                             {"intermediate_size", 1536},
                             {"num_hidden_layers", 30},
                             {"num_attention_heads", 9},
                             {"num_key_value_heads", 3},
                             {"head_dim", 64},
                             {"max_position_embeddings", 8192},
                             {"rms_norm_eps", 1e-5},
                             {"rope_theta", 100000.0},
                             {"hidden_act", "silu"},
                             {"tie_word_embeddings", true}});
}

struct Offer {
  int port = 0;
  char ticket[128] = {};
};

void write_all(int file, const void* data, size_t size) {
  require(::write(file, data, size) == static_cast<ssize_t>(size), "a pipe is closed");
}
bool read_all(int file, void* data, size_t size) { return ::read(file, data, size) == static_cast<ssize_t>(size); }

struct WorkerProcess {
  pid_t process = -1;
  int offers = -1, versions = -1;  // our ends
};

/// Takes versions until its offers end.
WorkerProcess start_worker() {
  int offers[2], versions[2];
  require(::pipe(offers) == 0 && ::pipe(versions) == 0, "no pipe");
  const auto process = ::fork();
  require(process >= 0, "no process");
  if (process > 0) {
    ::close(offers[0]);
    ::close(versions[1]);
    return {process, offers[1], versions[0]};
  }
  ::close(offers[1]);
  ::close(versions[0]);
  Offer offer;
  if (!read_all(offers[0], &offer, sizeof offer)) std::_Exit(1);
  {
    WeightSubscriberOptions options;
    options.endpoint = concat("tcp://127.0.0.1:", offer.port);
    options.ticket = offer.ticket;
    options.on_weights = [&](WeightSnapshot snapshot) { write_all(versions[1], &snapshot.version, sizeof(int64_t)); };
    WeightSubscriber subscriber(model_of_270_mb(), std::move(options));
    char end = 0;
    read_all(offers[0], &end, 1);
  }
  std::_Exit(0);
}

int run(int num_workers, int num_repeats) {
  std::vector<WorkerProcess> workers;  // before any thread
  for (int i = 0; i < num_workers; ++i) workers.push_back(start_worker());
  WeightPublisher publisher({"127.0.0.1", 0, std::chrono::milliseconds(60'000)});
  for (const auto& worker : workers) {
    Offer offer{publisher.port(), {}};
    const auto ticket = publisher.admit();
    require(ticket.size() < sizeof offer.ticket, "a ticket of ", ticket.size(), " characters");
    ticket.copy(offer.ticket, ticket.size());
    write_all(worker.offers, &offer, sizeof offer);
  }
  int64_t bytes = 0;
  std::vector<double> seconds;
  for (int64_t version = 1; version <= num_repeats + 1; ++version) {
    auto snapshot = std::make_shared<WeightSnapshot>();
    snapshot->version = version;
    bytes = 0;
    for (const auto& spec : parameter_specs(model_of_270_mb())) {
      const auto tensor = at::full(spec.shape, 0.001 * static_cast<double>(version), at::kBFloat16);
      bytes += static_cast<int64_t>(tensor.nbytes());
      snapshot->tensors[spec.name] = tensor;
    }
    const auto begin = Clock::now();
    publisher.publish(snapshot);
    for (const auto& worker : workers) {
      int64_t got = 0;
      do require(read_all(worker.versions, &got, sizeof got), "a worker has ended");
      while (got < version);
    }
    // The first one also connects.
    if (version > 1) seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  for (const auto& worker : workers) {
    ::close(worker.offers);
    ::waitpid(worker.process, nullptr, 0);
  }
  std::sort(seconds.begin(), seconds.end());
  std::printf(
      "{\"workers\":%d,\"bytes\":%lld,\"median_s\":%.3f,\"least_s\":%.3f,\"longest_s\":%.3f,\"serialized\":%lld}\n",
      num_workers, static_cast<long long>(bytes), seconds[seconds.size() / 2], seconds.front(), seconds.back(),
      static_cast<long long>(publisher.num_serialized()));
  return 0;
}

}  // namespace
}  // namespace troupe

int main(int argc, char** argv) {
  const int num_workers = argc > 1 ? std::max(1, std::atoi(argv[1])) : 3;
  const int num_repeats = argc > 2 ? std::max(1, std::atoi(argv[2])) : 5;
  try {
    return troupe::run(num_workers, num_repeats);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
