// The schemes are those of the models' own tokenizer files; llama.cpp gave each a name. Names of schemes that need more
// than regular expressions (digits grouped from the right) are not known here and refused.
#include "models/formats/gguf_pre_tokenizer.h"

#include "base/error.h"

namespace troupe {
namespace {

using nlohmann::json;

// Parts that many schemes share. Contractions, a word with at most one mark before it, numbers of at most three digits.
#define TROUPE_CONTRACTION R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"
#define TROUPE_WORD R"([^\r\n\p{L}\p{N}]?\p{L}+)"
#define TROUPE_SYMBOLS R"( ?[^\s\p{L}\p{N}]+[\r\n]*)"
#define TROUPE_SPACE R"(\s*[\r\n]+|\s+(?!\S)|\s+)"
// A word of lower case with capitals at its beginning, or of capitals: what o200k's scheme cuts at.
#define TROUPE_UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define TROUPE_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define TROUPE_MARK R"([^\r\n\p{L}\p{N}]?)"
#define TROUPE_CASED_WORDS(ending) \
  TROUPE_MARK TROUPE_UPPER "*" TROUPE_LOWER "+" ending "|" TROUPE_MARK TROUPE_UPPER "+" TROUPE_LOWER "*" ending

constexpr char kSingleDigits[] = R"(\p{N})";
constexpr char kThreeDigits[] = R"(\p{N}{1,3})";
constexpr char kLlama3[] = TROUPE_CONTRACTION "|" TROUPE_WORD R"(|\p{N}{1,3}|)" TROUPE_SYMBOLS "|" TROUPE_SPACE;
constexpr char kQwen2[] = TROUPE_CONTRACTION "|" TROUPE_WORD R"(|\p{N}|)" TROUPE_SYMBOLS "|" TROUPE_SPACE;
constexpr char kQwen35[] =
    TROUPE_CONTRACTION R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)" TROUPE_SPACE;
constexpr char kGpt4o[] =
    TROUPE_CASED_WORDS(TROUPE_CONTRACTION "?") R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" TROUPE_SPACE;
constexpr char kTekken[] = TROUPE_CASED_WORDS("") R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" TROUPE_SPACE;
constexpr char kDeepseekCjk[] = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
constexpr char kDeepseek3[] =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)" TROUPE_SPACE;
#define TROUPE_NOT_HAN(set) "[" set R"(&&[^\p{Han}]])"
#define TROUPE_KIMI_UPPER TROUPE_NOT_HAN(R"(\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M})")
#define TROUPE_KIMI_LOWER TROUPE_NOT_HAN(R"(\p{Ll}\p{Lm}\p{Lo}\p{M})")
constexpr char kKimi[] = R"([\p{Han}]+|)" TROUPE_MARK TROUPE_KIMI_UPPER "*" TROUPE_KIMI_LOWER "+" TROUPE_CONTRACTION
                         "?|" TROUPE_MARK TROUPE_KIMI_UPPER "+" TROUPE_KIMI_LOWER "*" TROUPE_CONTRACTION
                         R"(?|\p{N}{1,3}|)" TROUPE_SYMBOLS "|" TROUPE_SPACE;
constexpr char kSeedCoder[] = TROUPE_CONTRACTION "|" TROUPE_WORD R"(|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|)" TROUPE_SPACE;
constexpr char kBailing[] =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr char kBloom[] = R"( ?[^(\s|.,!?…。，、।۔،)]+)";

const std::vector<GgufPreTokenizer>& known_schemes() {
  static const std::vector<GgufPreTokenizer> known = {
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"},
       {},
       true,
       false,
       false,
       true},
      {{"gpt-2", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "jina-v1-en", "jina-v2-code", "roberta-bpe",
        "gigachat", "a.x-4.0", "mellum", "modern-bert", "mpt", "olmo", "jais", "exaone4", "trillion",
        "granite-docling"},
       {},
       true},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
       {kLlama3},
       false,
       false,
       true},
      {{"smaug-bpe", "dbrx", "chatglm-bpe", "glm4"}, {kLlama3}},
      {{"qwen2", "deepseek-r1-qwen", "kormo", "megrez"}, {kQwen2}, false, true},
      {{"qwen35"}, {kQwen35}},  // published without NFC
      {{"stablelm2", "hunyuan", "solar-open", "grok-2"}, {kQwen2}},
      {{"gpt-4o", "llama4", "minimax-m2"}, {kGpt4o}},
      {{"tekken"}, {kTekken}, false, false, true},
      {{"deepseek-v3", "hunyuan-dense"}, {kThreeDigits, kDeepseekCjk, kDeepseek3}},
      {{"deepseek-coder"}, {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[一-龥ࠀ-一가-퟿]+", kSingleDigits}},
      {{"kimi-k2"}, {kKimi}},
      {{"seed-coder"}, {kSeedCoder}},
      {{"bailingmoe", "bailingmoe2", "llada-moe"}, {kBailing}},
      {{"bloom", "poro-chat", "gpt3-finnish"}, {kBloom}},
      {{"viking"}, {kBloom, kSingleDigits}},
  };
  return known;
}

}  // namespace

const GgufPreTokenizer& find_gguf_pre_tokenizer(const std::string& name, const std::string& path) {
  std::string names;
  for (const auto& candidate : known_schemes()) {
    for (const auto* own : candidate.names) {
      if (name == own) return candidate;
      names += concat(names.empty() ? "" : ", ", own);
    }
  }
  fail(path, ": tokenizer.ggml.pre = \"", name, "\" is not known; known are ", names);
}

json byte_level_json(bool add_prefix_space, bool use_regex) {
  return {
      {"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

json pre_tokenizer_json(const GgufPreTokenizer& scheme, bool add_prefix_space) {
  json steps = json::array();
  if (scheme.single_digits) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  for (const auto* pattern : scheme.patterns) {
    steps.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  steps.push_back(byte_level_json(add_prefix_space, scheme.gpt2_after));
  if (steps.size() == 1) return steps.front();
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

}  // namespace troupe
