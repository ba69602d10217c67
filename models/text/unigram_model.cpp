#include "models/text/unigram_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "models/text/regex.h"
#include "models/text/unicode.h"

namespace troupe {
namespace {

using nlohmann::json;
constexpr double kUnknownPenalty = 10;  // below the least likely token, as SentencePiece has it

size_t mix(uint32_t node, unsigned char byte) {
  uint64_t key = (uint64_t{node} << 8 | byte) * 0x9E3779B97F4A7C15ull;
  return static_cast<size_t>(key ^ key >> 29);
}

}  // namespace

UnigramModel::UnigramModel(const json& description) {
  const auto& list = description.at("vocab");
  require(list.is_array() && !list.empty(), "tokenizer.json: model.vocab of a Unigram model is not a list");
  size_t num_bytes = 1;
  for (const auto& entry : list) {
    require(entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_number() &&
                std::isfinite(entry[1].get<double>()),
            "tokenizer.json: model.vocab[", scores_.size(), "] is not a token and its log-probability");
    const auto id = static_cast<int32_t>(scores_.size());
    const auto token = entry[0].get<std::string>();
    scores_.push_back(entry[1].get<double>());
    vocabulary_[token] = id;  // of a token that comes twice the later one counts, as in the reference
    num_bytes += token.size();
  }
  size_t capacity = 16;
  while (capacity < num_bytes * 2) capacity *= 2;
  children_.assign(capacity, {});
  node_ids_.assign(1, -1);
  for (const auto& [token, id] : vocabulary_) add_token(token, id);
  if (const auto unknown = description.find("unk_id"); unknown != description.end() && !unknown->is_null()) {
    require(unknown->is_number_integer() && unknown->get<int64_t>() >= 0 &&
                unknown->get<int64_t>() < static_cast<int64_t>(scores_.size()),
            "tokenizer.json: model.unk_id = ", unknown->dump(), " is not an id of the vocabulary");
    unknown_id_ = unknown->get<int32_t>();
  }
  unknown_score_ = *std::min_element(scores_.begin(), scores_.end()) - kUnknownPenalty;
  if (!description.value("byte_fallback", false)) return;
  byte_ids_.assign(256, -1);
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto found = vocabulary_.find(byte_fallback_token(byte));
    if (found != vocabulary_.end()) byte_ids_[byte] = found->second;
  }
}

uint32_t UnigramModel::find_child(uint32_t parent, unsigned char byte) const {
  const size_t mask = children_.size() - 1;
  for (size_t at = mix(parent, byte) & mask;; at = (at + 1) & mask) {
    const Child& child = children_[at];
    if (child.parent == parent && child.byte == byte) return child.node;
    if (child.parent == kNone) return kNone;
  }
}

uint32_t UnigramModel::add_child(uint32_t parent, unsigned char byte) {
  const size_t mask = children_.size() - 1;
  size_t at = mix(parent, byte) & mask;
  while (children_[at].parent != kNone) at = (at + 1) & mask;
  const auto node = static_cast<uint32_t>(node_ids_.size());
  children_[at] = {parent, node, byte};
  node_ids_.push_back(-1);
  return node;
}

void UnigramModel::add_token(std::string_view token, int32_t id) {
  uint32_t node = 0;
  for (const char c : token) {
    const auto byte = static_cast<unsigned char>(c);
    const uint32_t next = find_child(node, byte);
    node = next == kNone ? add_child(node, byte) : next;
  }
  node_ids_[node] = id;
}

void UnigramModel::encode(std::string_view piece, std::vector<TokenSpan>& out) const {
  struct Best {
    double score = 0;
    size_t begin = 0;
    int32_t id = -1;  // -1: nothing ends here
  };
  std::vector<Best> best(piece.size() + 1);
  const auto offer = [&](size_t begin, size_t end, int32_t id, double score) {
    const double total = best[begin].score + score;
    if (best[end].id < 0 || total > best[end].score) best[end] = {total, begin, id};
  };
  for (size_t begin = 0; begin < piece.size(); begin += utf8_width(piece[begin])) {
    const size_t one = begin + utf8_width(piece[begin]);
    bool has_one = false;
    uint32_t node = 0;
    for (size_t at = begin; at < piece.size(); ++at) {
      node = find_child(node, static_cast<unsigned char>(piece[at]));
      if (node == kNone) break;
      const int32_t id = node_ids_[node];
      if (id < 0) continue;
      offer(begin, at + 1, id, scores_[static_cast<size_t>(id)]);
      has_one |= at + 1 == one;
    }
    if (has_one) continue;
    require(unknown_id_ >= 0, "tokenizer.json: the text '", piece.substr(begin, one - begin),
            "' has no token, and the Unigram model no unk_id");
    offer(begin, one, unknown_id_, unknown_score_);
  }
  std::vector<Span> cuts;
  for (size_t end = piece.size(); end > 0; end = best[end].begin) {
    const bool unknown = best[end].id == unknown_id_;
    if (unknown && !cuts.empty() && cuts.back().begin == end && best[cuts.back().end].id == unknown_id_) {
      cuts.back().begin = best[end].begin;  // neighbours that are unknown become one
    } else {
      cuts.push_back({best[end].begin, end});
    }
  }
  for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) give(piece.substr(cut->begin, cut->end - cut->begin), out);
}

void UnigramModel::give(std::string_view text, std::vector<TokenSpan>& out) const {
  if (const auto found = vocabulary_.find(text); found != vocabulary_.end()) {
    out.push_back({found->second, static_cast<uint32_t>(text.size())});
    return;
  }
  const auto has_token = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)] >= 0; };
  if (!byte_ids_.empty() && std::all_of(text.begin(), text.end(), has_token)) {
    for (const char c : text) out.push_back({byte_ids_[static_cast<unsigned char>(c)], 1});
    return;
  }
  out.push_back({unknown_id_, static_cast<uint32_t>(text.size())});
}

}  // namespace troupe
