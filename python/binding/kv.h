/* Calls of the KV-cache families: Python arguments as the argument structs of the C ABI. The four structs are alike, so each family is
 * a table of its arguments, and one reader serves all. */
#ifndef TILEKILN_BINDING_KV_H
#define TILEKILN_BINDING_KV_H

#include <stddef.h>

#include "keywords.h"
#include "scalars.h"

/* Arrays in the order of the fields of each struct, so that an index finds the field. */
#define SPLITKV_ARRAYS(X)                                                                                            \
  X(q) X(k) X(v) X(out) X(lse) X(bias) X(alibi_slopes) X(sink) X(q_descale) X(k_descale) X(v_descale) X(out_scale)   \
      X(seqstart_q) X(seqstart_k) X(seqlen_q) X(seqlen_k) X(cu_seqlens_q) X(cu_seqlens_k) X(block_table)             \
          X(cache_batch_idx) X(cache_leftpad)
#define PAGEDKV_ARRAYS(X)                                                                                            \
  X(q) X(k) X(v) X(out) X(bias) X(alibi_slopes) X(sink) X(q_descale) X(k_descale) X(v_descale) X(out_scale)          \
      X(seqstart_q) X(seqstart_k) X(seqlen_q) X(seqlen_k) X(cu_seqlens_q) X(cu_seqlens_k) X(block_table)             \
          X(cache_batch_idx) X(cache_leftpad)
#define APPENDKV_ARRAYS(X)                                                                                           \
  X(q) X(k) X(v) X(knew) X(vnew) X(out) X(lse) X(bias) X(alibi_slopes) X(sink) X(q_descale) X(k_descale)             \
      X(v_descale) X(out_scale) X(seqlen_k) X(rotary_cos) X(rotary_sin) X(block_table) X(cache_batch_idx)            \
          X(cache_leftpad)
#define PREFILL_ARRAYS(X)                                                                                            \
  X(q) X(k) X(v) X(out) X(lse) X(randval) X(bias) X(alibi_slopes) X(sink) X(q_descale) X(k_descale) X(v_descale)     \
      X(kv_block_descale) X(cu_seqlens_q) X(kv_indptr) X(kv_page_indices) X(kv_last_page_lens) X(block_table)        \
          X(seqlen_k)

#define X(name) SPLITKV_##name,
enum { SPLITKV_ARRAYS(X) SPLITKV_COUNT };
#undef X
#define X(name) PAGEDKV_##name,
enum { PAGEDKV_ARRAYS(X) PAGEDKV_COUNT };
#undef X
#define X(name) APPENDKV_##name,
enum { APPENDKV_ARRAYS(X) APPENDKV_COUNT };
#undef X
#define X(name) PREFILL_##name,
enum { PREFILL_ARRAYS(X) PREFILL_COUNT };
#undef X

