// Glue of the generation engine: requests in, weights in, steps, trajectories out. What runs when is the scheduler's
// business, the arithmetic that of the forward pass.
#include "rollout/engine.h"

#include <chrono>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"
#include "models/text/unicode.h"
#include "rollout/forward_pass.h"
#include "rollout/packed_model.h"
#include "rollout/resume.h"
#include "rollout/scheduler.h"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

int64_t count_blocks(const ModelConfig& config, const EngineOptions& options, at::ScalarType dtype) {
  if (options.kv_cache_blocks > 0) return options.kv_cache_blocks;
  const int64_t block_bytes = cache_block_bytes(config, dtype, options.kv_block_tokens);
  if (options.kv_cache_mib > 0 && block_bytes > 0) {
    const int64_t num_blocks = (options.kv_cache_mib << 20) / block_bytes;
    require(num_blocks > 0, "rollout.kv_cache_mib = ", options.kv_cache_mib, " holds no block of ", block_bytes,
            " bytes");
    return num_blocks;
  }
  const int64_t per_sequence = (options.max_context_length + options.kv_block_tokens - 1) / options.kv_block_tokens;
  return per_sequence * options.max_sequences;
}

/// Position of the first stop string in `text`, or npos.
size_t find_stop(const std::string& text, const std::vector<std::string>& stop, size_t from) {
  size_t first = std::string::npos;
  for (const auto& string : stop) first = std::min(first, text.find(string, from));
  return first;
}

}  // namespace

void check_sampling_options(const SamplingOptions& sampling) {
  // Below this the quotients leave fp32's useful range.
  require(sampling.temperature == 0 || (std::isfinite(sampling.temperature) && sampling.temperature >= 1e-4),
          "sampling.temperature must be 0 (greedy) or at least 0.0001, is ", sampling.temperature);
  require(sampling.top_p > 0 && sampling.top_p <= 1, "sampling.top_p must be above 0 and at most 1, is ",
          sampling.top_p);
  require(sampling.top_k >= 0, "sampling.top_k must be at least 0, is ", sampling.top_k);
  require(sampling.min_p >= 0 && sampling.min_p <= 1, "sampling.min_p must be within 0 and 1, is ", sampling.min_p);
  require(sampling.max_new_tokens >= 1, "sampling.max_new_tokens must be at least 1, is ", sampling.max_new_tokens);
  for (const auto& string : sampling.stop) require(!string.empty(), "sampling.stop holds an empty string");
}

struct Engine::Implementation {
  Implementation(ModelConfig model_config, EngineOptions engine_options, const Tokenizer* engine_tokenizer)
      : config(std::move(model_config)), options(std::move(engine_options)), tokenizer(engine_tokenizer) {
    require(options.max_sequences >= 1, "rollout.max_sequences must be at least 1, is ", options.max_sequences);
    require(options.kv_block_tokens >= 1, "rollout.kv_block_tokens must be at least 1, is ", options.kv_block_tokens);
    require(options.prefill_chunk_tokens >= 1, "rollout.prefill_chunk_tokens must be at least 1, is ",
            options.prefill_chunk_tokens);
    require(options.max_context_length >= 2, "rollout: max_context_length must be at least 2, is ",
            options.max_context_length);
    for (const auto* rope : {&config.rope, &config.local_rope}) {
      require(options.max_context_length <= rope->constant_length(),
              "rollout: max_context_length = ", options.max_context_length, ", but the frequencies of rope_type \"",
              rope->kind, "\" change with the length beyond ", rope->constant_length(),
              " tokens: keys in a cache would not fit");
    }
    require(options.kv_cache_mib >= 0, "rollout.kv_cache_mib must be at least 0, is ", options.kv_cache_mib);
    require(config.rotated_dim() % 2 == 0 && config.num_key_value_heads > 0 &&
                config.num_attention_heads % config.num_key_value_heads == 0,
            "engine: ", config.num_attention_heads, " heads of ", config.head_dim, " do not divide among ",
            config.num_key_value_heads, " key/value heads, or cannot be rotated");
    require(options.log_prob_vocab_size >= 0 && options.log_prob_vocab_size <= config.vocab_size,
            "engine: a vocabulary of ", options.log_prob_vocab_size, " does not fit the model's ", config.vocab_size);
    if (options.log_prob_vocab_size == 0) options.log_prob_vocab_size = config.vocab_size;
  }

