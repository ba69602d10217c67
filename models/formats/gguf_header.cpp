#include "models/formats/gguf_header.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace troupe {
namespace {

constexpr uint64_t kMostKeys = 1 << 16;
constexpr uint64_t kMostTensors = 1 << 18;
constexpr uint64_t kLongestName = 1 << 16;
constexpr uint64_t kLargestAlignment = 1 << 20;

constexpr GgufType kTypes[] = {{0, "F32", 1, 4},       {1, "F16", 1, 2},       {30, "BF16", 1, 2},
                               {2, "Q4_0", 32, 18},    {3, "Q4_1", 32, 20},    {6, "Q5_0", 32, 22},
                               {7, "Q5_1", 32, 24},    {8, "Q8_0", 32, 34},    {10, "Q2_K", 256, 84},
                               {11, "Q3_K", 256, 110}, {12, "Q4_K", 256, 144}, {13, "Q5_K", 256, 176},
                               {14, "Q6_K", 256, 210}, {39, "MXFP4", 32, 17}};

size_t kind_bytes(GgufKind kind) {
  switch (kind) {
    case GgufKind::kUint8:
    case GgufKind::kInt8:
    case GgufKind::kBool:
      return 1;
    case GgufKind::kUint16:
    case GgufKind::kInt16:
      return 2;
    case GgufKind::kUint32:
    case GgufKind::kInt32:
    case GgufKind::kFloat32:
      return 4;
    case GgufKind::kUint64:
    case GgufKind::kInt64:
    case GgufKind::kFloat64:
      return 8;
    default:
      return 0;
  }
}

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

/// Shortest decimal that gives the same float: a 1e-5 stored as float32 is meant as 1e-5.
double widen(float value) {
  if (!std::isfinite(value)) return value;
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  double result = 0;
  std::from_chars(text, end, result);
  return result;
}

GgufValue load_scalar(GgufKind kind, const std::byte* at) {
  switch (kind) {
    case GgufKind::kUint8:
      return uint64_t{load<uint8_t>(at)};
    case GgufKind::kInt8:
      return int64_t{load<int8_t>(at)};
    case GgufKind::kUint16:
      return uint64_t{load<uint16_t>(at)};
    case GgufKind::kInt16:
      return int64_t{load<int16_t>(at)};
    case GgufKind::kUint32:
      return uint64_t{load<uint32_t>(at)};
    case GgufKind::kInt32:
      return int64_t{load<int32_t>(at)};
    case GgufKind::kUint64:
      return load<uint64_t>(at);
    case GgufKind::kInt64:
      return load<int64_t>(at);
    case GgufKind::kFloat32:
      return widen(load<float>(at));
    case GgufKind::kFloat64:
      return load<double>(at);
    default:
      return load<uint8_t>(at) != 0;
  }
}

class Cursor {
 public:
  Cursor(std::span<const std::byte> file, const std::string& path) : file_(file), path_(path) {}

