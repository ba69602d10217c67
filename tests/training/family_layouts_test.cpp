// Every family over the layouts that docs/models.md allows it, against one rank, in float64; the others are refused
// with the reason.
#include "models/formats/checkpoint_reader.h"
#include "tests/doctest.h"
#include "tests/models/family_folders.h"
#include "tests/training/learner_support.h"

namespace troupe {
namespace {

using namespace testing;

struct FamilyCase {
  const char* name;
  const char* no_tensor = nullptr;   // what the refusal of tensor ranks names; null: allowed
  const char* no_context = nullptr;  // of context ranks
};

const FamilyCase kFamilies[] = {
    {"smollm3"},
    {"olmo3", "norms over all heads", "sliding window"},
    {"gemma3", nullptr, "sliding window"},
    {"mixtral", "experts"},
    {"qwen3_moe", "experts"},
    {"gpt_oss", "experts", "sliding window"},
    {"glm4_moe", "experts"},
    {"deepseek_v3", "experts"},
    {"llama4", "experts", "chunked attention"},
    {"qwen3_next", "experts", "recurrence"},
    {"qwen3_5", "delta rule", "recurrence"},
};

LearnerOptions family_options(const std::string& recompute = "none") {
  auto options = learner_options();
  options.parallel.sharding.parameter_dtype = at::kDouble;
  options.num_tokens_per_microbatch = 40;
  options.activation_checkpoint = recompute;
  return options;
}

std::vector<LanguageModelBatch> rows_of(int data_rank, int num_data_ranks) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
  std::vector<LanguageModelBatch> mine;
  for (int r = 0; r < 4; ++r) {
    LanguageModelBatch row;
    for (int d = 0; d < 1 + r % 3; ++d) {
      Document document;
      const auto ids = at::randint(150, {6 + (5 * r + 3 * d) % 9}, generator, at::kLong);
      for (int64_t i = 0; i < ids.numel(); ++i) document.tokens.push_back(static_cast<int32_t>(ids[i].item<int64_t>()));
      append_document(row, document, 0, document.tokens.size());
    }
    if (r % num_data_ranks == data_rank) mine.push_back(std::move(row));
  }
  return mine;
}

/// Loss, gradient norm and gradients of a language-model step, then of a policy step from the same weights.
struct Steps {
  std::vector<double> losses, norms;
  std::vector<TensorMap> gradients;
};

Steps take_steps(Learner& learner, const TensorMap& weights, int data_rank, int num_data_ranks) {
  Steps steps;
  for (const bool is_policy : {false, true}) {
    learner.load([&](const std::string& name) { return weights.at(name); });
    const auto metrics = is_policy ? learner.train_policy(learner_batch(2, 4))
                                   : learner.train_language_model(rows_of(data_rank, num_data_ranks));
    steps.losses.push_back(metrics.at("loss/mean"));
    steps.norms.push_back(metrics.at("grad_norm"));
    steps.gradients.push_back(learner.model().gather_gradients());
  }
  return steps;
}

void check_equal(const Steps& got, const Steps& expected, const std::string& what) {
  const auto near = [](double a, double b) { return std::abs(a - b) <= 1e-6 * std::max(std::abs(b), 1e-2); };
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    const auto difference = relative_difference(got.gradients[i], expected.gradients[i]);
    require(near(got.losses[i], expected.losses[i]), what, ": loss ", got.losses[i], ", not ", expected.losses[i]);
    require(near(got.norms[i], expected.norms[i]), what, ": gradient norm ", got.norms[i], ", not ", expected.norms[i]);
    require(difference < 1e-6, what, ": gradients differ by ", difference);
  }
}

}  // namespace

TEST_CASE("every family trains as on one rank over the layouts it allows, and the others are refused by reason") {
  CHECK(std::size(kFamilies) == family_folders().size());
  for (const auto& family : kFamilies) {
    CAPTURE(family.name);
    const auto reader = open_checkpoint(family_fixtures() / family.name);
    const auto& config = reader->config();
    const auto weights = load_weights(*reader, at::kFloat);
    Steps reference;
    with_one_rank(config, family_options(), weights,
                  [&](Learner& learner) { reference = take_steps(learner, weights, 0, 1); });
    CHECK(reference.norms[0] > 0);
    CHECK(reference.norms[1] > 0);
    const auto check = [&](const MeshDegrees& degrees, const std::string& recompute) {
      const auto what = concat(family.name, " over ", describe(degrees), ", recompute ", recompute);
      CHECK_NOTHROW(with_mesh(
          degrees, config, family_options(recompute), weights, [&](Learner& learner, const RankGroups& groups) {
            const auto got = take_steps(learner, weights, groups.data_rank(), groups.num_data_ranks());
            check_equal(got, reference, what);
          }));
    };
    const auto refuse = [&](const MeshDegrees& degrees, const char* reason) {
      CHECK_THROWS_WITH_AS(with_mesh(degrees, config, family_options(), weights, [](Learner&, const RankGroups&) {}),
                           doctest::Contains(reason), UsageError);
    };
    check({.shard = 2}, "full");
    check({.pipeline = 2}, "selective");
    if (family.no_tensor == nullptr) {
      check({.tensor = 2}, "none");
    } else {
      refuse({.tensor = 2}, family.no_tensor);
    }
    if (family.no_context == nullptr) {
      check({.context = 2}, "none");
    } else {
      refuse({.context = 2}, family.no_context);
    }
  }
}

}  // namespace troupe
