// Attention over tokens that are spread over ranks, against one rank's.
#include "parallel/ring_attention.h"

#include "models/kernels/attention_reference.h"
#include "tests/doctest.h"
#include "tests/parallel/ranks.h"

using namespace troupe;
using namespace troupe::parallel_testing;

namespace {

/// Segments of the given lengths and parents.
PackedLayout layout_of(const std::vector<std::pair<int32_t, int32_t>>& lengths_and_parents) {
  PackedLayout layout;
  for (const auto& [length, parent] : lengths_and_parents) {
    layout.segments.push_back({layout.num_tokens, length, parent});
    layout.num_tokens += length;
  }
  return layout;
}

Tensor places_of(const ContextTokens& tokens) { return at::tensor(tokens.places(), at::kLong); }

}  // namespace

TEST_CASE("B105 tokens and their places come back in order, balanced or not, any length") {
  CHECK(ContextTokens(8, 0, 2, true).places() == std::vector<int64_t>{0, 1, 6, 7});
  CHECK(ContextTokens(8, 1, 2, true).places() == std::vector<int64_t>{2, 3, 4, 5});
  CHECK(ContextTokens(8, 0, 2, false).places() == std::vector<int64_t>{0, 1, 2, 3});
  for (const bool head_tail : {true, false}) {
    for (const int64_t num_tokens : {1, 2, 7, 8, 9, 31}) {
      for (const int size : {1, 2, 4}) {
        std::vector<int64_t> found(static_cast<size_t>(num_tokens), -1);
        for (int rank = 0; rank < size; ++rank) {
          const ContextTokens tokens(num_tokens, rank, size, head_tail);
          const auto places = tokens.places();
          CHECK(static_cast<int64_t>(places.size()) == tokens.num_local());
          for (int64_t place = 0; place < num_tokens; ++place) {
            const auto local = tokens.local_place(place);
            if (local < 0) continue;
            CHECK(found[static_cast<size_t>(place)] == -1);
            found[static_cast<size_t>(place)] = places[static_cast<size_t>(local)];
          }
        }
        for (int64_t place = 0; place < num_tokens; ++place) CHECK(found[static_cast<size_t>(place)] == place);
      }
    }
  }
}

TEST_CASE(
    "ring attention is attention: packed documents, shared prompts, grouped heads, any length and number of ranks") {
  const std::vector<PackedLayout> layouts = {layout_of({{1, -1}}), layout_of({{7, -1}}), layout_of({{16, -1}}),
                                             layout_of({{5, -1}, {1, -1}, {9, -1}, {4, -1}}),
                                             layout_of({{6, -1}, {3, 0}, {5, 0}, {4, -1}, {2, 3}})};
  const kernels::AttentionShape shape{4, 2, 6, 0.4};
  for (const auto& layout : layouts) {
    for (const int size : {1, 2, 3, 4}) {
      for (const bool head_tail : {true, false}) {
        CAPTURE(layout.num_tokens);
        CAPTURE(size);
        const auto padded = padded_layout(layout, ContextTokens(layout.num_tokens, 0, size, head_tail).num_padded());
        auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
        const auto options = at::TensorOptions(at::kDouble);
        const auto qkv = at::randn({padded.num_tokens, 8 * 6}, generator, options);
        const auto d_output = at::randn({padded.num_tokens, 4 * 6}, generator, options);
        const auto expected = kernels::attention_forward_reference(qkv, padded, shape);
        const auto d_expected = kernels::attention_backward_reference(d_output, qkv, expected, padded, shape);
        std::mutex mutex;
        run_ranks(size, [&](Collectives& context) {
          const ContextTokens tokens(layout.num_tokens, context.rank(), size, head_tail);
          const auto mine = places_of(tokens);
          const auto own = qkv.index_select(0, mine);
          const auto got = ring_attention_forward(own, padded, shape, tokens, context);
          const auto d_got =
              ring_attention_backward(d_output.index_select(0, mine), own, got, padded, shape, tokens, context);
          const auto error = [&](const Tensor& a, const Tensor& b) { return (a - b).abs().max().item<double>(); };
          const std::lock_guard lock(mutex);
          CHECK(error(got.output, expected.output.index_select(0, mine)) < 1e-12);
          CHECK(error(got.log_sum_exp, expected.log_sum_exp.index_select(1, mine)) < 1e-12);
          CHECK(error(d_got, d_expected.index_select(0, mine)) < 1e-11);
          // Never an all-gather: keys and values go around once forward and once backward, their gradients home.
          const int64_t part = tokens.num_local() * 2 * 2 * 6 * 8;
          const auto sent = context.log().totals("send");
          CHECK((sent ==
                 std::pair<int64_t, int64_t>{size == 1 ? 0 : 3 * size - 2, size == 1 ? 0 : (3 * size - 2) * part}));
          CHECK(context.log().totals("receive") == sent);
          CHECK(context.log().totals("all_gather").first == 0);
        });
      }
    }
  }
}

TEST_CASE("head and tail share the work of a causal row evenly") {
  // Pairs of tokens that see each other, by rank; without balance the last rank has several times the first's.
  const auto pairs = [](int rank, int size, bool head_tail) {
    int64_t count = 0;
    for (const auto place : ContextTokens(64, rank, size, head_tail).places()) count += place + 1;
    return count;
  };
  for (int rank = 0; rank < 4; ++rank) CHECK(pairs(rank, 4, true) == 64 * 65 / 2 / 4);
  CHECK(pairs(3, 4, false) > 6 * pairs(0, 4, false));
}
