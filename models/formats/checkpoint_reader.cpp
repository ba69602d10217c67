#include "models/formats/checkpoint_reader.h"

#include <cinttypes>
#include <cstdio>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "models/formats/gguf_reader.h"
#include "models/formats/hf_folder.h"
#include "models/formats/lora_adapter.h"
#include "models/formats/parameter_dtype.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

/// A few names of a longer list, for a message.
std::string list_names(const std::vector<std::string>& names) {
  constexpr size_t kMostNames = 8;
  std::string result;
  for (size_t i = 0; i < std::min(names.size(), kMostNames); ++i) result += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kMostNames) result += concat(" and ", names.size() - kMostNames, " more");
  return result;
}

std::string to_text(const std::vector<int64_t>& shape) {
  std::string result = "[";
  for (size_t i = 0; i < shape.size(); ++i) result += concat(i == 0 ? "" : ", ", shape[i]);
  return result + "]";
}

/// A tied model's file may hold the head too: then it must be the embedding (B056).
void check_tied_head(const CheckpointReader& reader, const Tensor& embedding, const std::string& head_name) {
  const auto head = reader.read(head_name, embedding.scalar_type());
  require(head.sizes() == embedding.sizes() && at::equal(head, embedding), reader.path().string(),
          ": tie_word_embeddings is true, but ", head_name, " differs from model.embed_tokens.weight");
}

}  // namespace

std::unique_ptr<CheckpointReader> open_checkpoint(const fs::path& path) {
  std::error_code error;
  const auto status = fs::status(path, error);
  require(fs::exists(status), path.string(), ": no such model folder or file");
  if (!fs::is_directory(status)) {
    require(path.extension() == ".gguf", path.string(),
            ": not a model (expected a Hugging Face folder or a .gguf file)");
    return open_gguf(path);
  }
  if (fs::exists(path / "adapter_config.json")) return open_lora_adapter(path);
  if (fs::exists(path / "config.json")) return open_hf_folder(path);
  std::set<fs::path> files;  // of a split model its first part
  for (const auto& item : fs::directory_iterator(path, error)) {
    if (item.path().extension() == ".gguf") files.insert(first_gguf_part(item.path()));
  }
  require(!error, path.string(), ": ", error.message());
  require(!files.empty(), path.string(), ": not a model (no config.json and no .gguf file)");
  require(files.size() == 1, path.string(), ": holds ", files.size(), " .gguf files; name the one to open");
  return open_gguf(*files.begin());
}

TensorMap load_weights(const CheckpointReader& reader, at::ScalarType dtype) {
  const auto& config = reader.config();
  const auto& stored = reader.tensors();
  const auto specs = parameter_specs(config);
  std::set<std::string> known;
  std::vector<std::string> missing;
  for (const auto& spec : specs) {
    known.insert(spec.name);
    const auto found = stored.find(spec.name);
    if (found == stored.end()) {
      missing.push_back(spec.name);
    } else {
      require(found->second.shape == spec.shape, reader.path().string(), ": tensor ", spec.name, " has the shape ",
              to_text(found->second.shape), ", not ", to_text(spec.shape));
      require(found->second.is_float, reader.path().string(), ": tensor ", spec.name, " has the dtype ",
              found->second.dtype, "; weights are floating-point numbers");
    }
  }
  require(missing.empty(), reader.path().string(), ": missing tensors: ", list_names(missing));
  std::vector<std::string> unexpected;
  const bool may_hold_head = config.tie_word_embeddings && config.num_labels == 0;
  for (const auto& [name, info] : stored) {
    // Old folders hold the inverse frequencies, which follow from the configuration.
    if (known.contains(name) || name.ends_with("rotary_emb.inv_freq") || (may_hold_head && name == "lm_head.weight"))
      continue;
    unexpected.push_back(name);
  }
  // Layers after the last are for multi-token prediction, which nothing here uses.
  const auto is_extra = [&](const std::string& name) {
    if (name.starts_with("mtp.")) return true;
    int64_t layer = -1;
    return config.num_extra_layers > 0 && std::sscanf(name.c_str(), "model.layers.%" SCNd64 ".", &layer) == 1 &&
           layer >= config.num_hidden_layers && layer < config.num_hidden_layers + config.num_extra_layers;
  };
  const auto num_extra = std::erase_if(unexpected, is_extra);
  if (config.num_extra_layers > 0 || num_extra > 0) {
    log::info(reader.path().string(), ": ", config.num_extra_layers,
              " layers for multi-token prediction are declared, ",
              num_extra == 0 ? "their weights are not there" : concat("their ", num_extra, " tensors are left alone"));
  }
  require(unexpected.empty(), reader.path().string(), ": unexpected tensors: ", list_names(unexpected));
  TensorMap weights;
  for (const auto& spec : specs) weights[spec.name] = reader.read(spec.name, dtype_of(spec, dtype));
  if (may_hold_head && stored.contains("lm_head.weight")) {
    check_tied_head(reader, weights.at("model.embed_tokens.weight"), "lm_head.weight");
  }
  return weights;
}

}  // namespace troupe
