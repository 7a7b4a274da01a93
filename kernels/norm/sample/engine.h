// SPDX-License-Identifier: MIT
// The border between the host side and the CPU engines of sample: plain data, no ISA, no std header, no inline function.
#pragma once

namespace tilekiln::norm {

// A parameter of all rows, or of each where `rows` is given.
struct RealOfRows {
  const float* rows;
  float all;
};
struct WholeOfRows {
  const int* rows;
  int all;
};
struct WordOfRows {
  const long long* rows;
  unsigned long long all;
};
// Tokens of each row, of 4 or 8 bytes each; null: none.
struct TokensOfRows {
  const void* data;
  long long row, length;
  int bytes;
};

// One call, after every check. Strides are in elements; a row is contiguous. What is absent is null.
struct Sample {
  static constexpr bool launches_kernels = true;
  const void* logits;
  int* tokens;
  float* logprobs;
  long long logits_row, rows;
  RealOfRows temperature, top_p, min_p, repetition, presence, frequency;
  WholeOfRows top_k;
  WordOfRows seed, offset;
  TokensOfRows prompt, generated;
  int columns, dtype;  // by value of the axis dtype
  bool of_logits;      // logprobs are those of the logits as they are given
};

// rows[dtype] draws a token for each of the rows [first, last); scratch holds what sample_scratch of its columns says.
struct SampleEngine { void (*rows[3])(const Sample&, long long first, long long last, void* scratch); };

// Numbers of a row that are weighed together, and the places of its histogram.
constexpr int kSampleBlock = 64, kSampleBuckets = 42 * 32 + 1;

// Beginnings of the parts of a row's memory, in bytes, and how many those are in all.
struct SampleScratch {
  unsigned long long values, counts, list_weights, list_values, list_indices, sums, mass, count, all;
};
constexpr SampleScratch sample_scratch(long long columns) {
  const unsigned long long n = (columns + kSampleBlock - 1) / kSampleBlock * kSampleBlock;
  SampleScratch at = {};
  at.values = 0;
  at.counts = at.values + 4 * n;
  at.list_weights = at.counts + 4 * n;
  at.list_values = at.list_weights + 8 * n;
  at.list_indices = at.list_values + 4 * n;
  at.sums = at.list_indices + 4 * n;
  at.mass = at.sums + (n / kSampleBlock + 7) / 8 * 64;
  at.count = at.mass + (kSampleBuckets + 7) / 8 * 64;
  at.all = at.count + (kSampleBuckets + 15) / 16 * 64;
  return at;
}

}  // namespace tilekiln::norm
