#include "parallel/pipeline.h"

#include "base/error.h"
#include "models/blocks/linear.h"

namespace troupe {
namespace {

using Kind = PipelineAction::Kind;

/// Forward alone: every micro-batch through this rank's stages.
PipelineSchedule forward_schedule(const PipelineOptions& options, int num_ranks, int num_microbatches) {
  PipelineSchedule schedule{"forward",
                            num_ranks,
                            num_microbatches,
                            ranks_of_stages(options.schedule, num_ranks, options.stages_per_rank),
                            {}};
  schedule.actions.resize(static_cast<size_t>(num_ranks));
  for (int m = 0; m < num_microbatches; ++m)
    for (int stage = 0; stage < schedule.num_stages(); ++stage)
      schedule.actions[static_cast<size_t>(schedule.rank_of_stage[static_cast<size_t>(stage)])].push_back(
          {Kind::kForward, stage, m});
  return schedule;
}

}  // namespace

std::vector<PlanOptions::Stage> pipeline_stages(const PipelineOptions& options, int num_ranks, int64_t num_layers) {
  const auto ranks = ranks_of_stages(options.schedule, num_ranks, options.stages_per_rank);
  const auto num_stages = static_cast<int64_t>(ranks.size());
  auto layers = options.num_layers_by_stage;
  if (layers.empty()) {
    for (int64_t s = 0; s < num_stages; ++s)
      layers.push_back(num_layers * (s + 1) / num_stages - num_layers * s / num_stages);
  }
  const auto refuse = [&](const auto&... why) {
    throw UsageError(
        concat("parallelism.pipeline_parallel_degree = ", num_ranks, ", schedule ", options.schedule, ": ", why...));
  };
  if (static_cast<int64_t>(layers.size()) != num_stages)
    refuse(num_stages, " stages, but layers are given for ", layers.size());
  std::vector<PlanOptions::Stage> stages;
  int64_t begin = 0, sum = 0;
  for (int64_t s = 0; s < num_stages; ++s) {
    const auto count = layers[static_cast<size_t>(s)];
    sum += count;
    const int64_t end = begin + count + (s == 0 ? 1 : 0) + (s + 1 == num_stages ? 1 : 0);
    if (count < 0 || end == begin) refuse("stage ", s, " of ", num_stages, " has none of the ", num_layers, " layers");
    stages.push_back({begin, end, ranks[static_cast<size_t>(s)]});
    begin = end;
  }
  if (sum != num_layers) refuse("the stages have ", sum, " layers, the model ", num_layers);
  return stages;
}

/// One pass of a schedule.
class Pipeline::Run {
 public:
  Run(Pipeline& pipeline, const PipelineSchedule& schedule, const PipelineWork& work)
      : pipeline_(pipeline), schedule_(schedule), work_(work), inbox_(static_cast<size_t>(schedule.num_ranks)) {
    for (int rank = 0; rank < schedule.num_ranks; ++rank) {
      if (rank == own_rank()) continue;
      for (const auto& action : schedule.actions[static_cast<size_t>(rank)]) {
        const auto message = message_after(action);
        if (message && message->to == own_rank()) inbox_[static_cast<size_t>(rank)].push_back(*message);
      }
    }
  }

  void execute(FullyShardedDecoder* model) {
    pipeline_.executed_.clear();
    for (const auto& action : schedule_.actions[static_cast<size_t>(own_rank())]) {
      switch (action.kind) {
        case Kind::kForward:
          forward(action);
          break;
        case Kind::kBackward:
          backward(action, nullptr);
          break;
        case Kind::kInput:
          backward(action, &put_off_[{action.stage, action.microbatch}]);
          break;
        case Kind::kWeights:
          model->add_deferred(put_off_.extract({action.stage, action.microbatch}).mapped());
          break;
      }
      pipeline_.executed_.push_back(action);
    }
  }

 private:
  using Products = std::vector<blocks::DeferredWeightGradients::Product>;
  struct Message {
    std::string label;
    int to = 0, microbatch = 0;
  };
  struct Passed {
    Tensor input, root;  // root: the output, or the loss of the last stage
  };

  int own_rank() const { return pipeline_.ranks_.rank(); }
  int rank_of(int stage) const { return schedule_.rank_of_stage[static_cast<size_t>(stage)]; }
  bool is_last(int stage) const { return stage + 1 == schedule_.num_stages(); }
  static std::string activation_label(int stage, int microbatch) {
    return concat("micro-batch ", microbatch, ", input of stage ", stage);
  }
  static std::string gradient_label(int stage, int microbatch) {
    return concat("micro-batch ", microbatch, ", gradient of the output of stage ", stage);
  }

