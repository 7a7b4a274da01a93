/* SPDX-License-Identifier: MIT */
/* A C program that includes only tilekiln.h and runs attention: dense, causal with grouped heads and LSE, varlen, in a stream and
 * on a caller's executor, against a reference in double. Compiled as C99 and, through attention.cpp, as C++. */
#include "tilekiln/tilekiln.h"

#include <math.h>
#include <stdlib.h>

#include "check.h"

enum { BATCH = 2, SQ = 140, SK = 260, HQ = 4, HK = 2, DQ = 40, DV = 24 };

static unsigned noise_state = 1;
static float noise(void) {
  noise_state = noise_state * 1664525u + 1013904223u;
  return (float)(noise_state >> 8) / 8388608.0f - 1.0f;
}

static float* noise_array(int64_t count) {
  float* data = (float*)malloc((size_t)count * sizeof(float));
  int64_t i;
  for (i = 0; i < count; ++i) data[i] = noise();
  return data;
}

static tilekiln_tensor contiguous(void* data, int32_t dtype, int ndim, const int64_t* shape) {
  tilekiln_tensor tensor;
  int64_t stride = 1;
  int i;
  memset(&tensor, 0, sizeof(tensor));
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.ndim = ndim;
  tensor.device_type = TILEKILN_CPU;
  for (i = ndim - 1; i >= 0; --i) {
    tensor.shape[i] = shape[i];
    tensor.stride[i] = stride;
    stride *= shape[i];
  }
  return tensor;
}

/* One query of one head against sk keys; q, k and v point to their first element of the head. */
static void reference_row(const float* q, const float* k, const float* v, int sk, int visible, int heads_k, double* out,
                          double* lse) {
  double sum = 0, most = -HUGE_VAL, score[SK];
  int j, d;
  for (d = 0; d < DV; ++d) out[d] = 0;
  for (j = 0; j < sk && j < visible; ++j) {
    score[j] = 0;
    for (d = 0; d < DQ; ++d) score[j] += (double)q[d] * k[(int64_t)j * heads_k * DQ + d];
    score[j] /= sqrt((double)DQ);
    if (score[j] > most) most = score[j];
  }
  for (j = 0; j < sk && j < visible; ++j) {
    const double p = exp(score[j] - most);
    sum += p;
    for (d = 0; d < DV; ++d) out[d] += p * v[(int64_t)j * heads_k * DV + d];
  }
  for (d = 0; d < DV; ++d) out[d] = sum > 0 ? out[d] / sum : 0;
  *lse = sum > 0 ? most + log(sum) : -HUGE_VAL;
}

typedef struct { float *q, *k, *v, *out, *lse; } arrays;

static arrays make_arrays(void) {
  arrays a;
  a.q = noise_array((int64_t)BATCH * SQ * HQ * DQ);
  a.k = noise_array((int64_t)BATCH * SK * HK * DQ);
  a.v = noise_array((int64_t)BATCH * SK * HK * DV);
  a.out = noise_array((int64_t)BATCH * SQ * HQ * DV);
  a.lse = noise_array((int64_t)BATCH * HQ * SQ);
  return a;
}

static void free_arrays(arrays a) {
  free(a.q);
  free(a.k);
  free(a.v);
  free(a.out);
  free(a.lse);
}

/* The largest difference between out (and lse, unless null) and the reference, batch mode. */
static double worst(arrays a, int causal, int with_lse) {
  double most = 0, out[DV], lse;
  int b, h, i, d;
  for (b = 0; b < BATCH; ++b) {
    for (h = 0; h < HQ; ++h) {
      for (i = 0; i < SQ; ++i) {
        const int hk = h / (HQ / HK);
        reference_row(a.q + (((int64_t)b * SQ + i) * HQ + h) * DQ, a.k + ((int64_t)b * SK * HK + hk) * DQ,
                      a.v + ((int64_t)b * SK * HK + hk) * DV, SK, causal ? i + 1 + SK - SQ : SK, HK, out, &lse);
        for (d = 0; d < DV; ++d) {
          const double difference = fabs(out[d] - a.out[(((int64_t)b * SQ + i) * HQ + h) * DV + d]);
          if (!(difference <= most)) most = difference;
        }
        if (with_lse) {
          const double difference = fabs(lse - a.lse[((int64_t)b * HQ + h) * SQ + i]);
          if (!(difference <= most)) most = difference;
        }
      }
    }
  }
  return most;
}

