#include "models/formats/hf_tensors.h"

#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "models/formats/dequantise.h"
#include "models/formats/load_buffer.h"

namespace troupe {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kFp8 = "F8_E4M3";
constexpr uintmax_t kLargestTextBytes = uintmax_t{256} << 20;

std::string without_suffix(const std::string& name, const std::string& suffix) {
  return name.ends_with(suffix) ? name.substr(0, name.size() - suffix.size()) : "";
}

}  // namespace

std::string read_text_file(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return "";
  const auto size = fs::file_size(path, error);
  require(!error, path.string(), ": ", error.message());
  require(size <= kLargestTextBytes, path.string(), ": ", size, " bytes are too many for what it should be");
  return read_file(path);
}

json read_json_file(const fs::path& path) {
  const auto text = read_text_file(path);
  if (text.empty()) return {};
  try {
    return json::parse(text);
  } catch (const json::parse_error& error) {
    fail(path.string(), ": not valid JSON at byte ", error.byte);
  }
}

HfTensors::HfTensors(const fs::path& folder, const json& config) : folder_(folder) {
  nested_ = config.contains("text_config");
  const json* quantisation = nullptr;
  for (const auto* place : {&config, nested_ ? &config.at("text_config") : &config}) {
    if (place->is_object() && place->contains("quantization_config")) quantisation = &place->at("quantization_config");
  }
  has_scales_ = quantisation != nullptr && quantisation->is_object();
  if (has_scales_ && quantisation->contains("weight_block_size") && !quantisation->at("weight_block_size").is_null()) {
    const auto& sizes = quantisation->at("weight_block_size");
    const auto is_size = [](const json& size) { return size.is_number_integer() && size > 0 && size <= 1 << 20; };
    require(sizes.is_array() && sizes.size() == 2 && is_size(sizes[0]) && is_size(sizes[1]), folder.string(),
            ": config.json: quantization_config.weight_block_size must be two sizes, not ", sizes.dump());
    block_rows_ = sizes[0].get<int64_t>();
    block_columns_ = sizes[1].get<int64_t>();
  }
  open_files();
  for (const std::string prefix : {"model.", "language_model.model.", "model.language_model.", ""}) {
    prefix_ = prefix;
    if (files_by_tensor_.contains(prefix + "embed_tokens.weight")) break;
    prefix_ = "model.";
  }
  add_sources();
  if (!left_alone_.empty()) {
    log::info(folder.string(), ": ", left_alone_.size(), " tensors outside the text model are left alone (",
              left_alone_.front(), ", ...)");
  }
}

void HfTensors::open_files() {
  const auto index_path = folder_ / "model.safetensors.index.json";
  if (!fs::exists(index_path)) {
    const bool pickled =
        fs::exists(folder_ / "pytorch_model.bin") || fs::exists(folder_ / "pytorch_model.bin.index.json");
    require(fs::exists(folder_ / "model.safetensors"), folder_.string(),
            ": neither model.safetensors nor model.safetensors.index.json is there",
            pickled ? "; pytorch_model.bin holds Python code and is not read: convert it to safetensors" : "");
    return add_file(folder_ / "model.safetensors");
  }
  const auto index = read_json_file(index_path);
  require(index.is_object() && index.contains("weight_map") && index["weight_map"].is_object(), index_path.string(),
          ": no weight_map");
  std::set<std::string> files;
  for (const auto& [name, file] : index["weight_map"].items()) {
    require(file.is_string(), index_path.string(), ": weight_map: \"", name, "\" names no file");
    const auto text = file.get<std::string>();
    require(!text.empty() && fs::path(text).filename() == text && text != "..", index_path.string(),
            ": weight_map names \"", text, "\", which is not a file of this folder");
    files.insert(text);
  }
  for (const auto& file : files) add_file(folder_ / file);
  for (const auto& [name, file] : index["weight_map"].items()) {
    const auto found = files_by_tensor_.find(name);
    require(found != files_by_tensor_.end() && found->second->path().filename() == file.get<std::string>(),
            index_path.string(), ": tensor \"", name, "\" is not in ", file.get<std::string>());
  }
}

void HfTensors::add_file(const fs::path& path) {
  const auto file = std::make_shared<SafetensorsFile>(path);
  for (const auto& [name, entry] : file->entries()) {
    const auto [place, is_new] = files_by_tensor_.try_emplace(name, file);
    require(is_new, path.string(), ": tensor \"", name, "\" is also in ", place->second->path().string());
  }
}

