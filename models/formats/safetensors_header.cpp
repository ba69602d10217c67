#include "models/formats/safetensors_header.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace troupe {
namespace {

constexpr uint64_t kLargestHeaderBytes = 100'000'000;  // the limit of the format's own library
constexpr size_t kMostDimensions = 16;

/// Takes the JSON header event by event: no document is built, and every key is seen, also one given twice.
class HeaderHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderHandler(SafetensorsHeader& header, const std::string& path) : header_(header), path_(path) {}

  bool start_object(size_t) override {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kTop;
        return true;
      case Place::kTop:
        require(!key_.empty(), path_, ": a tensor without a name");
        if (key_ == "__metadata__") {
          require(!has_metadata_, path_, ": __metadata__ is given twice");
          has_metadata_ = true;
          place_ = Place::kMetadata;
          return true;
        }
        name_ = key_;
        require(header_.entries.try_emplace(name_).second, path_, ": tensor \"", name_, "\" is given twice");
        has_dtype_ = has_shape_ = has_offsets_ = false;
        place_ = Place::kEntry;
        return true;
      default:
        unexpected("an object");
    }
  }
  bool end_object() override {
    if (place_ == Place::kEntry) {
      require(has_dtype_ && has_shape_ && has_offsets_, path_, ": tensor \"", name_,
              "\" lacks one of dtype, shape, data_offsets");
      require(offsets_.size() == 2, path_, ": tensor \"", name_, "\": data_offsets must be two numbers");
      auto& item = entry();
      item.begin = offsets_[0];
      item.end = offsets_[1];
      offsets_.clear();
      place_ = Place::kTop;
    } else if (place_ == Place::kMetadata) {
      place_ = Place::kTop;
    } else {
      place_ = Place::kEnd;
    }
    return true;
  }
  bool key(string_t& text) override {
    key_ = text;
    return true;
  }
  bool string(string_t& text) override {
    if (place_ == Place::kMetadata) {
      require(header_.metadata.emplace(key_, text).second, path_, ": metadata key \"", key_, "\" is given twice");
      return true;
    }
    if (place_ != Place::kEntry || key_ != "dtype") unexpected("a string");
    take_once(has_dtype_, "dtype");
    entry().dtype = text;
    return true;
  }
  bool start_array(size_t) override {
    if (place_ != Place::kEntry) unexpected("a list");
    if (key_ == "shape") {
      take_once(has_shape_, "shape");
      place_ = Place::kShape;
    } else if (key_ == "data_offsets") {
      take_once(has_offsets_, "data_offsets");
      place_ = Place::kOffsets;
    } else {
      unexpected("a list");
    }
    return true;
  }
  bool end_array() override {
    place_ = Place::kEntry;
    return true;
  }
  bool number_unsigned(uint64_t value) override {
    if (place_ == Place::kShape) {
      require(value <= INT64_MAX && entry().shape.size() < kMostDimensions, path_, ": tensor \"", name_,
              "\": shape is too large");
      entry().shape.push_back(static_cast<int64_t>(value));
    } else if (place_ == Place::kOffsets) {
      require(offsets_.size() < 2, path_, ": tensor \"", name_, "\": data_offsets must be two numbers");
      offsets_.push_back(value);
    } else {
      unexpected("a number");
    }
    return true;
  }
  bool number_integer(int64_t value) override {
    fail(path_, ": tensor \"", name_, "\": ", key_, " holds the negative number ", value);
  }
  bool number_float(double, const string_t&) override { unexpected("a fraction"); }
  bool boolean(bool) override { unexpected("a truth value"); }
  bool null() override { unexpected("null"); }
  bool binary(nlohmann::json::binary_t&) override { unexpected("binary data"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail(path_, ": the safetensors header is not valid JSON at byte ", position);
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kEntry, kShape, kOffsets, kEnd };

  SafetensorsEntry& entry() { return header_.entries[name_]; }
  void take_once(bool& flag, const char* field) {
    require(!flag, path_, ": tensor \"", name_, "\": ", field, " is given twice");
    flag = true;
  }
  [[noreturn]] void unexpected(const char* what) const {
    fail(path_, ": the safetensors header holds ", what, " where none may be", key_.empty() ? "" : " (key \"", key_,
         key_.empty() ? "" : "\")");
  }

  SafetensorsHeader& header_;
  const std::string& path_;
  Place place_ = Place::kStart;
  std::string key_, name_;
  std::vector<uint64_t> offsets_;
  bool has_metadata_ = false, has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
};

