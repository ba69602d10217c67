// Runs a function once per rank, each on a thread of its own, as the shards of a trainer do.
#pragma once

#include <atomic>
#include <exception>
#include <thread>

#include "base/error.h"
#include "parallel/rank_groups.h"

namespace troupe::parallel_testing {

using RankFunction = std::function<void(Collectives&)>;

/// A rank that throws aborts its group (`abort` of what the ranks are); every rank's error text comes back ("" where
/// there was none).
template <class Rank, class Function, class Abort>
std::vector<std::string> run_each(std::vector<Rank>& ranks, const Function& function, const Abort& abort) {
  std::vector<std::string> errors(ranks.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        function(ranks[rank]);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
        abort(ranks[rank], error.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

inline std::vector<std::string> run_ranks_collecting(std::vector<std::unique_ptr<Collectives>>& ranks,
                                                     const RankFunction& function) {
  return run_each(
      ranks, [&](auto& rank) { function(*rank); }, [](auto& rank, const char* reason) { rank->abort(reason); });
}

inline std::vector<std::string> run_groups_collecting(std::vector<RankGroups>& ranks,
                                                      const std::function<void(const RankGroups&)>& function) {
  return run_each(ranks, function, [](const RankGroups& rank, const char* reason) { rank.abort(reason); });
}

inline void throw_first(const std::vector<std::string>& errors) {
  for (const auto& error : errors)
    if (!error.empty()) throw std::runtime_error(error);
}

/// Ranks of this process over either backend, each made on its own thread (Gloo's meet while they are made).
inline std::vector<std::unique_ptr<Collectives>> make_group(const std::string& backend, int size,
                                                            std::chrono::milliseconds timeout) {
  if (backend == "threads") return make_thread_collectives(size, timeout);
  static std::atomic<int> num_groups{0};
  const auto name = concat("test-", num_groups++);
  std::vector<std::unique_ptr<Collectives>> ranks(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      GlooOptions options;
      options.rank = rank;
      options.size = size;
      options.group_name = name;
      options.timeout = timeout;
      ranks[static_cast<size_t>(rank)] = make_gloo_collectives(options);
    });
  }
  for (auto& thread : threads) thread.join();
  return ranks;
}

/// Throws the first rank's error.
inline void run_ranks(int size, const RankFunction& function,
                      std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  auto ranks = make_thread_collectives(size, timeout);
  throw_first(run_ranks_collecting(ranks, function));
}

inline void run_groups(int num_replicas, int num_shards, const std::function<void(const RankGroups&)>& function) {
  auto ranks = make_thread_groups({.replicate = num_replicas, .shard = num_shards}, std::chrono::seconds(20));
  throw_first(run_groups_collecting(ranks, function));
}

}  // namespace troupe::parallel_testing