#define KV_IN_ORDER(type, index, name)                                            \
  _Static_assert(offsetof(type, name) == sizeof(size_t) + index * sizeof(void*), \
                 "the tables list the tensors of " #type " in their order");
#define X(name) KV_IN_ORDER(tilekiln_fmha_fwd_splitkv_args, SPLITKV_##name, name)
SPLITKV_ARRAYS(X)
#undef X
#define X(name) KV_IN_ORDER(tilekiln_fmha_fwd_pagedkv_args, PAGEDKV_##name, name)
PAGEDKV_ARRAYS(X)
#undef X
#define X(name) KV_IN_ORDER(tilekiln_fmha_fwd_appendkv_args, APPENDKV_##name, name)
APPENDKV_ARRAYS(X)
#undef X
#define X(name) KV_IN_ORDER(tilekiln_fmha_batch_prefill_args, PREFILL_##name, name)
PREFILL_ARRAYS(X)
#undef X

#define X(name) #name,
static const char* const splitkv_arrays[] = {SPLITKV_ARRAYS(X)};
static const char* const pagedkv_arrays[] = {PAGEDKV_ARRAYS(X)};
static const char* const appendkv_arrays[] = {APPENDKV_ARRAYS(X)};
static const char* const prefill_arrays[] = {PREFILL_ARRAYS(X)};
#undef X

typedef union {
  size_t size;
  tilekiln_fmha_fwd_splitkv_args splitkv;
  tilekiln_fmha_fwd_pagedkv_args pagedkv;
  tilekiln_fmha_fwd_appendkv_args appendkv;
  tilekiln_fmha_batch_prefill_args prefill;
} KvArgs;

typedef enum {
  KV_SCALE, /* const float*, or null */
  KV_FLOAT,
  KV_FLAG,
  KV_COUNT,  /* int32 from 0 */
  KV_WINDOW, /* two int32 */
  KV_ORIGIN,
  KV_LAYOUT,
  KV_RNG, /* two uint64 */
  KV_STREAM,
  KV_INSTANCE,
  KV_RETURN_LSE, /* these two are no fields */
  KV_ATTEND
} KvKind;

typedef struct {
  const char* name;
  KvKind kind;
  size_t place; /* offset of the field */
} KvScalar;

#define KV_FIELD(type, name, kind) {#name, kind, offsetof(type, name)}
#define KV_MASK_SCALARS(type)                                                                                \
  KV_FIELD(type, softmax_scale, KV_SCALE), KV_FIELD(type, causal, KV_FLAG),                                  \
      {"window", KV_WINDOW, offsetof(type, window_left)}, KV_FIELD(type, mask_origin, KV_ORIGIN),            \
      KV_FIELD(type, sink_size, KV_COUNT), KV_FIELD(type, softcap, KV_FLOAT)
#define KV_RUN_SCALARS(type) \
  KV_FIELD(type, stream, KV_STREAM), KV_FIELD(type, num_threads, KV_COUNT), KV_FIELD(type, instance, KV_INSTANCE)

static const KvScalar splitkv_scalars[] = {KV_MASK_SCALARS(tilekiln_fmha_fwd_splitkv_args),
                                           KV_FIELD(tilekiln_fmha_fwd_splitkv_args, is_gappy, KV_FLAG),
                                           KV_FIELD(tilekiln_fmha_fwd_splitkv_args, num_splits, KV_COUNT),
                                           KV_FIELD(tilekiln_fmha_fwd_splitkv_args, layout, KV_LAYOUT),
                                           KV_RUN_SCALARS(tilekiln_fmha_fwd_splitkv_args),
                                           {"return_lse", KV_RETURN_LSE, 0}};
static const KvScalar pagedkv_scalars[] = {
    KV_MASK_SCALARS(tilekiln_fmha_fwd_pagedkv_args), KV_FIELD(tilekiln_fmha_fwd_pagedkv_args, is_gappy, KV_FLAG),
    KV_FIELD(tilekiln_fmha_fwd_pagedkv_args, layout, KV_LAYOUT), KV_RUN_SCALARS(tilekiln_fmha_fwd_pagedkv_args)};
static const KvScalar appendkv_scalars[] = {KV_MASK_SCALARS(tilekiln_fmha_fwd_appendkv_args),
                                            KV_FIELD(tilekiln_fmha_fwd_appendkv_args, rotary_interleaved, KV_FLAG),
                                            KV_FIELD(tilekiln_fmha_fwd_appendkv_args, num_splits, KV_COUNT),
                                            KV_FIELD(tilekiln_fmha_fwd_appendkv_args, layout, KV_LAYOUT),
                                            KV_RUN_SCALARS(tilekiln_fmha_fwd_appendkv_args),
                                            {"return_lse", KV_RETURN_LSE, 0},
                                            {"attend", KV_ATTEND, 0}};
static const KvScalar prefill_scalars[] = {KV_MASK_SCALARS(tilekiln_fmha_batch_prefill_args),
                                           KV_FIELD(tilekiln_fmha_batch_prefill_args, dropout_p, KV_FLOAT),
                                           {"rng", KV_RNG, offsetof(tilekiln_fmha_batch_prefill_args, rng_seed)},
                                           KV_RUN_SCALARS(tilekiln_fmha_batch_prefill_args),
                                           {"return_lse", KV_RETURN_LSE, 0}};

enum { KV_MAX_ARRAYS = SPLITKV_COUNT, KV_MAX_ARGUMENTS = 40, KV_MAX_STAGES = TILEKILN_APPENDKV_STAGES };

/* ---- the families --------------------------------------------------------------------------------------------------- */

typedef struct {
  const char *function, *find, *why;
  const char* const* arrays;
  const KvScalar* scalars;
  int array_count, scalar_count, positional;
  unsigned nullable; /* bit i: positional argument i may be None */
  const char* positional_text;
  int out, lse;     /* indices; lse -1: none */
  unsigned written; /* bit i: array i is written */
  int stages;
  void (*defaults)(KvArgs*);
  tilekiln_status (*run)(const Library*, const KvArgs*);
  tilekiln_status (*find_stages)(const Library*, const KvArgs*, int64_t*);
  tilekiln_status (*explain)(const Library*, const KvArgs*, char*, size_t, size_t*);
} KvFamily;

#define KV_FUNCTIONS(member, name)                                                                                    \
  static void member##_defaults(KvArgs* args) { args->member = tilekiln_##name##_defaults(); }                        \
  static tilekiln_status member##_run(const Library* self, const KvArgs* args) { return self->name(&args->member); }  \
  static tilekiln_status member##_find(const Library* self, const KvArgs* args, int64_t* instances) {                 \
    return self->name##_find(&args->member, instances);                                                               \
  }                                                                                                                   \
  static tilekiln_status member##_why(const Library* self, const KvArgs* args, char* text, size_t capacity,           \
                                      size_t* length) {                                                               \
    return self->name##_why(&args->member, text, capacity, length);                                                   \
  }
