// Typed, checked access to the keys of a config.json; used by the files that read one. Null counts as absent.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "models/config.h"

namespace troupe {

class ConfigFields {
 public:
  /// `where` goes before a key in messages ("rope_scaling.").
  explicit ConfigFields(const nlohmann::json& object, std::string where = "")
      : object_(object), where_(std::move(where)) {}

  /// The value, or nullptr where the key is absent or null.
  const nlohmann::json* find(const std::string& key) const;
  bool is_null(const std::string& key) const;
  /// Each throws Error naming the key: missing without a fallback, of another type, out of range.
  int64_t integer(const std::string& key, std::optional<int64_t> fallback, int64_t smallest = 0,
                  int64_t largest = std::numeric_limits<int64_t>::max()) const;
  double number(const std::string& key, std::optional<double> fallback) const;
  bool boolean(const std::string& key, bool fallback) const;
  /// A list of numbers, all finite.
  std::vector<double> numbers(const std::string& key) const;
  std::string text(const std::string& key, std::optional<std::string> fallback) const;
  std::string model_type() const { return text("model_type", std::nullopt); }

 private:
  const nlohmann::json& object_;
  std::string where_;
};

/// Either published form; throws Error naming a kind that is not known, and where two forms contradict each other.
RopeConfig parse_rope(const ConfigFields& fields, int64_t max_position_embeddings, int64_t head_dim);
/// Windows of the layers (see ModelConfig::attention_windows) of a family whose key sliding_window counts: with a flag
/// (`needs_flag`, qwen) or always. Throws Error naming a kind of layer that is not known.
std::vector<int64_t> parse_attention_windows(const ConfigFields& fields, bool needs_flag, int64_t num_hidden_layers);
/// Writes both forms into a config.json.
void write_rope(const RopeConfig& rope, nlohmann::json& config);

}  // namespace troupe