/// Name in the text model, "" for a tensor that belongs to another part of a multi-modal folder.
std::string HfTensors::text_name(const std::string& stored_name) const {
  if (stored_name.starts_with(prefix_)) {
    const bool headless_head =
        prefix_.empty() && (stored_name.starts_with("lm_head.") || stored_name.starts_with("score."));
    return headless_head ? stored_name : "model." + stored_name.substr(prefix_.size());
  }
  // "language_model.model." has its head at "language_model.lm_head."; the other forms have it outside.
  const auto head_prefix = prefix_.ends_with(".model.") ? prefix_.substr(0, prefix_.size() - 6) : std::string();
  for (const std::string head : {"lm_head.", "score."}) {
    if (stored_name.starts_with(head_prefix + head)) return stored_name.substr(head_prefix.size());
  }
  return nested_ ? "" : stored_name;
}

void HfTensors::add_sources() {
  const auto stored = [&](const std::string& name) {
    const auto found = files_by_tensor_.find(name);
    return found == files_by_tensor_.end() ? Stored{} : Stored{found->second, name};
  };
  const auto add = [&](const std::string& name, Source source, TensorInfo info) {
    const auto own_name = text_name(name);
    if (own_name.empty()) {
      left_alone_.push_back(name);
      return;
    }
    require(infos_.emplace(own_name, std::move(info)).second, folder_.string(), ": two tensors are named ", own_name);
    sources_[own_name] = std::move(source);
  };
  for (const auto& [name, file] : files_by_tensor_) {
    const auto& entry = file->entries().at(name);
    if (const auto scaled = files_by_tensor_.find(without_suffix(name, "_scale_inv"));
        scaled != files_by_tensor_.end() && scaled->second->entries().at(scaled->first).dtype == kFp8) {
      continue;
    }
    if (const auto base = without_suffix(name, "_scales"); files_by_tensor_.contains(base + "_blocks")) continue;
    if (const auto base = without_suffix(name, "_blocks");
        !base.empty() && files_by_tensor_.contains(base + "_scales")) {
      const auto& shape = entry.shape;  // [..., rows, groups, 16]
      require(entry.dtype == "U8" && shape.size() >= 3 && shape.back() == 16, folder_.string(), ": tensor ", name,
              " is not MXFP4");
      TensorInfo info{{shape.begin(), shape.end() - 3}, "MXFP4"};
      info.shape.insert(info.shape.end(), {shape[shape.size() - 2] * 32, shape[shape.size() - 3]});
      add(base, {Packing::kMxfp4, stored(name), stored(base + "_scales")}, std::move(info));
    } else if (auto scales = stored(name + "_scale_inv"); entry.dtype == kFp8 && scales.file != nullptr) {
      add(name, {Packing::kFp8Blocks, stored(name), std::move(scales)}, {entry.shape, entry.dtype});
    } else {
      require(entry.dtype != kFp8 || !has_scales_, folder_.string(), ": tensor ", name, " is ", kFp8, ", but ", name,
              "_scale_inv is missing (quantization_config in config.json says that weights have scales)");
      add(name, {Packing::kPlain, stored(name), {}}, {entry.shape, entry.dtype, is_weight_dtype(entry.dtype)});
    }
  }
}

void HfTensors::split_stacked_experts(const ModelConfig& config) {
  const auto& names = config.names;
  if (!config.has_experts() || config.moe.form != ExpertForm::kSeparate) return;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const auto prefix = concat("model.layers.", layer, ".", names.experts, ".experts.");
    for (const std::string stacked : {"gate_up_proj", "down_proj"}) {
      const auto found = infos_.find(prefix + stacked);
      if (found == infos_.end() || found->second.shape.size() != 3) continue;
      const auto info = found->second;
      auto source = sources_.at(found->first);
      require(source.packing == Packing::kPlain, folder_.string(), ": tensor ", found->first,
              " is stacked and packed, which is not supported");
      infos_.erase(found);
      const bool is_down = stacked == "down_proj";
      const int64_t num_parts = is_down ? 1 : 2, rows = info.shape[1] / num_parts;
      for (source.expert = 0; source.expert < info.shape[0]; ++source.expert) {
        for (int64_t part = 0; part < num_parts; ++part) {
          const auto& own = is_down ? names.expert_down : part == 0 ? names.expert_gate : names.expert_up;
          const auto name = concat(prefix, source.expert, ".", own, ".weight");
          source.first_row = part * rows;
          source.num_rows = rows;
          sources_[name] = source;
          infos_[name] = {{rows, info.shape[2]}, info.dtype};
        }
      }
    }
  }
}

