// Rotary position embedding: its two published forms in config.json, and the inverse frequencies after scaling.
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "models/config_fields.h"

namespace troupe {
namespace {

using nlohmann::json;

constexpr double kDefaultTheta = 10000;

/// One dictionary of rope settings; `where` is its key in config.json.
RopeConfig parse_dictionary(const json& dictionary, const std::string& where, const ConfigFields& outer) {
  require(dictionary.is_object(), "config.json: ", where, " must be an object, not ", dictionary.dump());
  const ConfigFields fields(dictionary, where + ".");
  RopeConfig rope;
  rope.kind = fields.text("rope_type", fields.text("type", "default"));
  require(rope.kind == "default" || rope.kind == "linear" || rope.kind == "llama3", "config.json: ", where,
          ".rope_type \"", rope.kind, "\" is not known; known are default, linear, llama3");
  const auto rotated = fields.number("partial_rotary_factor", 1.0);
  require(rotated == 1.0, "config.json: ", where, ".partial_rotary_factor = ", rotated,
          " changes the mathematics and is not supported");
  rope.theta = fields.number("rope_theta", outer.number("rope_theta", kDefaultTheta));
  require(rope.theta > 0, "config.json: rope_theta must be above 0");
  if (rope.kind == "default") return rope;
  rope.factor = fields.number("factor", std::nullopt);
  require(rope.factor >= 1, "config.json: ", where, ".factor = ", rope.factor, " must be at least 1");
  if (rope.kind == "linear") return rope;
  rope.low_freq_factor = fields.number("low_freq_factor", std::nullopt);
  rope.high_freq_factor = fields.number("high_freq_factor", std::nullopt);
  require(rope.low_freq_factor > 0 && rope.high_freq_factor > rope.low_freq_factor, "config.json: ", where,
          ": high_freq_factor must be above low_freq_factor, and both above 0");
  const auto* outer_length = outer.find("original_max_position_embeddings");
  rope.original_max_position_embeddings = fields.integer(
      "original_max_position_embeddings",
      outer_length == nullptr ? std::nullopt : std::optional(outer.integer("original_max_position_embeddings", 0)), 1);
  return rope;
}

bool same(const RopeConfig& a, const RopeConfig& b) {
  return a.kind == b.kind && a.theta == b.theta && a.factor == b.factor && a.low_freq_factor == b.low_freq_factor &&
         a.high_freq_factor == b.high_freq_factor &&
         a.original_max_position_embeddings == b.original_max_position_embeddings;
}

}  // namespace

RopeConfig parse_rope(const ConfigFields& fields) {
  const auto* parameters = fields.find("rope_parameters");
  const auto* scaling = fields.find("rope_scaling");
  std::string where = "rope_parameters";
  if (parameters != nullptr && parameters->is_object() && parameters->contains("full_attention")) {
    // One dictionary per kind of layer: these families have only layers of full attention.
    parameters = &(*parameters)["full_attention"];
    where += ".full_attention";
  }
  if (parameters != nullptr) {
    const auto rope = parse_dictionary(*parameters, where, fields);
    const bool contradicted = (scaling != nullptr && !same(rope, parse_dictionary(*scaling, "rope_scaling", fields))) ||
                              fields.number("rope_theta", rope.theta) != rope.theta;
    require(!contradicted, "config.json: rope_parameters contradicts rope_theta or rope_scaling");
    return rope;
  }
  return parse_dictionary(scaling == nullptr ? json::object() : *scaling, "rope_scaling", fields);
}

void write_rope(const RopeConfig& rope, json& config) {
  json scaling = {{"rope_type", rope.kind}};
  if (rope.kind != "default") scaling["factor"] = rope.factor;
  if (rope.kind == "llama3") {
    scaling["low_freq_factor"] = rope.low_freq_factor;
    scaling["high_freq_factor"] = rope.high_freq_factor;
    scaling["original_max_position_embeddings"] = rope.original_max_position_embeddings;
  }
  config["rope_theta"] = rope.theta;
  config["rope_scaling"] = rope.kind == "default" ? json() : scaling;
  scaling["rope_theta"] = rope.theta;
  config["rope_parameters"] = scaling;
}

std::vector<double> rope_inverse_frequencies(const RopeConfig& rope, int64_t head_dim) {
  require(head_dim > 0 && head_dim % 2 == 0, "rotary embedding needs an even head size, not ", head_dim);
  std::vector<double> result(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < result.size(); ++i) {
    const double frequency = std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    if (rope.kind == "default") {
      result[i] = frequency;
    } else if (rope.kind == "linear") {
      result[i] = frequency / rope.factor;
    } else if (rope.kind == "llama3") {
      // Long waves are stretched by the factor, short ones kept, those between interpolated.
      const double length = static_cast<double>(rope.original_max_position_embeddings);
      const double wave_length = 2 * std::numbers::pi / frequency;
      const double smooth =
          (length / wave_length - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
      const double kept = std::clamp(smooth, 0.0, 1.0);
      result[i] = (1 - kept) * frequency / rope.factor + kept * frequency;
    } else {
      fail("rope kind \"", rope.kind, "\" is not known; known are default, linear, llama3");
    }
  }
  return result;
}

}  // namespace troupe
