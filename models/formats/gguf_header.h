// The header of a GGUF file: key/value metadata and the table of tensors, parsed and checked without torch (B060).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace troupe {

/// Element types of metadata, numbered as in the file.
enum class GgufKind : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64
};

/// A list inside the file; elements are decoded on demand, so that a crafted count costs nothing.
struct GgufArray {
  GgufKind kind = GgufKind::kUint8;
  uint64_t count = 0;
  std::span<const std::byte> bytes;
};

using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray>;

/// How the bytes of a tensor are packed: ggml's number and name, elements and bytes of one block.
struct GgufType {
  uint32_t id;
  const char* name;
  uint32_t block_size;
  uint32_t block_bytes;
};
/// nullptr where the id is not one that can be read.
const GgufType* find_gguf_type(uint32_t id);

struct GgufTensor {
  std::vector<int64_t> shape;  // row-major (the file lists the fastest dimension first)
  const GgufType* type = nullptr;
  uint64_t offset = 0;  // in the data part
  std::span<const std::byte> bytes;
};

/// Everything points into the file given to parse_gguf_header and lives as long as that.
struct GgufHeader {
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::map<std::string, GgufTensor> tensors;
  uint64_t alignment = 32;
  std::string path;

  bool contains(std::string_view key) const { return metadata.find(key) != metadata.end(); }
  /// Typed access. Throws Error naming file and key: of another type, out of range, or missing without a fallback.
  int64_t integer(std::string_view key, std::optional<int64_t> fallback = std::nullopt) const;
  double number(std::string_view key, std::optional<double> fallback = std::nullopt) const;
  bool boolean(std::string_view key, bool fallback) const;
  std::string text(std::string_view key, std::optional<std::string> fallback = std::nullopt) const;
  /// Lists; an absent key gives an empty one. Integers of any width, floats of either.
  std::vector<std::string_view> texts(std::string_view key) const;
  std::vector<int64_t> integers(std::string_view key) const;
  std::vector<double> numbers(std::string_view key) const;

 private:
  const GgufArray* array(std::string_view key) const;
};

/// `file` is the whole file (version 2 or 3, little-endian). Throws Error, beginning with `path`, on everything that
/// does not fit: counts, lengths, dimensions, types, alignment, offsets, overlaps. Allocates in proportion to the bytes
/// it has read.
GgufHeader parse_gguf_header(std::span<const std::byte> file, const std::string& path);

}  // namespace troupe
