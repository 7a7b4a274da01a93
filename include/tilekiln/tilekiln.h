/* SPDX-License-Identifier: MIT */
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

#include "tilekiln/base.h"
#include "tilekiln/operator.h"
#include "tilekiln/operators.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the stages of operators, in the order they run: indices into what _find gives ---------------------------------- */

enum { TILEKILN_BWD_DOT_DO_O = 0, TILEKILN_BWD_DQ_DK_DV = 1, TILEKILN_BWD_CONVERT_DQ = 2, TILEKILN_BWD_STAGES = 3 };
/* Planned together: one without the other is NO_KERNEL. */
enum { TILEKILN_SPLITKV_SPLIT = 0, TILEKILN_SPLITKV_COMBINE = 1, TILEKILN_SPLITKV_STAGES = 2 };
/* -1 for those of the attention when there is none. */
enum { TILEKILN_APPENDKV_APPEND = 0, TILEKILN_APPENDKV_SPLIT = 1, TILEKILN_APPENDKV_COMBINE = 2, TILEKILN_APPENDKV_STAGES = 3 };

/* ---- backward launcher: one workspace for many calls, prepared in stream order ------------------------------------- */

/* tilekiln_fmha_bwd_problem, what a launcher must know before there is any data, stands in operators/fmha_bwd.h. */
enum { TILEKILN_BIAS_NONE = 0, TILEKILN_BIAS_ELEMENTWISE = 1, TILEKILN_BIAS_ALIBI = 2 };
enum { TILEKILN_DROPOUT_NONE = 0, TILEKILN_DROPOUT_APPLY = 1, TILEKILN_DROPOUT_STORE = 2 };

/* Host memory through which a stream copies. allocate is called in the caller's thread before anything is enqueued; it returns memory aligned to
 * 16, or null. release is called once for each, from a thread of the library that is no stream's worker, after the stream has done with the memory;
 * so it may use the stream. The struct is copied; context must outlive the last release (tilekiln_staging_drain waits for it). */
typedef struct tilekiln_staging_allocator {
  size_t size; /* sizeof(tilekiln_staging_allocator) */
  void* (*allocate)(void* context, size_t bytes);
  void (*release)(void* context, void* memory, size_t bytes);
  void* context;
} tilekiln_staging_allocator;
/* The library's own: plain aligned memory; for a device that copies by itself (CUDA) pinned memory. An allocator of the caller's must give such
 * memory there, too. */
TILEKILN_API const tilekiln_staging_allocator* tilekiln_staging_default(void);
/* Waits until everything that was handed over for release so far has been released. Not from a stream's worker, nor from release. */
TILEKILN_API tilekiln_status tilekiln_staging_drain(void);

typedef struct tilekiln_fmha_bwd_launcher tilekiln_fmha_bwd_launcher;
/* NO_KERNEL, with the whole explanation, when a stage has no instance; *launcher is then null. */
TILEKILN_API tilekiln_status tilekiln_fmha_bwd_launcher_create(const tilekiln_fmha_bwd_problem* problem, tilekiln_fmha_bwd_launcher** launcher);
/* Never waits: what it enqueued owns all it needs. Null is allowed. Not while another call uses the launcher. */
TILEKILN_API tilekiln_status tilekiln_fmha_bwd_launcher_destroy(tilekiln_fmha_bwd_launcher* launcher);
/* The host segment and an upper bound of the accumulator: enough for any sequence starts of the problem, which are not looked at. */
TILEKILN_API tilekiln_status tilekiln_fmha_bwd_launcher_workspace_size(const tilekiln_fmha_bwd_launcher* launcher, uint64_t* bytes);
/* The instance of each stage, as tilekiln_fmha_bwd_find gives it. */
TILEKILN_API tilekiln_status tilekiln_fmha_bwd_launcher_find(const tilekiln_fmha_bwd_launcher* launcher, int64_t instances[TILEKILN_BWD_STAGES]);
/* Now, in the caller. seqstart_q and seqstart_k (int32, batch + 1, contiguous): group mode; null in batch mode.
 * workspace: uint8 (bytes), contiguous, aligned to 16. */
TILEKILN_API tilekiln_status tilekiln_fmha_bwd_launcher_prepare(tilekiln_fmha_bwd_launcher* launcher, const tilekiln_tensor* workspace,
                                                                const tilekiln_tensor* seqstart_q, const tilekiln_tensor* seqstart_k);
/* The same in stream order; never waits. seqstart_q and seqstart_k are read when the stream has come to it, so earlier work of the stream may write
 * them; what is wrong with them is told by tilekiln_stream_synchronize. Not while a graph is captured. The arrays' data and the workspace must stay until then; the launcher may be
 * destroyed before. stream may not be null (use prepare). allocator: tilekiln_staging_default() or the caller's. */
TILEKILN_API tilekiln_status tilekiln_fmha_bwd_launcher_prepare_async(tilekiln_fmha_bwd_launcher* launcher, const tilekiln_tensor* workspace,
                                                                      const tilekiln_tensor* seqstart_q, const tilekiln_tensor* seqstart_k,
                                                                      tilekiln_stream* stream, const tilekiln_staging_allocator* allocator);
