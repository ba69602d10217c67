#include "rollout/model_reward.h"

#include <map>
#include <mutex>

#include "base/error.h"
#include "models/decoder.h"
#include "models/formats/checkpoint_reader.h"

namespace troupe {
namespace {

/// A frozen model that scores token sequences. Thread-safe.
class ScoreModel {
 public:
  explicit ScoreModel(std::shared_ptr<const CheckpointReader> reader)
      : reader_(std::move(reader)), decoder_(reader_->config()) {}

  void load() {
    std::call_once(loaded_, [this] { decoder_.bind_all(load_weights(*reader_, at::kFloat)); });
  }

  double score(const std::vector<int32_t>& tokens) {
    load();
    const std::scoped_lock lock(scoring_);  // one sample has all threads
    require(!tokens.empty(), "a sample without tokens has no score");
    const auto vocab_size = decoder_.config().vocab_size;
    for (const auto token : tokens)
      require(token >= 0 && token < vocab_size, "token ", token, " is outside of the reward model's vocabulary of ",
              vocab_size, ": it needs the policy's tokenizer");
    const at::NoGradGuard no_grad;
    const auto length = static_cast<int32_t>(tokens.size());
    const auto hidden_TD = decoder_.forward(at::tensor(tokens, at::kLong), {{{0, length, -1}}, length});
    return decoder_.logits(hidden_TD.slice(0, length - 1)).item<double>();
  }

 private:
  std::shared_ptr<const CheckpointReader> reader_;
  Decoder decoder_;
  std::once_flag loaded_;
  std::mutex scoring_;
};

/// One model a path for as long as a rule uses it.
std::shared_ptr<ScoreModel> shared_model(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<ScoreModel>> models;
  const std::scoped_lock lock(mutex);
  if (auto model = models[path].lock()) return model;
  const std::shared_ptr<const CheckpointReader> reader = open_checkpoint(path);
  if (reader->config().num_labels != 1)
    throw UsageError(concat("reward path = ", path, ": not a reward model (a sequence classification folder with one ",
                            "label, such as `troupe reward-model` writes)"));
  auto model = std::make_shared<ScoreModel>(reader);
  models[path] = model;
  return model;
}

class ModelReward : public RewardFunction {
 public:
  explicit ModelReward(const RewardOptions& options) {
    const auto path = options.settings.at("path").get<std::string>();
    if (path.empty()) throw UsageError(concat("reward ", options.name, ": path is needed: a reward model's folder"));
    scale_ = options.settings.at("scale");
    offset_ = options.settings.at("offset");
    if (!options.is_elsewhere) model_ = shared_model(path);
  }
  void load() const override {
    require(model_ != nullptr, "the reward model is read where the rule runs, not here");
    model_->load();
  }
  double score(const Trajectory& trajectory, const nlohmann::json&) const override {
    load();
    return scale_ * model_->score(trajectory.tokens) + offset_;
  }

 private:
  std::shared_ptr<ScoreModel> model_;
  double scale_ = 1, offset_ = 0;
};

}  // namespace

std::unique_ptr<RewardFunction> make_model_reward(const RewardOptions& options) {
  return std::make_unique<ModelReward>(options);
}

}  // namespace troupe