/// Size of the tensor that shape and dtype ask for. Throws Error on unknown dtypes and overflow.
uint64_t expected_bytes(const SafetensorsEntry& entry, const std::string& name, const std::string& path) {
  const auto bits_per_element = static_cast<uint64_t>(safetensors_dtype_bits(entry.dtype));
  require(bits_per_element != 0, path, ": tensor \"", name, "\" has the unknown dtype \"", entry.dtype, "\"");
  uint64_t bits = bits_per_element;
  for (const auto extent : entry.shape) {
    if (__builtin_mul_overflow(bits, static_cast<uint64_t>(extent), &bits)) {
      fail(path, ": tensor \"", name, "\": the shape's size overflows");
    }
  }
  require(bits % 8 == 0, path, ": tensor \"", name, "\" does not fill whole bytes");
  return bits / 8;
}

}  // namespace

int64_t safetensors_dtype_bits(const std::string& dtype) {
  static const std::map<std::string, int64_t> bits = {
      {"BOOL", 8}, {"U8", 8},   {"I8", 8},   {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8},
      {"U16", 16}, {"I16", 16}, {"F16", 16}, {"BF16", 16},   {"U32", 32},    {"I32", 32},
      {"F32", 32}, {"U64", 64}, {"I64", 64}, {"F64", 64},    {"C64", 64},    {"F4", 4}};
  const auto found = bits.find(dtype);
  return found == bits.end() ? 0 : found->second;
}

bool is_weight_dtype(const std::string& dtype) {
  for (const char* known : {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"}) {
    if (dtype == known) return true;
  }
  return false;
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, const std::string& path) {
  uint64_t header_bytes = 0;
  require(file.size() >= sizeof(header_bytes), path, ": too short for a safetensors file (", file.size(), " bytes)");
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  require(header_bytes <= kLargestHeaderBytes, path, ": a safetensors header of ", header_bytes,
          " bytes is too long (not a safetensors file?)");
  require(header_bytes <= file.size() - sizeof(header_bytes), path, ": truncated: the header of ", header_bytes,
          " bytes goes past the end of the file");
  const auto* text = reinterpret_cast<const char*>(file.data()) + sizeof(header_bytes);
  require(header_bytes >= 2 && text[0] == '{', path, ": not a safetensors file (the header is not a JSON object)");

  SafetensorsHeader header;
  header.data_begin = sizeof(header_bytes) + header_bytes;
  const uint64_t data_bytes = file.size() - header.data_begin;
  HeaderHandler handler(header, path);
  nlohmann::json::sax_parse(text, text + header_bytes, &handler);

  std::vector<const std::pair<const std::string, SafetensorsEntry>*> in_file_order;
  for (const auto& item : header.entries) {
    const auto& [name, entry] = item;
    require(entry.begin <= entry.end, path, ": tensor \"", name, "\" ends before it begins");
    require(entry.end <= data_bytes, path, ": tensor \"", name, "\" ends at byte ", entry.end, " of ", data_bytes,
            " (truncated?)");
    const auto expected = expected_bytes(entry, name, path);
    require(expected == entry.end - entry.begin, path, ": tensor \"", name, "\" has ", entry.end - entry.begin,
            " bytes; its shape and dtype need ", expected);
    in_file_order.push_back(&item);
  }
  std::sort(in_file_order.begin(), in_file_order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  uint64_t position = 0;
  for (const auto* item : in_file_order) {
    require(item->second.begin >= position, path, ": tensor \"", item->first, "\" overlaps the one before it");
    require(item->second.begin == position, path, ": ", item->second.begin - position, " bytes before tensor \"",
            item->first, "\" belong to no tensor");
    position = item->second.end;
  }
  require(position == data_bytes, path, ": ", data_bytes - position, " bytes at the end belong to no tensor");
  return header;
}

}  // namespace troupe
