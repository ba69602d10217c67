// Sliding windows in config.json: how many tokens each layer sees.
#include "base/error.h"
#include "models/config_fields.h"

namespace troupe {

std::vector<int64_t> parse_attention_windows(const ConfigFields& fields, bool needs_flag, int64_t num_hidden_layers) {
  constexpr int64_t kDefaultWindow = 4096;  // where the key is absent; null means none
  const auto* layer_types = needs_flag ? fields.find("layer_types") : nullptr;
  if (layer_types != nullptr) {
    require(layer_types->is_array() && layer_types->size() == static_cast<size_t>(num_hidden_layers),
            "config.json: layer_types must be a list of num_hidden_layers = ", num_hidden_layers, " names");
    for (const auto& type : *layer_types) {
      require(type == "full_attention" || type == "sliding_attention", "config.json: layer_types holds ", type.dump(),
              "; supported are \"full_attention\" and \"sliding_attention\"");
    }
  }
  if (fields.is_null("sliding_window")) return {};
  if (needs_flag && !fields.boolean("use_sliding_window", false)) return {};
  const auto window = fields.integer("sliding_window", kDefaultWindow, /*smallest=*/1);
  const auto first = needs_flag ? fields.integer("max_window_layers", 28, /*smallest=*/0) : 0;
  std::vector<int64_t> windows(static_cast<size_t>(num_hidden_layers), 0);
  bool slides = false;
  for (int64_t layer = 0; layer < num_hidden_layers; ++layer) {
    const auto index = static_cast<size_t>(layer);
    if (layer_types != nullptr ? (*layer_types)[index] == "sliding_attention" : layer >= first) windows[index] = window;
    slides = slides || windows[index] > 0;
  }
  return slides ? windows : std::vector<int64_t>{};
}

}  // namespace troupe
