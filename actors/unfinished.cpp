#include "actors/unfinished.h"

#include <cstring>

#include "actors/packed.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"

namespace troupe {
namespace {

// At the end of the file: length of the second half, then this.
constexpr char kMark[8] = {'u', 'n', 'f', 'i', 'n', 'i', 's', 'h'};
constexpr size_t kTailBytes = sizeof(uint64_t) + sizeof kMark;

}  // namespace

std::string pack_unfinished(const UnfinishedSamples& samples) {
  ByteWriter out;
  out.put<uint64_t>(samples.size());
  for (const auto& [id, bytes] : samples) {
    out.put(id);
    out.put(bytes);
  }
  return to_packed(out.take()).bytes;
}

UnfinishedSamples unpack_unfinished(const std::string& bytes) {
  if (bytes.empty()) return {};
  ByteReader in(std::as_bytes(std::span(bytes)), "unfinished samples");
  UnfinishedSamples samples;
  const auto count = in.get_size(2 * sizeof(uint64_t));
  for (size_t i = 0; i < count; ++i) {
    const auto id = in.get<uint64_t>();
    samples[id] = in.get_string();
  }
  in.expect_end();
  return samples;
}

std::string join_groups(std::string buffer, const UnfinishedSamples& unfinished) {
  const auto packed = pack_unfinished(unfinished);
  const uint64_t size = packed.size();
  buffer += packed;
  buffer.append(reinterpret_cast<const char*>(&size), sizeof size);
  buffer.append(kMark, sizeof kMark);
  return buffer;
}

std::pair<std::string, UnfinishedSamples> split_groups(std::string groups) {
  if (groups.size() < kTailBytes || !groups.ends_with(std::string_view(kMark, sizeof kMark)))
    return {std::move(groups), {}};
  uint64_t size = 0;
  std::memcpy(&size, groups.data() + groups.size() - kTailBytes, sizeof size);
  const auto rest = groups.size() - kTailBytes;
  require(size <= rest, "groups.bin: unfinished samples of ", size, " bytes in a file of ", groups.size());
  auto unfinished = unpack_unfinished(groups.substr(rest - size, size));
  groups.resize(rest - size);
  return {std::move(groups), std::move(unfinished)};
}

void UnfinishedGather::add(const std::string& who, const std::string& bytes) {
  try {
    samples_.merge(unpack_unfinished(bytes));
  } catch (const Error& error) {
    log::warning(who, ": ", error.what());
  }
  one_less();
}

void UnfinishedGather::one_less() {
  if (--num_missing_ == 0) next_(std::move(samples_));
}

}  // namespace troupe
