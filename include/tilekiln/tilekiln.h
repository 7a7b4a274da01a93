/* tilekiln.h - the C ABI of a Tilekiln library, and the one header a framework needs.
 *
 * Plain C99. Every library (libtilekiln_<receipt>.so) exports exactly these functions. A process may load several
 * libraries with dlopen(..., RTLD_LOCAL); linking two of them into one program is unsupported.
 *
 * Errors are status codes; tilekiln_last_error() gives the sentence, per thread. Nothing is written to any output
 * before every argument has been checked. All functions are thread-safe unless they say otherwise.
 */
#ifndef TILEKILN_TILEKILN_H
#define TILEKILN_TILEKILN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define TILEKILN_API __attribute__((visibility("default")))
#else
#define TILEKILN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define TILEKILN_ABI_VERSION 1

typedef int32_t tilekiln_status;
enum {
  TILEKILN_OK = 0,
  TILEKILN_INVALID_ARGUMENT = 1, /* an argument is wrong; nothing was written */
  TILEKILN_NO_KERNEL = 2,        /* the arguments are right, the library has no instance for them */
  TILEKILN_OUT_OF_MEMORY = 3,
  TILEKILN_INTERNAL = 4
};

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

/* A dtype is (DLPack type code << 8) | bits, so that any exporter's dtype can be passed on and named in an error. */
#define TILEKILN_DTYPE(code, bits) (((code) << 8) | (bits))
enum {
  TILEKILN_FP32 = TILEKILN_DTYPE(2, 32),
  TILEKILN_FP16 = TILEKILN_DTYPE(2, 16),
  TILEKILN_BF16 = TILEKILN_DTYPE(4, 16),
  TILEKILN_FP8 = TILEKILN_DTYPE(10, 8), /* OCP e4m3 */
  TILEKILN_BF8 = TILEKILN_DTYPE(12, 8), /* OCP e5m2 */
  TILEKILN_INT32 = TILEKILN_DTYPE(0, 32),
  TILEKILN_UINT8 = TILEKILN_DTYPE(1, 8)
};

#define TILEKILN_MAX_NDIM 5
#define TILEKILN_CPU 1 /* device_type, as in DLPack */

/* A strided view of memory the caller owns. stride counts elements and may be anything, 0 and negative included, where an
 * argument does not say otherwise. A dimension of length 1 or an empty array has no stride to check. */
typedef struct tilekiln_tensor {
  void* data;
  int32_t dtype;
  int32_t ndim;
  int32_t device_type;
  int32_t device_id;
  int64_t shape[TILEKILN_MAX_NDIM];
  int64_t stride[TILEKILN_MAX_NDIM];
} tilekiln_tensor;

/* ---- streams and executors --------------------------------------------------------------------------------------- */

/* An in-order queue with its own worker. A null stream means: run now, in the caller. */
typedef struct tilekiln_stream tilekiln_stream;
TILEKILN_API tilekiln_status tilekiln_stream_create(tilekiln_stream** stream);
/* Waits for what was enqueued, then frees the stream. Null is allowed. */
TILEKILN_API tilekiln_status tilekiln_stream_destroy(tilekiln_stream* stream);
/* Waits; returns the first error of the work enqueued since the last call, and its text. */
TILEKILN_API tilekiln_status tilekiln_stream_synchronize(tilekiln_stream* stream);
/* *idle = 1 when everything enqueued has run. */
TILEKILN_API tilekiln_status tilekiln_stream_query(tilekiln_stream* stream, int32_t* idle);
/* Calls host(context) in stream order. */
TILEKILN_API tilekiln_status tilekiln_stream_launch_host(tilekiln_stream* stream, void (*host)(void* context), void* context);

/* A caller's thread pool. parallel_for must call task(context, index, worker) once for every index in [0, count), from any
 * threads, and return when all have ended; worker is in [0, max_workers) and no two tasks that run at the same time may share one. */
