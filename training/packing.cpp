#include "training/packing.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"

namespace troupe {
namespace {

/// Samples that stand together in one row: some of a group that share its prompt, or a single sample.
struct Bundle {
  std::vector<size_t> samples;  // indices in the batch
  int64_t num_tokens = 0;
  uint64_t first_sample_id = 0;  // breaks ties, so that the plan does not depend on the order of arrival
};

class Packer {
 public:
  Packer(std::span<const Trajectory> batch, std::span<const std::vector<uint8_t>> wanted, const PackingOptions& options)
      : batch_(batch), wanted_(wanted), options_(options), num_inputs_(batch.size(), 0) {
    require(batch.size() == wanted.size(), wanted.size(), " masks for ", batch.size(), " trajectories");
    require(options.num_ranks > 0 && options.num_tokens_per_row > 0, "packing: no rank or an empty row");
    for (size_t i = 0; i < batch.size(); ++i) {
      const auto& mask = wanted[i];
      require(mask.size() == batch[i].tokens.size(), "sample ", batch[i].sample_id, ": ", mask.size(),
              " mask entries for ", batch[i].tokens.size(), " tokens");
      if (mask.empty()) continue;
      require(mask[0] == 0, "sample ", batch[i].sample_id, ": nothing predicts its first token");
      // The last wanted token is a target only: the row holds what stands before it.
      for (size_t t = mask.size(); t-- > 1 && num_inputs_[i] == 0;)
        if (mask[t] != 0) num_inputs_[i] = static_cast<int64_t>(t);
    }
  }

  std::vector<std::vector<PackedRow>> pack() const {
    const auto ranks = deal(bundles());
    size_t num_rows = 0;
    std::vector<std::vector<PackedRow>> result;
    for (const auto& bundles : ranks) {
      result.push_back(rows(bundles));
      num_rows = std::max(num_rows, result.back().size());
    }
    for (auto& rank : result)
      while (rank.size() < num_rows) rank.push_back(filler());
    return result;
  }

 private:
  bool shares_prompt(size_t left, size_t right) const {
    const auto& a = batch_[left];
    const auto& b = batch_[right];
    return a.prompt_length == b.prompt_length &&
           std::equal(a.tokens.begin(), a.tokens.begin() + a.prompt_length, b.tokens.begin());
  }

  /// Tokens that the sample adds to a bundle that already holds its prompt.
  int64_t num_own_tokens(size_t i) const { return std::max<int64_t>(0, num_inputs_[i] - batch_[i].prompt_length); }

  /// Cuts each group so that no bundle exceeds a row or a rank's fair share.
  std::vector<Bundle> bundles() const {
    std::map<uint64_t, std::vector<size_t>> groups;
    int64_t total = 0;
    for (size_t i = 0; i < batch_.size(); ++i) {
      if (num_inputs_[i] == 0) continue;
      auto& samples = groups[batch_[i].group];
      if (samples.empty()) total += batch_[i].prompt_length;
      samples.push_back(i);
      total += num_own_tokens(i);
    }
    const auto limit = std::min(options_.num_tokens_per_row, (total + options_.num_ranks - 1) / options_.num_ranks);
    std::vector<Bundle> result;
    for (auto& [group, samples] : groups) {
      std::sort(samples.begin(), samples.end(), [&](size_t a, size_t b) {
        return std::pair(-num_inputs_[a], batch_[a].sample_id) < std::pair(-num_inputs_[b], batch_[b].sample_id);
      });
      std::vector<Bundle> open;
      for (size_t i : samples) {
        const int64_t prompt = batch_[i].prompt_length;
        const auto fits = [&](const Bundle& bundle) {
          return options_.share_prompts && prompt > 0 && shares_prompt(bundle.samples.front(), i) &&
                 num_inputs_[bundle.samples.front()] >= prompt &&
                 (options_.keep_groups ||
                  bundle.num_tokens + num_own_tokens(i) <= std::max(limit, prompt + num_own_tokens(bundle.samples[0])));
        };
        const auto found = std::find_if(open.begin(), open.end(), fits);
        if (found != open.end()) {
          found->samples.push_back(i);
          found->num_tokens += num_own_tokens(i);
        } else {
          open.push_back({{i}, num_inputs_[i], batch_[i].sample_id});
        }
      }
      result.insert(result.end(), open.begin(), open.end());
    }
    std::sort(result.begin(), result.end(), [](const Bundle& a, const Bundle& b) {
      return std::pair(-a.num_tokens, a.first_sample_id) < std::pair(-b.num_tokens, b.first_sample_id);
    });
    return result;
  }