/* tilekiln_fmha_bwd with args->workspace as prepared. Each run needs its own prepare, because it adds to the accumulator; but in deterministic group
 * mode, where a stage zeroes it, one does for all runs with the same starts. args must be of the launcher's problem:
 * in group mode seqstart_q and seqstart_k as prepared. With a stream, the index arrays are read when the stream has come to it. On CUDA a prepare does
 * for all runs with the same starts, and those of the workspace count. */
TILEKILN_API tilekiln_status tilekiln_fmha_bwd_launcher_run(tilekiln_fmha_bwd_launcher* launcher, const tilekiln_fmha_bwd_args* args);

/* ---- backward workspace, for inspection --------------------------------------------------------------------------- */

typedef struct tilekiln_bwd_workspace_problem {
  size_t size; /* sizeof(tilekiln_bwd_workspace_problem) */
  int32_t group, deterministic;
  int32_t batch, nhead_q, hdim_q;
  int32_t kM0, kN0; /* the main stage's tile: queries, keys */
  int32_t workers; /* 0: chosen from the sizes */
  int32_t seqlen_q, seqlen_k; /* batch mode: the length of each sequence */
  const int32_t* seqstart_q; /* group mode: batch + 1 entries */
  const int32_t* seqstart_k;
  int32_t causal; /* for the balance only: causal, bottom right */
  int32_t threads; /* for thread_balance and plain_balance; 0: 1 */
} tilekiln_bwd_workspace_problem;

#define TILEKILN_ABSENT UINT64_MAX /* the offset of a segment that the workspace has not */
typedef struct tilekiln_bwd_workspace_layout {
  size_t size; /* sizeof(tilekiln_bwd_workspace_layout) */
  uint64_t host_bytes, device_bytes, upper_bound_bytes; /* the bound is of the device part */
  uint64_t nsplits_offset; /* int32 x nsplits_count */
  uint64_t dq_acc_offsets_offset; /* int64 x (batch + 1), in elements */
  uint64_t cu_state_offset; /* 32 bytes x workers, in remapped order: int32 w_lo, w_hi, ibatch, isplit, head_start, c_start, 2 unused */
  uint64_t batch_state_offset; /* 16 bytes x batch: int32 sq, nc, nsplits, 1 unused */
  uint64_t dq_acc_offset; /* fp32 */
  int32_t nsplits_count;
  int32_t workers;
  int32_t zero_dq_acc; /* 1: prepare zeroes the accumulator */
  int32_t prezero; /* 1: a stage before the main one does */
  int64_t target_w, total_w; /* group deterministic: work of one worker, of all, in rows of a chunk */
  int64_t jobs_per_head, jobs_per_worker; /* batch deterministic */
  double worker_balance; /* deterministic: the most work of a worker over the mean of all, in visible (query, key) pairs; else 1 */
  double thread_balance; /* the most work of a thread over the mean, as the threads of a call claim workers or chunks */
  double plain_balance; /* the same when (batch, head, chunk) in plain order is cut into equal counts, one per thread */
} tilekiln_bwd_workspace_layout;

/* Plans a workspace as tilekiln_fmha_bwd does. Null, or filled by the call: host (capacity bytes, at least host_bytes; aligned to 16): the host segment as
 * packed; xcd_map (workers entries): block b runs the logical worker xcd_map[b]; total_work (workers entries): pairs by logical worker. */
TILEKILN_API tilekiln_status tilekiln_bwd_workspace_plan(const tilekiln_bwd_workspace_problem* problem, tilekiln_bwd_workspace_layout* layout, void* host,
                                                         size_t capacity, int32_t* xcd_map, int64_t* total_work);

/* ---- the library ------------------------------------------------------------------------------------------------- */

TILEKILN_API int32_t tilekiln_abi_version(void);
TILEKILN_API const char* tilekiln_version(void);
TILEKILN_API const char* tilekiln_receipt(void);
/* The manifest as the library holds it: a zlib stream (RFC 1950) of *bytes, whose JSON has *length. Either may be null. */
TILEKILN_API const void* tilekiln_manifest_deflated(size_t* bytes, size_t* length);
/* The manifest: JSON, UTF-8, *length bytes. length may be null. The first call inflates it, and it is kept; "" without memory. */
TILEKILN_API const char* tilekiln_manifest(size_t* length);
TILEKILN_API int64_t tilekiln_instance_count(void);
/* The canonical name of an instance of the plan; null when out of range. It stays as long as the process. */
TILEKILN_API const char* tilekiln_instance_name(int64_t instance);
/* 1 when this machine can run it and TILEKILN_ISA allows it, else 0. */
TILEKILN_API int32_t tilekiln_instance_usable(int64_t instance);
/* The problem of a call, one line a stage: its family, the axes of the signature and the sizes that steer the choice, as in
 * "fmha_fwd dtype=bf16 hdim_q=64 ... seqlen_q=128"; and in a last line what identifies the call to tilekiln_tune, "call " and 16 hexadecimal digits. Checks the arguments as the operator does and runs nothing; there need be no kernel for them. args:
 * the operator's struct, such as tilekiln_fmha_fwd_args. text, capacity and length are as in tilekiln_fmha_fwd_why. */
