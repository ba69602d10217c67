// Typed, checked access to the keys of a config.json; used by the files that read one. Null counts as absent.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
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
  /// Whether any of the above was called for the key.
  bool was_asked(const std::string& key) const { return asked_.contains(key); }

 private:
  const nlohmann::json& object_;
  std::string where_;
  mutable std::set<std::string> asked_;
};

/// What the reading of a rope needs to know besides its keys.
struct RopeReading {
  int64_t max_position_embeddings = 0, rotated_dim = 0;
  double theta = 10000;                               // where no key gives one
  nlohmann::json scaling = nlohmann::json::object();  // where neither dictionary is there
  double rotary_share = 1;                            // what partial_rotary_factor must say
  std::string layer_type;                             // "": one rope for all layers; else the key of its own
  std::string local_theta_key;                        // of sliding_attention in the older form
};
/// Either published form; throws Error naming a kind that is not known, and where two forms contradict each other.
RopeConfig parse_rope(const ConfigFields& fields, const RopeReading& reading);
/// partial_rotary_factor, wherever it stands.
double parse_rotary_share(const ConfigFields& fields, double fallback);
/// Writes both forms into a config.json.
void write_rope(const ModelConfig& model, const std::string& local_theta_key, nlohmann::json& config);

}  // namespace troupe
