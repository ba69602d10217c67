// Tokens to experts on other ranks and back against one rank that holds all experts: results, gradients, what travels.
#include "parallel/expert_parallel.h"

#include <atomic>

#include "base/error.h"
#include "models/blocks/experts.h"
#include "tests/doctest.h"
#include "tests/parallel/ranks.h"

using namespace troupe;
using namespace troupe::parallel_testing;

namespace {

constexpr int64_t kHidden = 5, kInner = 3, kNumExperts = 6, kNumChoices = 2;

/// Which experts every token of one rank goes to.
using Choices = std::vector<std::vector<int64_t>>;

struct Case {
  const char* name;
  std::vector<Choices> by_rank;
};

const Case kCases[] = {
    {"even", {{{0, 3}, {1, 4}, {2, 5}}, {{5, 0}, {4, 1}, {3, 2}}}},
    {"uneven, an expert without tokens", {{{0, 1}, {0, 3}, {0, 5}, {1, 2}}, {{1, 0}}}},
    {"nothing to the second rank", {{{0, 1}, {2, 0}}, {{1, 2}, {0, 2}, {2, 1}}}},
    {"nothing stays", {{{3, 4}, {5, 3}}, {{1, 0}}}},
    {"a rank without tokens", {{{0, 5}, {4, 1}, {3, 2}}, {}}},
    {"no tokens at all", {{}, {}}},
    {"three ranks", {{{0, 5}}, {{2, 3}, {2, 1}, {2, 3}}, {{4, 2}, {1, 2}}}},
};

MoeConfig moe_config(bool weighs_input) {
  MoeConfig moe;
  moe.num_experts = kNumExperts;
  moe.num_experts_per_token = kNumChoices;
  moe.intermediate_size = kInner;
  moe.form = ExpertForm::kStacked;
  moe.expert_bias = true;
  moe.score = weighs_input ? RouterScore::kSigmoidInput : RouterScore::kSoftmax;
  return moe;
}

/// Leaves: tokens and weights of choices by rank, weights of all experts.
struct Leaves {
  std::vector<Tensor> x, choices, weights;
  std::vector<Tensor> experts;  // gate_up, down, and their biases
};

Leaves make_leaves(const Case& test) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(11);
  const auto draw = [&](std::vector<int64_t> shape) {
    return at::randn(shape, generator, at::kDouble).set_requires_grad(true);
  };
  Leaves leaves;
  for (const auto& choices : test.by_rank) {
    const auto num_tokens = static_cast<int64_t>(choices.size());
    std::vector<int64_t> flat;
    for (const auto& token : choices) flat.insert(flat.end(), token.begin(), token.end());
    leaves.x.push_back(draw({num_tokens, kHidden}));
    leaves.weights.push_back(draw({num_tokens, kNumChoices}));
    leaves.choices.push_back(at::tensor(flat, at::kLong).view({num_tokens, kNumChoices}));
  }
  leaves.experts = {draw({kNumExperts, kHidden, 2 * kInner}), draw({kNumExperts, kInner, kHidden}),
                    draw({kNumExperts, 2 * kInner}), draw({kNumExperts, kHidden})};
  return leaves;
}

Tensor run_experts(const Tensor& x, const blocks::Routing& routing, const std::vector<Tensor>& weights,
                   const MoeConfig& moe) {
  return blocks::experts(x, routing, {{weights[0]}, {weights[1]}, weights[2], weights[3]}, moe, Activation::kSilu);
}

/// A loss in which every output counts otherwise.
Tensor loss_of(const Tensor& y) { return (y * at::sin(at::arange(y.numel(), at::kDouble)).view(y.sizes())).sum(); }

struct Result {
  std::vector<Tensor> outputs, d_x, d_weights;  // by rank
  std::vector<Tensor> d_experts;
};

Result one_rank(const Case& test, const MoeConfig& moe) {
  const auto leaves = make_leaves(test);
  Result result;
  Tensor loss = at::zeros({}, at::kDouble);
  for (size_t rank = 0; rank < leaves.x.size(); ++rank) {
    if (leaves.x[rank].size(0) == 0) {
      result.outputs.push_back(at::zeros({0, kHidden}, at::kDouble));
      continue;
    }
    result.outputs.push_back(
        run_experts(leaves.x[rank], {leaves.choices[rank], leaves.weights[rank]}, leaves.experts, moe));
    loss = loss + loss_of(result.outputs.back());
  }
  if (loss.requires_grad()) loss.backward();
  const auto gradient = [](const Tensor& leaf) { return leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf); };
  for (const auto& x : leaves.x) result.d_x.push_back(gradient(x));
  for (const auto& weights : leaves.weights) result.d_weights.push_back(gradient(weights));
  for (const auto& weights : leaves.experts) result.d_experts.push_back(gradient(weights));
  return result;
}

void check_equal(const Tensor& got, const Tensor& expected, const std::string& what) {
  require(got.sizes() == expected.sizes(), what, " has another shape");
  require(expected.numel() == 0 || (got - expected).abs().max().item<double>() < 1e-12, what, " differs");
}

