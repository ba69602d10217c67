// Which kind of model a tokenizer.json holds; the two simple kinds, which look words up.
#include "models/text/token_model.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "models/text/byte_alphabet.h"
#include "models/text/byte_pair_model.h"
#include "models/text/unicode.h"
#include "models/text/unigram_model.h"

namespace troupe {
namespace {

using nlohmann::json;

int32_t find_unknown(const Vocabulary& vocabulary, const json& description, const char* fallback) {
  const auto name = description.value("unk_token", std::string(fallback));
  const auto found = vocabulary.find(name);
  require(found != vocabulary.end(), "tokenizer.json: unk_token '", name, "' is not in the vocabulary");
  return found->second;
}

/// Greedy longest match from the left (Schuster and Nakajima 2012); a word with a rest that no token begins is unknown
/// as a whole.
class WordPieceModel : public TokenModel {
 public:
  explicit WordPieceModel(const json& description)
      : vocabulary_(parse_vocabulary(description.at("vocab"))),
        unknown_(find_unknown(vocabulary_, description, "[UNK]")),
        prefix_(description.value("continuing_subword_prefix", std::string("##"))),
        longest_word_(description.value("max_input_chars_per_word", size_t{100})) {
    for (const auto& [token, id] : vocabulary_) longest_token_ = std::max(longest_token_, token.size());
  }

  void encode(std::string_view piece, std::vector<TokenSpan>& out) const override {
    const size_t first = out.size();
    const auto give_unknown = [&] {
      out.resize(first);
      out.push_back({unknown_, static_cast<uint32_t>(piece.size())});
    };
    if (num_code_points(piece) > longest_word_) return give_unknown();
    std::string token;
    for (size_t begin = 0; begin < piece.size();) {
      size_t end = std::min(piece.size(), begin + longest_token_);
      int32_t id = -1;
      for (; end > begin; --end) {
        if (end < piece.size() && (static_cast<unsigned char>(piece[end]) & 0xC0) == 0x80) continue;  // in a character
        token.assign(begin > 0 ? prefix_ : "").append(piece, begin, end - begin);
        const auto found = vocabulary_.find(token);
        if (found == vocabulary_.end()) continue;
        id = found->second;
        break;
      }
      if (id < 0) return give_unknown();
      out.push_back({id, static_cast<uint32_t>(end - begin)});
      begin = end;
    }
  }
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  Vocabulary vocabulary_;
  int32_t unknown_;
  std::string prefix_;
  size_t longest_word_, longest_token_ = 0;
};

class WordLevelModel : public TokenModel {
 public:
  WordLevelModel(const json& description, bool byte_level)
      : vocabulary_(parse_vocabulary(description.at("vocab"))),
        unknown_(find_unknown(vocabulary_, description, "<unk>")),
        byte_level_(byte_level) {}
  void encode(std::string_view piece, std::vector<TokenSpan>& out) const override {
    const auto found = byte_level_ ? vocabulary_.find(to_byte_alphabet(piece)) : vocabulary_.find(piece);
    out.push_back({found == vocabulary_.end() ? unknown_ : found->second, static_cast<uint32_t>(piece.size())});
  }
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  Vocabulary vocabulary_;
  int32_t unknown_;
  bool byte_level_;
};

/// Older files do not name the kind: what they hold does.
std::string kind_of(const json& description) {
  if (const auto type = description.find("type"); type != description.end()) return type->get<std::string>();
  if (description.contains("merges") || description.contains("merge_by_rank")) return "BPE";
  if (description.contains("vocab") && description.at("vocab").is_array()) return "Unigram";
  return description.contains("continuing_subword_prefix") ? "WordPiece" : "WordLevel";
}

}  // namespace

Vocabulary parse_vocabulary(const json& description) {
  require(description.is_object(), "tokenizer.json: model.vocab is not an object");
  Vocabulary vocabulary;
  vocabulary.reserve(description.size());
  for (const auto& [token, id] : description.items()) {
    require(id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < std::numeric_limits<int32_t>::max(),
            "tokenizer.json: the id of token '", token, "' is not a small non-negative integer");
    vocabulary.emplace(token, id.get<int32_t>());
  }
  return vocabulary;
}

std::string byte_fallback_token(unsigned byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + ">";
}

std::unique_ptr<TokenModel> parse_token_model(const json& description, bool byte_level) {
  const auto kind = kind_of(description);
  if (kind == "BPE") return std::make_unique<BytePairModel>(description, byte_level);
  require(!byte_level || kind == "WordLevel", "tokenizer.json: a ", kind,
          " model behind a ByteLevel pre-tokenizer is not supported");
  if (kind == "Unigram") return std::make_unique<UnigramModel>(description);
  if (kind == "WordPiece") return std::make_unique<WordPieceModel>(description);
  if (kind == "WordLevel") return std::make_unique<WordLevelModel>(description, byte_level);
  fail("tokenizer.json: model '", kind, "' is not supported (known: BPE, Unigram, WordPiece, WordLevel)");
}

}  // namespace troupe