Tensor HfTensors::read(const std::string& name, at::ScalarType dtype) const {
  const auto found = sources_.find(name);
  require(found != sources_.end(), folder_.string(), ": no tensor \"", name, "\"");
  const auto& source = found->second;
  Tensor result;
  if (source.packing == Packing::kFp8Blocks) {
    result = read_fp8(source).to(dtype);
  } else if (source.packing == Packing::kMxfp4) {
    result = read_mxfp4(source).to(dtype);
  } else {
    auto mapped = source.values.file->tensor(source.values.name);
    if (source.expert >= 0) mapped = mapped[source.expert].narrow(0, source.first_row, source.num_rows);
    result = empty_for_loading(mapped.sizes(), dtype);
    result.copy_(mapped);
  }
  source.values.file->release_pages(source.values.name);
  return result;
}

Tensor HfTensors::read_fp8(const Source& source) const {
  const auto values = source.values.file->tensor(source.values.name);
  const auto scales = source.scales.file->tensor(source.scales.name).to(at::kFloat).contiguous();
  const auto where = concat(folder_.string(), ": tensor ", source.scales.name);
  require(values.dim() >= 2, folder_.string(), ": tensor ", source.values.name,
          " with FP8 blocks must have two dimensions, or a stack of such");
  const auto rows = values.size(-2), columns = values.size(-1);
  const auto one_for_each = values.sizes().slice(0, values.dim() - 2);  // one scale a matrix
  const bool one_scale = scales.numel() == 1 && one_for_each.empty();
  const bool whole = one_scale || (!one_for_each.empty() && scales.numel() == c10::multiply_integers(one_for_each));
  const auto block_rows = whole ? std::max<int64_t>(rows, 1) : block_rows_;
  const auto block_columns = whole ? std::max<int64_t>(columns, 1) : block_columns_;
  const auto scale_rows = (rows + block_rows - 1) / block_rows;
  const auto scale_columns = (columns + block_columns - 1) / block_columns;
  auto expected = one_for_each.vec();
  expected.insert(expected.end(), {scale_rows, scale_columns});
  require(whole || scales.sizes() == at::IntArrayRef(expected), where, " does not fit its weight in blocks of ",
          block_rows_, "x", block_columns_);
  auto result = empty_for_loading(values.sizes(), at::kFloat);
  const auto* bytes = static_cast<const uint8_t*>(values.const_data_ptr());
  const auto* scale = scales.const_data_ptr<float>();
  auto* out = result.mutable_data_ptr<float>();
  const auto num_rows = c10::multiply_integers(one_for_each) * rows;
  at::parallel_for(
      0, num_rows, std::max<int64_t>(1, 32768 / std::max<int64_t>(columns, 1)), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const auto scale_row = row / rows * scale_rows + row % rows / block_rows;
          dequantise_fp8_row(bytes + row * columns, static_cast<size_t>(columns), scale + scale_row * scale_columns,
                             static_cast<size_t>(block_columns), out + row * columns);
        }
      });
  return result;
}

Tensor HfTensors::read_mxfp4(const Source& source) const {
  const auto blocks = source.values.file->tensor(source.values.name);
  const auto scales = source.scales.file->tensor(source.scales.name);
  require(scales.scalar_type() == at::kByte && scales.sizes() == blocks.sizes().slice(0, blocks.dim() - 1),
          folder_.string(), ": tensor ", source.scales.name, " does not fit its blocks");
  auto shape = blocks.sizes().slice(0, blocks.dim() - 2).vec();  // [..., rows]
  shape.push_back(blocks.size(-2) * 32);
  auto result = empty_for_loading(shape, at::kFloat);
  const auto* block = blocks.const_data_ptr<uint8_t>();
  const auto* scale = scales.const_data_ptr<uint8_t>();
  auto* out = result.mutable_data_ptr<float>();
  at::parallel_for(0, scales.numel(), 1024, [&](int64_t begin, int64_t end) {
    dequantise_mxfp4(block + begin * 16, scale + begin, static_cast<size_t>(end - begin), out + begin * 32);
  });
  return result.transpose(-1, -2).contiguous();  // experts are stored [out, in] and used [in, out]
}

}  // namespace troupe