KV_FUNCTIONS(splitkv, fmha_fwd_splitkv)
KV_FUNCTIONS(pagedkv, fmha_fwd_pagedkv)
KV_FUNCTIONS(appendkv, fmha_fwd_appendkv)
KV_FUNCTIONS(prefill, fmha_batch_prefill)

#define KV_NAMES(name) #name, #name "_find", #name "_why"
#define KV_LISTS(member) member##_arrays, member##_scalars
#define KV_ENTRIES(member) member##_defaults, member##_run, member##_find, member##_why
#define KV_LENGTH(list) (int)(sizeof(list) / sizeof(*list))
static const KvFamily kv_splitkv = {KV_NAMES(fmha_fwd_splitkv),
                                    KV_LISTS(splitkv),
                                    SPLITKV_COUNT,
                                    KV_LENGTH(splitkv_scalars),
                                    3,
                                    0,
                                    "q, k and v",
                                    SPLITKV_out,
                                    SPLITKV_lse,
                                    1u << SPLITKV_out | 1u << SPLITKV_lse,
                                    TILEKILN_SPLITKV_STAGES,
                                    KV_ENTRIES(splitkv)};
static const KvFamily kv_pagedkv = {KV_NAMES(fmha_fwd_pagedkv),
                                    KV_LISTS(pagedkv),
                                    PAGEDKV_COUNT,
                                    KV_LENGTH(pagedkv_scalars),
                                    3,
                                    0,
                                    "q, k and v",
                                    PAGEDKV_out,
                                    -1,
                                    1u << PAGEDKV_out,
                                    1,
                                    KV_ENTRIES(pagedkv)};
static const KvFamily kv_appendkv = {KV_NAMES(fmha_fwd_appendkv),
                                     KV_LISTS(appendkv),
                                     APPENDKV_COUNT,
                                     KV_LENGTH(appendkv_scalars),
                                     5,
                                     1u << APPENDKV_q,
                                     "q, k, v, knew and vnew",
                                     APPENDKV_out,
                                     APPENDKV_lse,
                                     1u << APPENDKV_k | 1u << APPENDKV_v | 1u << APPENDKV_out | 1u << APPENDKV_lse,
                                     TILEKILN_APPENDKV_STAGES,
                                     KV_ENTRIES(appendkv)};
static const KvFamily kv_prefill = {KV_NAMES(fmha_batch_prefill),
                                    KV_LISTS(prefill),
                                    PREFILL_COUNT,
                                    KV_LENGTH(prefill_scalars),
                                    3,
                                    0,
                                    "q, k and v",
                                    PREFILL_out,
                                    PREFILL_lse,
                                    1u << PREFILL_out | 1u << PREFILL_lse | 1u << PREFILL_randval,
                                    1,
                                    KV_ENTRIES(prefill)};
enum { KV_FAMILIES = 4 };
static const KvFamily* const kv_families[KV_FAMILIES] = {&kv_splitkv, &kv_pagedkv, &kv_appendkv, &kv_prefill};

/* The keywords of each: arrays, then scalars. */
static struct {
  const char* names[KV_MAX_ARGUMENTS];
  PyObject* interned[KV_MAX_ARGUMENTS];
  Keywords keywords;
} kv_known[KV_FAMILIES];