  /// What follows an action: its stage's output to the next stage, or the gradient of its input to the one before.
  std::optional<Message> message_after(const PipelineAction& a) const {
    if (a.kind == Kind::kForward && !is_last(a.stage))
      return Message{activation_label(a.stage + 1, a.microbatch), rank_of(a.stage + 1), a.microbatch};
    if ((a.kind == Kind::kBackward || a.kind == Kind::kInput) && a.stage > 0)
      return Message{gradient_label(a.stage - 1, a.microbatch), rank_of(a.stage - 1), a.microbatch};
    return std::nullopt;
  }

  void give(const PipelineAction& action, const Tensor& tensor) {
    const auto message = message_after(action);
    if (!message) return;
    if (message->to == own_rank()) {
      arrived_[message->label] = tensor.detach();
    } else {
      pipeline_.ranks_.send(tensor.detach().contiguous(), message->to, message->label);
    }
  }

  /// Messages come in the order in which their sender's list has them; those not wanted yet are kept.
  Tensor take(const std::string& label, int from) {
    auto& inbox = inbox_[static_cast<size_t>(from)];
    while (!arrived_.contains(label)) {
      require(!inbox.empty(), "pipeline: rank ", from, " never sends ", label);
      const auto message = std::move(inbox.front());
      inbox.pop_front();
      auto tensor = at::empty({work_.num_rows(message.microbatch), pipeline_.hidden_size_}, pipeline_.activations_);
      pipeline_.ranks_.receive(tensor, from, message.label);
      arrived_[message.label] = std::move(tensor);
    }
    return arrived_.extract(label).mapped();
  }

  void forward(const PipelineAction& action) {
    const auto [kind, stage, microbatch] = action;
    Passed passed;
    if (stage > 0) {
      passed.input = take(activation_label(stage, microbatch), rank_of(stage - 1));
      passed.input.set_requires_grad(at::GradMode::is_enabled());
    }
    passed.root = work_.forward(stage, microbatch, passed.input);
    if (is_last(stage)) passed.root = work_.finish(microbatch, passed.root);
    give(action, passed.root);
    if (at::GradMode::is_enabled()) passed_[{stage, microbatch}] = std::move(passed);
  }

  void backward(const PipelineAction& action, Products* put_off) {
    const auto [kind, stage, microbatch] = action;
    auto passed = passed_.extract({stage, microbatch}).mapped();
    const auto gradient = is_last(stage) ? Tensor() : take(gradient_label(stage, microbatch), rank_of(stage + 1));
    if (put_off == nullptr) {
      passed.root.backward(gradient);
    } else {
      blocks::DeferredWeightGradients deferred;
      passed.root.backward(gradient);
      *put_off = deferred.take();
    }
    if (stage > 0) give(action, passed.input.grad());
  }

  Pipeline& pipeline_;
  const PipelineSchedule& schedule_;
  const PipelineWork& work_;
  std::vector<std::deque<Message>> inbox_;           // by sender: what is still to come, in order
  std::map<std::string, Tensor> arrived_;            // not yet used
  std::map<std::pair<int, int>, Passed> passed_;     // by stage and micro-batch: between forward and backward
  std::map<std::pair<int, int>, Products> put_off_;  // between I and W
};

Pipeline::Pipeline(Collectives& ranks, PipelineOptions options, int64_t hidden_size, at::TensorOptions activations)
    : ranks_(ranks), options_(std::move(options)), hidden_size_(hidden_size), activations_(activations) {}

void Pipeline::train(int num_microbatches, const PipelineWork& work, FullyShardedDecoder& model) {
  const auto schedule =
      make_pipeline_schedule(options_.schedule, ranks_.size(), num_microbatches, options_.stages_per_rank);
  model.set_reduce_gradients(false);  // accumulated over micro-batches, reduced once in finish_backward
  Run(*this, schedule, work).execute(&model);
}

void Pipeline::evaluate(int num_microbatches, const PipelineWork& work) {
  const at::NoGradGuard no_grad;
  const auto schedule = forward_schedule(options_, ranks_.size(), num_microbatches);
  Run(*this, schedule, work).execute(nullptr);
}

}  // namespace troupe
