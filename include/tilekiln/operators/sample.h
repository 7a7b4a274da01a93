/* SPDX-License-Identifier: MIT */
/* sample.h - Made by `python -m codegen operators --write` from kernels/norm/sample/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_SAMPLE_H
#define TILEKILN_OPERATORS_SAMPLE_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Sampling: a token of each row of logits, by temperature, top-k, top-p, min-p and penalties, with the same bits on every machine.
 *
 * logits (rows, vocabulary), tokens and logprobs (rows). In this order, in fp32, each operation rounded: repetition_penalty divides the
 * logits above 0, and multiplies those below, of tokens that stand in prompt or generated; frequency_penalty times how often a token
 * stands in generated is taken off, and presence_penalty where it stands there at all. Tokens outside of the vocabulary, as -1, are no
 * tokens: they fill up rows. -0 is 0, +inf is 3.40282347e38. Let v be these numbers, top the highest.
 *
 * The order is the highest v first, of equal ones the lower index. temperature 0 takes the first of it. Otherwise the weight of a token
 * is the integer 2^40 2^-t, t = (top - v) log2(e) / temperature, off by less than 2^-20 of itself and one: what lies 41 octaves below is 0. The first
 * top_k
 * tokens stay (0: all), of them the fewest first ones whose weights sum up to top_p of theirs or more (top_p cut to 2^-40), of these those
 * whose weight is at least min_p of the highest. With W the sum of their weights and r the first 64 bits of Philox-4x32-7 of seed and of
 * the counter (offset, row, 2^32 - 1), the token is the first by index at which the weights up to it sum up to more than floor(r W / 2^64).
 *
 * Sums of integers are the same in any order: a token is the same bits whatever the ISA, threads and the rows beside it. Every call wants
 * another offset (or seed): offset + 1 does. With seeds the row number in the counter is 0, so that a row's token follows from it alone.
 *
 * logprobs: log of the probability with which the token was drawn, 0 at temperature 0 (logprob_of drawn); or of the logits as they are
 * given: log softmax(logits) there (logits). Off by 2^-19 and 2^-22 of itself.
 *
 * A row that holds a NaN, or nothing above -inf, or whose parameter in an array is not one that the argument of one number may be, has the
 * token -1 and logprobs NaN. Without a stream such a parameter is an error. Rows may have any stride; results share memory with nothing. */
typedef struct tilekiln_sample_args {
  size_t size; /* sizeof(tilekiln_sample_args): set by tilekiln_sample_defaults */
  const tilekiln_tensor* logits; /* fp32, fp16 or bf16 (rows, vocabulary). Of each token of the vocabulary */
  float temperature; /* what logits are divided by; 0: the highest is taken */
  int32_t top_k; /* tokens that are chosen from */
  float top_p; /* probability that the tokens to choose from have together */
  float min_p; /* least probability of a token to choose, as a share of the highest */
  float repetition_penalty; /* what logits of tokens that are there already are divided by */
  float presence_penalty; /* what is taken off logits of generated tokens */
  float frequency_penalty; /* the same for each time that one stands there */
  uint64_t rng_seed, rng_offset; /* of Philox-4x32-7 */
  const tilekiln_tensor* prompt; /* int32 or int64 (rows, prompt length); or null. tokens that the model was given; -1 fills up */
  const tilekiln_tensor* generated; /* int32 or int64 (rows, generated length); or null. tokens that it made; -1 fills up */
  const tilekiln_tensor* temperatures; /* fp32 (rows); or null. Of each row, in place of temperature */
  const tilekiln_tensor* top_ks; /* int32 (rows); or null. Of each row, in place of top_k */
  const tilekiln_tensor* top_ps; /* fp32 (rows); or null. Of each row, in place of top_p */
  const tilekiln_tensor* min_ps; /* fp32 (rows); or null. Of each row, in place of min_p */
  const tilekiln_tensor* repetition_penalties; /* fp32 (rows); or null. Of each row, in place of repetition_penalty */
  const tilekiln_tensor* presence_penalties; /* fp32 (rows); or null. Of each row, in place of presence_penalty */
  const tilekiln_tensor* frequency_penalties; /* fp32 (rows); or null. Of each row, in place of frequency_penalty */
  const tilekiln_tensor* seeds; /* int64 (rows); or null. Of each row, in place of rng's seed */
  const tilekiln_tensor* offsets; /* int64 (rows); or null. Of each row, in place of rng's offset */
  int32_t logprob_of; /* 0 (drawn) or 1 (logits). What logprobs are taken of */
  const tilekiln_tensor* tokens; /* int32 (rows). drawn, or -1 */
  const tilekiln_tensor* logprobs; /* fp32 (rows); or null. Of the tokens */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_sample_args;

/* temperature 1, top_p 1, repetition_penalty 1, instance -1, others absent or 0. Then set logits and tokens. */
static inline tilekiln_sample_args tilekiln_sample_defaults(void) {
  TILEKILN_ZEROED(tilekiln_sample_args, args);
  args.temperature = 1.0f;
  args.top_p = 1.0f;
  args.repetition_penalty = 1.0f;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_sample(const tilekiln_sample_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_sample_find(const tilekiln_sample_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_sample_why(const tilekiln_sample_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
