#include "training/prompt_source.h"

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/philox.h"
#include "training/choices.h"
#include "training/held_out.h"
#include "training/json_lines.h"

namespace troupe {
namespace {

using nlohmann::json;
using Messages = std::vector<std::pair<std::string, std::string>>;

constexpr uint64_t kDefaultEpochSize = 1u << 20;

/// Positions of the epochs that are in use; an order of n records costs n steps, so the last few are kept.
class EpochOrders {
 public:
  EpochOrders(uint64_t seed, uint32_t size, bool shuffle) : seed_(seed), size_(size), shuffle_(shuffle) {}
  uint32_t record(uint64_t prompt_id) const {
    const auto position = static_cast<uint32_t>(prompt_id % size_);
    if (!shuffle_) return position;
    const auto epoch = prompt_id / size_;
    const std::lock_guard lock(mutex_);
    auto found = std::find_if(orders_.begin(), orders_.end(), [&](const auto& entry) { return entry.first == epoch; });
    if (found == orders_.end()) {
      constexpr size_t kNumKept = 3;  // a run straddles two epochs; an evaluation may look back
      if (orders_.size() == kNumKept) orders_.erase(orders_.begin());
      orders_.emplace_back(epoch, epoch_order(seed_, epoch, size_));
      found = orders_.end() - 1;
    }
    return found->second[position];
  }

 private:
  uint64_t seed_;
  uint32_t size_;
  bool shuffle_;
  mutable std::mutex mutex_;
  mutable std::vector<std::pair<uint64_t, std::vector<uint32_t>>> orders_;
};

Messages with_system(const std::string& system, Messages messages) {
  if (!system.empty()) messages.insert(messages.begin(), {"system", system});
  return messages;
}

// -- files ------------------------------------------------------------------------------------------------------------

/// A prompt field is a text (one user turn) or a list of {"role", "content"}. `reason` says what is wrong.
Messages read_messages(const json& field, std::string& reason) {
  if (field.is_string()) return {{"user", field.get<std::string>()}};
  Messages messages;
  if (field.is_array())
    for (const auto& turn : field) {
      if (!turn.is_object() || !turn.contains("role") || !turn.contains("content") || !turn["role"].is_string() ||
          !turn["content"].is_string())
        break;
      messages.emplace_back(turn["role"].get<std::string>(), turn["content"].get<std::string>());
    }
  if (messages.empty() || messages.size() != field.size()) reason = "is neither a text nor a list of messages";
  return messages;
}

class JsonlPrompts : public PromptSource {
 public:
  explicit JsonlPrompts(const PromptSourceOptions& options) {
    require(!options.paths.empty(), "data.paths is empty: kind \"jsonl\" needs at least one file");
    std::vector<std::string> skipped;
    int64_t num_in_other_share = 0;
    for (const auto& path : options.paths) {
      const MappedFile file(path);
      const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
      read_json_lines(
          path, text, options.skip_bad_lines,
          [&](const JsonLine& line) { return take(line, options, num_in_other_share); }, skipped);
    }
    for (const auto& message : skipped) log::warning("skipped ", message);
    if (!skipped.empty()) log::warning("skipped ", skipped.size(), " bad lines, kept ", records_.size());
    require(!records_.empty(), "no usable record in ", options.paths.front(),
            options.paths.size() > 1 ? concat(" and ", options.paths.size() - 1, " more") : "", ": ", skipped.size(),
            " bad lines", skipped.empty() ? "" : concat(" (", skipped.front(), ")"), ", ", num_in_other_share,
            options.held_out ? " of the training share" : " held out");
    require(records_.size() <= UINT32_MAX, "more than 2^32 records");
    orders_ = std::make_unique<EpochOrders>(options.seed, static_cast<uint32_t>(records_.size()), options.shuffle);
  }

  uint64_t size() const override { return records_.size(); }
  Prompt at(uint64_t prompt_id) const override {
    const auto& record = records_[orders_->record(prompt_id)];
    return {prompt_id, record.messages, record.metadata_json};
  }

 private:
  struct Record {
    Messages messages;
    std::string metadata_json;
  };

  std::string take(const JsonLine& line, const PromptSourceOptions& options, int64_t& num_in_other_share) {
    const auto field = line.object.find(options.prompt_field);
    if (field == line.object.end()) return concat("has no field \"", options.prompt_field, "\"");
    std::string reason;
    Record record{read_messages(*field, reason), ""};
    if (!reason.empty()) return concat("field \"", options.prompt_field, "\" ", reason);
    const double fraction = options.held_out_fraction < 0 ? 0 : options.held_out_fraction;
    if (fraction > 0 && (held_out_share(field->dump()) < fraction) != options.held_out) {
      ++num_in_other_share;
      return "";
    }
    auto metadata = line.object;
    metadata.erase(options.prompt_field);
    const auto answer = metadata.find(options.answer_field);
    if (options.answer_field != "answer" && answer != metadata.end()) {
      const json value = *answer;
      metadata.erase(answer);
      metadata["answer"] = value;
    }
    record.messages = with_system(options.system, std::move(record.messages));
    record.metadata_json = metadata.dump();
    records_.push_back(std::move(record));
    return "";
  }

