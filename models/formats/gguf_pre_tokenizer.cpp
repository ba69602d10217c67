// The schemes are those of the models' own tokenizer files; llama.cpp gave each a name, and these are all that it
// knows.
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

constexpr char kGpt2[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr char kSingleDigits[] = R"(\p{N})";
constexpr char kThreeDigits[] = R"(\p{N}{1,3})";
constexpr char kThreeAsciiDigits[] = "[0-9][0-9][0-9]";
// Groups of three counted from the right, of digits or (superbpe) as cuts before them in whatever runs.
constexpr char kDigitsFromRight[] = R"(\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})))";
constexpr char kDigitsToWordEnd[] = R"(\d{1,3}(?=(?:\d{3})*\b))";
constexpr char kBeforeDigitGroups[] = R"((?=(?:\d{3})+(?!\d)))";
constexpr char kLines[] = R"([^\n]+|\n+)";
constexpr char kLlama3[] = TROUPE_CONTRACTION "|" TROUPE_WORD R"(|\p{N}{1,3}|)" TROUPE_SYMBOLS "|" TROUPE_SPACE;
constexpr char kQwen2[] = TROUPE_CONTRACTION "|" TROUPE_WORD R"(|\p{N}|)" TROUPE_SYMBOLS "|" TROUPE_SPACE;
constexpr char kUfakzeka[] = TROUPE_WORD R"(|\p{N}|)" TROUPE_SYMBOLS "|" TROUPE_SPACE;
constexpr char kMiniCpm5[] = TROUPE_CONTRACTION "|" TROUPE_WORD R"(|\p{N}+|)" TROUPE_SYMBOLS "|" TROUPE_SPACE;
constexpr char kJais2[] = TROUPE_CONTRACTION
    "|" TROUPE_WORD R"(|\p{N}{1,3}|)" TROUPE_SYMBOLS
    R"(|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1})";
constexpr char kQwen35[] =
    TROUPE_CONTRACTION R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)" TROUPE_SPACE;
constexpr char kExaoneMoe[] =
    TROUPE_CONTRACTION R"(|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|)"
                       R"(\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr char kGpt4o[] =
    TROUPE_CASED_WORDS(TROUPE_CONTRACTION "?") R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" TROUPE_SPACE;
constexpr char kTekken[] = TROUPE_CASED_WORDS("") R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" TROUPE_SPACE;
constexpr char kYoutu[] =
    TROUPE_CASED_WORDS(TROUPE_CONTRACTION "?") R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" TROUPE_SPACE;
constexpr char kYoutuScripts[] =
    "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-"
    "\u30ff]"
    "+";
constexpr char kDeepseekCjk[] = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
#define TROUPE_DEEPSEEK_WORDS \
  R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+)"
constexpr char kDeepseek3[] = TROUPE_DEEPSEEK_WORDS R"([\r\n]*|)" TROUPE_SPACE;
constexpr char kSpark25[] = TROUPE_DEEPSEEK_WORDS R"(|[\r\n]|\s+(?!\S)|\s+)";
constexpr char kAfmoeScripts[] =
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
    "\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+";