/* Fills kv_known. Returns {function: argument names}. */
static PyObject* kv_intern(void) {
  PyObject* result = PyDict_New();
  for (int i = 0; result && i < KV_FAMILIES; ++i) {
    const KvFamily* family = kv_families[i];
    const int count = family->array_count + family->scalar_count;
    for (int at = 0; at < count; ++at)
      kv_known[i].names[at] =
          at < family->array_count ? family->arrays[at] : family->scalars[at - family->array_count].name;
    kv_known[i].keywords = (Keywords){kv_known[i].names,  kv_known[i].interned,    count,
                                      family->positional, family->positional_text, family->nullable};
    PyObject* names = keywords_intern(&kv_known[i].keywords);
    if (!names || PyDict_SetItemString(result, family->function, names) < 0) Py_CLEAR(result);
    Py_XDECREF(names);
  }
  return result;
}

/* ---- one call ------------------------------------------------------------------------------------------------------- */

typedef struct {
  const KvFamily* family;
  PyObject* given[KV_MAX_ARGUMENTS];
  KvArgs args;
  Stream* stream;
  tilekiln_stream** stream_place;
  float softmax_scale;
  int32_t return_lse, attends;
  PyObject *out, *lse; /* strong references when this call made them */
  Results results;
  int held_count;
  PyObject* held[KV_MAX_ARRAYS]; /* capsules */
  tilekiln_tensor tensor[KV_MAX_ARRAYS];
} KvCall;

static const tilekiln_tensor** kv_fields(KvCall* call) {
  return (const tilekiln_tensor**)((char*)&call->args + sizeof(size_t));
}

static void kv_call_end(KvCall* call) {
  for (int i = 0; i < call->held_count; ++i) Py_DECREF(call->held[i]);
  Py_XDECREF(call->out);
  Py_XDECREF(call->lse);
}

static int kv_read_arrays(KvCall* call) {
  const KvFamily* family = call->family;
  unsigned written = family->written;
  if (family == &kv_appendkv && call->given[APPENDKV_rotary_cos]) written |= 1u << APPENDKV_q;
  return view_arrays(family->array_count, call->given, family->arrays, written, call->tensor, kv_fields(call),
                     call->held, &call->held_count);
}

static int kv_read_scalar(Library* self, KvCall* call, const KvScalar* scalar, PyObject* value) {
  void* place = (char*)&call->args + scalar->place;
  const char* name = scalar->name;
  switch (scalar->kind) {
    case KV_SCALE:
      if (value) *(const float**)place = &call->softmax_scale;
      return read_float(value, name, &call->softmax_scale);
    case KV_FLOAT: return read_float(value, name, place);
    case KV_FLAG: return value ? read_flag(value, name, place) : 0; /* absent: the default, which may be 1 */
    case KV_COUNT: return read_int32(value, name, 0, place);
    case KV_WINDOW: return read_window(value, (int32_t*)place, (int32_t*)place + 1);
    case KV_ORIGIN: return read_word(value, name, mask_origins, place);
    case KV_LAYOUT: return read_word(value, name, layouts, place);
    case KV_RNG: return read_rng(value, (uint64_t*)place, (uint64_t*)place + 1);
    case KV_STREAM: call->stream_place = place; return read_stream(value, &call->stream);
    case KV_INSTANCE: return read_instance(self, value, place);
    case KV_RETURN_LSE: return read_flag(value, name, &call->return_lse);
    case KV_ATTEND: return value ? read_flag(value, name, &call->attends) : 0;
  }
  return 0;
}

/* What append takes for attention only goes with attention. */
static int kv_check_attend(const KvCall* call) {
  if (call->family != &kv_appendkv) return 0;
  if (call->attends && !call->given[APPENDKV_q]) return refuse("q", "was None, must be given with attend or out");
  if (call->attends) return 0;
  if (call->given[APPENDKV_out])
    return refuse("out", "was given without attention, must be None: attend needs q and is not False");
  if (call->return_lse)
    return refuse("return_lse", "was True without attention, must be False: attend needs q and is not False");
  return 0;
}

