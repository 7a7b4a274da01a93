/* SPDX-License-Identifier: MIT */
/* base.h - what every header of Tilekiln's C ABI needs: status codes, arrays, streams, executors. Include tilekiln.h. */
#ifndef TILEKILN_BASE_H
#define TILEKILN_BASE_H

#if !defined(__cplusplus) && defined(__STRICT_ANSI__) && (!defined(__STDC_VERSION__) || __STDC_VERSION__ < 199901L)
#error "tilekiln.h is C99 and must be compiled as C99 or later: -std=c99"
#endif

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define TILEKILN_API __attribute__((visibility("default")))
#else
#define TILEKILN_API
#endif

/* Declarations between these two have C linkage in C++ too. */
#ifdef __cplusplus
#define TILEKILN_BEGIN_C extern "C" {
#define TILEKILN_END_C }
#else
#define TILEKILN_BEGIN_C
#define TILEKILN_END_C
#endif

/* A variable of a struct that begins with its size, all else 0. */
#define TILEKILN_ZEROED(type, name) type name; memset(&name, 0, sizeof(name)); name.size = sizeof(name)

TILEKILN_BEGIN_C

#define TILEKILN_ABI_VERSION 2

typedef int32_t tilekiln_status;
enum {
  TILEKILN_OK = 0,
  TILEKILN_INVALID_ARGUMENT = 1, /* an argument is wrong; nothing was written */
  TILEKILN_NO_KERNEL = 2,        /* the arguments are right, the library has no instance for them */
  TILEKILN_OUT_OF_MEMORY = 3,
  TILEKILN_INTERNAL = 4
};

/* Two questions about a call of any operator, which check its arguments as the call does and run nothing.
 * tilekiln_OPERATOR_find: the instance that the dispatcher would choose, of each stage.
 * tilekiln_OPERATOR_why: an explanation for people, a paragraph a stage: the problem, the choice and why the others were refused, or the nearest
 * instances, the axes that differ, the rule that forbids the problem, and the command that builds it. Writes at most capacity bytes, the final 0
 * included; *length is the full length without it. text may be null when capacity is 0. Returns OK or INVALID_ARGUMENT. */

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

/* A dtype is (DLPack type code << 8) | bits, so that any exporter's dtype can be passed on and named in an error. */
#define TILEKILN_DTYPE(code, bits) (((code) << 8) | (bits))
enum {
  TILEKILN_FP32 = TILEKILN_DTYPE(2, 32),
  TILEKILN_FP16 = TILEKILN_DTYPE(2, 16),
  TILEKILN_BF16 = TILEKILN_DTYPE(4, 16),
  TILEKILN_FP8 = TILEKILN_DTYPE(10, 8), /* OCP e4m3 */
  TILEKILN_BF8 = TILEKILN_DTYPE(12, 8), /* OCP e5m2 */
  TILEKILN_FP8FNUZ = TILEKILN_DTYPE(11, 8), /* e4m3fnuz: gfx942's */
  TILEKILN_BF8FNUZ = TILEKILN_DTYPE(13, 8), /* e5m2fnuz */
  TILEKILN_INT8 = TILEKILN_DTYPE(0, 8),
  TILEKILN_INT16 = TILEKILN_DTYPE(0, 16),
  TILEKILN_INT32 = TILEKILN_DTYPE(0, 32),
  TILEKILN_INT64 = TILEKILN_DTYPE(0, 64),
  TILEKILN_UINT8 = TILEKILN_DTYPE(1, 8),
  TILEKILN_UINT16 = TILEKILN_DTYPE(1, 16),
  TILEKILN_UINT32 = TILEKILN_DTYPE(1, 32),
  TILEKILN_UINT64 = TILEKILN_DTYPE(1, 64),
  TILEKILN_FP64 = TILEKILN_DTYPE(2, 64),
  TILEKILN_BOOL = TILEKILN_DTYPE(6, 8)
};

#define TILEKILN_MAX_NDIM 8
/* device_type and device_id are DLPack's. The arrays of a call are on one device, of a type that the library has a target for; it is there that
 * the call runs. Index arrays (lengths, starts, places, pages) may also be in the host's memory: the host reads them, or copies
 * them from the device in the order of the stream, which is waited for, before the call returns (a stream that is being captured into a
 * graph is refused). Where an operator takes max_seqlen_q and max_seqlen_k (an append: max_seqlen_k alone), they say in place of
 * these arrays what the host must know: on a device whose memory the host may not read index arrays then stay where they are and are
 * read when the stream has come to the call. Engines of the host then check them as ever, and the stream keeps the error. Kernels
 * cannot say what is wrong: lengths are cut to these arguments, but starts, places and pages must lie within the arrays, as nothing
 * else promises that only these are read and written. */
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

/* Some dimensions of an array: numbers from 0, or from -1 for the last one downwards. count 0: what the operator says. */
typedef struct tilekiln_dims {
  int32_t count;
  int32_t dim[TILEKILN_MAX_NDIM];
} tilekiln_dims;

typedef struct tilekiln_shape {
  int32_t ndim;
  int64_t length[TILEKILN_MAX_NDIM];
} tilekiln_shape;

/* ---- streams and executors --------------------------------------------------------------------------------------- */

/* An in-order queue with its own worker. A null stream means: run now, in the caller. */
typedef struct tilekiln_stream tilekiln_stream;
TILEKILN_API tilekiln_status tilekiln_stream_create(tilekiln_stream** stream);
/* A stream of a device's own backend, as what it is to that backend: a CUstream (device_type 2). Calls whose arrays are on that
 * device enqueue their steps there, in the order of calls. It stays the caller's: destroying what was made here neither waits nor ends
 * it. native: the handle; null is the backend's default stream, where it has one. */
TILEKILN_API tilekiln_status tilekiln_stream_wrap(int32_t device_type, int32_t device_id, void* native, tilekiln_stream** stream);
/* Waits for what was enqueued, then frees the stream. Null is allowed. */
TILEKILN_API tilekiln_status tilekiln_stream_destroy(tilekiln_stream* stream);
/* Waits; returns the first error of the work enqueued since the last call, and its text. */
TILEKILN_API tilekiln_status tilekiln_stream_synchronize(tilekiln_stream* stream);
/* *idle = 1 when everything enqueued has run. */
TILEKILN_API tilekiln_status tilekiln_stream_query(tilekiln_stream* stream, int32_t* idle);
/* Waits for what was enqueued so far, nanoseconds at most (0: not at all), and leaves errors to tilekiln_stream_synchronize. *mark was 0: it receives
 * the number of the last task so far; else that is waited for, so that waiting goes on where it was left off. *passed: 1 when it has run, else 0. */
TILEKILN_API tilekiln_status tilekiln_stream_wait(tilekiln_stream* stream, int64_t nanoseconds, uint64_t* mark, int32_t* passed);
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

/* ---- words of arguments -------------------------------------------------------------------------------------------- */

enum { TILEKILN_BOTTOM_RIGHT = 0, TILEKILN_TOP_LEFT = 1 }; /* mask_origin */
enum { TILEKILN_BSHD = 0, TILEKILN_BHSD = 1 };             /* layout */

TILEKILN_END_C
#endif