constexpr char kDeepseekCjkWide[] = "[一-龥ࠀ-一가-\uD7FF]+";
constexpr char kDeepseekLlmPunctuation[] = R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)";
// The letters with case that the published file lists.
constexpr char kDeepseekLlmWords[] =
    R"(\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+)";
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
      // What llama.cpp takes where a file names no scheme.
      {.names = {"default"}, .patterns = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)", kThreeAsciiDigits}},
      {.names = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"},
       .patterns = {kSingleDigits, kGpt2}},
      {.names = {"gpt-2", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "jina-v1-en", "jina-v2-code",
                 "roberta-bpe", "gigachat", "a.x-4.0", "mellum", "modern-bert", "mpt", "olmo", "jais", "exaone4",
                 "trillion", "granite-docling"},
       .patterns = {kGpt2}},
      {.names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
                 "jina-v5-nano"},
       .patterns = {kLlama3},
       .ignore_merges = true,
       .add_bos = true},
      {.names = {"smaug-bpe", "dbrx", "chatglm-bpe"}, .patterns = {kLlama3}},
      {.names = {"glm4", "glm5"}, .patterns = {kLlama3}, .ignore_merges = true},
      {.names = {"jais-2"}, .patterns = {kJais2}},
      {.names = {"minicpm5"}, .patterns = {kThreeDigits, kMiniCpm5}, .ignore_merges = true},
      {.names = {"qwen2", "deepseek-r1-qwen", "kormo", "megrez", "f2llmv2"}, .patterns = {kQwen2}, .nfc = true},
      {.names = {"qwen35"}, .patterns = {kQwen35}},  // published without NFC
      {.names = {"stablelm2", "hunyuan", "solar-open", "grok-2"}, .patterns = {kQwen2}},
      {.names = {"laguna"}, .patterns = {kLines, kQwen2}},
      {.names = {"ufakzeka"}, .patterns = {kUfakzeka}},
      {.names = {"exaone-moe"}, .patterns = {kExaoneMoe}},
      {.names = {"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"}, .patterns = {kGpt4o}},
      {.names = {"granite-embed-multi-97m"}, .patterns = {kGpt4o}, .ignore_merges = true},
      {.names = {"tiny_aya", "cohere2moe"}, .patterns = {kDigitsToWordEnd, kGpt4o}},
      {.names = {"tekken"}, .patterns = {kTekken}, .ignore_merges = true, .add_bos = true},
      {.names = {"youtu"}, .patterns = {kYoutuScripts, kYoutu}, .ignore_merges = true},
      {.names = {"deepseek-llm"},
       .patterns = {"[\r\n]", kDeepseekLlmWords, kDeepseekLlmPunctuation, R"(\s+$)", kDeepseekCjkWide, kSingleDigits}},
      {.names = {"deepseek-coder"},
       .patterns = {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepseekCjkWide, kSingleDigits}},
      {.names = {"deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"},
       .patterns = {kThreeDigits, kDeepseekCjk, kDeepseek3}},
      {.names = {"spark2_5"}, .patterns = {kThreeDigits, kDeepseekCjk, kSpark25, kSingleDigits}},
      {.names = {"afmoe"}, .patterns = {kDigitsFromRight, kAfmoeScripts, kDeepseek3}},
      {.names = {"superbpe"}, .patterns = {R"(\p{N}+)", kBeforeDigitGroups}},
      {.names = {"kimi-k2"}, .patterns = {kKimi}},
      {.names = {"seed-coder"}, .patterns = {kSeedCoder}},
      {.names = {"bailingmoe", "bailingmoe2", "llada-moe"}, .patterns = {kBailing}},
      {.names = {"bloom", "poro-chat", "gpt3-finnish"}, .patterns = {kBloom}},
      {.names = {"viking"}, .patterns = {kBloom, kSingleDigits}},
      {.names = {"falcon"}, .patterns = {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2, kThreeAsciiDigits}},
      {.names = {"chameleon"},
       .patterns = {"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", R"([\t\n]|    |  )", kSingleDigits,
                    R"([\p{P}!-/:-@\[-`{-~])", kGpt2},
       .add_bos = true},
      {.names = {"gemma4", "granite-embed-multi-311m"},
       .patterns = {kLines},
       .add_bos = true,
       .alphabet = GgufAlphabet::kSpaceMarks},
      {.names = {"sarvam-moe"}, .patterns = {kLines}, .alphabet = GgufAlphabet::kSpaceMarks},
      {.names = {"whitespace"}, .alphabet = GgufAlphabet::kWords},
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
  if (scheme.alphabet == GgufAlphabet::kWords) return {{"type", "WhitespaceSplit"}};
  json steps = json::array();
  for (const auto* pattern : scheme.patterns) {
    if (pattern == kSingleDigits) {  // as the published files write it
      steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
      continue;
    }
    steps.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  if (scheme.alphabet == GgufAlphabet::kBytes) {
    const bool built_in = !scheme.patterns.empty() && scheme.patterns.back() == kGpt2;  // ByteLevel cuts so itself
    if (built_in) steps.erase(steps.size() - 1);
    steps.push_back(byte_level_json(add_prefix_space, built_in));
  }
  if (steps.size() == 1) return steps.front();
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

}  // namespace troupe