/// What a rank's collectives of one label moved.
std::pair<int64_t, int64_t> moved(Collectives& group, const std::string& label) {
  std::pair<int64_t, int64_t> calls_and_bytes{0, 0};
  for (const auto& record : group.log().records()) {
    if (record.operation != "all_to_all" || record.label != label) continue;
    ++calls_and_bytes.first;
    calls_and_bytes.second += record.bytes;
  }
  return calls_and_bytes;
}

void check_rank(const Case& test, const MoeConfig& whole, const Result& expected, Collectives& group) {
  const auto rank = static_cast<size_t>(group.rank());
  const int64_t num_held = kNumExperts / group.size();
  auto moe = whole;
  moe.held_begin = num_held * group.rank();
  moe.held_end = moe.held_begin + num_held;
  const auto leaves = make_leaves(test);
  std::vector<Tensor> held;
  for (const auto& weights : leaves.experts)
    held.push_back(weights.detach().narrow(0, moe.held_begin, num_held).clone().set_requires_grad(true));
  const Tensor y = experts_of_ranks(
      leaves.x[rank], {leaves.choices[rank], leaves.weights[rank]}, kNumExperts, group,
      [&](const Tensor& x, const blocks::Routing& routing) { return run_experts(x, routing, held, moe); });
  loss_of(y).backward();
  check_equal(y, expected.outputs[rank], "the output");
  check_equal(leaves.x[rank].grad(), expected.d_x[rank], "the tokens' gradient");
  check_equal(leaves.weights[rank].grad(), expected.d_weights[rank], "the gradient of the choices' weights");
  for (size_t i = 0; i < held.size(); ++i)
    check_equal(held[i].grad(), expected.d_experts[i].narrow(0, moe.held_begin, num_held), "an expert's gradient");

  // What travels is what the routing says: a row and a weight a pair, there and back again.
  int64_t num_sent = 0, num_received = 0;
  for (size_t from = 0; from < test.by_rank.size(); ++from) {
    for (const auto& token : test.by_rank[from]) {
      for (const int64_t expert : token) {
        num_sent += from == rank ? 1 : 0;
        num_received += expert / num_held == group.rank() ? 1 : 0;
      }
    }
  }
  using Moved = std::pair<int64_t, int64_t>;
  const int64_t row = kHidden * 8;
  require((moved(group, "rows of experts") == Moved{1, kNumExperts * 8}), "counts");
  require((moved(group, "tokens to experts") == Moved{1, num_sent * row}), "tokens");
  require((moved(group, "weights to experts") == Moved{1, num_sent * 8}), "weights");
  require((moved(group, "results from experts") == Moved{1, num_received * row}), "results");
  require((moved(group, "result gradients to experts") == Moved{1, num_sent * row}), "result gradients");
  require((moved(group, "token gradients from experts") == Moved{1, num_received * row}), "token gradients");
  require((moved(group, "weight gradients from experts") == Moved{1, num_received * 8}), "weight gradients");
}

}  // namespace

TEST_CASE("experts on several ranks are those on one, however uneven; what travels is what the routing says") {
  for (const std::string backend : {"threads", "gloo"}) {
    for (const bool weighs_input : {false, true}) {
      for (const auto& test : kCases) {
        const auto what = concat(backend, ", ", test.name, weighs_input ? ", weighing inputs" : "");
        CAPTURE(what);
        const auto moe = moe_config(weighs_input);
        const auto expected = one_rank(test, moe);
        auto ranks = make_group(backend, static_cast<int>(test.by_rank.size()), std::chrono::seconds(20));
        const auto errors =
            run_ranks_collecting(ranks, [&](Collectives& group) { check_rank(test, moe, expected, group); });
        for (const auto& error : errors) CHECK(error == "");
      }
    }
  }
}

TEST_CASE("a rank that fails or stalls while tokens are on their way ends the others, which name the exchange") {
  for (const std::string backend : {"threads", "gloo"}) {
    for (const bool stalls : {false, true}) {
      const auto what = concat(backend, stalls ? " stalls" : " fails");
      CAPTURE(what);
      auto ranks = make_group(backend, 2, std::chrono::milliseconds(stalls ? 400 : 20000));
      std::atomic<bool> has_ended{false};
      const auto errors = run_ranks_collecting(ranks, [&](Collectives& group) {
        const auto leaves = make_leaves(kCases[0]);
        const auto rank = static_cast<size_t>(group.rank());
        try {
          experts_of_ranks(leaves.x[rank], {leaves.choices[rank], leaves.weights[rank]}, kNumExperts, group,
                           [&](const Tensor& x, const blocks::Routing&) {
                             if (rank == 0) return x;
                             if (!stalls) fail("expert 4 has no memory");
                             const auto start = std::chrono::steady_clock::now();
                             while (!has_ended && std::chrono::steady_clock::now() - start < std::chrono::seconds(20))
                               std::this_thread::yield();
                             return x;
                           });
        } catch (const std::exception&) {
          has_ended = true;
          throw;
        }
      });
      CHECK_MESSAGE(errors[0].find("all_to_all 'results from experts'") != std::string::npos, errors[0]);
      CHECK_MESSAGE(errors[0].find(stalls ? "rank 1" : "expert 4 has no memory") != std::string::npos, errors[0]);
    }
  }
}
