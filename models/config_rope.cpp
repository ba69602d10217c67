// Rotary position embedding in config.json: its two published forms. The frequencies are in rope_frequencies.cpp.
#include <cmath>

#include "base/error.h"
#include "models/config_fields.h"

namespace troupe {
namespace {

using nlohmann::json;

constexpr const char* kOriginalLength = "original_max_position_embeddings";
constexpr const char* kFull = "full_attention";
constexpr const char* kSliding = "sliding_attention";

/// What the dictionaries are read beside.
struct Surroundings {
  const ConfigFields& outer;
  const RopeReading& reading;
};

/// The length of pre-training: inside the dictionary or beside it; without either, the model's own.
int64_t read_original_length(const ConfigFields& fields, const std::string& where, const Surroundings& around) {
  const auto beside = around.outer.integer(kOriginalLength, 0, 0);
  const auto inside = fields.integer(kOriginalLength, beside > 0 ? beside : around.reading.max_position_embeddings, 1);
  require(beside == 0 || inside == beside, "config.json: ", where, ".", kOriginalLength, " = ", inside, " contradicts ",
          kOriginalLength, " = ", beside, " beside it");
  return inside;
}

/// factor, or where it is absent the ratio of the lengths.
double read_factor(const ConfigFields& fields, const RopeConfig& rope, const std::string& where,
                   const Surroundings& around) {
  const bool has_ratio = rope.kind == "yarn" || rope.kind == "longrope";
  const double ratio = has_ratio ? static_cast<double>(around.reading.max_position_embeddings) /
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
  rope.magnitude = fields.number("mscale", 0.0);
  rope.magnitude_all = fields.number("mscale_all_dim", 0.0);
  const bool has_both = rope.magnitude != 0 && rope.magnitude_all != 0;
  const double inferred =
      has_both ? yarn_magnitude(rope.factor, rope.magnitude) / yarn_magnitude(rope.factor, rope.magnitude_all)
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
  const auto rotated = fields.number("partial_rotary_factor", around.reading.rotary_share);
  require(rotated == around.reading.rotary_share, "config.json: ", where, ".partial_rotary_factor = ", rotated,
          " changes the mathematics and is not supported");
  for (const char* key : {"llama_4_scaling_beta", "mrope_section", "xdrope_section", "alpha"}) {
    // Of text alone the axes that mrope tells apart are one; a family that has them says so by its share.
    const bool is_axes = std::string_view(key) == "mrope_section" && around.reading.rotary_share < 1;
    const auto* value = fields.find(key);
    require(value == nullptr || is_axes, "config.json: ", where, ".", key,
            " changes the mathematics and is not supported");
  }
  for (const char* key : {"mscale", "mscale_all_dim"}) {
    require(rope.kind == "yarn" || fields.find(key) == nullptr, "config.json: ", where, ".", key,
            " is supported with rope_type \"yarn\" alone, not with \"", rope.kind, "\"");
  }
  const auto& local_key = around.reading.local_theta_key;
  const bool is_local = around.reading.layer_type == kSliding && !local_key.empty();
  rope.theta =
      fields.number("rope_theta", around.outer.number(is_local ? local_key : "rope_theta", around.reading.theta));
  require(rope.theta > 0, "config.json: rope_theta must be above 0");
  if (rope.kind == "default") return rope;
  if (rope.kind == "dynamic") rope.original_max_position_embeddings = around.reading.max_position_embeddings;
  if (rope.kind == "llama3" || rope.kind == "yarn" || rope.kind == "longrope") {
    rope.original_max_position_embeddings = read_original_length(fields, where, around);
  }
  rope.factor = read_factor(fields, rope, where, around);
  if (rope.kind == "yarn") read_yarn(fields, rope, where);
  if (rope.kind == "longrope") read_longrope(fields, rope, where, around.reading.rotated_dim);
  if (rope.kind == "llama3") {
    rope.low_freq_factor = fields.number("low_freq_factor", std::nullopt);
    rope.high_freq_factor = fields.number("high_freq_factor", std::nullopt);
    require(rope.low_freq_factor > 0 && rope.high_freq_factor >= rope.low_freq_factor, "config.json: ", where,
            ": high_freq_factor must not be below low_freq_factor, and both above 0");
  }
  if (rope.kind == "yarn" || rope.kind == "dynamic") {
    require(rope.theta > 1 && around.reading.rotated_dim > 2, "config.json: ", where, ": \"", rope.kind,
            "\" needs a rope_theta above 1 and a head_dim above 2");
  }
  return rope;
}

}  // namespace

double parse_rotary_share(const ConfigFields& fields, double fallback) {
  auto share = fields.number("partial_rotary_factor", fallback);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto* dictionary = fields.find(key);
    if (dictionary == nullptr || !dictionary->is_object()) continue;
    share = ConfigFields(*dictionary, std::string(key) + ".").number("partial_rotary_factor", share);
  }
  require(share > 0 && share <= 1, "config.json: partial_rotary_factor = ", share, " is not above 0 and at most 1");
  return share;
}

