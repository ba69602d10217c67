// The built-in rules and the list of kinds: what a kind's table may hold stands there once, with defaults and meaning.
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/text.h"
#include "models/text/regex.h"
#include "rollout/model_reward.h"
#include "rollout/remote_reward.h"
#include "rollout/reward_kinds.h"

namespace troupe {
namespace {

using nlohmann::json;

/// The data's answer as text; throws where the record has none.
std::string answer_of(const json& metadata, const std::string& field) {
  const auto found = metadata.find(field);
  if (found == metadata.end() || found->is_null()) fail("the record has no field \"", field, "\"");
  return found->is_string() ? found->get<std::string>() : found->dump();
}

class ExactReward : public RewardFunction {
 public:
  explicit ExactReward(const RewardOptions& options)
      : field_(options.settings.at("answer_field").get<std::string>()),
        ignore_case_(options.settings.at("ignore_case")) {}
  double score(const Trajectory& trajectory, const json& metadata) const override {
    return fold(trajectory.completion_text) == fold(answer_of(metadata, field_)) ? 1 : 0;
  }

 private:
  std::string fold(const std::string& text) const {
    std::string result(trim(text));
    if (ignore_case_) {
      for (auto& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    return result;
  }
  std::string field_;
  bool ignore_case_;
};

class NumberReward : public RewardFunction {
 public:
  explicit NumberReward(const RewardOptions& options)
      : field_(options.settings.at("answer_field").get<std::string>()), strict_(options.settings.at("strict")) {}
  double score(const Trajectory& trajectory, const json& metadata) const override {
    const auto wanted = answer_of(metadata, field_);
    const auto marked = extract_answer(wanted, true);  // data sets such as GSM8K keep the solution before "####"
    const auto given = extract_answer(trajectory.completion_text, strict_);
    return given && answers_equal(*given, marked.value_or(wanted)) ? 1 : 0;
  }

 private:
  std::string field_;
  bool strict_;
};

class RegexReward : public RewardFunction {
 public:
  explicit RegexReward(const RewardOptions& options)
      : regex_(compile(options.settings.at("pattern").get<std::string>(), options.name)),
        field_(options.settings.at("answer_field").get<std::string>()) {
    if (!field_.empty() && regex_.num_groups() < 1)
      throw UsageError(
          concat("reward ", options.name, ": answer_field is compared with group 1, and the pattern has none"));
  }
  double score(const Trajectory& trajectory, const json& metadata) const override {
    std::vector<Span> groups;
    const auto& text = trajectory.completion_text;
    if (!regex_.search(text, 0, groups)) return 0;
    if (field_.empty()) return 1;
    if (groups.size() < 2 || groups[1].begin == std::string::npos) return 0;
    return answers_equal(text.substr(groups[1].begin, groups[1].end - groups[1].begin), answer_of(metadata, field_))
               ? 1
               : 0;
  }

 private:
  static Regex compile(const std::string& pattern, const std::string& name) {
    if (pattern.empty()) throw UsageError(concat("reward ", name, " (kind regex) needs a pattern"));
    try {
      return Regex(pattern, {.multi_line = false, .dot_all = true});
    } catch (const Error& error) {
      throw UsageError(concat("reward ", name, ": ", error.what()));
    }
  }
  Regex regex_;
  std::string field_;
};

class EnvironmentReward : public RewardFunction {
 public:
  explicit EnvironmentReward(const RewardOptions&) {}
  double score(const Trajectory& trajectory, const json&) const override {
    require(trajectory.environment_reward.has_value(), "no environment gave this sample a reward");
    return *trajectory.environment_reward;
  }
};

class LengthReward : public RewardFunction {
 public:
  explicit LengthReward(const RewardOptions& options)
      : unit_(options.settings.at("unit").get<std::string>()),
        limit_(options.settings.at("limit")),
        slope_(options.settings.at("slope")) {
    if (unit_ != "tokens" && unit_ != "characters")
      throw UsageError(concat("reward ", options.name, ": unit = ", unit_, " is not known; known: tokens, characters"));
    if (limit_ < 0) throw UsageError(concat("reward ", options.name, ": limit = ", limit_, " is below 0"));
  }
  double score(const Trajectory& trajectory, const json&) const override {
    const auto length = unit_ == "tokens" ? static_cast<double>(trajectory.num_sampled_tokens())
                                          : static_cast<double>(trajectory.completion_text.size());
    return slope_ * std::max(0.0, length - limit_);
  }

 private:
  std::string unit_;
  double limit_, slope_;
};

template <class Rule>
std::unique_ptr<RewardFunction> make_rule(const RewardOptions& options) {
  return std::make_unique<Rule>(options);
}

/// The answer's key, as every kind that compares has it.
RewardKey answer_key(const char* field, const char* help) { return {"answer_field", field, help}; }

std::vector<RewardKind> make_built_in_kinds() {
  const char* field = "field of the data's record that holds the answer";
  return {
      {"environment",
       "What the environment gave, summed over the turns (environment.kind; docs/remote.md)",
       {},
       &make_rule<EnvironmentReward>},
      {"exact",
       "1 where the completion is the answer, apart from white space around it; else 0",
       {answer_key("answer", field), {"ignore_case", false, "a letter equals its other case (ASCII)"}},
       &make_rule<ExactReward>},
      {"length",
       "Slope for every unit beyond the limit: with a negative slope long completions cost",
       {{"unit", "tokens", "what is counted: tokens or characters (bytes of UTF-8)"},
        {"limit", 0.0, "length that is free"},
        {"slope", -0.01, "reward of each unit beyond it"}},
       &make_rule<LengthReward>},
      {"model",
       "The score of a reward model at the sample's last token; the model needs the policy's tokenizer",
       {{"path", "", "folder of a sequence classification model with one label; needed"},
        {"scale", 1.0, "the score is multiplied by this"},
        {"offset", 0.0, "added after that"}},
       &make_model_reward},
      {"number",
       "1 where the completion's answer (`\\boxed{}`, `####`, `<answer>`, else its last number) equals the record's; "
       "else 0",
       {answer_key("answer", field), {"strict", false, "only marked answers count, no last number"}},
       &make_rule<NumberReward>},
      {"regex",
       "1 where the pattern is found; with answer_field: where its group 1 equals the answer; else 0",
       {{"pattern", "", "regular expression, searched in the completion; needed"},
        answer_key("", "field of the data's record that group 1 is compared with; empty: none")},
       &make_rule<RegexReward>},
      {"remote",
       "The value that a process of the user's gives, usually Python (docs/remote.md)",
       {{"address", "", "tcp://HOST:PORT or ipc://PATH where it listens; may be empty where there is a command"},
        {"command", "", "started, restarted and ended with the run (in sh); its TROUPE_ADDRESS says where to listen"},
        {"reconnect_s", 60.0, "how long a process that is not there is waited for before the values fail"},
        {"num_parallel", 8, "questions under way at a time"}},
       &make_remote_reward},
  };
}

/// The kinds that a program adds before it reads configurations.
std::map<std::string, RewardFactory>& added_kinds() {
  static std::map<std::string, RewardFactory> list;
  return list;
}
std::mutex kinds_mutex;

const RewardKind* find_built_in(const std::string& name) {
  for (const auto& kind : built_in_reward_kinds())
    if (kind.name == name) return &kind;
  return nullptr;
}

/// The table's own keys with the kind's defaults for those that it leaves out; a wrong type or an unknown key is the
/// user's mistake.
RewardOptions with_defaults(RewardOptions options, const RewardKind& kind) {
  std::vector<std::string> known;
  for (const auto& key : kind.keys) {
    known.push_back(key.name);
    const auto& wanted = key.default_value;
    const auto& given = options.settings.emplace(key.name, wanted).first.value();
    if (!(wanted.is_number() ? given.is_number() : given.type() == wanted.type()))
      throw UsageError(concat("reward ", options.name, ": ", key.name, " = ", given.dump(), " has the wrong type"));
  }
  for (const auto& [key, value] : options.settings.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const auto near = nearest_name(key, known);
    throw UsageError(
        concat("reward ", options.name, " (kind ", options.kind, "): unknown key ", key,
               near.empty() ? concat("; known: ", join(known, ", ")) : concat("; did you mean ", near, "?")));
  }
  return options;
}

}  // namespace

const std::vector<RewardKind>& built_in_reward_kinds() {
  static const std::vector<RewardKind> list = make_built_in_kinds();
  return list;
}

std::unique_ptr<RewardFunction> make_reward_function(const RewardOptions& options) {
  if (const auto* kind = find_built_in(options.kind)) return kind->make(with_defaults(options, *kind));
  RewardFactory factory = nullptr;
  {
    std::scoped_lock lock(kinds_mutex);
    const auto found = added_kinds().find(options.kind);
    if (found != added_kinds().end()) factory = found->second;
  }
  if (factory == nullptr)
    throw UsageError(
        concat("reward kind \"", options.kind, "\" is not known; known: ", join(known_reward_kinds(), ", ")));
  return factory(options);
}

void register_reward_kind(const std::string& kind, RewardFactory factory) {
  std::scoped_lock lock(kinds_mutex);
  require(find_built_in(kind) == nullptr && added_kinds().emplace(kind, factory).second, "there is a reward kind \"",
          kind, "\" already");
}

std::vector<std::string> known_reward_kinds() {
  std::vector<std::string> names;
  for (const auto& kind : built_in_reward_kinds()) names.push_back(kind.name);
  std::scoped_lock lock(kinds_mutex);
  for (const auto& [name, factory] : added_kinds()) names.push_back(name);
  return names;
}

}  // namespace troupe