  void prepare(at::ScalarType new_dtype) {
    dtype = new_dtype;
    const int64_t num_blocks = count_blocks(config, options, dtype);
    ForwardOptions forward_options;
    forward_options.num_blocks = num_blocks;
    forward_options.block_tokens = options.kv_block_tokens;
    forward_options.max_context_length = options.max_context_length;
    const bool has_states = recurrent_state_bytes(config) > 0;
    forward_options.num_states = has_states ? options.max_sequences : 0;
    forward_options.max_rows = options.max_sequences + options.prefill_chunk_tokens;
    forward_options.vocab_size = options.log_prob_vocab_size;
    forward_options.num_threads = std::max(1, options.num_threads);
    forward = make_forward_pass(config, dtype, forward_options);
    scheduler = std::make_unique<Scheduler>(SchedulerOptions{options.max_sequences, options.prefill_chunk_tokens,
                                                             num_blocks, options.kv_block_tokens, has_states},
                                            metrics);
    for (auto& sequence : early) {
      check_capacity(*sequence);
      scheduler->add(std::move(sequence));
    }
    early.clear();
  }

  void set_weights(std::shared_ptr<const PackedModel> new_model) {
    require(new_model != nullptr, "engine: no weights given");
    const ModelConfig& other = new_model->config();
    require(other.num_parameters() == config.num_parameters() && other.hidden_size == config.hidden_size &&
                other.num_hidden_layers == config.num_hidden_layers && other.vocab_size == config.vocab_size &&
                other.num_attention_heads == config.num_attention_heads && other.head_dim == config.head_dim &&
                other.num_key_value_heads == config.num_key_value_heads &&
                other.intermediate_size == config.intermediate_size,
            "engine: the weights of version ", new_model->version(), " belong to a model of another shape");
    if (!model) {
      prepare(new_model->dtype());
    } else {
      require(new_model->dtype() == dtype, "engine: weights of version ", new_model->version(), " are ",
              at::toString(new_model->dtype()), ", the engine computes in ", at::toString(dtype));
    }
    pending = std::move(new_model);
    apply_pending();
  }

  void apply_pending() {
    if (!pending) return;
    if (model) {
      if (options.on_weights == OnWeights::kFinish && !scheduler->nothing_started()) return;
      scheduler->weights_changed(options.on_weights == OnWeights::kRecompute);
      ++metrics.weight_updates;
    }
    model = std::move(pending);
    pending = nullptr;
  }

  void check_capacity(const Sequence& sequence) const {
    const int64_t num_blocks = count_blocks(config, options, dtype);
    // What was sampled before the sequence came here counts among the new tokens.
    const int64_t longest = std::min<int64_t>(
        static_cast<int64_t>(sequence.request.prompt_tokens.size()) + sequence.request.sampling.max_new_tokens,
        options.max_context_length);
    require((longest + options.kv_block_tokens - 1) / options.kv_block_tokens <= num_blocks, "sample ",
            sequence.request.sample_id, " of up to ", longest, " tokens does not fit into the KV cache of ", num_blocks,
            " blocks of ", options.kv_block_tokens, " tokens (rollout.kv_cache_mib)");
  }

  void add(GenerationRequest request) {
    const auto& prompt = request.prompt_tokens;
    require(!prompt.empty(), "sample ", request.sample_id, ": the prompt is empty");
    require(static_cast<int64_t>(prompt.size()) < options.max_context_length, "sample ", request.sample_id,
            ": a prompt of ", prompt.size(), " tokens leaves no room in a context of ", options.max_context_length);
    for (const int32_t token : prompt) {
      require(token >= 0 && token < config.vocab_size, "sample ", request.sample_id, ": token id ", token,
              " is outside of the vocabulary of ", config.vocab_size);
    }
    check_sampling_options(request.sampling);
    require(request.sampling.stop.empty() || tokenizer != nullptr, "stop strings need a tokenizer");
    auto sequence = std::make_unique<Sequence>();
    const bool is_settled = model != nullptr && pending == nullptr;
    if (request.so_far && can_go_on(request, options, config.vocab_size, is_settled ? model->version() : -1))
      go_on(*request.so_far, request.sampling, tokenizer, *sequence);
    else
      sequence->tokens = prompt;
    request.so_far.reset();
    sequence->request = std::move(request);
    if (!scheduler) {
      early.push_back(std::move(sequence));
      return;
    }
    check_capacity(*sequence);
    scheduler->add(std::move(sequence));
  }

