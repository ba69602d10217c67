// Comparison of the training forward and backward with a folder's expected values.
#include "models/verify.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "models/decoder.h"
#include "models/formats/checkpoint_reader.h"
#include "models/formats/safetensors.h"

namespace troupe {
namespace {

struct Tolerances {
  double logits_abs = 0, loss_abs = 0, grad_norm_rel = 0, grad_abs = 0, scores_abs = 0;
};

Tolerances read_tolerances(const std::filesystem::path& path) {
  const auto json = nlohmann::json::parse(read_file(path)).at("tolerance");
  const double logits = json.value("logits_abs", 0.0);
  // The folders of nested models hold gradients and state no tolerance for them. An absolute tolerance is one for
  // logits, loss and gradients alike, so theirs is that of the logits; the norm's relative one is what every other
  // folder has.
  return {logits, json.value("loss_abs", 0.0), json.value("grad_norm_rel", 2e-5), json.value("grad_abs", logits),
          json.value("scores_abs", 0.0)};
}

double max_abs(const Tensor& difference) { return difference.numel() == 0 ? 0 : difference.abs().max().item<double>(); }

/// One row per batch entry, each a document of its own.
PackedLayout rows_layout(int64_t num_rows, int64_t length) {
  PackedLayout layout;
  layout.num_tokens = static_cast<int32_t>(num_rows * length);
  for (int64_t row = 0; row < num_rows; ++row) {
    layout.segments.push_back({static_cast<int32_t>(row * length), static_cast<int32_t>(length), -1});
  }
  return layout;
}

class Comparison {
 public:
  Comparison(VerifyResult& result, const SafetensorsFile& expected) : result_(result), expected_(expected) {}

  bool has(const std::string& name) const { return expected_.entries().contains(name); }
  Tensor get(const std::string& name) const { return expected_.tensor(name).to(at::kDouble); }

  /// Records `difference` in `field`; a NaN counts as out of tolerance.
  void check(double& field, const std::string& what, double difference, double tolerance) {
    const bool within = difference <= tolerance;
    field = std::isnan(difference) ? difference : std::max(field, difference);
    result_.worst_share = within ? std::max(result_.worst_share, tolerance > 0 ? difference / tolerance : 0.0)
                                 : std::numeric_limits<double>::infinity();
    if (within) return;
    if (!result_.error.empty()) result_.error += "; ";
    result_.error += concat(what, " differs by ", difference, ", tolerance ", tolerance);
  }

 private:
  VerifyResult& result_;
  const SafetensorsFile& expected_;
};

/// Without what a multi-modal folder puts before the text model's names.
std::string own_name(const std::string& name) {
  for (const std::string before : {"model.language_model.", "language_model.model."}) {
    if (name.starts_with(before)) return "model." + name.substr(before.size());
  }
  constexpr std::string_view kOuter = "language_model.";
  return name.starts_with(kOuter) ? name.substr(kOuter.size()) : name;
}

void check_gradients(VerifyResult& result, Comparison& comparison, const SafetensorsFile& expected,
                     const TensorMap& weights, const ModelConfig& config, const Tolerances& tolerances) {
  double squares = 0;
  for (const auto& spec : parameter_specs(config)) {
    if (!spec.is_trained) continue;
    const auto& name = spec.name;
    const auto& weight = weights.at(name);
    require(weight.grad().defined(), "parameter \"", name, "\" got no gradient");
    const double norm = weight.grad().to(at::kDouble).norm().item<double>();
    squares += norm * norm;
  }
  if (comparison.has("grad_norm")) {
    const double wanted = comparison.get("grad_norm").item<double>();
    comparison.check(result.grad_norm_rel, "grad_norm", std::abs(std::sqrt(squares) - wanted) / wanted,
                     tolerances.grad_norm_rel);
  }
  for (const auto& [name, entry] : expected.entries()) {
    if (!name.starts_with("grad.")) continue;
    const auto found = weights.find(own_name(name.substr(5)));
    require(found != weights.end(), name, " belongs to no parameter of the network");
    comparison.check(result.grad_max_abs, name, max_abs(found->second.grad().to(at::kDouble) - comparison.get(name)),
                     tolerances.grad_abs);
  }
}

void compare(const std::filesystem::path& folder, VerifyResult& result) {
  const auto reader = open_checkpoint(folder);
  const SafetensorsFile expected(folder / "expected.safetensors");
  const Tolerances tolerances = read_tolerances(folder / "expected.json");
  Comparison comparison(result, expected);
  TensorMap weights = load_weights(*reader, at::kFloat);
  for (auto& [name, weight] : weights) weight = weight.clone().requires_grad_();
  Decoder decoder(reader->config());
  decoder.bind_all(weights);

  const Tensor input_ids = expected.tensor("input_ids");
  const int64_t num_rows = input_ids.size(0), length = input_ids.size(1);
  const Tensor hidden = decoder.forward(input_ids.reshape(-1), rows_layout(num_rows, length));
  const Tensor logits = decoder.logits(hidden).view({num_rows, length, -1});
  if (comparison.has("logits")) {
    comparison.check(result.logits_max_abs, "logits",
                     max_abs(logits.detach().to(at::kDouble) - comparison.get("logits")), tolerances.logits_abs);
  }
  if (comparison.has("scores")) {  // sequence classification: one row per sequence, at its last real token
    const Tensor last = expected.tensor("lengths").to(at::kLong) - 1;
    const Tensor scores = logits.index({at::arange(num_rows), last}).squeeze(1);
    comparison.check(result.scores_max_abs, "scores",
                     max_abs(scores.detach().to(at::kDouble) - comparison.get("scores")), tolerances.scores_abs);
  }
  if (!comparison.has("loss")) return;
  const Tensor loss = at::cross_entropy_loss(logits.narrow(1, 0, length - 1).flatten(0, 1),
                                             input_ids.narrow(1, 1, length - 1).flatten());
  comparison.check(result.loss_abs, "loss", std::abs(loss.item<double>() - comparison.get("loss").item<double>()),
                   tolerances.loss_abs);
  torch::autograd::backward({loss}, {});
  check_gradients(result, comparison, expected, weights, reader->config(), tolerances);
}

}  // namespace

VerifyResult verify_model_folder(const std::filesystem::path& folder) {
  VerifyResult result;
  result.dir = folder.string();
  try {
    compare(folder, result);
  } catch (const std::exception& error) {
    result.error = result.error.empty() ? error.what() : result.error + "; " + error.what();
    result.worst_share = std::numeric_limits<double>::infinity();
  }
  result.ok = result.error.empty();
  return result;
}

}  // namespace troupe