typedef void (*tilekiln_task)(void* context, int64_t index, int32_t worker);
typedef void (*tilekiln_parallel_for)(void* pool, int64_t count, int32_t max_workers, tilekiln_task task, void* context);
typedef struct tilekiln_executor {
  size_t size; /* sizeof(tilekiln_executor) */
  tilekiln_parallel_for parallel_for;
  void* pool;
  int32_t max_workers;
} tilekiln_executor;

/* ---- attention forward ------------------------------------------------------------------------------------------- */

enum { TILEKILN_BOTTOM_RIGHT = 0, TILEKILN_TOP_LEFT = 1 };
enum { TILEKILN_BSHD = 0, TILEKILN_BHSD = 1 };

/* out = softmax(softmax_scale q k^T [soft-capped | + bias], masked) v, per query head h with key head h / (nhead_q / nhead_k).
 *
 * Batch mode: q (batch, seqlen_q, nhead_q, hdim_q), k (batch, seqlen_k, nhead_k, hdim_q), v (batch, seqlen_k, nhead_k, hdim_v),
 * out (batch, seqlen_q, nhead_q, hdim_v), lse (batch, nhead_q, seqlen_q). With layout TILEKILN_BHSD the two middle dimensions of
 * q, k, v and out are exchanged: (batch, nhead, seqlen, hdim).
 * Group mode (q of 3 dimensions): q (total_q, nhead_q, hdim_q), k (total_k, ...), v, out alike, lse (nhead_q, total_q).
 * With TILEKILN_BHSD: (nhead, total, hdim).
 *
 * Arrays are read and written with their strides, and aligned to their elements; the last dimension of all but the index arrays
 * is contiguous. out, lse and randval may not overlap any input or each other, nor themselves.
 * The structs a pointer here names are read before the call returns, and so are the index arrays (seqstart, seqlen, cu_seqlens,
 * block_scale_seqstart); the data of all other arrays must stay until the stream has run the call. */
typedef struct tilekiln_fmha_fwd_args {
  size_t size; /* sizeof(tilekiln_fmha_fwd_args): set by tilekiln_fmha_fwd_defaults */
  const tilekiln_tensor* q; /* fp32, fp16, bf16 or fp8 */
  const tilekiln_tensor* k; /* dtype of q */
  const tilekiln_tensor* v; /* dtype of q */
  const tilekiln_tensor* out; /* dtype of q; for fp8: bf16 or fp32 */
  const tilekiln_tensor* lse; /* fp32, or null. Natural log of the sum of exponentials; -inf for a row that sees no key */
  const tilekiln_tensor* bias; /* dtype of out; (1|batch, 1|nhead_q, seqlen_q, seqlen_k), group: (1|nhead_q, total_q, max_seqlen_k). Added after the scale */
  const tilekiln_tensor* alibi_slopes; /* fp32, (nhead_q) or (batch, nhead_q): adds -slope |i + shift - j| */
  const tilekiln_tensor* sink; /* fp32, (nhead_q): one more logit per head that takes part in the softmax and has no value */
  const tilekiln_tensor* q_descale; /* fp32. pertensor: one element each. blockscale: (batch, nhead_q, ceil(seqlen_q / 128)), */
  const tilekiln_tensor* k_descale; /*   k and v (batch, nhead_k, ceil(seqlen_k / 128)); group: (nhead, total blocks) with */
  const tilekiln_tensor* v_descale; /*   block_scale_seqstart_q/k (batch + 1) as the first block of each sequence */
  const tilekiln_tensor* block_scale_seqstart_q;
  const tilekiln_tensor* block_scale_seqstart_k;
  const tilekiln_tensor* seqstart_q; /* int32 (batch + 1), group mode: physical start of each sequence in the total dimension */
  const tilekiln_tensor* seqstart_k;
  const tilekiln_tensor* seqlen_q; /* int32 (batch): logical lengths; exclusive with cu_seqlens_q */
  const tilekiln_tensor* seqlen_k;
  const tilekiln_tensor* cu_seqlens_q; /* int32 (batch + 1): cumulative logical lengths. In group mode without seqstart_q also the physical starts */
  const tilekiln_tensor* cu_seqlens_k;
  const tilekiln_tensor* randval; /* uint8 or null: the random bytes of dropout, (batch, nhead_q, seqlen_q, seqlen_k), group: (nhead_q, total_q, max_seqlen_k) */
  const float* softmax_scale; /* null: 1 / sqrt(hdim_q) */
  float softcap; /* 0: off. s' = softcap tanh(s / softcap), not with a bias */
  float dropout_p; /* in [0, 1) */
  uint64_t rng_seed, rng_offset; /* of dropout's Philox-4x32-7 */
  int32_t causal; /* 1: window_right = 0 */
  int32_t window_left, window_right; /* -1: unbounded. Row i sees keys [i + shift - left, i + shift + right] */
  int32_t mask_origin; /* TILEKILN_BOTTOM_RIGHT: shift = seqlen_k - seqlen_q. TILEKILN_TOP_LEFT: shift = 0 */
  int32_t sink_size; /* the first sink_size keys stay visible whatever window_left says */
  int32_t min_seqlen_q; /* > 0: sequences with seqlen_q <= min_seqlen_q are skipped, their outputs left untouched */
  int32_t layout; /* TILEKILN_BSHD or TILEKILN_BHSD */
  int32_t num_threads; /* 0: TILEKILN_NUM_THREADS, else OMP_NUM_THREADS, else the cores this process may use */
  int64_t instance; /* -1: the dispatcher chooses. Else this instance of the plan, which must fit the problem */
  tilekiln_stream* stream; /* null: run now */
  const tilekiln_executor* executor; /* null: the library's own pool */
} tilekiln_fmha_fwd_args;

