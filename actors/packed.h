// Samples in messages: packed trajectories (base/trajectory.h) as the bytes that travel.
#pragma once

#include <span>

#include "actors/messages.h"
#include "base/trajectory.h"

namespace troupe {

inline Packed to_packed(std::span<const std::byte> bytes) {
  return {std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
}
inline std::span<const std::byte> bytes_of(const Packed& packed) { return std::as_bytes(std::span(packed.bytes)); }

inline Packed to_packed(const Trajectory& sample) { return to_packed(pack_trajectory(sample)); }
/// Throws as unpack_trajectory.
inline Trajectory sample_of(const Packed& packed) { return unpack_trajectory(bytes_of(packed)); }

}  // namespace troupe
