/* SPDX-License-Identifier: MIT */
/* Attention with an installed library, found by pkg-config: out = softmax(q k^T / sqrt(HDIM)) v, compared with a loop. */
#include <math.h>
#include <stdio.h>
#include <tilekiln/tilekiln.h>

enum { SEQLEN_Q = 5, SEQLEN_K = 37, HEADS = 2, HDIM = 48 };

static float q[SEQLEN_Q][HEADS][HDIM], k[SEQLEN_K][HEADS][HDIM], v[SEQLEN_K][HEADS][HDIM], out[SEQLEN_Q][HEADS][HDIM];

/* (1, seqlen, HEADS, HDIM) */
static tilekiln_tensor view(void* data, int64_t seqlen) {
  tilekiln_tensor tensor = {.data = data, .dtype = TILEKILN_FP32, .ndim = 4, .device_type = TILEKILN_CPU};
  const int64_t shape[] = {1, seqlen, HEADS, HDIM}, stride[] = {seqlen * HEADS * HDIM, HEADS * HDIM, HDIM, 1};
  memcpy(tensor.shape, shape, sizeof(shape));
  memcpy(tensor.stride, stride, sizeof(stride));
  return tensor;
}

static void fill(float* data, int count, double step) {
  for (int i = 0; i < count; ++i) data[i] = (float)sin(step * (i + 1));
}

/* The largest difference between out and the formula, in double. */
static double difference(void) {
  double most = 0;
  for (int h = 0; h < HEADS; ++h) {
    for (int i = 0; i < SEQLEN_Q; ++i) {
      double sum = 0, row[HDIM] = {0};
      for (int j = 0; j < SEQLEN_K; ++j) {
        double score = 0;
        for (int d = 0; d < HDIM; ++d) score += (double)q[i][h][d] * k[j][h][d];
        const double p = exp(score / sqrt(HDIM));
        sum += p;
        for (int d = 0; d < HDIM; ++d) row[d] += p * v[j][h][d];
      }
      for (int d = 0; d < HDIM; ++d) most = fmax(most, fabs(row[d] / sum - out[i][h][d]));
    }
  }
  return most;
}

int main(void) {
  const tilekiln_tensor q_view = view(q, SEQLEN_Q), k_view = view(k, SEQLEN_K), v_view = view(v, SEQLEN_K);
  const tilekiln_tensor out_view = view(out, SEQLEN_Q);
  tilekiln_fmha_fwd_args args = tilekiln_fmha_fwd_defaults();
  fill(&q[0][0][0], SEQLEN_Q * HEADS * HDIM, 0.37);
  fill(&k[0][0][0], SEQLEN_K * HEADS * HDIM, 0.73);
  fill(&v[0][0][0], SEQLEN_K * HEADS * HDIM, 1.19);
  args.q = &q_view;
  args.k = &k_view;
  args.v = &v_view;
  args.out = &out_view;
  if (tilekiln_fmha_fwd(&args) != TILEKILN_OK) {
    fprintf(stderr, "%s\n", tilekiln_last_error());
    return 1;
  }
  printf("%s %s, %d instances\n", tilekiln_receipt(), tilekiln_version(), (int)tilekiln_instance_count());
  return difference() < 1e-5 ? 0 : 2;
}
