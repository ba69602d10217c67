// The header of a safetensors file: parsed and checked without torch, so that it can be fuzzed alone (B059).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace troupe {

struct SafetensorsEntry {
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes in the data part
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
  size_t data_begin = 0;  // of the data part in the file
};

/// Bits of one element of a safetensors dtype ("BF16"), 0 where the dtype is unknown.
int64_t safetensors_dtype_bits(const std::string& dtype);

/// Whether weights may be stored in it: floats of any width, scales without mantissa (F8_E8M0) left out.
bool is_weight_dtype(const std::string& dtype);

/// `file` is the whole file. Throws Error, beginning with `path`, on everything that is not exactly a safetensors file:
/// lengths past the end, names or keys given twice, unknown dtypes, offsets that do not fit shape and dtype, overlaps,
/// gaps. Allocates in proportion to the header, and reads nothing outside of `file`.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, const std::string& path);

}  // namespace troupe
