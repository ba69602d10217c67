#include "training/optimizer.h"

#include "base/error.h"
#include "models/kernels/ops.h"

namespace troupe {
namespace {

/// Elements [begin, end) of a shard that decay alike.
struct Run {
  int64_t begin = 0, end = 0;
  bool decays = false;
};

std::vector<Run> runs_of_unit(int64_t unit, const std::vector<ShardPiece>& pieces,
                              const std::map<std::string, bool>& decays) {
  std::vector<Run> runs;
  for (const auto& piece : pieces) {
    if (piece.unit != unit || piece.flat_end == piece.flat_begin) continue;
    const auto found = decays.find(piece.name);
    require(found != decays.end(), "optimizer: the shard holds ", piece.name, ", which the model does not have");
    runs.push_back({piece.shard_begin, piece.shard_begin + piece.flat_end - piece.flat_begin, found->second});
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.begin < b.begin; });
  std::vector<Run> merged;
  for (const auto& run : runs) {
    if (!merged.empty() && merged.back().decays == run.decays && merged.back().end == run.begin)
      merged.back().end = run.end;
    else
      merged.push_back(run);
  }
  return merged;
}

class AdamW : public Optimizer {
 public:
  AdamW(const OptimizerOptions& options, std::vector<UnitShard>& shards, const std::vector<ShardPiece>& pieces,
        const std::vector<ParameterSpec>& specs)
      : options_(options), shards_(shards) {
    std::map<std::string, bool> decays;
    for (const auto& spec : specs) decays[spec.name] = spec.shape.size() > 1 && !spec.name.ends_with("bias");
    for (const auto& shard : shards) {
      runs_.push_back(options.weight_decay == 0 ? std::vector<Run>{{0, shard.parameter.numel(), false}}
                                                : runs_of_unit(shard.unit, pieces, decays));
      exp_avg_.push_back(at::zeros_like(shard.parameter));
      exp_avg_sq_.push_back(at::zeros_like(shard.parameter));
    }
  }

  void update(double lr, double gradient_scale, int64_t step) override {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < shards_.size(); ++i) {
      for (const auto& run : runs_[i]) {
        const auto part = [&](const Tensor& whole) { return whole.narrow(0, run.begin, run.end - run.begin); };
        auto parameter = part(shards_[i].parameter), exp_avg = part(exp_avg_[i]), exp_avg_sq = part(exp_avg_sq_[i]);
        ops::fused_adamw_(parameter, part(shards_[i].gradient), exp_avg, exp_avg_sq,
                          {lr, options_.beta1, options_.beta2, options_.eps, run.decays ? options_.weight_decay : 0,
                           gradient_scale, step});
      }
    }
  }

  std::map<std::string, std::vector<Tensor>> state() override {
    return {{"exp_avg", exp_avg_}, {"exp_avg_sq", exp_avg_sq_}};
  }

 private:
  OptimizerOptions options_;
  std::vector<UnitShard>& shards_;
  std::vector<std::vector<Run>> runs_;
  std::vector<Tensor> exp_avg_, exp_avg_sq_;
};

void check(bool condition, const char* key, double value, const char* wanted) {
  if (!condition) throw UsageError(concat("optimizer.", key, " = ", value, " ", wanted));
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, std::vector<UnitShard>& shards,
                                          const std::vector<ShardPiece>& pieces,
                                          const std::vector<ParameterSpec>& specs) {
  check(options.lr >= 0, "lr", options.lr, "must not be negative");
  check(options.beta1 >= 0 && options.beta1 < 1, "beta1", options.beta1, "must lie in [0, 1)");
  check(options.beta2 >= 0 && options.beta2 < 1, "beta2", options.beta2, "must lie in [0, 1)");
  check(options.eps > 0, "eps", options.eps, "must be above 0");
  check(options.weight_decay >= 0, "weight_decay", options.weight_decay, "must not be negative");
  if (options.name == "adamw") return std::make_unique<AdamW>(options, shards, pieces, specs);
  throw UsageError(concat("optimizer.name = \"", options.name, "\" is unknown; known: \"adamw\""));
}

}  // namespace troupe
