// Byte-pair encoding. Most words of a text are tokens of their own: which pieces the merges turn into one token is
// found when the model is read, so that encoding them is one look-up and needs no cache that threads would share.
#include "models/text/byte_pair_model.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "models/text/byte_alphabet.h"
#include "models/text/unicode.h"

namespace troupe {
namespace {

using nlohmann::json;

std::string optional_string(const json& description, const char* key) {
  const auto found = description.find(key);
  return found == description.end() || found->is_null() ? std::string() : found->get<std::string>();
}

}  // namespace

BytePairModel::BytePairModel(const json& description, bool byte_level) : byte_level_(byte_level) {
  const auto dropout = description.find("dropout");
  require(dropout == description.end() || dropout->is_null() || dropout->get<double>() == 0,
          "tokenizer.json: BPE dropout is not supported: ids would be random");
  byte_fallback_ = description.value("byte_fallback", false);
  fuse_unknown_ = description.value("fuse_unk", false);
  ignore_merges_ = description.value("ignore_merges", false);
  prefix_ = optional_string(description, "continuing_subword_prefix");
  suffix_ = optional_string(description, "end_of_word_suffix");
  vocabulary_ = parse_vocabulary(description.at("vocab"));
  const auto id_of = [&](std::string_view token) {
    const auto found = vocabulary_.find(token);
    return found == vocabulary_.end() ? -1 : found->second;
  };
  if (const auto unknown = optional_string(description, "unk_token"); !unknown.empty()) {
    unknown_id_ = id_of(unknown);
    require(unknown_id_ >= 0, "tokenizer.json: unk_token '", unknown, "' is not in the vocabulary");
  }
  byte_ids_.assign(256, -1);
  for (unsigned byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] = id_of(byte_level_ ? byte_alphabet()[byte] : byte_fallback_token(byte));
  }
  character_ids_.assign(byte_level_ ? 128 : 0x10000, -1);
  for (const auto& [token, id] : vocabulary_) {
    size_t end = 0;
    if (token.empty() || utf8_width(token[0]) != token.size()) continue;
    const char32_t character = next_code_point(token, end);
    if (character < character_ids_.size()) character_ids_[character] = id;
  }
  if (!byte_level_ && byte_fallback_ && std::count(byte_ids_.begin(), byte_ids_.end(), -1) != 0) byte_fallback_ = false;
  description.value("merge_by_rank", false) ? merge_by_rank() : read_merges(description.at("merges"));
  find_whole_pieces();
  if (!byte_level_ && prefix_.empty() && suffix_.empty()) find_joints();
}

