#include "models/formats/dequantise.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "models/formats/dequantise_k.h"

namespace troupe {
namespace {

uint16_t load_16(const uint8_t* at) { return static_cast<uint16_t>(at[0] | at[1] << 8); }
uint32_t load_32(const uint8_t* at) {
  uint32_t value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}
float load_half(const uint8_t* at) { return half_to_float(load_16(at)); }

// Blocks of 32: a half scale (and a half minimum in the _1 kinds), then 4-bit quants whose low nibbles are elements
// 0-15 and whose high nibbles are 16-31; the 5-bit kinds keep the fifth bits in one 32-bit word.
void unpack_q4_0(const uint8_t* block, float* out) {
  const float scale = load_half(block);
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>((block[2 + i] & 15) - 8);
    out[i + 16] = scale * static_cast<float>((block[2 + i] >> 4) - 8);
  }
}

void unpack_q4_1(const uint8_t* block, float* out) {
  const float scale = load_half(block);
  const float minimum = load_half(block + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>(block[4 + i] & 15) + minimum;
    out[i + 16] = scale * static_cast<float>(block[4 + i] >> 4) + minimum;
  }
}

void unpack_q5_0(const uint8_t* block, float* out) {
  const float scale = load_half(block);
  const uint32_t fifth = load_32(block + 2);
  for (int i = 0; i < 16; ++i) {
    const auto low = (block[6 + i] & 15) | ((fifth >> i & 1) << 4);
    const auto high = (block[6 + i] >> 4) | ((fifth >> (i + 16) & 1) << 4);
    out[i] = scale * static_cast<float>(static_cast<int>(low) - 16);
    out[i + 16] = scale * static_cast<float>(static_cast<int>(high) - 16);
  }
}

void unpack_q5_1(const uint8_t* block, float* out) {
  const float scale = load_half(block);
  const float minimum = load_half(block + 2);
  const uint32_t fifth = load_32(block + 4);
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>((block[8 + i] & 15) | ((fifth >> i & 1) << 4)) + minimum;
    out[i + 16] = scale * static_cast<float>((block[8 + i] >> 4) | ((fifth >> (i + 16) & 1) << 4)) + minimum;
  }
}

void unpack_q8_0(const uint8_t* block, float* out) {
  const float scale = load_half(block);
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

/// The sixteen values of e2m1: sign, two bits of exponent, one of fraction.
constexpr float kFloat4[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                               -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// ggml's own order of MXFP4: the scale, then low nibbles for elements 0-15 and high ones for 16-31.
void unpack_mxfp4_block(const uint8_t* block, float* out) {
  const float scale = e8m0_to_float(block[0]);
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * kFloat4[block[1 + i] & 15];
    out[i + 16] = scale * kFloat4[block[1 + i] >> 4];
  }
}

using Unpack = void (*)(const uint8_t* block, float* out);

struct Kind {
  uint32_t id;
  size_t block_bytes, block_size;
  Unpack unpack;
};

constexpr Kind kKinds[] = {
    {0, 4, 1, [](const uint8_t* block, float* out) { std::memcpy(out, block, sizeof(float)); }},
    {1, 2, 1, [](const uint8_t* block, float* out) { *out = load_half(block); }},
    {30, 2, 1, [](const uint8_t* block, float* out) { *out = bfloat16_to_float(load_16(block)); }},
    {2, 18, 32, unpack_q4_0},
    {3, 20, 32, unpack_q4_1},
    {6, 22, 32, unpack_q5_0},
    {7, 24, 32, unpack_q5_1},
    {8, 34, 32, unpack_q8_0},
    {10, 84, 256, unpack_q2_k},
    {11, 110, 256, unpack_q3_k},
    {12, 144, 256, unpack_q4_k},
    {13, 176, 256, unpack_q5_k},
    {14, 210, 256, unpack_q6_k},
    {39, 17, 32, unpack_mxfp4_block},
};

}  // namespace

float half_to_float(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t exponent = half >> 10 & 31;
  const uint32_t fraction = half & 0x3ff;
  if (exponent == 0) {  // zero and subnormal: fraction * 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide_exponent = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | wide_exponent << 23 | fraction << 13);
}

float float8_e4m3_to_float(uint8_t bits) {
  const int exponent = bits >> 3 & 15;
  const int fraction = bits & 7;
  const float sign = bits & 0x80 ? -1.0f : 1.0f;
  if ((bits & 0x7f) == 0x7f) return std::nanf("");
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -9);
  return sign * std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
}

float e8m0_to_float(uint8_t bits) { return bits == 0xff ? std::nanf("") : std::ldexp(1.0f, bits - 127); }

void dequantise_mxfp4(const uint8_t* blocks, const uint8_t* scales, size_t num_blocks, float* out) {
  for (size_t block = 0; block < num_blocks; ++block) {
    const float scale = e8m0_to_float(scales[block]);
    for (size_t i = 0; i < 16; ++i) {
      const auto pair = blocks[block * 16 + i];
      *out++ = scale * kFloat4[pair & 15];
      *out++ = scale * kFloat4[pair >> 4];
    }
  }
}

void dequantise_fp8_row(const uint8_t* row, size_t num_columns, const float* scales, size_t block_columns, float* out) {
  static const auto values = [] {
    std::array<float, 256> table;
    for (size_t bits = 0; bits < table.size(); ++bits) table[bits] = float8_e4m3_to_float(static_cast<uint8_t>(bits));
    return table;
  }();
  for (size_t column = 0; column < num_columns; ++column)
    out[column] = values[row[column]] * scales[column / block_columns];
}

void dequantise_gguf(uint32_t type_id, const std::byte* blocks, size_t num_blocks, float* out) {
  for (const auto& kind : kKinds) {
    if (kind.id != type_id) continue;
    const auto* block = reinterpret_cast<const uint8_t*>(blocks);
    for (size_t i = 0; i < num_blocks; ++i) kind.unpack(block + i * kind.block_bytes, out + i * kind.block_size);
    return;
  }
  fail("GGUF tensor type ", type_id, " cannot be unpacked");
}

}  // namespace troupe