  std::vector<Trajectory> unfinished() const {
    std::vector<Trajectory> all;
    const auto note = [&](const Sequence& sequence) {
      if (!sequence.log_probs.empty()) all.push_back(describe(sequence));
    };
    for (const auto& sequence : early) note(*sequence);
    if (scheduler)
      for (const auto* sequence : scheduler->all()) note(*sequence);
    return all;
  }

  std::vector<Trajectory> step() {
    require(model != nullptr, "engine: set_weights must come before the first step");
    const auto start = Clock::now();
    apply_pending();
    StepPlan plan = scheduler->plan(model->version(), /*admit=*/pending == nullptr);
    std::vector<Trajectory> finished;
    if (!plan.rows.empty()) {
      compute(plan);
      for (size_t i = 0; i < plan.drawn.size(); ++i) take_token(*plan.drawn[i], tokens[i], finished);
    }
    apply_pending();
    account(plan, seconds_since(start));
    return finished;
  }

  void compute(StepPlan& plan) {
    for (size_t i = 0; i < plan.draws.size(); ++i) {
      const Sequence& sequence = *plan.drawn[i];
      const SamplingOptions& sampling = sequence.request.sampling;
      plan.draws[i].rule = {static_cast<float>(sampling.temperature), static_cast<float>(sampling.top_p),
                            sampling.top_k, static_cast<float>(sampling.min_p)};
      // The index of the token to come in the whole sequence: a later turn of the same sample meets new numbers.
      plan.draws[i].uniform = random_uniform(options.seed, sequence.request.sample_id,
                                             static_cast<uint32_t>(sequence.tokens.size()), RandomStream::kSampling);
    }
    forward->run(*model, plan.rows, plan.draws, tokens);
    for (const auto& copy : plan.copies) forward->copy_block(copy.from, copy.to, copy.num_tokens);
    for (const auto& copy : plan.state_copies) forward->copy_state(copy.from, copy.to);
  }

  void take_token(Sequence& sequence, const SampledToken& token, std::vector<Trajectory>& finished) {
    const auto& sampling = sequence.request.sampling;
    if (sequence.versions.empty() || sequence.versions.back().version != model->version()) {
      sequence.versions.push_back({static_cast<int32_t>(sequence.tokens.size()), model->version()});
    }
    sequence.tokens.push_back(token.id);
    sequence.log_probs.push_back(token.log_prob);
    ++metrics.decoded_tokens;
    if (callback) callback(sequence.request.sample_id, token.id);
    const bool stopped = std::find(sampling.stop_token_ids.begin(), sampling.stop_token_ids.end(), token.id) !=
                         sampling.stop_token_ids.end();
    if (stopped) {
      finished.push_back(finish(sequence, FinishReason::kStop));
    } else if (meets_stop_string(sequence, token.id)) {
      finished.push_back(finish(sequence, FinishReason::kStopString));
    } else if (static_cast<int32_t>(sequence.log_probs.size()) >= sampling.max_new_tokens ||
               sequence.num_tokens() >= options.max_context_length) {
      finished.push_back(finish(sequence, FinishReason::kLength));
    }
  }

  /// Looks in the bytes, so that a string is found wherever tokens divide it.
  bool meets_stop_string(Sequence& sequence, int32_t token) const {
    const auto& stop = sequence.request.sampling.stop;
    if (stop.empty() || tokenizer->is_special(token)) return false;
    size_t longest = 0;
    for (const auto& string : stop) longest = std::max(longest, string.size());
    const size_t old_size = sequence.text.size();
    sequence.text += tokenizer->token_bytes(token);
    return find_stop(sequence.text, stop, old_size - std::min(old_size, longest - 1)) != std::string::npos;
  }

