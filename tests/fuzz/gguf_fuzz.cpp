// Any bytes given as a GGUF file: an error, or metadata, a tokenizer and tensors that can be read whole, never a crash.
#include "base/error.h"
#include "models/formats/dequantise.h"
#include "models/formats/gguf_header.h"
#include "models/formats/gguf_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  try {
    const auto header = troupe::parse_gguf_header(file, "fuzz");
    for (const auto& [name, tensor] : header.tensors) {
      std::vector<float> block(tensor.type->block_size);
      const auto num_blocks = tensor.bytes.size() / tensor.type->block_bytes;
      for (size_t i = 0; i < num_blocks; ++i) {
        troupe::dequantise_gguf(tensor.type->id, tensor.bytes.data() + i * tensor.type->block_bytes, 1, block.data());
      }
    }
    troupe::gguf_tokenizer_config(header);
    troupe::gguf_tokenizer_json(header);
  } catch (const troupe::Error&) {
  }
  return 0;
}
