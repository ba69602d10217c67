#include "base/hash.h"

#include <xxhash.h>

#include "base/error.h"

namespace troupe {
namespace {

std::string to_hex(XXH128_hash_t hash) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text(32, '0');
  for (int i = 0; i < 16; ++i) text[15 - i] = kDigits[(hash.high64 >> (4 * i)) & 15];
  for (int i = 0; i < 16; ++i) text[31 - i] = kDigits[(hash.low64 >> (4 * i)) & 15];
  return text;
}

}  // namespace

std::string xxh3_128(std::span<const std::byte> bytes) { return to_hex(XXH3_128bits(bytes.data(), bytes.size())); }

struct Hasher::State {
  XXH3_state_t* state = XXH3_createState();
  ~State() { XXH3_freeState(state); }
};

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_128bits_reset(state_->state); }
Hasher::~Hasher() = default;
void Hasher::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->state, bytes.data(), bytes.size());
}
std::string Hasher::digest() const { return to_hex(XXH3_128bits_digest(state_->state)); }

}  // namespace troupe
