// XXH3-128, the hash of weight manifests and checkpoints (protocol: "xxh3_128", 32 lower-case hexadecimal digits).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace troupe {

/// Hash of one piece of memory.
std::string xxh3_128(std::span<const std::byte> bytes);

/// Hash of a stream of pieces; equals xxh3_128 of their concatenation.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  void update(std::span<const std::byte> bytes);
  std::string digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace troupe