/* Describes what the caller did not give. Rows that a call leaves untouched read as zero. */
static void kv_describe_outputs(KvCall* call) {
  const KvFamily* family = call->family;
  const tilekiln_tensor** fields = kv_fields(call);
  call->results.like = call->given[0];
  call->results.count = 0;
  call->results.bytes = 0;
  if (!call->attends) return;
  const tilekiln_tensor *q = fields[0], *v = fields[2];
  const int prefill = family == &kv_prefill,
            layout_bhsd = family == &kv_splitkv    ? call->args.splitkv.layout == TILEKILN_BHSD
                          : family == &kv_pagedkv  ? call->args.pagedkv.layout == TILEKILN_BHSD
                          : family == &kv_appendkv ? call->args.appendkv.layout == TILEKILN_BHSD
                                                   : 0;
  const int floating =
      q->dtype == TILEKILN_FP32 || q->dtype == TILEKILN_FP16 || q->dtype == TILEKILN_BF16 || q->dtype == TILEKILN_FP8;
  const int possible = floating && (q->ndim == 3 || q->ndim == 4) && v->ndim >= 3 && v->device_type == TILEKILN_CPU &&
                       q->device_type == TILEKILN_CPU;
  tilekiln_tensor* out = &call->tensor[family->out];
  call->results.zero = q->ndim == 3 ||
                       (family == &kv_splitkv && (fields[SPLITKV_seqlen_q] || fields[SPLITKV_cu_seqlens_q])) ||
                       (family == &kv_pagedkv && (fields[PAGEDKV_seqlen_q] || fields[PAGEDKV_cu_seqlens_q]));
  if (!fields[family->out]) {
    if (possible) {
      out->dtype = prefill && q->dtype == TILEKILN_FP8 ? TILEKILN_BF16 : q->dtype;
      out->ndim = q->ndim;
      memcpy(out->shape, q->shape, sizeof(out->shape));
      out->shape[q->ndim - 1] = v->ndim == 5 ? v->shape[3] : v->shape[v->ndim - 1];
      add_result(&call->results, "out", out, &call->out);
    } else { /* the library refuses q or v, which it checks before out */
      memset(out, 0, sizeof(*out));
      out->dtype = q->dtype;
      out->ndim = q->ndim;
      out->device_type = TILEKILN_CPU;
      out->data = result_place(0);
    }
    fields[family->out] = out;
  }
  if (possible && call->return_lse && !fields[family->lse]) {
    tilekiln_tensor* lse = &call->tensor[family->lse];
    const int first = q->ndim == 4;
    lse->dtype = TILEKILN_FP32;
    lse->ndim = q->ndim - 1;
    lse->shape[0] = q->shape[0];
    lse->shape[first] = q->shape[first + !layout_bhsd];
    lse->shape[first + 1] = q->shape[first + layout_bhsd];
    add_result(&call->results, "lse", lse, &call->lse);
    fields[family->lse] = lse;
  }
}

/* Makes the results of a call that is to run. */
static int kv_make_outputs(Library* self, KvCall* call) {
  int64_t instances[KV_MAX_STAGES];
  if (results_are_large(&call->results)) {
    const tilekiln_status status = call->family->find_stages(self, &call->args, instances);
    if (status != TILEKILN_OK) return library_error(self, status), -1;
  }
  return make_results(&call->results);
}

static int kv_call_begin(Library* self, KvCall* call, const KvFamily* family, PyObject* const* values,
                         Py_ssize_t positional, PyObject* names, const char* function) {
  int number = 0;
  while (kv_families[number] != family) ++number;
  call->family = family;
  family->defaults(&call->args);
  call->stream = NULL;
  call->softmax_scale = 0;
  call->return_lse = 0;
  call->out = call->lse = NULL;
  call->held_count = 0;
  if (collect(&kv_known[number].keywords, values, positional, names, call->given, function) < 0) return -1;
  call->attends = call->given[0] != NULL;
  for (int i = 0; i < family->scalar_count; ++i)
    if (kv_read_scalar(self, call, &family->scalars[i], call->given[family->array_count + i]) < 0) return -1;
  if (kv_read_arrays(call) < 0) return -1; /* last: scalars may run Python code, which may change an array */
  if (kv_check_attend(call) < 0) return -1;
  kv_describe_outputs(call);
  return 0;
}

/* Everything a stream must keep: the arrays given and made, and the capsules. */
static int kv_hold(KvCall* call) {
  for (int i = 0; i < call->family->array_count; ++i)
    if (call->given[i] && stream_hold(call->stream, call->given[i]) < 0) return -1;
  for (int i = 0; i < call->held_count; ++i)
    if (stream_hold(call->stream, call->held[i]) < 0) return -1;
  return (call->out && stream_hold(call->stream, call->out) < 0) ||
                 (call->lse && stream_hold(call->stream, call->lse) < 0)
             ? -1
             : 0;
}

static PyObject* kv_results(KvCall* call) {
  if (!call->attends) Py_RETURN_NONE;
  PyObject* like = call->given[0];
  PyObject* out = call->out ? adopt(like, call->out) : Py_NewRef(call->given[call->family->out]);
  if (!out || !call->return_lse) return out;
  PyObject* lse = call->lse ? adopt(like, call->lse) : Py_NewRef(call->given[call->family->lse]);
  PyObject* result = lse ? PyTuple_Pack(2, out, lse) : NULL;
  Py_DECREF(out);
  Py_XDECREF(lse);
  return result;
}

