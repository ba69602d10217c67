// Little-endian packing of plain values, strings and vectors, with bounds checked on reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace troupe {

class ByteWriter {
 public:
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void put(const T& value) { append(&value, sizeof(T)); }
  void put(const std::string& text) {
    put<uint64_t>(text.size());
    append(text.data(), text.size());
  }
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void put(const std::vector<T>& values) {
    put<uint64_t>(values.size());
    append(values.data(), values.size() * sizeof(T));
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void append(const void* data, size_t size) {
    const auto* first = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), first, first + size);
  }
  std::vector<std::byte> bytes_;
};

/// `what` names the thing in error messages ("trajectory").
class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, std::string what) : bytes_(bytes), what_(std::move(what)) {}
  template <class T>
  requires std::is_trivially_copyable_v<T> T get() {
    T value;
    std::memcpy(&value, advance(sizeof(T)), sizeof(T));
    return value;
  }
  std::string get_string() {
    const auto size = get_size(1);
    return {reinterpret_cast<const char*>(advance(size)), size};
  }
  template <class T>
  requires std::is_trivially_copyable_v<T> std::vector<T> get_vector() {
    const auto size = get_size(sizeof(T));
    std::vector<T> values(size);
    if (size != 0) std::memcpy(values.data(), advance(size * sizeof(T)), size * sizeof(T));
    return values;
  }
  /// A count of elements of at least `element_bytes` each; refused where the rest is too short for it.
  size_t get_size(size_t element_bytes) {
    const auto size = get<uint64_t>();
    if (size > remaining() / element_bytes) fail(what_, ": a length of ", size, " goes past the end");
    return size;
  }
  size_t remaining() const { return bytes_.size() - position_; }
  void expect_end() const {
    if (remaining() != 0) fail(what_, ": ", remaining(), " bytes too many");
  }

 private:
  const std::byte* advance(size_t size) {
    if (size > remaining()) fail(what_, ": truncated");
    const auto* at = bytes_.data() + position_;
    position_ += size;
    return at;
  }
  std::span<const std::byte> bytes_;
  std::string what_;
  size_t position_ = 0;
};

}  // namespace troupe
