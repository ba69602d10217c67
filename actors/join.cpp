#include "actors/join.h"

#include "actors/worker.h"
#include "base/error.h"
#include "base/hash.h"

namespace troupe {
namespace {

bool is_same_token(const std::string& given, const std::string& wanted) {
  // Both are hashed first: equal lengths, and no byte of the token decides how long this takes.
  const auto a = xxh3_128(std::as_bytes(std::span(given))), b = xxh3_128(std::as_bytes(std::span(wanted)));
  unsigned difference = given.size() != wanted.size();
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  for (size_t i = 0; i < wanted.size(); ++i)
    difference |= static_cast<unsigned>(wanted[i] ^ (i < given.size() ? given[i] : '\0'));
  return difference == 0;
}

}  // namespace

const std::set<std::string>& known_worker_roles() {
  static const std::set<std::string> roles{"rollout", "reward", "reference", "critic"};
  return roles;
}

std::string refusal(const Hello& hello, const JoinRules& rules) {
  if (hello.protocol != kJoinProtocol)
    return concat("it speaks protocol ", hello.protocol, ", the run ", kJoinProtocol);
  if (!is_same_token(hello.token, rules.token))
    return hello.token.empty() ? "no token, but the run asks for one (--token-file)" : "wrong token";
  if (hello.build != rules.build) return concat("its build is ", hello.build, ", the run's ", rules.build);
  if (!hello.model.empty() && hello.model != rules.model)
    return concat("it has another model (", hello.model, ", the run ", rules.model, ")");
  if (hello.heartbeat_s * 2 > rules.lost_after_s)
    return concat("its heartbeat of ", hello.heartbeat_s,
                  " s is too slow for cluster.lost_after_s = ", rules.lost_after_s, " (--heartbeat-s)");
  if (!known_worker_roles().contains(hello.role)) return concat("there is no role ", hello.role);
  if (hello.role != "rollout" && !rules.roles_elsewhere.contains(hello.role))
    return concat("the run's ", hello.role, " is in its own process ([[topology.place]] role = \"", hello.role,
                  "\", where = \"remote\" is not set)");
  return "";
}

nlohmann::json to_json(const GraderSettings& settings) {
  auto rewards = nlohmann::json::array();
  for (const auto& reward : settings.rewards)
    rewards.push_back({{"kind", reward.kind},
                       {"name", reward.name},
                       {"weight", reward.weight},
                       {"timeout_s", reward.timeout_s},
                       {"settings", reward.settings}});
  return {{"run", settings.run}, {"rewards", std::move(rewards)}, {"lost_after_s", settings.lost_after_s}};
}

GraderSettings parse_grader_settings(const nlohmann::json& json) {
  try {
    GraderSettings settings{json.at("run"), {}, json.at("lost_after_s")};
    for (const auto& reward : json.at("rewards"))
      settings.rewards.push_back(
          {reward.at("kind"), reward.at("name"), reward.at("weight"), reward.at("timeout_s"), reward.at("settings")});
    return settings;
  } catch (const nlohmann::json::exception& error) {
    fail("welcome: ", error.what());
  }
}

nlohmann::json to_json(const WorkerSettings& settings) {
  const auto& engine = settings.engine;
  const auto& sampling = settings.sampling;
  return {{"run", settings.run},
          {"model_config", settings.model_config},
          {"engine",
           {{"max_sequences", engine.max_sequences},
            {"kv_cache_mib", engine.kv_cache_mib},
            {"kv_cache_blocks", engine.kv_cache_blocks},
            {"kv_block_tokens", engine.kv_block_tokens},
            {"prefill_chunk_tokens", engine.prefill_chunk_tokens},
            {"max_context_length", engine.max_context_length},
            {"on_weights", static_cast<int>(engine.on_weights)},
            {"deterministic", engine.deterministic},
            {"log_prob_vocab_size", engine.log_prob_vocab_size},
            {"seed", engine.seed}}},
          {"sampling",
           {{"temperature", sampling.temperature},
            {"top_p", sampling.top_p},
            {"top_k", sampling.top_k},
            {"min_p", sampling.min_p},
            {"max_new_tokens", sampling.max_new_tokens},
            {"stop", sampling.stop},
            {"stop_token_ids", sampling.stop_token_ids}}},
          {"baseline_index", settings.baseline_index},
          {"credit", settings.credit},
          {"score_limit_s", settings.score_limit_s},
          {"lost_after_s", settings.lost_after_s},
          {"dtype", settings.dtype},
          {"environment", to_json(settings.turns.environment)},
          {"chat_template", settings.turns.chat_template},
          {"tokenizer_config", settings.turns.tokenizer_config}};
}

WorkerSettings parse_worker_settings(const nlohmann::json& json) {
  try {
    WorkerSettings settings;
    settings.run = json.at("run");
    settings.model_config = json.at("model_config");
    const auto& engine = json.at("engine");
    settings.engine.max_sequences = engine.at("max_sequences");
    settings.engine.kv_cache_mib = engine.at("kv_cache_mib");
    settings.engine.kv_cache_blocks = engine.at("kv_cache_blocks");
    settings.engine.kv_block_tokens = engine.at("kv_block_tokens");
    settings.engine.prefill_chunk_tokens = engine.at("prefill_chunk_tokens");
    settings.engine.max_context_length = engine.at("max_context_length");
    const auto on_weights = engine.at("on_weights").get<int>();
    require(on_weights >= 0 && on_weights <= static_cast<int>(OnWeights::kFinish), "welcome: on_weights ", on_weights,
            " is not known");
    settings.engine.on_weights = static_cast<OnWeights>(on_weights);
    settings.engine.deterministic = engine.at("deterministic");
    settings.engine.log_prob_vocab_size = engine.at("log_prob_vocab_size");
    settings.engine.seed = engine.at("seed");
    const auto& sampling = json.at("sampling");
    settings.sampling.temperature = sampling.at("temperature");
    settings.sampling.top_p = sampling.at("top_p");
    settings.sampling.top_k = sampling.at("top_k");
    settings.sampling.min_p = sampling.at("min_p");
    settings.sampling.max_new_tokens = sampling.at("max_new_tokens");
    settings.sampling.stop = sampling.at("stop").get<std::vector<std::string>>();
    settings.sampling.stop_token_ids = sampling.at("stop_token_ids").get<std::vector<int64_t>>();
    settings.baseline_index = json.at("baseline_index");
    settings.credit = json.at("credit");
    settings.score_limit_s = json.at("score_limit_s");
    settings.lost_after_s = json.at("lost_after_s");
    settings.dtype = json.at("dtype");
    settings.turns.environment = parse_environment_options(json.at("environment"));
    settings.turns.chat_template = json.at("chat_template");
    settings.turns.tokenizer_config = json.at("tokenizer_config");
    return settings;
  } catch (const nlohmann::json::exception& error) {
    fail("welcome: ", error.what());
  }
}

}  // namespace troupe