static void spoil(arrays a) {
  int64_t i;
  for (i = 0; i < (int64_t)BATCH * SQ * HQ * DV; ++i) a.out[i] = 1e30f;
  for (i = 0; i < (int64_t)BATCH * HQ * SQ; ++i) a.lse[i] = 1e30f;
}

typedef struct {
  int calls;
  int64_t tasks;
} serial_pool;

static void serial_for(void* pool, int64_t count, int32_t max_workers, tilekiln_task task, void* context) {
  int64_t i;
  serial_pool* own = (serial_pool*)pool;
  ++own->calls;
  own->tasks += count;
  CHECK(max_workers >= 1 && max_workers <= 3);
  for (i = 0; i < count; ++i) task(context, i, 0);
}

/* Few queries: split-KV answers fmha_fwd, to the same numbers. */
static void few_queries(tilekiln_fmha_fwd_args args, const float* expected) {
  const int64_t shape_q[] = {1, 2, HQ, DQ}, shape_k[] = {1, SK, HK, DQ}, shape_v[] = {1, SK, HK, DV},
                shape_out[] = {1, 2, HQ, DV};
  float made[2 * HQ * DV];
  const tilekiln_tensor q = contiguous(args.q->data, TILEKILN_FP32, 4, shape_q),
                        k = contiguous(args.k->data, TILEKILN_FP32, 4, shape_k);
  const tilekiln_tensor v = contiguous(args.v->data, TILEKILN_FP32, 4, shape_v),
                        out = contiguous(made, TILEKILN_FP32, 4, shape_out);
  int64_t instance = -1;
  int i;
  args.q = &q;
  args.k = &k;
  args.v = &v;
  args.out = &out;
  CHECK(tilekiln_fmha_fwd_find(&args, &instance) == TILEKILN_OK);
  CHECK_HOLDS(tilekiln_instance_name(instance), "fmha_fwd_splitkv_fp32_d");
  CHECK(tilekiln_fmha_fwd(&args) == TILEKILN_OK);
  for (i = 0; i < 2 * HQ * DV; ++i) CHECK(fabs(made[i] - expected[i]) < 2e-6);
  args.instance = instance;
  CHECK(tilekiln_fmha_fwd(&args) == TILEKILN_OK);
}

static void count_up(void* context) { ++*(int*)context; }