  std::vector<std::vector<Bundle>> deal(std::vector<Bundle> bundles) const {
    std::vector<std::vector<Bundle>> ranks(static_cast<size_t>(options_.num_ranks));
    std::vector<int64_t> loads(ranks.size(), 0);
    for (auto& bundle : bundles) {
      const auto rank = std::min_element(loads.begin(), loads.end()) - loads.begin();
      loads[static_cast<size_t>(rank)] += bundle.num_tokens;
      ranks[static_cast<size_t>(rank)].push_back(std::move(bundle));
    }
    return ranks;
  }

  /// First fit, longest first.
  std::vector<PackedRow> rows(const std::vector<Bundle>& bundles) const {
    std::vector<PackedRow> result;
    for (const auto& bundle : bundles) {
      auto row = std::find_if(result.begin(), result.end(), [&](const PackedRow& candidate) {
        return static_cast<int64_t>(candidate.tokens.size()) + bundle.num_tokens <= options_.num_tokens_per_row;
      });
      if (row == result.end()) row = result.insert(result.end(), PackedRow());
      append(*row, bundle);
    }
    return result;
  }

  static int32_t add_segment(PackedRow& row, const Trajectory& t, int64_t begin, int64_t end, int32_t parent) {
    const auto at = static_cast<int32_t>(row.tokens.size());
    row.tokens.insert(row.tokens.end(), t.tokens.begin() + begin, t.tokens.begin() + end);
    row.layout.segments.push_back({at, static_cast<int32_t>(end - begin), parent});
    row.layout.num_tokens = static_cast<int32_t>(row.tokens.size());
    return at;
  }

  /// Tokens before `split` lie at `first`, the rest at `second`.
  void add_wanted(PackedRow& row, size_t sample, int64_t split, int64_t first, int64_t second) const {
    for (int64_t t = 1; t <= num_inputs_[sample]; ++t) {
      if (wanted_[sample][static_cast<size_t>(t)] == 0) continue;
      const int64_t before = t - 1;
      row.predictors.push_back(before < split ? first + before : second + before - split);
      row.targets.push_back(batch_[sample].tokens[static_cast<size_t>(t)]);
      row.samples.push_back(static_cast<int64_t>(sample));
      row.token_indices.push_back(static_cast<int32_t>(t));
    }
  }

  void append(PackedRow& row, const Bundle& bundle) const {
    if (bundle.samples.size() == 1) {
      const auto sample = bundle.samples.front();
      const auto begin = add_segment(row, batch_[sample], 0, num_inputs_[sample], -1);
      add_wanted(row, sample, num_inputs_[sample], begin, 0);
      return;
    }
    const auto& first = batch_[bundle.samples.front()];
    const auto parent = static_cast<int32_t>(row.layout.segments.size());
    const auto prompt = add_segment(row, first, 0, first.prompt_length, -1);
    for (const auto sample : bundle.samples) {
      const auto own = num_own_tokens(sample);
      const int64_t begin =
          own == 0 ? 0 : add_segment(row, batch_[sample], first.prompt_length, first.prompt_length + own, parent);
      add_wanted(row, sample, first.prompt_length, prompt, begin);
    }
  }

  /// The shortest row that has a forward and a backward: one token that predicts itself, with weight 0.
  PackedRow filler() const {
    PackedRow row;
    for (const auto& trajectory : batch_) {
      if (trajectory.tokens.empty()) continue;
      add_segment(row, trajectory, 0, 1, -1);
      break;
    }
    row.predictors = {0};
    row.targets = {row.tokens.front()};
    row.samples = {0};
    row.token_indices = {0};
    row.is_filler = true;
    return row;
  }

  std::span<const Trajectory> batch_;
  std::span<const std::vector<uint8_t>> wanted_;
  PackingOptions options_;
  std::vector<int64_t> num_inputs_;  // tokens of each sample that its rows hold; 0: left out
};

}  // namespace

std::vector<std::vector<PackedRow>> pack_trajectories(std::span<const Trajectory> batch,
                                                      std::span<const std::vector<uint8_t>> wanted,
                                                      const PackingOptions& options) {
  return Packer(batch, wanted, options).pack();
}

int64_t num_row_tokens(const std::vector<PackedRow>& rows, bool with_fillers) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0}, [&](int64_t sum, const PackedRow& row) {
    return sum + (row.is_filler && !with_fillers ? 0 : static_cast<int64_t>(row.tokens.size()));
  });
}

}  // namespace troupe
