#include "actors/weight_manifest.h"

#include <cstring>

#include "base/error.h"

namespace troupe {
namespace {

const std::vector<std::pair<std::string, at::ScalarType>>& dtype_names() {
  static const std::vector<std::pair<std::string, at::ScalarType>> names{
      {"float32", at::kFloat}, {"bfloat16", at::kBFloat16}, {"float16", at::kHalf}};
  return names;
}

std::string dtype_name(at::ScalarType dtype) {
  for (const auto& [name, type] : dtype_names())
    if (type == dtype) return name;
  fail("weights do not travel as ", at::toString(dtype));
}

at::ScalarType parse_dtype(const std::string& text) {
  for (const auto& [name, type] : dtype_names())
    if (name == text) return type;
  fail("weight manifest: dtype \"", text, "\" is not known");
}

/// Elements of the shape; Error where they are negative or overflow.
uint64_t num_elements(const ManifestTensor& tensor) {
  uint64_t count = 1;
  for (const auto size : tensor.shape) {
    require(size >= 0, "weight manifest: tensor ", tensor.name, " has a negative size");
    require(!__builtin_mul_overflow(count, static_cast<uint64_t>(size), &count) && count < (uint64_t{1} << 48),
            "weight manifest: tensor ", tensor.name, " is too large");
  }
  return count;
}

}  // namespace

WeightManifest make_manifest(const WeightSnapshot& snapshot) {
  WeightManifest manifest{snapshot.version, {}};
  for (const auto& [name, tensor] : snapshot.tensors) {
    require(tensor.defined() && tensor.device().is_cpu() && tensor.is_contiguous(), "weights: tensor ", name,
            " is not a contiguous tensor on the CPU");
    dtype_name(tensor.scalar_type());
    const std::span bytes(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes());
    manifest.tensors.push_back({name, tensor.scalar_type(), tensor.sizes().vec(), bytes.size(), xxh3_128(bytes)});
  }
  return manifest;
}

nlohmann::json to_json(const WeightManifest& manifest) {
  auto tensors = nlohmann::json::array();
  for (const auto& tensor : manifest.tensors)
    tensors.push_back({{"name", tensor.name},
                       {"dtype", dtype_name(tensor.dtype)},
                       {"shape", tensor.shape},
                       {"bytes", tensor.bytes},
                       {"xxh3_128", tensor.xxh3_128}});
  return {{"format", 1}, {"version", manifest.version}, {"tensors", std::move(tensors)}};
}

WeightManifest parse_manifest(const nlohmann::json& json) {
  try {
    require(json.at("format") == 1, "weight manifest: format ", json.at("format").dump(), " is not 1");
    WeightManifest manifest{json.at("version").get<int64_t>(), {}};
    for (const auto& entry : json.at("tensors")) {
      ManifestTensor tensor{entry.at("name"), parse_dtype(entry.at("dtype")),
                            entry.at("shape").get<std::vector<int64_t>>(), entry.at("bytes").get<uint64_t>(),
                            entry.at("xxh3_128")};
      require(tensor.bytes == num_elements(tensor) * at::elementSize(tensor.dtype), "weight manifest: tensor ",
              tensor.name, " of ", tensor.bytes, " bytes does not fit its shape");
      manifest.tensors.push_back(std::move(tensor));
    }
    return manifest;
  } catch (const nlohmann::json::exception& error) {
    fail("weight manifest: ", error.what());
  }
}

WeightAssembler::WeightAssembler(const ModelConfig& config) {
  for (const auto& spec : parameter_specs(config)) shapes_[spec.name] = spec.shape;
}

void WeightAssembler::begin(WeightManifest manifest) {
  staged_.reset();
  auto missing = shapes_;
  Staged staged;
  for (const auto& tensor : manifest.tensors) {
    const auto found = missing.find(tensor.name);
    require(found != missing.end(), "weights of version ", manifest.version, ": tensor ", tensor.name,
            shapes_.contains(tensor.name) ? " comes twice" : " does not belong to the model");
    require(found->second == tensor.shape, "weights of version ", manifest.version, ": tensor ", tensor.name,
            " has another shape than the model's");
    missing.erase(found);
    staged.tensors.push_back(at::empty(tensor.shape, tensor.dtype));
    staged.received.push_back(0);
    staged.hashers.push_back(std::make_unique<Hasher>());
  }
  require(missing.empty(), "weights of version ", manifest.version, ": tensor ",
          missing.empty() ? "" : missing.begin()->first, " is missing");
  staged.manifest = std::move(manifest);
  staged_ = std::move(staged);
}

void WeightAssembler::chunk(size_t index, uint64_t offset, std::span<const std::byte> bytes) {
  require(staged_.has_value(), "weights: a piece without a manifest");
  require(index < staged_->tensors.size(), "weights: a piece of tensor number ", index, ", but there are ",
          staged_->tensors.size());
  const auto& tensor = staged_->manifest.tensors[index];
  auto& received = staged_->received[index];
  require(offset == received && bytes.size() <= tensor.bytes - received, "weights of version ", version(), ": tensor ",
          tensor.name, ": a piece of ", bytes.size(), " bytes at ", offset, " after ", received, " of ", tensor.bytes);
  std::memcpy(static_cast<std::byte*>(staged_->tensors[index].data_ptr()) + offset, bytes.data(), bytes.size());
  staged_->hashers[index]->update(bytes);
  received += bytes.size();
}

WeightSnapshot WeightAssembler::end() {
  require(staged_.has_value(), "weights: an end without a manifest");
  const auto staged = std::move(*staged_);
  staged_.reset();
  WeightSnapshot snapshot{staged.manifest.version, {}};
  for (size_t i = 0; i < staged.tensors.size(); ++i) {
    const auto& tensor = staged.manifest.tensors[i];
    require(staged.received[i] == tensor.bytes, "weights of version ", snapshot.version, ": of tensor ", tensor.name,
            " ", staged.received[i], " of ", tensor.bytes, " bytes arrived");
    require(staged.hashers[i]->digest() == tensor.xxh3_128, "weights of version ", snapshot.version, ": tensor ",
            tensor.name, " arrived with another hash than the manifest's");
    snapshot.tensors[tensor.name] = staged.tensors[i];
  }
  return snapshot;
}

}  // namespace troupe