void BytePairModel::read_merges(const json& merges) {
  require(merges.is_array(), "tokenizer.json: model.merges is not an array");
  size_t capacity = 16;
  while (capacity < merges.size() * 2) capacity *= 2;
  merges_.assign(capacity, {});
  uint32_t rank = 0;
  for (const auto& entry : merges) {
    std::string left, right;
    if (entry.is_string()) {  // "left right": parted by the one ASCII space, whatever else the parts hold
      const auto text = entry.get<std::string>();
      const size_t space = text.find(' ');
      require(space != text.npos && space > 0 && space + 1 < text.size() && text.find(' ', space + 1) == text.npos,
              "tokenizer.json: merge ", rank, " ('", text, "') is not two tokens parted by one space");
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else {
      require(entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string(),
              "tokenizer.json: merge ", rank, " is neither a string nor a pair of strings");
      left = entry[0].get<std::string>();
      right = entry[1].get<std::string>();
    }
    require(right.size() >= prefix_.size(), "tokenizer.json: merge ", rank, ": '", right,
            "' lacks continuing_subword_prefix");
    const auto left_id = vocabulary_.find(left), right_id = vocabulary_.find(right);
    const auto merged = vocabulary_.find(left + right.substr(prefix_.size()));
    require(left_id != vocabulary_.end() && right_id != vocabulary_.end() && merged != vocabulary_.end(),
            "tokenizer.json: merge ", rank, " ('", left, "' + '", right,
            "') names a token that is not in the vocabulary");
    add_merge({pair_key(left_id->second, right_id->second), rank, merged->second});
    ++rank;
  }
}

void BytePairModel::merge_by_rank() {
  constexpr size_t kLongestToken = 4096;  // bytes; bounds the work that a crafted file can ask for
  std::vector<Merge> merges;
  for (const auto& [token, id] : vocabulary_) {
    require(token.size() <= kLongestToken, "the token with id ", id, " is longer than ", kLongestToken, " bytes");
    const std::string_view text = token;
    for (size_t split = utf8_width(text[0]); split < text.size(); split += utf8_width(text[split])) {
      const auto left = vocabulary_.find(text.substr(0, split)), right = vocabulary_.find(text.substr(split));
      if (left == vocabulary_.end() || right == vocabulary_.end()) continue;
      merges.push_back({pair_key(left->second, right->second), static_cast<uint32_t>(id), id});
    }
  }
  size_t capacity = 16;
  while (capacity < merges.size() * 2) capacity *= 2;
  merges_.assign(capacity, {});
  for (const Merge& merge : merges) add_merge(merge);
}

void BytePairModel::add_merge(Merge merge) {
  const size_t mask = merges_.size() - 1;
  size_t at = mix_pair(merge.pair) & mask;
  while (merges_[at].pair != kNoPair && merges_[at].pair != merge.pair) at = (at + 1) & mask;
  merges_[at] = merge;  // as in the reference, a pair that comes twice has its later rank
}

const BytePairModel::Merge* BytePairModel::find_merge(int32_t left, int32_t right) const {
  const uint64_t pair = pair_key(left, right);
  const size_t mask = merges_.size() - 1;
  for (size_t at = mix_pair(pair) & mask;; at = (at + 1) & mask) {
    if (merges_[at].pair == pair) return &merges_[at];
    if (merges_[at].pair == kNoPair) return nullptr;
  }
}

void BytePairModel::find_whole_pieces() {
  std::vector<TokenSpan> tokens;
  pieces_.reserve(vocabulary_.size());
  for (const auto& [token, id] : vocabulary_) {
    std::string text = token;
    if (byte_level_) {
      auto bytes = from_byte_alphabet(token);
      if (!bytes) continue;
      text = std::move(*bytes);
    }
    if (text.empty() || (!ignore_merges_ && text.size() > 256)) continue;
    if (!ignore_merges_) {
      tokens.clear();
      merge_tokens(text, tokens);
      if (tokens.size() != 1 || tokens[0].id != id) continue;
    }
    pieces_.emplace(std::move(text), id);
  }
}

int32_t BytePairModel::character_id(std::string_view character) const {
  size_t end = 0;
  const char32_t code_point = next_code_point(character, end);
  if (code_point < character_ids_.size()) return character_ids_[code_point];
  const auto found = vocabulary_.find(character);
  return found == vocabulary_.end() ? -1 : found->second;
}

void BytePairModel::encode(std::string_view piece, std::vector<TokenSpan>& out) const {
  if (piece.empty()) return;
  if (const auto whole = pieces_.find(piece); whole != pieces_.end()) {
    out.push_back({whole->second, static_cast<uint32_t>(piece.size())});
    return;
  }
  merge_tokens(piece, out);
}

void BytePairModel::initial_tokens(std::string_view piece, std::vector<TokenSpan>& out) const {
  const size_t first_token = out.size();
  bool after_unknown = false;
  const auto unknown = [&](size_t num_bytes) {
    if (unknown_id_ < 0) {  // as the reference does: nothing stands for it
      if (out.size() > first_token) out.back().num_bytes += static_cast<uint32_t>(num_bytes);
      return;
    }
    if (fuse_unknown_ && after_unknown) {
      out.back().num_bytes += static_cast<uint32_t>(num_bytes);
    } else {
      out.push_back({unknown_id_, static_cast<uint32_t>(num_bytes)});
    }
    after_unknown = true;
  };
  const auto known = [&](int32_t id, size_t num_bytes) {
    out.push_back({id, static_cast<uint32_t>(num_bytes)});
    after_unknown = false;
  };
  if (byte_level_ && prefix_.empty() && suffix_.empty()) {
    for (const char c : piece) {
      const int32_t id = byte_ids_[static_cast<unsigned char>(c)];
      id >= 0 ? known(id, 1) : unknown(1);
    }
    return;
  }
  std::string symbol;
  for (size_t at = 0; at < piece.size();) {
    const size_t begin = at;
    at += byte_level_ ? 1 : utf8_width(piece[at]);
    const auto text = piece.substr(begin, at - begin);
    const auto first = static_cast<unsigned char>(text[0]);
    int32_t id = -1;
    if (!byte_level_ && prefix_.empty() && suffix_.empty()) {
      id = character_id(text);
    } else {
      symbol = begin > 0 ? prefix_ : "";
      symbol += byte_level_ ? byte_alphabet()[first] : std::string(text);
      if (at >= piece.size()) symbol += suffix_;
      const auto found = vocabulary_.find(symbol);
      if (found != vocabulary_.end()) id = found->second;
    }
    if (id >= 0) {
      known(id, text.size());
    } else if (byte_fallback_ && !byte_level_) {
      for (const char c : text) known(byte_ids_[static_cast<unsigned char>(c)], 1);
    } else {
      unknown(text.size());
    }
  }
}

}  // namespace troupe