static PyObject* kv_run(Library* self, const KvFamily* family, PyObject* const* values, Py_ssize_t positional,
                        PyObject* names) {
  KvCall call;
  PyObject* result = NULL;
  if (kv_call_begin(self, &call, family, values, positional, names, family->function) == 0 &&
      kv_make_outputs(self, &call) == 0) {
    tilekiln_status status;
    if (call.stream) {
      *call.stream_place = stream_native(call.stream, self);
      if (!*call.stream_place || kv_hold(&call) < 0) goto end;
      status = family->run(self, &call.args);
    } else {
      Py_BEGIN_ALLOW_THREADS status = family->run(self, &call.args);
      Py_END_ALLOW_THREADS
    }
    result = status == TILEKILN_OK ? kv_results(&call) : library_error(self, status);
  }
end:
  kv_call_end(&call);
  return result;
}

static PyObject* kv_find(Library* self, const KvFamily* family, PyObject* const* values, Py_ssize_t positional,
                         PyObject* names) {
  KvCall call;
  PyObject* result = NULL;
  if (kv_call_begin(self, &call, family, values, positional, names, family->find) == 0) {
    int64_t instances[KV_MAX_STAGES];
    const tilekiln_status status = family->find_stages(self, &call.args, instances);
    if (status != TILEKILN_OK)
      library_error(self, status);
    else if (family->stages == 1)
      result = PyLong_FromLongLong(instances[0]);
    else {
      result = PyTuple_New(family->stages);
      for (int i = 0; result && i < family->stages; ++i) {
        PyObject* number = PyLong_FromLongLong(instances[i]);
        if (!number)
          Py_CLEAR(result);
        else
          PyTuple_SetItem(result, i, number);
      }
    }
  }
  kv_call_end(&call);
  return result;
}

static PyObject* kv_explain(Library* self, const KvFamily* family, PyObject* const* values, Py_ssize_t positional,
                            PyObject* names) {
  KvCall call;
  PyObject* result = NULL;
  if (kv_call_begin(self, &call, family, values, positional, names, family->why) == 0) {
    size_t length = 0;
    tilekiln_status status = family->explain(self, &call.args, NULL, 0, &length);
    char* text = status == TILEKILN_OK ? PyMem_Malloc(length + 1) : NULL;
    if (text) status = family->explain(self, &call.args, text, length + 1, &length);
    if (status != TILEKILN_OK)
      library_error(self, status);
    else
      result = text ? PyUnicode_DecodeUTF8(text, (Py_ssize_t)length, "strict") : PyErr_NoMemory();
    PyMem_Free(text);
  }
  kv_call_end(&call);
  return result;
}

#define KV_METHODS(name, family)                                                                                       \
  static PyObject* name(Library* self, PyObject* const* values, Py_ssize_t positional, PyObject* names) {              \
    return kv_run(self, &family, values, positional, names);                                                           \
  }                                                                                                                    \
  static PyObject* name##_find(Library* self, PyObject* const* values, Py_ssize_t positional, PyObject* names) {       \
    return kv_find(self, &family, values, positional, names);                                                          \
  }                                                                                                                    \
  static PyObject* name##_why(Library* self, PyObject* const* values, Py_ssize_t positional, PyObject* names) {        \
    return kv_explain(self, &family, values, positional, names);                                                       \
  }
KV_METHODS(fmha_fwd_splitkv, kv_splitkv)
KV_METHODS(fmha_fwd_pagedkv, kv_pagedkv)
KV_METHODS(fmha_fwd_appendkv, kv_appendkv)
KV_METHODS(fmha_batch_prefill, kv_prefill)

static PyObject* fmha_fwd_splitkv_num_splits(Library* self, PyObject* const* values, Py_ssize_t positional,
                                             PyObject* names) {
  KvCall call;
  PyObject* result = NULL;
  if (kv_call_begin(self, &call, &kv_splitkv, values, positional, names, "fmha_fwd_splitkv_num_splits") == 0) {
    int32_t splits = 0;
    const tilekiln_status status = self->fmha_fwd_splitkv_num_splits(&call.args.splitkv, &splits);
    result = status == TILEKILN_OK ? PyLong_FromLong(splits) : library_error(self, status);
  }
  kv_call_end(&call);
  return result;
}

#endif
