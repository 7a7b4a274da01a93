/* SPDX-License-Identifier: MIT */
/* cross_entropy_bwd.h - Made by `python -m codegen operators --write` from kernels/norm/cross_entropy_bwd/operator.yaml; change that. */
#ifndef TILEKILN_OPERATORS_CROSS_ENTROPY_BWD_H
#define TILEKILN_OPERATORS_CROSS_ENTROPY_BWD_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

/* Gradient of cross_entropy: dlogits from dloss.
 *
 * dloss, labels, lse (rows), logits, dlogits (rows, classes). With s = logit_scale logits, e = label_smoothing and z = lse_square_scale:
 * dlogits = dloss logit_scale (exp(s - lse) (1 + 2 z lse) - e / total_classes, and 1 - e less where the class is the label). lse, of all
 * classes where processes share them, is cross_entropy's, and the numbers are those of that call. A row whose label is ignore_index has
 * the gradient 0, whatever it holds. Everything is fp32, rounded once.
 *
 * Rows of logits and dlogits may have any stride, the last dimension is contiguous. dlogits may be logits: the same memory with the same
 * strides; otherwise it shares memory with nothing. */
typedef struct tilekiln_cross_entropy_bwd_args {
  size_t size; /* sizeof(tilekiln_cross_entropy_bwd_args): set by tilekiln_cross_entropy_bwd_defaults */
  const tilekiln_tensor* dloss; /* fp32 (rows). The gradient of loss */
  const tilekiln_tensor* logits; /* fp32, fp16 or bf16 (rows, classes). As in the forward */
  const tilekiln_tensor* labels; /* int32 or int64 (rows). As in the forward */
  const tilekiln_tensor* lse; /* fp32 (rows). What the forward has made */
  float label_smoothing; /* share of the loss that all classes have alike */
  float logit_scale; /* what logits are multiplied by first */
  float lse_square_scale; /* z-loss: what lse^2 adds to the loss */
  int32_t ignore_index; /* the label of rows that have no loss */
  int32_t first_class; /* the class of the first column of logits */
  int32_t total_classes; /* how many classes there are in all */
  const tilekiln_tensor* dlogits; /* dtype of logits (rows, classes). The gradient of logits */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses; else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now, in the caller */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_cross_entropy_bwd_args;

/* logit_scale 1, ignore_index -100, instance -1. Then set dloss, logits, labels, lse and dlogits. */
static inline tilekiln_cross_entropy_bwd_args tilekiln_cross_entropy_bwd_defaults(void) {
  TILEKILN_ZEROED(tilekiln_cross_entropy_bwd_args, args);
  args.logit_scale = 1.0f;
  args.ignore_index = -100;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_cross_entropy_bwd(const tilekiln_cross_entropy_bwd_args* args);
/* Questions about a call: base.h says what every _find and _why answers. */
TILEKILN_API tilekiln_status tilekiln_cross_entropy_bwd_find(const tilekiln_cross_entropy_bwd_args* args, int64_t* instance);
TILEKILN_API tilekiln_status tilekiln_cross_entropy_bwd_why(const tilekiln_cross_entropy_bwd_args* args, char* text, size_t capacity, size_t* length);

TILEKILN_END_C
#endif
