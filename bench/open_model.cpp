// Times what stands before a run: opening a model, loading its weights in fp32 and bf16 (the second time, with the file
// cached), and tokenizing and decoding a text on one core.
//
// usage: bench-open-model MODEL TEXT_FILE [repeats]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/file.h"
#include "models/formats/checkpoint_reader.h"
#include "models/text/model_text.h"

namespace {

using namespace troupe;

/// Seconds of the quickest of `repeats` calls.
template <class Body>
double seconds(int repeats, const Body& body) {
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s MODEL TEXT_FILE [repeats]\n", argv[0]);
    return 2;
  }
  const int repeats = argc > 3 ? std::max(1, std::atoi(argv[3])) : 5;
  std::unique_ptr<CheckpointReader> reader;
  std::printf("open: %.3f s\n", seconds(repeats, [&] { reader = open_checkpoint(argv[1]); }));
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    int64_t bytes = 0;
    const double time = seconds(repeats, [&] {
      bytes = 0;
      for (const auto& [name, tensor] : load_weights(*reader, dtype)) bytes += static_cast<int64_t>(tensor.nbytes());
    });
    std::printf("load %s: %.3f s for %.0f MB, %.2f GB/s\n", c10::toString(dtype), time,
                static_cast<double>(bytes) / 1e6, static_cast<double>(bytes) / 1e9 / time);
  }
  const auto files = reader->text_files();
  std::unique_ptr<Tokenizer> tokenizer;
  std::printf("open tokenizer: %.3f s (%s)\n", seconds(repeats, [&] { tokenizer = open_tokenizer(files); }),
              describe_tokenizer(files).c_str());
  if (tokenizer == nullptr) return 1;
  const auto text = read_file(argv[2]);
  const auto megabytes = static_cast<double>(text.size()) / 1e6;
  std::vector<int32_t> ids;
  const double encoding = seconds(repeats, [&] { ids = tokenizer->encode(text, false); });
  std::string again;
  const double decoding = seconds(repeats, [&] { again = tokenizer->decode(ids, false); });
  const double spans = seconds(repeats, [&] { tokenizer->encode_with_spans(text, false); });
  std::printf("encode: %.2f MB/s (%zu tokens of %.1f MB), with spans %.2f MB/s; decode: %.2f MB/s%s\n",
              megabytes / encoding, ids.size(), megabytes, megabytes / spans, megabytes / decoding,
              again == text ? "" : ", and differs from the text");
  return 0;
}