TILEKILN_API tilekiln_status tilekiln_describe(const char* operator_name, const void* args, char* text, size_t capacity, size_t* length);
/* A measured choice: what a call takes that leaves these open. `call` identifies it, as tilekiln_describe says it in its last line: the operator, what
 * arrays it is given with their dtypes, shapes and which strides are 1, flags, words and integers. */
typedef struct tilekiln_tuned {
  uint64_t call;
  int64_t instance;    /* of the main stage; it is passed over where it does not fit the call */
  int32_t num_splits;  /* 0: the operator's own */
  int32_t num_threads; /* 0: the environment's */
} tilekiln_tuned;
/* From now on calls of this library that leave instance, num_splits and num_threads open take what is measured for them, those of choices (copied)
 * and of no earlier list; what the caller says is stronger. count 0: every call by the library's own rules. At first a library has what its receipt
 * pins for this machine, unless TILEKILN_TUNED=no. Any thread may call it; calls that run go on as they began. */
TILEKILN_API tilekiln_status tilekiln_tune(const tilekiln_tuned* choices, size_t count);
/* The best ISA in use, such as "avx512bf16"; "" when this library holds none that this machine has and TILEKILN_ISA allows, and tilekiln_last_error says why. */
TILEKILN_API const char* tilekiln_isa(void);
/* Asks the system for the ISAs of this library that it may refuse to a process, as the first call does that one of them would answer ("amx"
 * alone: Linux saves tiles for processes that have asked). "" when it refuses none; else "amx: " and why, and the next best ISA answers. Valid
 * until this thread's next call. */
TILEKILN_API const char* tilekiln_isa_refusal(void);
/* The arithmetic that bf16 has in this process, as a sentence, where the processor has dot products of its pairs: those, or fp32's where they are faster
 * (20 microseconds of each are timed at the first call that needs to know) or TILEKILN_BF16=fp32 says so. The bits differ. "": there is one way alone. */
TILEKILN_API const char* tilekiln_bf16_arithmetic(void);
/* The number of threads a call with num_threads = 0 uses. */
TILEKILN_API int32_t tilekiln_num_threads(void);
/* The sentence of this thread's last failed call; "" if none has failed. Valid until this thread's next call. */
TILEKILN_API const char* tilekiln_last_error(void);

/* Kinds of reasons why a call was refused. New ones come at the end. */
typedef enum tilekiln_reason {
  TILEKILN_REFUSED_ARGUMENT = 1, /* axis: an argument of the call that is wrong */
  TILEKILN_REFUSED_DEVICE,       /* axis: an array; have: the devices of the library; want: the array's. Another library may serve it */
  TILEKILN_REFUSED_SIZE,         /* axis: what no instance can hold, such as head dims; have: those there can be; want: the problem's */
  TILEKILN_REFUSED_RULE,         /* rule, target (null: every one) and says: no kernel may exist */
  TILEKILN_REFUSED_MACHINE,      /* instance; have: the ISA or device it is for, which this machine lacks, or the system refuses (says: why) */
  TILEKILN_REFUSED_ISA,          /* instance; have: its ISA; want: the limit, as in TILEKILN_ISA=avx2 */
  TILEKILN_REFUSED_AXIS,         /* instance, one of the nearest; axis, have, want, asked: one value in which it differs */
  TILEKILN_REFUSED_NEEDS,        /* instance, one of the nearest; have: the sizes that its algorithm needs */
  TILEKILN_REFUSED_NOT_BUILT,    /* build: the command that builds a library with the kernel */
  TILEKILN_REFUSED_NOT_LISTED    /* no receipt lists the kernel */
} tilekiln_reason;

/* One reason, as data. Texts are null where the reason has none. */
typedef struct tilekiln_refusal {
  int32_t reason;      /* tilekiln_reason */
  int64_t instance;    /* -1: it is of no single one */
  const char* problem; /* of the call, in the language of selections; null where an argument is wrong */
  const char* axis;
  const char* have;
  const char* want;
  const char* asked; /* the arguments that ask for `want`, where they have other names than the axis */
  const char* rule;
  const char* target;
  const char* says; /* the rule, or why the system refuses, in words */
  const char* build;
  const char* text; /* the line of tilekiln_last_error that says it; null: the line of the reason before says this one, too */
} tilekiln_refusal;
/* The reasons of this thread's last failed call, *count of them: what a program asks in place of reading the sentence. 0 where the sentence is all there
 * is, as of an error in a stream. Valid until this thread's next call. */
TILEKILN_API const tilekiln_refusal* tilekiln_last_refusals(int32_t* count);

#ifdef __cplusplus
}
#endif

#endif
