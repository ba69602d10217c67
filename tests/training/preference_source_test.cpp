// Pairs: what is kept, dropped and counted (B022), which are held out, and that their order resumes.
#include "training/preference_source.h"

#include <fstream>
#include <set>

#include "base/error.h"
#include "tests/doctest.h"
#include "tests/training/smollm2_tokenizer.h"

namespace troupe {
namespace {

using testing::smollm2;

struct Pairs {
  explicit Pairs(const std::vector<nlohmann::json>& records)
      : documents(*tokenizer, nullptr, nlohmann::json::object(), 2, {}) {
    std::ofstream out(path);
    for (const auto& record : records) out << record.dump() << '\n';
  }
  ~Pairs() { std::filesystem::remove(path); }
  PreferenceSource open(int64_t max_tokens = 64, const std::string& split = "all") const {
    PreferenceSourceOptions options;
    options.paths = {path};
    options.max_tokens = max_tokens;
    options.split = split;
    options.validation_fraction = 0.2;
    options.seed = 3;
    return PreferenceSource(options, documents);
  }
  std::string path = (std::filesystem::temp_directory_path() / "troupe_pairs.jsonl").string();
  const Tokenizer* tokenizer = smollm2();
  ChatDocuments documents;
};

nlohmann::json pair(const std::string& prompt, const std::string& chosen, const std::string& rejected) {
  return {{"prompt", prompt}, {"chosen", chosen}, {"rejected", rejected}};
}

}  // namespace

TEST_CASE("B022 pairs whose answers do not differ, or only behind the cut, are dropped and counted") {
  // A letter is a token here: the first pair parts at token 9.
  const Pairs pairs({pair("1 2 3 ", "4 5 6", "4 5 7"), pair("1", "2", "3"), pair("1", "same", "same")});
  const auto whole = pairs.open();
  CHECK(whole.pairs().size() == 2);
  CHECK(whole.num_identical() == 1);
  const auto cut = pairs.open(static_cast<int64_t>(whole.pairs()[0].chosen.tokens.size()) - 2);
  CHECK(cut.pairs().size() == 1);
  CHECK(cut.num_identical() == 2);
  CHECK(cut.pairs()[0].chosen.tokens == whole.pairs()[1].chosen.tokens);
  const Pairs none(std::vector<nlohmann::json>(1, pair("1", "a", "a")));
  CHECK_THROWS_AS(none.open(), Error);
}

TEST_CASE("pairs carry their margin, and bad lines their number") {
  auto with_margin = pair("1", "2", "3");
  with_margin["margin"] = 0.5;
  const Pairs good({pair("1", "4", "3"), with_margin});
  const auto source = good.open();
  CHECK(source.pairs()[0].margin == 0);
  CHECK(source.pairs()[1].margin == 0.5);
  CHECK(source.pairs()[0].id != source.pairs()[1].id);
  CHECK(source.pairs()[0].chosen.loss_mask == std::vector<uint8_t>{0, 1, 1});  // the end of sequence with it
  const auto refused = [](const nlohmann::json& record, const std::string& part) {
    const Pairs pairs({pair("1", "2", "3"), record});
    try {
      pairs.open();
      FAIL_CHECK("accepted");
    } catch (const Error& error) {
      CHECK_MESSAGE(std::string(error.what()).find(":2: ") != std::string::npos, error.what());
      CHECK_MESSAGE(std::string(error.what()).find(part) != std::string::npos, error.what());
    }
  };
  refused({{"prompt", "1"}, {"chosen", "2"}}, "rejected");
  refused({{"prompt", "1"}, {"chosen", "2"}, {"rejected", 3}}, "rejected");
  auto bad_margin = pair("1", "2", "3");
  bad_margin["margin"] = "much";
  refused(bad_margin, "margin");
  refused(pair("", "2", "3"), "empty prompt");
}

TEST_CASE("held-out pairs are kept away by their prompts; each epoch has its own order, which resumes") {
  std::vector<nlohmann::json> records;
  for (int i = 0; i < 30; ++i)
    for (const char* answer : {"a", "b"}) records.push_back(pair("Q" + std::to_string(i), answer, "c"));
  const Pairs pairs(records);
  auto train = pairs.open(64, "train");
  const auto held_out = pairs.open(64, "validation");
  CHECK_THROWS_AS(pairs.open(64, "test"), UsageError);
  CHECK(train.pairs().size() + held_out.pairs().size() == 60);
  CHECK(held_out.pairs().size() >= 2);
  CHECK(held_out.pairs().size() % 2 == 0);  // both pairs of a prompt lie on one side
  const auto size = static_cast<int64_t>(train.pairs().size());
  const auto ids = [](const std::vector<PreferencePair>& list) {
    std::vector<uint64_t> result;
    for (const auto& one : list) result.push_back(one.id);
    return result;
  };
  const auto first = ids(train.next(size));
  const auto position = train.cursor();
  const auto second = ids(train.next(size));
  CHECK(std::set(first.begin(), first.end()).size() == first.size());
  CHECK(std::set(first.begin(), first.end()) == std::set(second.begin(), second.end()));
  CHECK(first != second);
  train.seek(position);
  CHECK(ids(train.next(size)) == second);
  CHECK_THROWS_AS(train.seek({0, 1000, 0}), Error);
}

}  // namespace troupe
