/* One backward call: Python arguments as tilekiln_fmha_bwd_args. */
#ifndef TILEKILN_BINDING_BACKWARD_H
#define TILEKILN_BINDING_BACKWARD_H

#include <stddef.h>

#include "keywords.h"
#include "scalars.h"

/* Arrays first, in the order of the fields of tilekiln_fmha_bwd_args, so that an index finds the field. */
#define BWD_ARRAYS(X)                                                                                             \
  X(dout) X(q) X(k) X(v) X(out) X(lse) X(dq) X(dk) X(dv) X(dbias) X(d_sink) X(delta) X(bias) X(alibi_slopes)      \
      X(sink) X(seqstart_q) X(seqstart_k) X(seqlen_q) X(seqlen_k) X(cu_seqlens_q) X(cu_seqlens_k) X(randval)      \
          X(workspace)
#define BWD_SCALARS(X) SHARED_SCALARS(X) X(deterministic) X(workers)

enum {
#define X(name) B_##name,
  BWD_ARRAYS(X) BWD_ARRAY_COUNT,
  B_before_scalars = BWD_ARRAY_COUNT - 1,
  BWD_SCALARS(X) BWD_ARGUMENT_COUNT
#undef X
};
static const char* const bwd_names[] = {
#define X(name) #name,
    BWD_ARRAYS(X) BWD_SCALARS(X)
#undef X
};
#define X(name)                                                                                                    \
  _Static_assert(                                                                                                  \
      offsetof(tilekiln_fmha_bwd_args, name) == offsetof(tilekiln_fmha_bwd_args, dout) + B_##name * sizeof(void*), \
      "BWD_ARRAYS lists the tensors of tilekiln_fmha_bwd_args in their order");
BWD_ARRAYS(X)
#undef X

static PyObject* bwd_interned[BWD_ARGUMENT_COUNT];
static const Keywords bwd_keywords = {bwd_names, bwd_interned, BWD_ARGUMENT_COUNT, 6, "dout, q, k, v, out and lse", 0};

/* What a call can make itself, in the order of its results. */
enum { BWD_MADE = 5 };
static const int bwd_made[BWD_MADE] = {B_dq, B_dk, B_dv, B_dbias, B_d_sink};

typedef struct {
  PyObject* given[BWD_ARGUMENT_COUNT];
  tilekiln_fmha_bwd_args args;
  Stream* stream;
  float softmax_scale;
  int wanted[BWD_MADE];     /* is it a result? */
  PyObject* made[BWD_MADE]; /* strong references */
  Results results;
  int held_count;
  PyObject* held[BWD_ARRAY_COUNT]; /* capsules */
  tilekiln_tensor tensor[BWD_ARRAY_COUNT];
} BwdCall;

static void bwd_call_end(BwdCall* call) {
  for (int i = 0; i < call->held_count; ++i) Py_DECREF(call->held[i]);
  for (int i = 0; i < BWD_MADE; ++i) Py_XDECREF(call->made[i]);
}

static int bwd_read_arrays(BwdCall* call) {
  unsigned written = 1u << B_randval | 1u << B_workspace;
  for (int i = B_dq; i <= B_delta; ++i) written |= 1u << i;
  return view_arrays(BWD_ARRAY_COUNT, call->given, bwd_names, written, call->tensor, &call->args.dout, call->held,
                     &call->held_count);
}

/* dbias=True and d_sink=True ask for a new array. */
static int bwd_read_wishes(BwdCall* call) {
  for (int i = 0; i < BWD_MADE; ++i) {
    PyObject** given = &call->given[bwd_made[i]];
    const int always = bwd_made[i] < B_dbias;
    call->wanted[i] = always || (*given && *given != Py_False);
    if (*given && PyBool_Check(*given)) {
      if (always) return refuse(bwd_names[bwd_made[i]], "was %R, must be an array, or None for a new one", *given);
      *given = NULL;
    }
  }
  return 0;
}

static int is_bwd_dtype(int32_t dtype) {
  return dtype == TILEKILN_FP32 || dtype == TILEKILN_FP16 || dtype == TILEKILN_BF16;
}

/* Dtype and shape of a result that the caller did not give. Returns 0, and an empty array, when what they follow from is
 * wrong; then the library refuses that. */
