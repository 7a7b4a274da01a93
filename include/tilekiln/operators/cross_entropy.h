/* SPDX-License-Identifier: MIT */
/* cross_entropy.h - Made by `python -m codegen operators --write` from kernels/norm/cross_entropy/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_CROSS_ENTROPY_H
#define TILEKILN_OPERATORS_CROSS_ENTROPY_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Cross entropy of rows of logits: loss = logsumexp(s) - s[label], s = logit_scale logits, with label smoothing and z-loss.
 *
 * logits (rows, classes), labels, loss, lse (rows); loss and lse are fp32, and so is everything between. With e = label_smoothing:
 * loss = lse - (1 - e) s[label] - e / total_classes sum(s) + lse_square_scale lse^2 and lse = log(sum(exp(s))), or precomputed_lse.
 * A row whose label is ignore_index has loss and lse 0, and its logits are not read. A NaN or +inf of another row makes its loss NaN.
 *
 * Where processes share the classes, logits are those from first_class on, and total_classes says how many there are in all (0: those of
 * logits). A label outside of them has no logit here: the term of s[label] is missing from the loss of its row.
 *
 * Rows of logits may have any stride, the last dimension is contiguous; labels are int32 or int64. Results share memory with nothing. */
typedef struct tilekiln_cross_entropy_args {
  size_t size; /* sizeof(tilekiln_cross_entropy_args): set by tilekiln_cross_entropy_defaults */
  const tilekiln_tensor* logits; /* fp32, fp16 or bf16 (rows, classes). Of each class */
  const tilekiln_tensor* labels; /* int32 or int64 (rows). The class of each row */
  const tilekiln_tensor* precomputed_lse; /* fp32 (rows); or null. log(sum(exp(s))) of each row, if it is known */
  float label_smoothing; /* share of the loss that all classes have alike */
  float logit_scale; /* what logits are multiplied by first */
  float lse_square_scale; /* z-loss: what lse^2 adds to the loss */
  int32_t ignore_index; /* the label of rows that have no loss */
  int32_t first_class; /* the class of the first column of logits */
  int32_t total_classes; /* how many classes there are in all */
  const tilekiln_tensor* loss; /* fp32 (rows). Of each row */
  const tilekiln_tensor* lse; /* fp32 (rows); or null. log(sum(exp(s))) of each row, which the backward reads */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_cross_entropy_args;

/* logit_scale 1, ignore_index -100, instance -1, others absent. Then set logits, labels and loss. */
static inline tilekiln_cross_entropy_args tilekiln_cross_entropy_defaults(void) {
  TILEKILN_ZEROED(tilekiln_cross_entropy_args, args);
  args.logit_scale = 1.0f;
  args.ignore_index = -100;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_cross_entropy(const tilekiln_cross_entropy_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_cross_entropy_find(const tilekiln_cross_entropy_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_cross_entropy_why(const tilekiln_cross_entropy_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
