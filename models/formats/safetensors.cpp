#include "models/formats/safetensors.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace troupe {
namespace {

constexpr std::pair<const char*, at::ScalarType> kTypes[] = {{"F64", at::kDouble},
                                                             {"F32", at::kFloat},
                                                             {"F16", at::kHalf},
                                                             {"BF16", at::kBFloat16},
                                                             {"I64", at::kLong},
                                                             {"I32", at::kInt},
                                                             {"I16", at::kShort},
                                                             {"I8", at::kChar},
                                                             {"U8", at::kByte},
                                                             {"U16", at::kUInt16},
                                                             {"U32", at::kUInt32},
                                                             {"U64", at::kUInt64},
                                                             {"BOOL", at::kBool},
                                                             {"C64", at::kComplexFloat},
                                                             {"F8_E4M3", at::kFloat8_e4m3fn},
                                                             {"F8_E5M2", at::kFloat8_e5m2},
                                                             {"F8_E8M0", at::kFloat8_e8m0fnu}};

/// A file written piece by piece; removed again unless it was finished.
class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& path)
      : path_(path), descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
    if (descriptor_ < 0) fail_write(errno);
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile() {
    if (descriptor_ < 0) return;
    ::close(descriptor_);
    ::unlink(path_.c_str());
  }
  void append(const void* data, size_t size) {
    const auto* at = static_cast<const char*>(data);
    while (size != 0) {
      const auto count = ::write(descriptor_, at, size);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail_write(errno);
      at += count;
      size -= static_cast<size_t>(count);
    }
  }
  void finish() {
    if (::fsync(descriptor_) != 0) fail_write(errno);
    const int descriptor = std::exchange(descriptor_, -1);
    if (::close(descriptor) != 0) fail_write(errno);
  }

 private:
  [[noreturn]] void fail_write(int code) const { fail("cannot write ", path_.string(), ": ", std::strerror(code)); }
  std::filesystem::path path_;
  int descriptor_;
};

}  // namespace

std::optional<at::ScalarType> scalar_type_of(const std::string& safetensors_dtype) {
  for (const auto& [name, type] : kTypes) {
    if (safetensors_dtype == name) return type;
  }
  return std::nullopt;
}

std::string safetensors_dtype_of(at::ScalarType type) {
  for (const auto& [name, known] : kTypes) {
    if (type == known) return name;
  }
  fail("the safetensors format has no dtype for ", c10::toString(type));
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path),
      file_(std::make_shared<MappedFile>(path)),
      header_(parse_safetensors_header(file_->bytes(), path.string())) {}

const SafetensorsEntry& SafetensorsFile::entry(const std::string& name) const {
  const auto found = header_.entries.find(name);
  require(found != header_.entries.end(), path_.string(), ": no tensor \"", name, "\"");
  return found->second;
}

std::span<const std::byte> SafetensorsFile::bytes(const std::string& name) const {
  const auto& item = entry(name);
  return file_->bytes().subspan(header_.data_begin + item.begin, item.end - item.begin);
}

Tensor SafetensorsFile::tensor(const std::string& name) const {
  const auto& item = entry(name);
  const auto type = scalar_type_of(item.dtype);
  require(type.has_value(), path_.string(), ": tensor \"", name, "\": dtype ", item.dtype,
          " cannot be held by a tensor");
  const auto data = bytes(name);
  if (data.empty()) return at::empty(item.shape, at::TensorOptions().dtype(*type));
  if (reinterpret_cast<uintptr_t>(data.data()) % c10::elementSize(*type) != 0) {
    auto copy = at::empty(item.shape, at::TensorOptions().dtype(*type));
    std::memcpy(copy.mutable_data_ptr(), data.data(), data.size());
    return copy;
  }
  // The map is read-only: writing through this tensor would end the process, so callers copy before they change it.
  return at::from_blob(
      const_cast<std::byte*>(data.data()), item.shape, [file = file_](void*) {}, at::TensorOptions().dtype(*type));
}

void write_safetensors(const std::filesystem::path& path, std::vector<SafetensorsItem> items,
                       const std::map<std::string, std::string>& metadata) {
  std::sort(items.begin(), items.end(), [](const auto& a, const auto& b) {
    return std::tuple(-static_cast<int64_t>(c10::elementSize(a.dtype)), a.name) <
           std::tuple(-static_cast<int64_t>(c10::elementSize(b.dtype)), b.name);
  });
  auto header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t position = 0;
  for (const auto& item : items) {
    const auto size = static_cast<uint64_t>(c10::multiply_integers(item.shape)) * c10::elementSize(item.dtype);
    require(!header.contains(item.name), "cannot write ", path.string(), ": two tensors named \"", item.name, "\"");
    header[item.name] = {{"dtype", safetensors_dtype_of(item.dtype)},
                         {"shape", item.shape},
                         {"data_offsets", {position, position + size}}};
    position += size;
  }
  auto text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  OutputFile file(path);
  const uint64_t header_bytes = text.size();
  file.append(&header_bytes, sizeof(header_bytes));
  file.append(text.data(), text.size());
  for (const auto& item : items) {
    const auto tensor = item.make().to(at::kCPU, item.dtype).contiguous();
    require(tensor.sizes() == at::IntArrayRef(item.shape), "cannot write ", path.string(), ": tensor \"", item.name,
            "\" changed its shape");
    file.append(tensor.const_data_ptr(), tensor.nbytes());
  }
  file.finish();
}

void write_safetensors(const std::filesystem::path& path, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsItem> items;
  for (const auto& [name, tensor] : tensors) {
    items.push_back({name, tensor.scalar_type(), tensor.sizes().vec(), [&tensor = tensor] { return tensor; }});
  }
  write_safetensors(path, std::move(items), metadata);
}

}  // namespace troupe
