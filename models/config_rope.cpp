// Rotary position embedding in config.json: its two published forms. The frequencies are in rope_frequencies.cpp.
#include <cmath>

#include "base/error.h"
#include "models/config_fields.h"

namespace troupe {
namespace {

using nlohmann::json;

constexpr double kDefaultTheta = 10000;
constexpr const char* kOriginalLength = "original_max_position_embeddings";

/// What the dictionaries are read beside.
struct Surroundings {
  const ConfigFields& outer;
  int64_t max_position_embeddings, head_dim;
};

/// The length of pre-training: inside the dictionary or beside it; without either, the model's own.
int64_t read_original_length(const ConfigFields& fields, const std::string& where, const Surroundings& around) {
  const auto beside = around.outer.integer(kOriginalLength, 0, 0);
  const auto inside = fields.integer(kOriginalLength, beside > 0 ? beside : around.max_position_embeddings, 1);
  require(beside == 0 || inside == beside, "config.json: ", where, ".", kOriginalLength, " = ", inside, " contradicts ",
          kOriginalLength, " = ", beside, " beside it");
  return inside;
}

/// factor, or where it is absent the ratio of the lengths.
double read_factor(const ConfigFields& fields, const RopeConfig& rope, const std::string& where,
                   const Surroundings& around) {
  const bool has_ratio = rope.kind == "yarn" || rope.kind == "longrope";
  const double ratio = has_ratio ? static_cast<double>(around.max_position_embeddings) /
                                       static_cast<double>(rope.original_max_position_embeddings)
                                 : 1;
  const auto factor = fields.number("factor", has_ratio ? std::optional(ratio) : std::nullopt);
  require(factor >= 1 || (rope.kind == "longrope" && factor > 0), "config.json: ", where, ".factor = ", factor,
          " must be at least 1");
  return factor;
}

double yarn_magnitude(double factor, double scale) { return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1; }

void read_yarn(const ConfigFields& fields, RopeConfig& rope, const std::string& where) {
  if (const auto fast = fields.number("beta_fast", 0.0); fast != 0) rope.beta_fast = fast;  // 0 stands for the default
  if (const auto slow = fields.number("beta_slow", 0.0); slow != 0) rope.beta_slow = slow;
  require(rope.beta_fast > 0 && rope.beta_slow > 0, "config.json: ", where,
          ": beta_fast and beta_slow must be above 0");
  rope.truncate = fields.boolean("truncate", true);
  const double magnitude = fields.number("mscale", 0.0), of_all = fields.number("mscale_all_dim", 0.0);
  const double inferred = magnitude != 0 && of_all != 0
                              ? yarn_magnitude(rope.factor, magnitude) / yarn_magnitude(rope.factor, of_all)
                              : yarn_magnitude(rope.factor, 1);
  rope.attention_factor = fields.number("attention_factor", inferred);
}

void read_longrope(const ConfigFields& fields, RopeConfig& rope, const std::string& where, int64_t head_dim) {
  rope.short_factor = fields.numbers("short_factor");
  rope.long_factor = fields.numbers("long_factor");
  for (const auto* divisors : {&rope.short_factor, &rope.long_factor}) {
    require(static_cast<int64_t>(divisors->size()) == head_dim / 2, "config.json: ", where,
            divisors == &rope.short_factor ? ".short_factor" : ".long_factor", " holds ", divisors->size(),
            " numbers, but half of head_dim is ", head_dim / 2);
    for (const double divisor : *divisors) {
      require(divisor > 0, "config.json: ", where, ": factors of longrope must be above 0");
    }
  }
  const double length = static_cast<double>(rope.original_max_position_embeddings);
  require(length > 1, "config.json: ", where, ".", kOriginalLength, " must be above 1");
  const double inferred = rope.factor <= 1 ? 1 : std::sqrt(1 + std::log(rope.factor) / std::log(length));
  rope.attention_factor = fields.number("attention_factor", inferred);
}

/// One dictionary of rope settings; `where` is its key in config.json.
RopeConfig parse_dictionary(const json& dictionary, const std::string& where, const Surroundings& around) {
  require(dictionary.is_object(), "config.json: ", where, " must be an object, not ", dictionary.dump());
  const ConfigFields fields(dictionary, where + ".");
  RopeConfig rope;
  rope.kind = fields.text("rope_type", fields.text("type", "default"));
  const bool is_known = rope.kind == "default" || rope.kind == "linear" || rope.kind == "dynamic" ||
                        rope.kind == "yarn" || rope.kind == "longrope" || rope.kind == "llama3";
  require(is_known, "config.json: ", where, ".rope_type \"", rope.kind,
          "\" is not known; known are default, linear, dynamic, yarn, longrope, llama3");
  const auto rotated = fields.number("partial_rotary_factor", 1.0);
  require(rotated == 1.0, "config.json: ", where, ".partial_rotary_factor = ", rotated,
          " changes the mathematics and is not supported");
  for (const char* key : {"llama_4_scaling_beta", "mrope_section", "xdrope_section", "alpha"}) {
    const auto* value = fields.find(key);
    require(value == nullptr, "config.json: ", where, ".", key, " changes the mathematics and is not supported");
  }
  rope.theta = fields.number("rope_theta", around.outer.number("rope_theta", kDefaultTheta));
  require(rope.theta > 0, "config.json: rope_theta must be above 0");
  if (rope.kind == "default") return rope;
  if (rope.kind == "dynamic") rope.original_max_position_embeddings = around.max_position_embeddings;
  if (rope.kind == "llama3" || rope.kind == "yarn" || rope.kind == "longrope") {
    rope.original_max_position_embeddings = read_original_length(fields, where, around);
  }
  rope.factor = read_factor(fields, rope, where, around);
  if (rope.kind == "yarn") read_yarn(fields, rope, where);
  if (rope.kind == "longrope") read_longrope(fields, rope, where, around.head_dim);
  if (rope.kind == "llama3") {
    rope.low_freq_factor = fields.number("low_freq_factor", std::nullopt);
    rope.high_freq_factor = fields.number("high_freq_factor", std::nullopt);
    require(rope.low_freq_factor > 0 && rope.high_freq_factor > rope.low_freq_factor, "config.json: ", where,
            ": high_freq_factor must be above low_freq_factor, and both above 0");
  }
  if (rope.kind == "yarn" || rope.kind == "dynamic") {
    require(rope.theta > 1 && around.head_dim > 2, "config.json: ", where, ": \"", rope.kind,
            "\" needs a rope_theta above 1 and a head_dim above 2");
  }
  return rope;
}

}  // namespace

RopeConfig parse_rope(const ConfigFields& fields, int64_t max_position_embeddings, int64_t head_dim) {
  const Surroundings around{fields, max_position_embeddings, head_dim};
  const auto* parameters = fields.find("rope_parameters");
  const auto* scaling = fields.find("rope_scaling");
  std::string where = "rope_parameters";
  if (parameters != nullptr && parameters->is_object() && parameters->contains("full_attention")) {
    // One dictionary per kind of layer: these families rotate every layer alike.
    const auto* sliding = &(*parameters)["full_attention"];
    if (parameters->contains("sliding_attention")) sliding = &(*parameters)["sliding_attention"];
    require(*sliding == (*parameters)["full_attention"],
            "config.json: rope_parameters differ between kinds of layer, which is not supported for ",
            fields.model_type());
    parameters = &(*parameters)["full_attention"];
    where += ".full_attention";
  }
  if (parameters != nullptr) {
    const auto rope = parse_dictionary(*parameters, where, around);
    const bool contradicted = (scaling != nullptr && parse_dictionary(*scaling, "rope_scaling", around) != rope) ||
                              fields.number("rope_theta", rope.theta) != rope.theta;
    require(!contradicted, "config.json: rope_parameters contradicts rope_theta or rope_scaling");
    return rope;
  }
  return parse_dictionary(scaling == nullptr ? json::object() : *scaling, "rope_scaling", around);
}

void write_rope(const RopeConfig& rope, json& config) {
  json scaling = {{"rope_type", rope.kind}};
  if (rope.kind != "default") scaling["factor"] = rope.factor;
  if (rope.kind == "llama3") {
    scaling["low_freq_factor"] = rope.low_freq_factor;
    scaling["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.kind == "yarn") {
    scaling["beta_fast"] = rope.beta_fast;
    scaling["beta_slow"] = rope.beta_slow;
    scaling["truncate"] = rope.truncate;
  }
  if (rope.kind == "longrope") {
    scaling["short_factor"] = rope.short_factor;
    scaling["long_factor"] = rope.long_factor;
    config[kOriginalLength] = rope.original_max_position_embeddings;  // transformers 4 looks for it here alone
  }
  if (rope.kind == "yarn" || rope.kind == "longrope") scaling["attention_factor"] = rope.attention_factor;
  if (rope.kind == "llama3" || rope.kind == "yarn" || rope.kind == "longrope") {
    scaling[kOriginalLength] = rope.original_max_position_embeddings;
  }
  config["rope_theta"] = rope.theta;
  config["rope_scaling"] = rope.kind == "default" ? json() : scaling;
  scaling["rope_theta"] = rope.theta;
  config["rope_parameters"] = scaling;
}

}  // namespace troupe