/* All fields absent, windows unbounded, instance -1. Then set q, k, v, out and what else is wanted. */
static inline tilekiln_fmha_fwd_args tilekiln_fmha_fwd_defaults(void) {
  tilekiln_fmha_fwd_args args;
  memset(&args, 0, sizeof(args));
  args.size = sizeof(args);
  args.window_left = -1;
  args.window_right = -1;
  args.instance = -1;
  return args;
}

TILEKILN_API tilekiln_status tilekiln_fmha_fwd(const tilekiln_fmha_fwd_args* args);
/* The instance the dispatcher would choose; checks the arguments as tilekiln_fmha_fwd does, runs nothing. */
TILEKILN_API tilekiln_status tilekiln_fmha_fwd_find(const tilekiln_fmha_fwd_args* args, int64_t* instance);
/* An explanation for people: the problem, the choice and why the others were refused, or the nearest instances, the axes
 * that differ, the rule that forbids the problem, and the command that builds it. Writes at most capacity bytes, the final 0
 * included; *length is the full length without it. text may be null when capacity is 0. Returns OK or INVALID_ARGUMENT. */
TILEKILN_API tilekiln_status tilekiln_fmha_fwd_why(const tilekiln_fmha_fwd_args* args, char* text, size_t capacity, size_t* length);

/* ---- the library ------------------------------------------------------------------------------------------------- */

TILEKILN_API int32_t tilekiln_abi_version(void);
TILEKILN_API const char* tilekiln_version(void);
TILEKILN_API const char* tilekiln_receipt(void);
/* The manifest: JSON, UTF-8, *length bytes. length may be null. */
TILEKILN_API const char* tilekiln_manifest(size_t* length);
TILEKILN_API int64_t tilekiln_instance_count(void);
/* The canonical name of an instance of the plan; null when out of range. */
TILEKILN_API const char* tilekiln_instance_name(int64_t instance);
/* 1 when this machine can run it and TILEKILN_ISA allows it, else 0. */
TILEKILN_API int32_t tilekiln_instance_usable(int64_t instance);
/* The best ISA in use, such as "avx512bf16"; "" when this library holds none that this machine has. */
TILEKILN_API const char* tilekiln_isa(void);
/* The number of threads a call with num_threads = 0 uses. */
TILEKILN_API int32_t tilekiln_num_threads(void);
/* The sentence of this thread's last failed call; "" if none has failed. Valid until this thread's next call. */
TILEKILN_API const char* tilekiln_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
