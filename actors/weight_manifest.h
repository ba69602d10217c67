// What travels with weights: the manifest that names every full tensor with its hash, and the staging of a version that
// arrives in pieces (protocol "Weight manifest", invariant 3). Plain logic: knows no socket and no actor.
//
//   begin(manifest) ──> chunk ... chunk ──> end ──every hash right──> snapshot
//        └──────────────────┴────────────────┴── anything wrong ──> Error, nothing of it is kept
//
// Whoever computes with an older version goes on with it: nothing is written into weights that are in use.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "models/config.h"
#include "models/weights.h"

namespace troupe {

inline constexpr size_t kMostChunkBytes = size_t{4} << 20;

/// One tensor of the manifest. Its bytes are those of the contiguous tensor, little endian.
struct ManifestTensor {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
  std::string xxh3_128;
  bool operator==(const ManifestTensor&) const = default;
};

struct WeightManifest {
  int64_t version = 0;
  std::vector<ManifestTensor> tensors;
  bool operator==(const WeightManifest&) const = default;
};

/// Hashes every tensor of the snapshot, in the order of their names. Throws Error where one is not a contiguous CPU
/// tensor of a floating dtype.
WeightManifest make_manifest(const WeightSnapshot& snapshot);
nlohmann::json to_json(const WeightManifest& manifest);
/// Throws Error naming the field that is missing or wrong, or the tensor whose bytes do not fit its shape.
WeightManifest parse_manifest(const nlohmann::json& json);

/// Puts one version together.
class WeightAssembler {
 public:
  /// Only tensors of this model are taken, so that a manifest cannot ask for any memory it likes.
  explicit WeightAssembler(const ModelConfig& config);

  /// Throws Error naming what is missing, left over or misshaped. What was under way before is dropped.
  void begin(WeightManifest manifest);
  /// The next piece of a tensor; each tensor's pieces come in order. Throws Error where one is missing or out of place.
  void chunk(size_t tensor, uint64_t offset, std::span<const std::byte> bytes);
  /// Throws Error naming the first tensor that is not whole or not what the manifest says. Ends the staging in any
  /// case.
  WeightSnapshot end();
  void drop() { staged_.reset(); }

  bool is_under_way() const { return staged_.has_value(); }
  /// Of the version under way, or -1.
  int64_t version() const { return staged_ ? staged_->manifest.version : -1; }

 private:
  struct Staged {
    WeightManifest manifest;
    std::vector<Tensor> tensors;
    std::vector<uint64_t> received;  // bytes
    std::vector<std::unique_ptr<Hasher>> hashers;
  };
  std::map<std::string, std::vector<int64_t>> shapes_;
  std::optional<Staged> staged_;
};

}  // namespace troupe