static void batch_mode(void) {
  const int64_t shape_q[] = {BATCH, SQ, HQ, DQ}, shape_k[] = {BATCH, SK, HK, DQ}, shape_v[] = {BATCH, SK, HK, DV};
  const int64_t shape_out[] = {BATCH, SQ, HQ, DV}, shape_lse[] = {BATCH, HQ, SQ};
  arrays a = make_arrays();
  const tilekiln_tensor q = contiguous(a.q, TILEKILN_FP32, 4, shape_q), k = contiguous(a.k, TILEKILN_FP32, 4, shape_k);
  const tilekiln_tensor v = contiguous(a.v, TILEKILN_FP32, 4, shape_v),
                        out = contiguous(a.out, TILEKILN_FP32, 4, shape_out);
  const tilekiln_tensor lse = contiguous(a.lse, TILEKILN_FP32, 3, shape_lse);
  tilekiln_fmha_fwd_args args = tilekiln_fmha_fwd_defaults();
  serial_pool pool = {0, 0};
  tilekiln_executor executor;
  tilekiln_stream* stream = NULL;
  int64_t instance = -1;
  int32_t idle = 0;
  int counted = 0, threads;
  char text[16384];
  size_t length = 0;
  args.q = &q;
  args.k = &k;
  args.v = &v;
  args.out = &out;
  for (threads = 1; threads <= 3; ++threads) {
    args.num_threads = threads;
    spoil(a);
    CHECK(tilekiln_fmha_fwd(&args) == TILEKILN_OK);
    CHECK(worst(a, 0, 0) < 2e-6);
  }
  few_queries(args, a.out);
  args.num_threads = 0;
  args.lse = &lse;
  args.causal = 1;
  spoil(a);
  CHECK(tilekiln_fmha_fwd(&args) == TILEKILN_OK);
  CHECK(worst(a, 1, 1) < 2e-6);

  /* The choice, and the same instance asked for by its number. */
  CHECK(tilekiln_fmha_fwd_find(&args, &instance) == TILEKILN_OK);
  CHECK(instance >= 0 && instance < tilekiln_instance_count());
  CHECK(tilekiln_instance_usable(instance) == 1);
  CHECK_HOLDS(tilekiln_instance_name(instance), "fmha_fwd_fp32_d");
  CHECK(tilekiln_fmha_fwd_why(&args, text, sizeof(text), &length) == TILEKILN_OK);
  CHECK(length == strlen(text));
  CHECK_HOLDS(text, "chosen: ");
  CHECK_HOLDS(text, tilekiln_instance_name(instance));
  CHECK(tilekiln_fmha_fwd_why(&args, text, 10, &length) == TILEKILN_OK);
  CHECK(strlen(text) == 9 && length > 9);
  CHECK(tilekiln_fmha_fwd_why(&args, NULL, 0, &length) == TILEKILN_OK);
  args.instance = instance;
  spoil(a);
  CHECK(tilekiln_fmha_fwd(&args) == TILEKILN_OK);
  CHECK(worst(a, 1, 1) < 2e-6);
  args.instance = -1;

  /* A stream: the call returns at once, host functions run in order with it. */
  CHECK(tilekiln_stream_create(&stream) == TILEKILN_OK);
  args.stream = stream;
  spoil(a);
  CHECK(tilekiln_stream_launch_host(stream, count_up, &counted) == TILEKILN_OK);
  CHECK(tilekiln_fmha_fwd(&args) == TILEKILN_OK);
  CHECK(tilekiln_stream_launch_host(stream, count_up, &counted) == TILEKILN_OK);
  CHECK(tilekiln_stream_synchronize(stream) == TILEKILN_OK);
  CHECK(tilekiln_stream_query(stream, &idle) == TILEKILN_OK);
  CHECK(idle == 1 && counted == 2);
  CHECK(worst(a, 1, 1) < 2e-6);
  CHECK(tilekiln_stream_destroy(stream) == TILEKILN_OK);
  args.stream = NULL;

  /* The caller's threads. */
  executor.size = sizeof(executor);
  executor.parallel_for = serial_for;
  executor.pool = &pool;
  executor.max_workers = 3;
  args.executor = &executor;
  spoil(a);
  CHECK(tilekiln_fmha_fwd(&args) == TILEKILN_OK);
  CHECK(worst(a, 1, 1) < 2e-6);
  CHECK(pool.calls == 1 && pool.tasks >= 2);

  /* Refused before anything is written. */
  args.executor = NULL;
  args.dropout_p = 1;
  a.out[0] = 7;
  CHECK(tilekiln_fmha_fwd(&args) == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(tilekiln_last_error(), "dropout_p: was 1, must be at least 0 and below 1");
  CHECK(a.out[0] == 7);
  free_arrays(a);
}

static void group_mode(void) {
  /* Sequences of 33, 0 and 37 queries against 90, 20 and 131 - 110 = 21 keys, packed. */
  const int32_t cu_q[] = {0, 33, 33, 70}, cu_k[] = {0, 90, 110, 131};
  const int64_t shape_q[] = {SQ, HQ, DQ}, shape_k[] = {SK, HK, DQ}, shape_v[] = {SK, HK, DV},
                shape_out[] = {SQ, HQ, DV};
  const int64_t shape_cu[] = {4}, shape_lse[] = {HQ, SQ};
  arrays a = make_arrays();
  const tilekiln_tensor q = contiguous(a.q, TILEKILN_FP32, 3, shape_q), k = contiguous(a.k, TILEKILN_FP32, 3, shape_k);
  const tilekiln_tensor v = contiguous(a.v, TILEKILN_FP32, 3, shape_v),
                        out = contiguous(a.out, TILEKILN_FP32, 3, shape_out);
  const tilekiln_tensor lse = contiguous(a.lse, TILEKILN_FP32, 2, shape_lse);
  const tilekiln_tensor starts_q = contiguous((void*)cu_q, TILEKILN_INT32, 1, shape_cu),
                        starts_k = contiguous((void*)cu_k, TILEKILN_INT32, 1, shape_cu);
  tilekiln_fmha_fwd_args args = tilekiln_fmha_fwd_defaults();
  double expected[DV], expected_lse, most = 0;
  int s, h, i, d;
  args.q = &q;
  args.k = &k;
  args.v = &v;
  args.out = &out;
  args.lse = &lse;
  args.cu_seqlens_q = &starts_q;
  args.cu_seqlens_k = &starts_k;
  args.causal = 1;
  args.num_threads = 2;
  spoil(a);
  if (!CHECK(tilekiln_fmha_fwd(&args) == TILEKILN_OK)) fprintf(stderr, "%s\n", tilekiln_last_error());
  for (s = 0; s < 3; ++s) {
    const int seqlen_q = cu_q[s + 1] - cu_q[s], seqlen_k = cu_k[s + 1] - cu_k[s];
    for (h = 0; h < HQ; ++h) {
      for (i = 0; i < seqlen_q; ++i) {
        const int64_t row = cu_q[s] + i, hk = h / (HQ / HK);
        reference_row(a.q + (row * HQ + h) * DQ, a.k + ((int64_t)cu_k[s] * HK + hk) * DQ,
                      a.v + ((int64_t)cu_k[s] * HK + hk) * DV, seqlen_k, i + 1 + seqlen_k - seqlen_q, HK, expected,
                      &expected_lse);
        for (d = 0; d < DV; ++d) {
          const double difference = fabs(expected[d] - a.out[(row * HQ + h) * DV + d]);
          if (!(difference <= most)) most = difference;
        }
        if (expected_lse != -HUGE_VAL) {
          const double difference = fabs(expected_lse - a.lse[h * SQ + row]);
          if (!(difference <= most)) most = difference;
        } else {
          CHECK(a.lse[h * SQ + row] == -HUGE_VALF);
        }
      }
    }
  }
  CHECK(most < 2e-6);
  free_arrays(a);
}

int main(void) {
  size_t length = 0;
  CHECK(tilekiln_abi_version() == TILEKILN_ABI_VERSION);
  CHECK(tilekiln_version()[0] != 0 && tilekiln_receipt()[0] != 0);
  CHECK(tilekiln_manifest_deflated(NULL, &length) != NULL && length == strlen(tilekiln_manifest(NULL)));
  size_t bytes = 0;
  CHECK(tilekiln_manifest_deflated(&bytes, NULL) != NULL && bytes < length);
  CHECK(tilekiln_manifest(&length)[0] == '{' && length == strlen(tilekiln_manifest(NULL)));
  CHECK(tilekiln_instance_count() > 0);
  CHECK(tilekiln_instance_name(-1) == NULL && tilekiln_instance_name(tilekiln_instance_count()) == NULL);
  CHECK(tilekiln_isa()[0] != 0);
  CHECK(tilekiln_num_threads() >= 1);
  CHECK_TEXT(tilekiln_last_error(), "");
  batch_mode();
  group_mode();
  return check_result();
}