  std::vector<Record> records_;
  std::unique_ptr<EpochOrders> orders_;
};

// -- arithmetic -------------------------------------------------------------------------------------------------------

void replace_all(std::string& text, std::string_view what, const std::string& with) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size()))
    text.replace(at, what.size(), with);
}

class ArithmeticPrompts : public PromptSource {
 public:
  explicit ArithmeticPrompts(const PromptSourceOptions& options) : options_(options) {
    const auto check = [](bool condition, const char* key, auto value, const char* wanted) {
      if (!condition) throw UsageError(concat("data.", key, " = ", value, " ", wanted));
    };
    check(options.num_digits >= 1 && options.num_digits <= 9, "num_digits", options.num_digits, "must lie in [1, 9]");
    check(!options.operators.empty() && options.operators.find_first_not_of("+-*") == std::string::npos, "operators",
          options.operators, "takes any of + - *");
    check(options.size >= 0 && options.size <= UINT32_MAX, "size", options.size, "must lie in [0, 2^32)");
    if (options_.held_out_fraction < 0) options_.held_out_fraction = 0.1;
    check(options_.held_out_fraction < 1 && (!options.held_out || options_.held_out_fraction > 0), "held_out_fraction",
          options.held_out_fraction, "must lie in (0, 1)");
    for (int64_t digit = 0; digit < options.num_digits; ++digit) range_ *= 10;
    if (options.size > 0)
      orders_ = std::make_unique<EpochOrders>(options.seed, static_cast<uint32_t>(options.size), options.shuffle);
  }

  uint64_t size() const override { return orders_ ? static_cast<uint64_t>(options_.size) : kDefaultEpochSize; }

  Prompt at(uint64_t prompt_id) const override {
    const auto problem = orders_ ? orders_->record(prompt_id) : prompt_id;
    // A problem of the other share is drawn again; each draw is a function of (seed, problem, attempt). Where the whole
    // table is so small that it lies in one share, the last draw is taken.
    constexpr uint32_t kMaxDraws = 4096;
    Drawn drawn;
    for (uint32_t attempt = 0; attempt < kMaxDraws; ++attempt) {
      drawn = draw(problem, attempt);
      if ((held_out_share(drawn.text) < options_.held_out_fraction) == options_.held_out) break;
    }
    auto text = options_.template_text;
    replace_all(text, "{a}", std::to_string(drawn.a));
    replace_all(text, "{b}", std::to_string(drawn.b));
    replace_all(text, "{op}", std::string(1, drawn.op));
    return {prompt_id, with_system(options_.system, {{"user", text}}),
            json{{"answer", std::to_string(drawn.answer)}}.dump()};
  }

 private:
  struct Drawn {
    int64_t a = 0, b = 0, answer = 0;
    char op = '+';
    std::string text;  // "17 + 25"
  };

  Drawn draw(uint64_t problem, uint32_t attempt) const {
    const auto words = random_words(options_.seed, problem, attempt, RandomStream::kDataOrder);
    const auto below = [](uint32_t word, uint64_t range) {
      return static_cast<int64_t>((uint64_t{word} * range) >> 32);
    };
    Drawn d;
    d.a = below(words[0], range_);
    d.b = below(words[1], range_);
    d.op = options_.operators[static_cast<size_t>(below(words[2], options_.operators.size()))];
    d.answer = d.op == '+' ? d.a + d.b : d.op == '-' ? d.a - d.b : d.a * d.b;
    d.text = concat(d.a, " ", d.op, " ", d.b);
    return d;
  }

  PromptSourceOptions options_;
  uint64_t range_ = 1;
  std::unique_ptr<EpochOrders> orders_;  // none: every id is its own problem
};

}  // namespace

std::unique_ptr<PromptSource> make_prompt_source(const PromptSourceOptions& options) {
  enum class Kind { kJsonl, kArithmetic };
  switch (choose<Kind>("data.kind", options.kind, {{"jsonl", Kind::kJsonl}, {"arithmetic", Kind::kArithmetic}})) {
    case Kind::kArithmetic:
      return std::make_unique<ArithmeticPrompts>(options);
    case Kind::kJsonl:
      break;
  }
  return std::make_unique<JsonlPrompts>(options);
}

std::vector<uint32_t> epoch_order(uint64_t seed, uint64_t epoch, uint32_t size, bool shuffle) {
  std::vector<uint32_t> order(size);
  std::iota(order.begin(), order.end(), 0u);
  if (!shuffle) return order;
  for (uint32_t i = size; i > 1; --i) {
    const auto word = random_words(seed, epoch, i - 1, RandomStream::kDataOrder)[0];
    std::swap(order[i - 1], order[static_cast<uint32_t>((uint64_t{word} * i) >> 32)]);
  }
  return order;
}

}  // namespace troupe