  template <class T>
  T get(const char* what) {
    return load<T>(take(sizeof(T), what).data());
  }
  std::string_view get_text(const char* what, uint64_t longest = UINT64_MAX) {
    const auto size = get<uint64_t>(what);
    require(size <= longest, path_, ": ", what, " of ", size, " bytes is too long");
    const auto bytes = take(size, what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::span<const std::byte> take(uint64_t size, const char* what) {
    require(size <= remaining(), path_, ": truncated: ", what, " goes past the end of the file");
    const auto result = file_.subspan(position_, size);
    position_ += size;
    return result;
  }
  uint64_t remaining() const { return file_.size() - position_; }
  uint64_t position() const { return position_; }

 private:
  std::span<const std::byte> file_;
  const std::string& path_;
  uint64_t position_ = 0;
};

GgufKind get_kind(Cursor& cursor, const std::string& path, const std::string& key) {
  const auto id = cursor.get<uint32_t>("a metadata type");
  require(id <= static_cast<uint32_t>(GgufKind::kFloat64), path, ": metadata key \"", key, "\" has the unknown type ",
          id);
  return static_cast<GgufKind>(id);
}

GgufValue get_value(Cursor& cursor, const std::string& path, const std::string& key) {
  const auto kind = get_kind(cursor, path, key);
  if (kind == GgufKind::kString) return cursor.get_text("a metadata string");
  if (kind != GgufKind::kArray) return load_scalar(kind, cursor.take(kind_bytes(kind), "a metadata value").data());
  GgufArray array;
  array.kind = get_kind(cursor, path, key);
  require(array.kind != GgufKind::kArray, path, ": metadata key \"", key,
          "\" is a list of lists, which no model needs");
  array.count = cursor.get<uint64_t>("a list's length");
  const auto element_bytes = array.kind == GgufKind::kString ? sizeof(uint64_t) : kind_bytes(array.kind);
  require(array.count <= cursor.remaining() / element_bytes, path, ": metadata key \"", key, "\": a list of ",
          array.count, " elements goes past the end of the file");
  if (array.kind != GgufKind::kString) {
    array.bytes = cursor.take(array.count * element_bytes, "a list");
    return array;
  }
  auto ahead = cursor;
  for (uint64_t i = 0; i < array.count; ++i) ahead.get_text("a string of a list");
  array.bytes = cursor.take(ahead.position() - cursor.position(), "a list");
  return array;
}

/// A row of the tensor table; its bytes are found later, when the data part's begin is known.
void get_tensor(Cursor& cursor, GgufHeader& header) {
  const auto& path = header.path;
  const std::string name(cursor.get_text("a tensor's name", kLongestName));
  require(!name.empty(), path, ": a tensor without a name");
  GgufTensor tensor;
  const auto num_dimensions = cursor.get<uint32_t>("a tensor's number of dimensions");
  require(num_dimensions >= 1 && num_dimensions <= 4, path, ": tensor \"", name, "\" has ", num_dimensions,
          " dimensions; 1 to 4 are possible");
  int64_t count = 1;
  for (uint32_t i = 0; i < num_dimensions; ++i) {
    const auto extent = cursor.get<uint64_t>("a tensor's dimension");
    require(extent >= 1 && extent <= INT64_MAX && !__builtin_mul_overflow(count, static_cast<int64_t>(extent), &count),
            path, ": tensor \"", name, "\": the product of its dimensions overflows or is 0");
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(extent));
  }
  const auto id = cursor.get<uint32_t>("a tensor's type");
  tensor.type = find_gguf_type(id);
  if (tensor.type == nullptr) {
    std::string known;
    for (const auto& type : kTypes) known += concat(known.empty() ? "" : ", ", type.name);
    fail(path, ": tensor \"", name, "\" has type ", id, ", which cannot be read; types that can: ", known);
  }
  require(tensor.shape.back() % tensor.type->block_size == 0, path, ": tensor \"", name, "\": rows of ",
          tensor.shape.back(), " are no multiple of the ", tensor.type->block_size, " elements in a block of ",
          tensor.type->name);
  tensor.offset = cursor.get<uint64_t>("a tensor's offset");
  require(tensor.offset % header.alignment == 0, path, ": tensor \"", name,
          "\" does not begin at a multiple of the alignment ", header.alignment);
  require(header.tensors.emplace(name, std::move(tensor)).second, path, ": tensor \"", name, "\" is given twice");
}

/// Gives every tensor its bytes. Throws Error where they overlap or go past the end.
void place_tensors(GgufHeader& header, std::span<const std::byte> data) {
  std::vector<std::pair<const std::string, GgufTensor>*> in_file_order;
  for (auto& item : header.tensors) {
    auto& [name, tensor] = item;
    uint64_t size = tensor.type->block_bytes;
    for (size_t axis = 0; axis < tensor.shape.size(); ++axis) {
      const auto extent = static_cast<uint64_t>(tensor.shape[axis]);
      const bool last = axis + 1 == tensor.shape.size();
      if (__builtin_mul_overflow(size, last ? extent / tensor.type->block_size : extent, &size)) size = UINT64_MAX;
    }
    require(tensor.offset <= data.size() && size <= data.size() - tensor.offset, header.path, ": truncated: tensor \"",
            name, "\" goes past the end of the file");
    tensor.bytes = data.subspan(tensor.offset, size);
    in_file_order.push_back(&item);
  }
  std::sort(in_file_order.begin(), in_file_order.end(),
            [](const auto* a, const auto* b) { return a->second.offset < b->second.offset; });
  uint64_t end = 0;
  for (const auto* item : in_file_order) {
    require(item->second.offset >= end, header.path, ": tensor \"", item->first, "\" overlaps the one before it");
    end = item->second.offset + item->second.bytes.size();
  }
}

}  // namespace

const GgufType* find_gguf_type(uint32_t id) {
  const auto* found =
      std::find_if(std::begin(kTypes), std::end(kTypes), [id](const auto& type) { return type.id == id; });
  return found == std::end(kTypes) ? nullptr : found;
}

GgufHeader parse_gguf_header(std::span<const std::byte> file, const std::string& path) {
  Cursor cursor(file, path);
  require(file.size() >= 4 && std::memcmp(file.data(), "GGUF", 4) == 0, path, ": not a GGUF file");
  cursor.take(4, "the magic");
  const auto version = cursor.get<uint32_t>("the version");
  require((version & 0xffff) != 0, path, ": a big-endian GGUF file, which is not supported");
  require(version == 2 || version == 3, path, ": GGUF version ", version, " is not supported; 2 and 3 are");
  const auto num_tensors = cursor.get<uint64_t>("the number of tensors");
  const auto num_keys = cursor.get<uint64_t>("the number of metadata keys");
  require(num_tensors <= kMostTensors && num_keys <= kMostKeys, path, ": ", num_tensors, " tensors and ", num_keys,
          " metadata keys are more than any model has");

  GgufHeader header;
  header.path = path;
  for (uint64_t i = 0; i < num_keys; ++i) {
    std::string key(cursor.get_text("a metadata key", kLongestName));
    auto value = get_value(cursor, path, key);
    require(header.metadata.find(key) == header.metadata.end(), path, ": metadata key \"", key, "\" is given twice");
    header.metadata.emplace(std::move(key), std::move(value));
  }
  const auto alignment = header.integer("general.alignment", 32);
  require(alignment > 0 && alignment <= static_cast<int64_t>(kLargestAlignment) && (alignment & (alignment - 1)) == 0,
          path, ": general.alignment = ", alignment, " is not a power of two");
  header.alignment = static_cast<uint64_t>(alignment);

  for (uint64_t i = 0; i < num_tensors; ++i) get_tensor(cursor, header);
  const auto data_begin = (cursor.position() + header.alignment - 1) / header.alignment * header.alignment;
  place_tensors(header, data_begin < file.size() ? file.subspan(data_begin) : std::span<const std::byte>());
  return header;
}

namespace {

template <class T>
const T* value_of(const GgufHeader& header, std::string_view key) {
  const auto found = header.metadata.find(key);
  return found == header.metadata.end() ? nullptr : std::get_if<T>(&found->second);
}

int64_t to_integer(const GgufHeader& header, std::string_view key, const GgufValue& value) {
  if (const auto* wide = std::get_if<uint64_t>(&value); wide != nullptr && *wide <= INT64_MAX)
    return static_cast<int64_t>(*wide);
  if (const auto* narrow = std::get_if<int64_t>(&value)) return *narrow;
  fail(header.path, ": metadata key \"", key, "\" must be an integer");
}

}  // namespace

int64_t GgufHeader::integer(std::string_view key, std::optional<int64_t> fallback) const {
  const auto found = metadata.find(key);
  if (found != metadata.end()) return to_integer(*this, key, found->second);
  require(fallback.has_value(), path, ": metadata key \"", key, "\" is missing");
  return *fallback;
}

double GgufHeader::number(std::string_view key, std::optional<double> fallback) const {
  const auto found = metadata.find(key);
  if (found == metadata.end()) {
    require(fallback.has_value(), path, ": metadata key \"", key, "\" is missing");
    return *fallback;
  }
  const auto* value = std::get_if<double>(&found->second);
  if (value == nullptr) return static_cast<double>(to_integer(*this, key, found->second));
  require(std::isfinite(*value), path, ": metadata key \"", key, "\" is not finite");
  return *value;
}

bool GgufHeader::boolean(std::string_view key, bool fallback) const {
  if (!contains(key)) return fallback;
  const auto* value = value_of<bool>(*this, key);
  require(value != nullptr, path, ": metadata key \"", key, "\" must be a truth value");
  return *value;
}

std::string GgufHeader::text(std::string_view key, std::optional<std::string> fallback) const {
  if (!contains(key)) {
    require(fallback.has_value(), path, ": metadata key \"", key, "\" is missing");
    return *fallback;
  }
  const auto* value = value_of<std::string_view>(*this, key);
  require(value != nullptr, path, ": metadata key \"", key, "\" must be a string");
  return std::string(*value);
}

const GgufArray* GgufHeader::array(std::string_view key) const {
  if (!contains(key)) return nullptr;
  const auto* value = value_of<GgufArray>(*this, key);
  require(value != nullptr, path, ": metadata key \"", key, "\" must be a list");
  return value;
}

std::vector<std::string_view> GgufHeader::texts(std::string_view key) const {
  const auto* list = array(key);
  if (list == nullptr) return {};
  require(list->kind == GgufKind::kString, path, ": metadata key \"", key, "\" must be a list of strings");
  std::vector<std::string_view> result;
  result.reserve(list->count);
  Cursor cursor(list->bytes, path);
  for (uint64_t i = 0; i < list->count; ++i) result.push_back(cursor.get_text("a string of a list"));
  return result;
}

std::vector<int64_t> GgufHeader::integers(std::string_view key) const {
  const auto* list = array(key);
  if (list == nullptr) return {};
  require(list->kind != GgufKind::kString, path, ": metadata key \"", key, "\" must be a list of integers");
  const auto width = kind_bytes(list->kind);
  std::vector<int64_t> result;
  result.reserve(list->count);
  for (uint64_t i = 0; i < list->count; ++i) {
    result.push_back(to_integer(*this, key, load_scalar(list->kind, list->bytes.data() + i * width)));
  }
  return result;
}

std::vector<double> GgufHeader::numbers(std::string_view key) const {
  const auto* list = array(key);
  if (list == nullptr) return {};
  require(list->kind == GgufKind::kFloat32 || list->kind == GgufKind::kFloat64, path, ": metadata key \"", key,
          "\" must be a list of numbers");
  const auto width = kind_bytes(list->kind);
  std::vector<double> result;
  result.reserve(list->count);
  for (uint64_t i = 0; i < list->count; ++i) {
    result.push_back(std::get<double>(load_scalar(list->kind, list->bytes.data() + i * width)));
  }
  return result;
}

}  // namespace troupe
