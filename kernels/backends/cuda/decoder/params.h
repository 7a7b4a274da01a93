// SPDX-License-Identifier: MIT
// Arguments of decoder_step, a decode step through the layers of a decoder, for the device and its host.
#pragma once

#include <cstdint>

namespace tilekiln::cuda::decoder {

constexpr int kWarps = 8, kThreads = 32 * (kWarps + 1);  // warps that multiply, and one that copies
constexpr int kRows = 8, kColumns = 8, kDepth = 1024;    // of a step, and of a stage
constexpr int kRowBytes = kDepth * 2 + 64, kStageBytes = kColumns * kRowBytes;
constexpr int kTiles = 4;  // whose sums are added up at once
constexpr int kHeads = 2;  // queries' heads that read a key at once
constexpr int kMostStages = 12;
constexpr int kLeastKeys = 256;                                               // of a split, but the last
constexpr int kHeadBytes = 256;                                               // barriers
constexpr int kSumBytes = 2 * kTiles * kWarps * kRows * kColumns * 4 + 4096;  // or parts of attention
constexpr int kFlight = 3;                                                    // stages on their way

// Addresses of a layer's arrays: weights (columns, depth) contiguous; keys and values of the cache.
struct Layer {
  const uint16_t *qkv, *out, *gate, *up, *down, *norm_1, *norm_2;
  uint16_t *keys, *values;
};

// A logit and its token.
struct Best {
  float logit;
  int token;
};

// Arguments of a caller, its own size first.
struct Call {
  int64_t size;
  void* stream;
  const Layer* layers;  // on the device
  const uint16_t* x;    // (rows, hidden), contiguous
  uint16_t* y;
  const uint16_t *cos, *sin;  // (positions, hdim / 2)
  int* lengths;               // tokens in the cache before, of each row, on the device
  void* workspace;            // zeros at first, of which no two steps that may run at once have the same; null: asks
  const uint16_t *head, *last_norm;  // (vocabulary, hidden) and its norm; null: y is all
  uint16_t* logits;                  // (rows, vocabulary)
  int64_t* tokens;                   // (rows), the most probable ones; lengths become one more. Null: they are not made
  int64_t workspace_bytes, cos_row, sin_row, cache_row, cache_head;
  int device, dtype, count, rows, hidden, inner, heads, kv_heads, hdim, rounds, vocabulary, padding;
  float scale, epsilon;
};

struct Params {
  const Layer* layers;  // on the device
  int count;
  const uint16_t* x;  // (rows, hidden), contiguous
  uint16_t* y;
  const uint16_t *cos, *sin;  // (positions, hdim / 2)
  int64_t cos_row, sin_row;
  int* lengths;  // tokens in the cache before, of each row
  int rows, hidden, inner, heads, kv_heads, splits;
  int64_t cache_row, cache_head;  // elements; tokens lie one after another
  float scale, epsilon;           // scale times log2(e)
  int rounds;                     // the norm rounds before its factors
  // Memory of the launch: qkv (rows, heads + 2 kv_heads, hdim), attended (rows, heads, hdim), middle (rows, hidden),
  // gated (rows, inner); parts of splits; words that are 0 before and after.
  uint16_t *qkv, *attended, *middle, *gated;
  float* parts;
  unsigned *met, *left, *arrived;
  const uint16_t *head, *last_norm;
  uint16_t* logits;
  int64_t* tokens;
  Best* best;  // (rows, CTAs)
  int vocabulary;
  int stages, flight;  // stages of the ring, and of those on their way, fewer
};

struct Build { int threads, fp16, hdim; };

}  // namespace tilekiln::cuda::decoder
