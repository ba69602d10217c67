#include "models/formats/safetensors.h"

#include "tests/doctest.h"
#include "tests/models/format_helpers.h"

using namespace troupe;
using namespace troupe::test;

namespace {

std::string file_with(const std::string& header, size_t data_bytes) {
  const uint64_t size = header.size();
  std::string file(reinterpret_cast<const char*>(&size), sizeof(size));
  return file + header + std::string(data_bytes, '\1');
}

std::string parse_error(const std::string& file) {
  return error_of([&] { parse_safetensors_header(as_bytes(file), "x.safetensors"); });
}

std::string header_error(const std::string& header, size_t data_bytes) {
  return parse_error(file_with(header, data_bytes));
}

}  // namespace

TEST_CASE("safetensors round trip keeps every dtype, shape and byte") {
  const TemporaryFolder folder;
  std::map<std::string, Tensor> tensors;
  tensors["a.bf16"] = at::arange(5, at::kFloat).to(at::kBFloat16);  // an odd number of narrow elements before wide ones
  tensors["b.float"] = at::rand({3, 4});
  tensors["c.double"] = at::rand({2}, at::kDouble);
  tensors["d.long"] = at::arange(7, at::kLong);
  tensors["e.empty"] = at::empty({0, 3});
  tensors["f.scalar"] = at::scalar_tensor(2.5);
  tensors["g.transposed"] = at::rand({4, 3}).t();
  tensors["h.bool"] = at::ones({3}, at::kBool);
  tensors["i.fp8"] = at::rand({3}).to(at::kFloat8_e4m3fn);
  write_safetensors(folder / "x.safetensors", tensors, {{"format", "pt"}});
  const SafetensorsFile file(folder / "x.safetensors");
  CHECK(file.metadata().at("format") == "pt");
  CHECK(file.entries().size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    CAPTURE(name);
    const auto read = file.tensor(name);
    CHECK(read.dtype() == tensor.dtype());
    CHECK(read.sizes().vec() == tensor.sizes().vec());
    CHECK(at::equal(read.to(at::kDouble), tensor.to(at::kDouble)));
  }
  const auto first = read_file(folder / "x.safetensors");
  write_safetensors(folder / "y.safetensors", tensors, {{"format", "pt"}});
  CHECK(first == read_file(folder / "y.safetensors"));
  CHECK(contains(error_of([&] { file.tensor("absent"); }), "absent"));
  CHECK(contains(error_of([&] { write_safetensors(folder / "no/such/folder.safetensors", tensors); }), "cannot write"));
}

TEST_CASE("a tensor that lies at an odd address is copied") {
  const auto text = file_with(
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})",
      5);
  const TemporaryFolder folder;
  write_file_synced(folder / "x.safetensors", text);
  const SafetensorsFile file(folder / "x.safetensors");
  const auto value = file.tensor("b");
  CHECK(reinterpret_cast<uintptr_t>(value.const_data_ptr()) % 4 == 0);
  const uint32_t bits = 0x01010101;
  float expected = 0;
  std::memcpy(&expected, &bits, sizeof(expected));
  CHECK(value.item<float>() == expected);
}

TEST_CASE("B059 a crafted safetensors file is refused by name") {
  CHECK(header_error(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8) == "no error");
  CHECK(contains(header_error(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8),
                 "tensor \"a\" has 8 bytes; its shape and dtype need 12"));
  CHECK(
      contains(header_error(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8), "ends before it begins"));
  CHECK(contains(
      header_error(
          R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
          12),
      "\"b\" overlaps"));
  CHECK(contains(
      header_error(
          R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})",
          16),
      "belong to no tensor"));
  CHECK(contains(header_error(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 9),
                 "at the end belong to no tensor"));
  CHECK(contains(header_error(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7), "truncated"));
  CHECK(contains(header_error(R"({"a":{"dtype":"F32","shape":[9223372036854775807,4],"data_offsets":[0,8]}})", 8),
                 "overflows"));
  CHECK(contains(header_error(R"({"a":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8]}})", 8),
                 "too large"));
  CHECK(contains(header_error(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8), "negative"));
  CHECK(contains(header_error(R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8), "fraction"));
  CHECK(
      contains(header_error(R"({"a":{"dtype":"X32","shape":[2],"data_offsets":[0,8]}})", 8), "unknown dtype \"X32\""));
  const std::string item = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  CHECK(contains(header_error("{" + item + "," + item + "}", 8), "\"a\" is given twice"));
  CHECK(contains(header_error(R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8),
                 "dtype is given twice"));
  CHECK(contains(header_error(R"({"a":{"dtype":"F32","shape":[2]}})", 8), "lacks one of"));
  CHECK(contains(header_error(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}})", 8), "two numbers"));
  CHECK(contains(header_error(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 8), "not valid JSON"));
  CHECK(contains(header_error(R"({"__metadata__":{"k":1}})", 0), "a number"));
  CHECK(contains(header_error(R"({"a":[]})", 0), "a list"));
  CHECK(contains(header_error("[]", 0), "not a JSON object"));
  std::string deep = "{\"a\":";
  deep.append(100000, '[');
  CHECK(contains(header_error(deep, 0), "a list"));
  const auto good = file_with("{" + item + "}", 8);
  for (size_t size = 0; size < good.size(); ++size) CHECK(parse_error(good.substr(0, size)) != "no error");
  auto long_header = good;
  const uint64_t beyond = good.size();
  std::memcpy(long_header.data(), &beyond, sizeof(beyond));
  CHECK(contains(parse_error(long_header), "goes past the end"));
  const uint64_t huge = UINT64_MAX;
  std::memcpy(long_header.data(), &huge, sizeof(huge));
  CHECK(contains(parse_error(long_header), "too long"));
}