  Trajectory finish(Sequence& running, FinishReason reason) {
    const auto sequence = scheduler->finish(&running);
    auto trajectory = describe(*sequence);
    trajectory.finish_reason = reason;
    if (reason == FinishReason::kStopString) {
      trajectory.completion_text = text_before_stop(*sequence);
    } else if (tokenizer != nullptr) {
      const auto begin = trajectory.tokens.begin() + static_cast<int64_t>(sequence->request.prompt_tokens.size());
      const auto end = trajectory.tokens.end() - (reason == FinishReason::kStop ? 1 : 0);
      trajectory.completion_text = tokenizer->decode({begin, end}, /*skip_special_tokens=*/true);
    }
    return trajectory;
  }

  /// From the bytes in which the stop string was found: decoding may take away its leading space.
  std::string text_before_stop(const Sequence& sequence) const {
    std::string_view text(sequence.text);
    text = text.substr(0, find_stop(sequence.text, sequence.request.sampling.stop, 0));
    size_t num_spaces = 0;
    while (num_spaces < std::min(text.size(), tokenizer->num_leading_spaces_removed()) && text[num_spaces] == ' ') {
      ++num_spaces;
    }
    return repair_utf8(text.substr(num_spaces));
  }

  void account(const StepPlan& plan, double elapsed_s) {
    metrics.busy_s += elapsed_s;
    const int64_t num_rows = plan.num_prefill_rows + plan.num_decode_rows;
    if (num_rows == 0) return;
    const double prefill_share = static_cast<double>(plan.num_prefill_rows) / static_cast<double>(num_rows);
    metrics.prefill_s += elapsed_s * prefill_share;
    metrics.decode_s += elapsed_s * (1 - prefill_share);
    if (plan.num_decode_rows > 0) ++metrics.decode_steps;
  }

  ModelConfig config;
  EngineOptions options;
  const Tokenizer* tokenizer;
  EngineMetrics metrics;
  at::ScalarType dtype = at::kFloat;
  std::shared_ptr<const PackedModel> model, pending;
  std::unique_ptr<ForwardPass> forward;
  std::unique_ptr<Scheduler> scheduler;          // made with the first weights
  std::vector<std::unique_ptr<Sequence>> early;  // requests that came before them
  std::vector<SampledToken> tokens;
  std::function<void(uint64_t, int32_t)> callback;
};

Engine::Engine(ModelConfig config, EngineOptions options, const Tokenizer* tokenizer)
    : implementation_(std::make_unique<Implementation>(std::move(config), std::move(options), tokenizer)) {}
Engine::~Engine() = default;

void Engine::set_weights(std::shared_ptr<const PackedModel> model) { implementation_->set_weights(std::move(model)); }
int64_t Engine::version() const { return implementation_->model ? implementation_->model->version() : -1; }
void Engine::add(GenerationRequest request) { implementation_->add(std::move(request)); }

bool Engine::cancel(uint64_t sample_id) {
  auto& self = *implementation_;
  if (self.scheduler) return self.scheduler->cancel(sample_id);
  return std::erase_if(self.early, [&](const auto& s) { return s->request.sample_id == sample_id; }) > 0;
}

std::vector<GenerationRequest> Engine::drain() {
  auto& self = *implementation_;
  auto sequences = self.scheduler ? self.scheduler->take_all() : std::move(self.early);
  self.early.clear();
  std::vector<GenerationRequest> requests;
  for (auto& sequence : sequences) requests.push_back(std::move(sequence->request));
  return requests;
}

std::vector<Trajectory> Engine::unfinished() const { return implementation_->unfinished(); }

std::vector<Trajectory> Engine::step() { return implementation_->step(); }

bool Engine::idle() const {
  const auto& self = *implementation_;
  return self.early.empty() && (!self.scheduler || self.scheduler->num_running() + self.scheduler->num_waiting() == 0);
}

int32_t Engine::num_free_slots() const {
  const auto& self = *implementation_;
  int64_t used = static_cast<int64_t>(self.early.size());
  if (self.scheduler) used += self.scheduler->num_running() + self.scheduler->num_waiting();
  return static_cast<int32_t>(std::max<int64_t>(0, self.options.max_sequences - used));
}

const EngineMetrics& Engine::metrics() const { return implementation_->metrics; }

void Engine::set_token_callback(std::function<void(uint64_t, int32_t)> callback) {
  implementation_->callback = std::move(callback);
}

}  // namespace troupe
