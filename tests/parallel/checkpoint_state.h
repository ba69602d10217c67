// Training state whose every value is known, and its way into a checkpoint and back.
#pragma once

#include "base/error.h"
#include "parallel/checkpoint.h"
#include "tests/parallel/ranks.h"
#include "tests/parallel/tiny_model.h"

namespace troupe::parallel_testing {

/// A sharded model with optimizer state whose values are a function of the element's place in the whole tensor.
struct CheckpointState {
  Decoder decoder;
  FullyShardedDecoder model;
  std::map<std::string, std::vector<Tensor>> optimizer;

  explicit CheckpointState(Collectives& collectives) : decoder(tiny_config(false)), model(decoder, collectives, {}) {
    for (const auto& shard : model.shards()) {
      for (const char* kind : {"exp_avg", "exp_avg_sq"}) optimizer[kind].push_back(at::zeros_like(shard.parameter));
    }
  }
  ShardedValues values() { return sharded_values(model, optimizer); }
  void fill(double seed) {
    for (auto& [kind, units] : values().kinds) {
      for (const auto& piece : model.pieces()) {
        units[static_cast<size_t>(piece.unit)]
            .narrow(0, piece.shard_begin, piece.flat_end - piece.flat_begin)
            .copy_(wanted(kind, piece, seed));
      }
    }
  }
  void check(double seed) {
    for (auto& [kind, units] : values().kinds) {
      for (const auto& piece : model.pieces()) {
        const auto part =
            units[static_cast<size_t>(piece.unit)].narrow(0, piece.shard_begin, piece.flat_end - piece.flat_begin);
        require(at::equal(part, wanted(kind, piece, seed)), kind, " of ", piece.name, " differs");
      }
    }
  }
  static Tensor wanted(const std::string& kind, const ShardPiece& piece, double seed) {
    const auto index = at::arange(piece.flat_begin, piece.flat_end, at::kDouble);
    return at::sin(index * 0.7 + seed + static_cast<double>(kind.size() + piece.name.size())).to(at::kFloat);
  }
};

inline void save_state(const std::filesystem::path& folder, int size, int64_t step, double seed,
                       bool is_async = false) {
  run_ranks(size, [&](Collectives& collectives) {
    CheckpointState state(collectives);
    state.fill(seed);
    CheckpointWriter writer(collectives, {is_async});
    writer.save({folder, step, step, concat("{\"step\":", step, "}"), "groups", 0}, state.values());
    writer.wait();
    collectives.barrier("saved");
  });
}

inline void load_and_check(const std::filesystem::path& folder, int size, double seed) {
  run_ranks(size, [&](Collectives& collectives) {
    CheckpointState state(collectives);
    auto values = state.values();
    load_checkpoint_values(find_latest_checkpoint(folder).value().path, values);
    state.check(seed);
  });
}

}  // namespace troupe::parallel_testing
