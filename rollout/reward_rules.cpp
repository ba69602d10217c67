// The built-in rules and the list of kinds.
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/text.h"
#include "models/text/regex.h"
#include "rollout/model_reward.h"

namespace troupe {
namespace {

using nlohmann::json;

/// The keys of one [[reward]] table: each is read with its type, and what nobody asked for is a mistake.
class Settings {
 public:
  explicit Settings(const RewardOptions& options) : options_(options) {}
  template <class T>
  T get(const std::string& key, T fallback) {
    known_.push_back(key);
    const auto found = options_.settings.find(key);
    if (found == options_.settings.end()) return fallback;
    const bool fits = std::is_same_v<T, std::string> ? found->is_string()
                      : std::is_same_v<T, bool>      ? found->is_boolean()
                                                     : found->is_number();
    if (!fits)
      throw UsageError(concat("reward ", options_.name, ": ", key, " = ", found->dump(), " has the wrong type"));
    return found->template get<T>();
  }
  void expect_no_more() const {
    for (const auto& [key, value] : options_.settings.items()) {
      if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
      const auto near = nearest_name(key, known_);
      throw UsageError(
          concat("reward ", options_.name, " (kind ", options_.kind, "): unknown key ", key,
                 near.empty() ? concat("; known: ", join(known_, ", ")) : concat("; did you mean ", near, "?")));
    }
  }

 private:
  const RewardOptions& options_;
  std::vector<std::string> known_;
};

/// The data's answer as text; throws where the record has none.
std::string answer_of(const json& metadata, const std::string& field) {
  const auto found = metadata.find(field);
  if (found == metadata.end() || found->is_null()) fail("the record has no field \"", field, "\"");
  return found->is_string() ? found->get<std::string>() : found->dump();
}

class ExactReward : public RewardFunction {
 public:
  explicit ExactReward(Settings settings)
      : field_(settings.get<std::string>("answer_field", "answer")), ignore_case_(settings.get("ignore_case", false)) {
    settings.expect_no_more();
  }
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
  explicit NumberReward(Settings settings)
      : field_(settings.get<std::string>("answer_field", "answer")), strict_(settings.get("strict", false)) {
    settings.expect_no_more();
  }
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
  RegexReward(Settings settings, const std::string& name)
      : regex_(compile(settings.get<std::string>("pattern", ""), name)),
        field_(settings.get<std::string>("answer_field", "")) {
    settings.expect_no_more();
    if (!field_.empty() && regex_.num_groups() < 1)
      throw UsageError(concat("reward ", name, ": answer_field is compared with group 1, and the pattern has none"));
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

class LengthReward : public RewardFunction {
 public:
  LengthReward(Settings settings, const std::string& name)
      : unit_(settings.get<std::string>("unit", "tokens")),
        limit_(settings.get("limit", 0.0)),
        slope_(settings.get("slope", -0.01)) {
    settings.expect_no_more();
    if (unit_ != "tokens" && unit_ != "characters")
      throw UsageError(concat("reward ", name, ": unit = ", unit_, " is not known; known: tokens, characters"));
    if (limit_ < 0) throw UsageError(concat("reward ", name, ": limit = ", limit_, " is below 0"));
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

using Kinds = std::map<std::string, RewardFactory>;

/// Built-in kinds, and those that a program adds before it reads configurations.
Kinds& kinds() {
  static Kinds list{
      {"exact",
       [](const RewardOptions& o) -> std::unique_ptr<RewardFunction> {
         return std::make_unique<ExactReward>(Settings(o));
       }},
      {"number",
       [](const RewardOptions& o) -> std::unique_ptr<RewardFunction> {
         return std::make_unique<NumberReward>(Settings(o));
       }},
      {"regex",
       [](const RewardOptions& o) -> std::unique_ptr<RewardFunction> {
         return std::make_unique<RegexReward>(Settings(o), o.name);
       }},
      {"length",
       [](const RewardOptions& o) -> std::unique_ptr<RewardFunction> {
         return std::make_unique<LengthReward>(Settings(o), o.name);
       }},
      {"model", &make_model_reward},
  };
  return list;
}
std::mutex kinds_mutex;

}  // namespace

std::unique_ptr<RewardFunction> make_reward_function(const RewardOptions& options) {
  RewardFactory factory = nullptr;
  {
    std::scoped_lock lock(kinds_mutex);
    const auto found = kinds().find(options.kind);
    if (found != kinds().end()) factory = found->second;
  }
  if (factory == nullptr)
    throw UsageError(
        concat("reward kind \"", options.kind, "\" is not known; known: ", join(known_reward_kinds(), ", ")));
  return factory(options);
}

void register_reward_kind(const std::string& kind, RewardFactory factory) {
  std::scoped_lock lock(kinds_mutex);
  require(kinds().emplace(kind, factory).second, "there is a reward kind \"", kind, "\" already");
}

std::vector<std::string> known_reward_kinds() {
  std::scoped_lock lock(kinds_mutex);
  std::vector<std::string> names;
  for (const auto& [name, factory] : kinds()) names.push_back(name);
  return names;
}

}  // namespace troupe