static int bwd_shape(const BwdCall* call, int index, tilekiln_tensor* made) {
  const tilekiln_fmha_bwd_args* args = &call->args;
  const tilekiln_tensor* q = args->q;
  const tilekiln_tensor* like = index == B_dk       ? args->k
                                : index == B_dv     ? args->v
                                : index == B_dbias  ? args->bias
                                : index == B_d_sink ? args->sink
                                                    : q;
  memset(made, 0, sizeof(*made));
  made->device_type = TILEKILN_CPU;
  made->dtype = q->dtype;
  made->ndim = 1;
  if (!is_bwd_dtype(q->dtype) || (q->ndim != 3 && q->ndim != 4) || q->device_type != TILEKILN_CPU || !like) return 0;
  if (like->ndim != (index == B_d_sink ? 1 : q->ndim)) return 0;
  made->ndim = like->ndim;
  memcpy(made->shape, like->shape, sizeof(like->shape));
  if (index == B_d_sink) made->dtype = TILEKILN_FP32;
  if (index == B_dbias) { /* of the full shape whatever the bias is broadcast over; its columns are the bias's */
    const int first = q->ndim - 3, bhsd = args->layout == TILEKILN_BHSD;
    if (first) made->shape[0] = q->shape[0];
    made->shape[first] = q->shape[first + !bhsd];
    made->shape[first + 1] = q->shape[first + bhsd];
  }
  return 1;
}

/* Describes what the caller did not give. What a call leaves untouched (padding) reads as zero. */
static void bwd_describe_results(BwdCall* call) {
  const tilekiln_tensor** fields = &call->args.dout;
  const tilekiln_fmha_bwd_args* args = &call->args;
  Results* results = &call->results;
  results->like = call->given[B_q];
  results->count = 0;
  results->bytes = 0;
  results->zero = args->q->ndim == 3 || args->seqlen_q || args->cu_seqlens_q || args->seqlen_k || args->cu_seqlens_k;
  for (int i = 0; i < BWD_MADE; ++i) {
    const int index = bwd_made[i];
    if (!call->wanted[i] || fields[index]) continue;
    tilekiln_tensor* tensor = &call->tensor[index];
    if (bwd_shape(call, index, tensor)) add_result(results, bwd_names[index], tensor, &call->made[i]);
    fields[index] = tensor;
  }
}

static int bwd_call_begin(Library* self, BwdCall* call, PyObject* const* values, Py_ssize_t positional, PyObject* names,
                          const char* function) {
  call->args = tilekiln_fmha_bwd_defaults();
  call->stream = NULL;
  call->softmax_scale = 0;
  call->held_count = 0;
  memset(call->made, 0, sizeof(call->made));
  PyObject* const* given = call->given;
  tilekiln_fmha_bwd_args* args = &call->args;
  if (collect(&bwd_keywords, values, positional, names, call->given, function) < 0 || bwd_read_wishes(call) < 0 ||
      READ_SHARED_SCALARS(self, given + BWD_ARRAY_COUNT, args, &call->softmax_scale, &call->stream) < 0 ||
      read_flag(given[B_deterministic], "deterministic", &args->deterministic) < 0 ||
      read_int32(given[B_workers], "workers", 0, &args->workers) < 0 ||
      bwd_read_arrays(call) < 0) /* last: the others may run Python code, which may change an array */
    return -1;
  bwd_describe_results(call);
  return 0;
}

/* Everything a stream must keep: the arrays given and made, and the capsules. */
static int bwd_hold(BwdCall* call) {
  for (int i = 0; i < BWD_ARRAY_COUNT; ++i)
    if (call->given[i] && stream_hold(call->stream, call->given[i]) < 0) return -1;
  for (int i = 0; i < call->held_count; ++i)
    if (stream_hold(call->stream, call->held[i]) < 0) return -1;
  for (int i = 0; i < BWD_MADE; ++i)
    if (call->made[i] && stream_hold(call->stream, call->made[i]) < 0) return -1;
  return 0;
}

