// Writing a Hugging Face folder, complete or absent.
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "models/formats/checkpoint_reader.h"
#include "models/formats/parameter_dtype.h"
#include "models/formats/safetensors.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

const char* torch_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float32";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    case at::kDouble:
      return "float64";
    default:
      fail("a model cannot be written in ", c10::toString(dtype));
  }
}

/// A folder under construction; removed again unless it was moved into place.
class PartialFolder {
 public:
  explicit PartialFolder(const fs::path& target) : path_(target) {
    path_ += concat(".partial-", ::getpid());
    fs::remove_all(path_);
    make_folders(path_);
  }
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;
  ~PartialFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::vector<SafetensorsItem> items_to_write(const ModelConfig& config, const TensorMap& weights, at::ScalarType dtype) {
  std::vector<SafetensorsItem> items;
  for (const auto& spec : parameter_specs(config)) {
    const auto found = weights.find(spec.name);
    require(found != weights.end(), "cannot write the model: parameter ", spec.name, " is missing");
    const auto& tensor = found->second;
    require(tensor.sizes() == at::IntArrayRef(spec.shape), "cannot write the model: parameter ", spec.name,
            " has a wrong shape");
    items.push_back({spec.name, dtype_of(spec, dtype), spec.shape, [&tensor] { return tensor.detach(); }});
  }
  require(items.size() == weights.size(), "cannot write the model: ", weights.size() - items.size(),
          " of the given tensors are no parameters of a ", config.model_type, " of this configuration");
  return items;
}

}  // namespace

void write_hf_folder(const fs::path& folder, const ModelConfig& config, const TensorMap& weights, at::ScalarType dtype,
                     const CheckpointReader* text_source) {
  auto target = fs::absolute(folder).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();  // a trailing slash
  require(!fs::exists(target) || (fs::is_directory(target) && fs::is_empty(target)), target.string(),
          ": exists already; a model is never written over something");
  const auto config_text = write_model_config(config, torch_name(dtype)).dump(2) + "\n";
  auto items = items_to_write(config, weights, dtype);
  const auto text_files = text_source == nullptr ? std::map<std::string, std::string>() : text_source->text_files();

  make_folders(target.parent_path());
  const PartialFolder partial(target);
  write_safetensors(partial.path() / "model.safetensors", std::move(items), {{"format", "pt"}});
  for (const auto& [name, text] : text_files) write_file_synced(partial.path() / name, text);
  write_file_synced(partial.path() / "config.json", config_text);
  sync_folder(partial.path());
  std::error_code error;
  fs::rename(partial.path(), target, error);  // replaces an empty folder
  require(!error, "cannot write ", target.string(), ": ", error.message());
  sync_folder(target.parent_path());
}

}  // namespace troupe