RopeConfig parse_rope(const ConfigFields& fields, const RopeReading& reading) {
  const Surroundings around{fields, reading};
  const auto* parameters = fields.find("rope_parameters");
  const auto* scaling = fields.find("rope_scaling");
  std::string where = "rope_parameters";
  const bool is_local = reading.layer_type == kSliding;
  const auto check_older_form = [&](const RopeConfig& rope) {
    const bool contradicted = (scaling != nullptr && parse_dictionary(*scaling, "rope_scaling", around) != rope) ||
                              fields.number("rope_theta", rope.theta) != rope.theta;
    require(!contradicted, "config.json: rope_parameters contradicts rope_theta or rope_scaling");
  };
  const bool is_nested = parameters != nullptr && parameters->is_object() &&
                         (parameters->contains(kFull) || parameters->contains(kSliding));
  if (is_nested) {
    // A kind of layer without a dictionary is not scaled.
    const auto of_kind = [&](const char* kind) {
      const auto found = parameters->find(kind);
      return found == parameters->end() || found->is_null() ? json::object() : *found;
    };
    const auto full = of_kind(kFull), sliding = of_kind(kSliding);
    // One dictionary per kind of layer, but families whose layers are all rotated alike.
    require(!reading.layer_type.empty() || sliding.empty() || sliding == full,
            "config.json: rope_parameters differ between kinds of layer, which is not supported for ",
            fields.model_type());
    where += concat(".", is_local ? kSliding : kFull);
    const auto rope = parse_dictionary(is_local ? sliding : full, where, around);
    if (!is_local) {
      check_older_form(rope);
    } else if (!reading.local_theta_key.empty() && reading.local_theta_key != "rope_theta") {
      require(fields.number(reading.local_theta_key, rope.theta) == rope.theta,
              "config.json: rope_parameters contradicts ", reading.local_theta_key);
    }
    return rope;
  }
  if (is_local) {  // never scaled
    RopeConfig rope;
    rope.theta = fields.number(reading.local_theta_key, reading.theta);
    require(rope.theta > 0, "config.json: ", reading.local_theta_key, " must be above 0");
    return rope;
  }
  if (parameters != nullptr) {
    const auto rope = parse_dictionary(*parameters, where, around);
    check_older_form(rope);
    return rope;
  }
  return parse_dictionary(scaling == nullptr ? reading.scaling : *scaling, "rope_scaling", around);
}

namespace {

json dictionary_of(const RopeConfig& rope) {
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
    if (rope.magnitude != 0) scaling["mscale"] = rope.magnitude;
    if (rope.magnitude_all != 0) scaling["mscale_all_dim"] = rope.magnitude_all;
  }
  if (rope.kind == "longrope") {
    scaling["short_factor"] = rope.short_factor;
    scaling["long_factor"] = rope.long_factor;
  }
  if (rope.kind == "yarn" || rope.kind == "longrope") scaling["attention_factor"] = rope.attention_factor;
  if (rope.kind == "llama3" || rope.kind == "yarn" || rope.kind == "longrope") {
    scaling[kOriginalLength] = rope.original_max_position_embeddings;
  }
  return scaling;
}

}  // namespace

void write_rope(const ModelConfig& model, const std::string& local_theta_key, json& config) {
  auto scaling = dictionary_of(model.rope);
  const auto share = static_cast<double>(model.rotated_dim()) / static_cast<double>(model.head_dim);
  if (model.rope.kind == "longrope") {  // transformers 4 looks for it here alone
    config[kOriginalLength] = model.rope.original_max_position_embeddings;
  }
  config["rope_theta"] = model.rope.theta;
  config["rope_scaling"] = model.rope.kind == "default" ? json() : scaling;
  scaling["rope_theta"] = model.rope.theta;
  if (share < 1) config["partial_rotary_factor"] = scaling["partial_rotary_factor"] = share;
  if (local_theta_key.empty()) {
    config["rope_parameters"] = scaling;
    return;
  }
  auto local = dictionary_of(model.local_rope);
  local["rope_theta"] = model.local_rope.theta;
  config["rope_parameters"] = {{"full_attention", scaling}, {"sliding_attention", local}};
  if (local_theta_key != "rope_theta") config[local_theta_key] = model.local_rope.theta;
}

}  // namespace troupe