/* (dq, dk, dv), then dbias and d_sink when they were asked for. */
static PyObject* bwd_results(BwdCall* call) {
  Py_ssize_t count = 0;
  for (int i = 0; i < BWD_MADE; ++i) count += call->wanted[i];
  PyObject* results = PyTuple_New(count);
  for (int i = 0, at = 0; results && i < BWD_MADE; ++i) {
    if (!call->wanted[i]) continue;
    PyObject* result = call->made[i] ? adopt(call->given[B_q], call->made[i]) : Py_NewRef(call->given[bwd_made[i]]);
    if (!result)
      Py_CLEAR(results);
    else
      PyTuple_SetItem(results, at++, result);
  }
  return results;
}

/* Runs a call that has begun, through a launcher when there is one. */
static PyObject* bwd_run(Library* self, BwdCall* call, tilekiln_fmha_bwd_launcher* launcher) {
  tilekiln_status status;
  if (results_are_large(&call->results)) {
    int64_t instances[TILEKILN_BWD_STAGES];
    status = self->fmha_bwd_find(&call->args, instances);
    if (status != TILEKILN_OK) return library_error(self, status);
  }
  if (make_results(&call->results) < 0) return NULL;
  if (call->stream && (!(call->args.stream = stream_native(call->stream, self)) || bwd_hold(call) < 0)) return NULL;
  /* A call of this size waits for no thread: its work is smaller than letting go of the GIL. See is_long. */
  PyThreadState* state =
      call->stream || !is_long(call->args.q, call->args.k, call->args.layout) ? NULL : PyEval_SaveThread();
  status = launcher ? self->fmha_bwd_launcher_run(launcher, &call->args) : self->fmha_bwd(&call->args);
  if (state) PyEval_RestoreThread(state);
  return status == TILEKILN_OK ? bwd_results(call) : library_error(self, status);
}

static PyObject* fmha_bwd(Library* self, PyObject* const* values, Py_ssize_t positional, PyObject* names) {
  BwdCall call;
  PyObject* result = NULL;
  if (bwd_call_begin(self, &call, values, positional, names, "fmha_bwd") == 0) result = bwd_run(self, &call, NULL);
  bwd_call_end(&call);
  return result;
}

static PyObject* stage_numbers(const int64_t* instances) {
  return Py_BuildValue("(LLL)", (long long)instances[TILEKILN_BWD_DOT_DO_O],
                       (long long)instances[TILEKILN_BWD_DQ_DK_DV], (long long)instances[TILEKILN_BWD_CONVERT_DQ]);
}

static PyObject* fmha_bwd_find(Library* self, PyObject* const* values, Py_ssize_t positional, PyObject* names) {
  BwdCall call;
  PyObject* result = NULL;
  if (bwd_call_begin(self, &call, values, positional, names, "fmha_bwd_find") == 0) {
    int64_t instances[TILEKILN_BWD_STAGES];
    const tilekiln_status status = self->fmha_bwd_find(&call.args, instances);
    result = status == TILEKILN_OK ? stage_numbers(instances) : library_error(self, status);
  }
  bwd_call_end(&call);
  return result;
}

static PyObject* fmha_bwd_why(Library* self, PyObject* const* values, Py_ssize_t positional, PyObject* names) {
  BwdCall call;
  PyObject* result = NULL;
  if (bwd_call_begin(self, &call, values, positional, names, "fmha_bwd_why") == 0) {
    size_t length = 0;
    tilekiln_status status = self->fmha_bwd_why(&call.args, NULL, 0, &length);
    char* text = status == TILEKILN_OK ? PyMem_Malloc(length + 1) : NULL;
    if (text) status = self->fmha_bwd_why(&call.args, text, length + 1, &length);
    if (status != TILEKILN_OK)
      library_error(self, status);
    else
      result = text ? PyUnicode_DecodeUTF8(text, (Py_ssize_t)length, "strict") : PyErr_NoMemory();
    PyMem_Free(text);
  }
  bwd_call_end(&call);
  return result;
}

static PyObject* fmha_bwd_workspace_size(Library* self, PyObject* const* values, Py_ssize_t positional,
                                         PyObject* names) {
  BwdCall call;
  PyObject* result = NULL;
  if (bwd_call_begin(self, &call, values, positional, names, "fmha_bwd_workspace_size") == 0) {
    uint64_t bytes = 0;
    const tilekiln_status status = self->fmha_bwd_workspace_size(&call.args, &bytes);
    result = status == TILEKILN_OK ? PyLong_FromUnsignedLongLong(bytes) : library_error(self, status);
  }
  bwd_call_end(&call);
  return result;
}

#endif
