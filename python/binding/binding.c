/* tilekiln._binding: the one place where Python meets the C ABI. It knows no receipt and no axis: it turns Python arguments into
 * tilekiln_fmha_fwd_args and status codes into exceptions. The library checks the values; only what C cannot see is checked here. */
#include "arrays.h"
#include "docs.h"
#include "export.h"
#include "library.h"
#include "stream.h"
#include "values.h"

#include <stddef.h>

/* ---- arguments ------------------------------------------------------------------------------------------------------ */

/* Arrays first, in the order of the fields of tilekiln_fmha_fwd_args, so that an index finds the field. */
#define ARRAYS(X)                                                                                                     \
  X(q)                                                                                                                \
  X(k)                                                                                                                \
  X(v) X(out) X(lse) X(bias) X(alibi_slopes) X(sink) X(q_descale) X(k_descale) X(v_descale) X(block_scale_seqstart_q) \
      X(block_scale_seqstart_k) X(seqstart_q) X(seqstart_k) X(seqlen_q) X(seqlen_k) X(cu_seqlens_q) X(cu_seqlens_k)   \
          X(randval)
#define SCALARS(X)                                                                                             \
  X(softmax_scale)                                                                                             \
  X(causal)                                                                                                    \
  X(window) X(mask_origin) X(sink_size) X(softcap) X(dropout_p) X(rng) X(min_seqlen_q) X(return_lse) X(layout) \
      X(stream) X(num_threads) X(instance) X(out_dtype)

enum {
#define X(name) A_##name,
  ARRAYS(X) ARRAY_COUNT,
  A_before_scalars = ARRAY_COUNT - 1,
  SCALARS(X) ARGUMENT_COUNT
#undef X
};
static const char* const argument_names[] = {
#define X(name) #name,
    ARRAYS(X) SCALARS(X)
#undef X
};
#define X(name)                                                                                                 \
  _Static_assert(                                                                                               \
      offsetof(tilekiln_fmha_fwd_args, name) == offsetof(tilekiln_fmha_fwd_args, q) + A_##name * sizeof(void*), \
      "ARRAYS lists the tensors of tilekiln_fmha_fwd_args in their order");
ARRAYS(X)
#undef X

static PyObject*
    interned[ARGUMENT_COUNT]; /* the names as Python holds them: a keyword is found by comparing pointers */
static PyObject* facade;      /* tilekiln._frameworks, imported at its first use */

/* The index of a keyword, or -1. Callers mostly name arguments in our order, so the search starts where the last one ended. */
static int argument_index(PyObject* name, int start) {
  for (int i = 0, at = start; i < ARGUMENT_COUNT; ++i) {
    if (interned[at] == name) return at;
    if (++at == ARGUMENT_COUNT) at = 0;
  }
  for (int i = 0; i < ARGUMENT_COUNT; ++i)
    if (PyUnicode_Compare(interned[i], name) == 0) return i;
  return -1;
}

/* Positional q, k, v, then keywords. None is absent. given[i] is borrowed. */
static int collect(PyObject* const* values, Py_ssize_t positional, PyObject* names, PyObject** given,
                   const char* function) {
  memset(given, 0, ARGUMENT_COUNT * sizeof(*given));
  if (positional > 3) {
    PyErr_Format(PyExc_TypeError,
                 "%s() takes q, k and v by position and everything else by name; %zd were given by position", function,
                 positional);
    return -1;
  }
  for (Py_ssize_t i = 0; i < positional; ++i) given[i] = values[i];
  const Py_ssize_t keywords = names ? PyTuple_GET_SIZE(names) : 0;
  for (Py_ssize_t i = 0, at = A_out; i < keywords; ++i) {
    PyObject* name = PyTuple_GET_ITEM(names, i);
    const int index = argument_index(name, (int)at);
    if (index < 0) {
      PyObject* text = facade ? PyObject_CallMethod(facade, "unknown_argument", "sO", function, name) : NULL;
      if (text) PyErr_SetObject(PyExc_TypeError, text);
      Py_XDECREF(text);
      return -1;
    }
    if (index < positional) {
      PyErr_Format(PyExc_TypeError, "%s() got %s by position and by name", function, argument_names[index]);
      return -1;
    }
    given[index] = values[positional + i];
    at = index + 1 == ARGUMENT_COUNT ? 0 : index + 1;
  }
  for (int i = 0; i < ARGUMENT_COUNT; ++i)
    if (given[i] == Py_None) given[i] = NULL;
  for (int i = 0; i < 3; ++i)
    if (!given[i]) {
      PyErr_Format(PyExc_TypeError, "%s() needs the argument %s", function, argument_names[i]);
      return -1;
    }
  return 0;
}

static int read_instance(Library* self, PyObject* value, int64_t* result) {
  if (!value) return 0;
  if (!PyUnicode_Check(value)) {
    long long number;
    if (read_integer(value, "instance", -1, INT64_MAX, &number) < 0) return -1;
    *result = number;
    return 0;
  }
  const int64_t count = self->instance_count();
  for (int64_t i = 0; i < count; ++i)
    if (PyUnicode_CompareWithASCIIString(value, self->instance_name(i)) == 0) {
      *result = i;
      return 0;
    }
  return refuse("instance", "was %R, must be the number or the name of an instance: Library.instances lists them",
                value);
}

/* ---- one call ------------------------------------------------------------------------------------------------------- */

typedef struct {
  PyObject* given[ARGUMENT_COUNT];
  tilekiln_fmha_fwd_args args;
  Stream* stream;
  int32_t return_lse;
  float softmax_scale;
  PyObject *out, *lse; /* strong references when this call made them */
  int held_count;
  PyObject* held[ARRAY_COUNT]; /* capsules */
  tilekiln_tensor tensor[ARRAY_COUNT];
} Call;

static void call_end(Call* call) {
  for (int i = 0; i < call->held_count; ++i) Py_DECREF(call->held[i]);
  Py_XDECREF(call->out);
  Py_XDECREF(call->lse);
}

static int read_scalars(Library* self, Call* call) {
  static const char* const origins[] = {"bottom_right", "top_left", NULL};
  static const char* const layouts[] = {"bshd", "bhsd", NULL};
  PyObject* const* given = call->given;
  tilekiln_fmha_fwd_args* args = &call->args;
  if (given[A_window]) {
    PyObject* pair;
    if (read_pair(given[A_window], "window", "left, right", &pair) < 0) return -1;
    const int bad = read_int32(PyTuple_GET_ITEM(pair, 0), "window", -1, &args->window_left) < 0 ||
                    read_int32(PyTuple_GET_ITEM(pair, 1), "window", -1, &args->window_right) < 0;
    Py_DECREF(pair);
    if (bad) return -1;
  }
  if (given[A_rng]) {
    PyObject* pair;
    if (read_pair(given[A_rng], "rng", "seed, offset", &pair) < 0) return -1;
    const int bad = read_uint64(PyTuple_GET_ITEM(pair, 0), "rng", &args->rng_seed) < 0 ||
                    read_uint64(PyTuple_GET_ITEM(pair, 1), "rng", &args->rng_offset) < 0;
    Py_DECREF(pair);
    if (bad) return -1;
  }
  if (given[A_stream]) {
    if (Py_TYPE(given[A_stream]) != StreamType)
      return refuse("stream", "was %R, must be a tilekiln.Stream", given[A_stream]);
    call->stream = (Stream*)given[A_stream];
  }
  return read_flag(given[A_causal], "causal", &args->causal) < 0 ||
                 read_flag(given[A_return_lse], "return_lse", &call->return_lse) < 0 ||
                 read_word(given[A_mask_origin], "mask_origin", origins, &args->mask_origin) < 0 ||
                 read_word(given[A_layout], "layout", layouts, &args->layout) < 0 ||
                 read_int32(given[A_sink_size], "sink_size", 0, &args->sink_size) < 0 ||
                 read_int32(given[A_min_seqlen_q], "min_seqlen_q", 0, &args->min_seqlen_q) < 0 ||
                 read_int32(given[A_num_threads], "num_threads", 0, &args->num_threads) < 0 ||
                 read_float(given[A_softcap], "softcap", &args->softcap) < 0 ||
                 read_float(given[A_dropout_p], "dropout_p", &args->dropout_p) < 0 ||
                 read_float(given[A_softmax_scale], "softmax_scale", &call->softmax_scale) < 0 ||
                 read_instance(self, given[A_instance], &args->instance) < 0
             ? -1
             : 0;
}

static int read_arrays(Call* call) {
  const tilekiln_tensor** fields = &call->args.q;
  for (int i = 0; i < ARRAY_COUNT; ++i) {
    if (!call->given[i]) continue;
    PyObject* held;
    const int written = i == A_out || i == A_lse || i == A_randval;
    const int bad = view_array(call->given[i], &call->tensor[i], written, argument_names[i], &held);
    if (held) call->held[call->held_count++] = held;
    if (bad < 0) return -1;
    fields[i] = &call->tensor[i];
  }
  return 0;
}

/* Can an output be shaped after q and v? */
static int can_allocate(const Call* call) {
  const tilekiln_tensor *q = call->args.q, *v = call->args.v;
  const int floating =
      q->dtype == TILEKILN_FP32 || q->dtype == TILEKILN_FP16 || q->dtype == TILEKILN_BF16 || q->dtype == TILEKILN_FP8;
  return floating && (q->ndim == 3 || q->ndim == 4) && v->ndim == q->ndim && q->device_type == TILEKILN_CPU;
}

/* Makes what the caller did not give. Rows that a call leaves untouched (padding, skipped sequences) read as zero. */
static int make_outputs(Call* call) {
  static const char* const out_dtypes[] = {"bf16", "fp32", NULL};
  const tilekiln_fmha_fwd_args* args = &call->args;
  const tilekiln_tensor* q = args->q;
  int32_t out_dtype = 0;
  if (call->given[A_out_dtype]) {
    if (q->dtype != TILEKILN_FP8)
      return refuse("out_dtype", "was %R, must be absent unless q, k and v are fp8: out has the dtype of q",
                    call->given[A_out_dtype]);
    if (read_word(call->given[A_out_dtype], "out_dtype", out_dtypes, &out_dtype) < 0) return -1;
    if (args->out && args->out->dtype != (out_dtype ? TILEKILN_FP32 : TILEKILN_BF16))
      return refuse("out_dtype", "was %R, must be the dtype of out, or absent", call->given[A_out_dtype]);
  }
  if (!can_allocate(call)) { /* the library refuses q or v, which it checks before out */
    if (!args->out) {
      tilekiln_tensor* nothing = &call->tensor[A_out];
      memset(nothing, 0, sizeof(*nothing));
      nothing->dtype = q->dtype;
      nothing->ndim = q->ndim;
      nothing->device_type = TILEKILN_CPU;
      call->args.out = nothing;
    }
    return 0;
  }
  const int zero = q->ndim == 3 || args->seqlen_q || args->cu_seqlens_q;
  PyObject* like = call->given[A_q];
  if (!args->out) {
    tilekiln_tensor* out = &call->tensor[A_out];
    out->dtype = q->dtype != TILEKILN_FP8 ? q->dtype : out_dtype ? TILEKILN_FP32 : TILEKILN_BF16;
    out->ndim = q->ndim;
    memcpy(out->shape, q->shape, sizeof(out->shape[0]) * (size_t)q->ndim);
    out->shape[q->ndim - 1] = args->v->shape[q->ndim - 1];
    if (!(call->out = new_array(like, out, zero))) return -1;
    call->args.out = out;
  }
  if (!args->lse && call->return_lse) {
    tilekiln_tensor* lse = &call->tensor[A_lse];
    const int group = q->ndim == 3, first = !group, bhsd = args->layout == TILEKILN_BHSD;
    lse->dtype = TILEKILN_FP32;
    lse->ndim = q->ndim - 1;
    lse->shape[0] = q->shape[0];
    lse->shape[first] = q->shape[first + !bhsd];
    lse->shape[first + 1] = q->shape[first + bhsd];
    if (!(call->lse = new_array(like, lse, zero))) return -1;
    call->args.lse = lse;
  }
  return 0;
}

static int call_begin(Library* self, Call* call, PyObject* const* values, Py_ssize_t positional, PyObject* names,
                      const char* function) {
  call->args = tilekiln_fmha_fwd_defaults();
  call->stream = NULL;
  call->softmax_scale = 0;
  call->out = call->lse = NULL;
  call->held_count = 0;
  if (collect(values, positional, names, call->given, function) < 0 || read_arrays(call) < 0 ||
      read_scalars(self, call) < 0)
    return -1;
  if (call->given[A_softmax_scale]) call->args.softmax_scale = &call->softmax_scale;
  return make_outputs(call);
}

/* Everything a stream must keep: the arrays given and made, and the capsules. */
static int hold_arrays(Call* call) {
  for (int i = 0; i < ARRAY_COUNT; ++i)
    if (call->given[i] && stream_hold(call->stream, call->given[i]) < 0) return -1;
  for (int i = 0; i < call->held_count; ++i)
    if (stream_hold(call->stream, call->held[i]) < 0) return -1;
  return (call->out && stream_hold(call->stream, call->out) < 0) ||
                 (call->lse && stream_hold(call->stream, call->lse) < 0)
             ? -1
             : 0;
}

/* Letting go of the GIL and taking it back costs some 50 ns, more than a tiny call may cost; a call of 2^18 multiplications takes
 * about 10 us. */
static int is_long(const tilekiln_fmha_fwd_args* args) {
  double work = 1;
  for (int i = 0; i < args->q->ndim; ++i) work *= (double)args->q->shape[i];
  const tilekiln_tensor* k = args->k;
  const int rows = k->ndim - (args->layout == TILEKILN_BHSD ? 2 : 3);
  return work * (rows >= 0 && rows < k->ndim ? (double)k->shape[rows] : 1) > (double)(1 << 18);
}

/* A framework without the exchange API receives the NumPy array that was made for it. */
static PyObject* adopt(Call* call, PyObject* made) {
  PyObject* like = call->given[A_q];
  if (PyArray_CheckExact(like) || exchange_api(Py_TYPE(like)) || PyArray_Check(like)) return Py_NewRef(made);
  return PyObject_CallMethod(facade, "adopt", "OO", like, made);
}

static PyObject* fmha_fwd(Library* self, PyObject* const* values, Py_ssize_t positional, PyObject* names) {
  Call call;
  PyObject *result = NULL, *out = NULL, *lse = NULL;
  tilekiln_status status;
  if (call_begin(self, &call, values, positional, names, "fmha_fwd") < 0) goto end;
  if (call.stream) {
    if (!(call.args.stream = stream_native(call.stream, self)) || hold_arrays(&call) < 0) goto end;
    status = self->fmha_fwd(&call.args);
  } else if (is_long(&call.args)) {
    Py_BEGIN_ALLOW_THREADS status = self->fmha_fwd(&call.args);
    Py_END_ALLOW_THREADS
  } else
    status = self->fmha_fwd(&call.args);
  if (status != TILEKILN_OK) {
    library_error(self, status);
    goto end;
  }
  out = call.out ? adopt(&call, call.out) : Py_NewRef(call.given[A_out]);
  if (!out || !call.return_lse) {
    result = out;
    goto end;
  }
  lse = call.lse ? adopt(&call, call.lse) : Py_NewRef(call.given[A_lse]);
  if (lse) result = PyTuple_Pack(2, out, lse);
  Py_DECREF(out);
  Py_XDECREF(lse);
end:
  call_end(&call);
  return result;
}

static PyObject* fmha_fwd_find(Library* self, PyObject* const* values, Py_ssize_t positional, PyObject* names) {
  Call call;
  PyObject* result = NULL;
  if (call_begin(self, &call, values, positional, names, "fmha_fwd_find") == 0) {
    int64_t instance = -1;
    const tilekiln_status status = self->fmha_fwd_find(&call.args, &instance);
    result = status == TILEKILN_OK ? PyLong_FromLongLong(instance) : library_error(self, status);
  }
  call_end(&call);
  return result;
}

static PyObject* fmha_fwd_why(Library* self, PyObject* const* values, Py_ssize_t positional, PyObject* names) {
  Call call;
  PyObject* result = NULL;
  if (call_begin(self, &call, values, positional, names, "why") == 0) {
    size_t length = 0;
    tilekiln_status status = self->fmha_fwd_why(&call.args, NULL, 0, &length);
    char* text = status == TILEKILN_OK ? PyMem_Malloc(length + 1) : NULL;
    if (text) status = self->fmha_fwd_why(&call.args, text, length + 1, &length);
    if (status != TILEKILN_OK)
      library_error(self, status);
    else
      result = text ? PyUnicode_DecodeUTF8(text, (Py_ssize_t)length, "strict") : PyErr_NoMemory();
    PyMem_Free(text);
  }
  call_end(&call);
  return result;
}

/* ---- the module ----------------------------------------------------------------------------------------------------- */

#define FAST METH_FASTCALL | METH_KEYWORDS
#define METHOD(name, function, flags, text) {name, (PyCFunction)(void (*)(void))function, flags, text}
static PyMethodDef library_methods[] = {
    METHOD("fmha_fwd", fmha_fwd, FAST, fmha_fwd_doc),
    METHOD("fmha_fwd_find", fmha_fwd_find, FAST, fmha_fwd_find_doc),
    METHOD("why", fmha_fwd_why, FAST, why_doc),
    METHOD("manifest_text", library_manifest_text, METH_NOARGS,
           "manifest_text()\n--\n\nThe manifest inside the library: JSON."),
    METHOD("instance_name", library_instance_name, METH_O,
           "instance_name(instance)\n--\n\nThe canonical name of an instance of the plan."),
    METHOD("instance_usable", library_instance_usable, METH_O,
           "instance_usable(instance)\n--\n\nTrue when this machine can run the instance and TILEKILN_ISA allows it."),
    {NULL, NULL, 0, NULL}};
static PyGetSetDef library_properties[] = {
    {"path", (getter)library_path, NULL, "Where the library was loaded from.", NULL},
    {"version", (getter)library_version, NULL, "The Tilekiln version it was built from.", NULL},
    {"receipt", (getter)library_receipt, NULL, "The name of its receipt.", NULL},
    {"isa", (getter)library_isa, NULL,
     "The best ISA in use, such as 'avx512bf16'; '' when it holds none that this machine has.", NULL},
    {"num_threads", (getter)library_num_threads, NULL, "The number of threads a call uses unless told otherwise.",
     NULL},
    {"instance_count", (getter)library_instance_count, NULL, "The number of instances.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot library_slots[] = {{Py_tp_doc, "The C ABI of one library."}, {Py_tp_new, library_new},
                                      {Py_tp_dealloc, library_dealloc},         {Py_tp_methods, library_methods},
                                      {Py_tp_getset, library_properties},       {0, NULL}};
static PyType_Spec library_spec = {"tilekiln._binding.Library", sizeof(Library), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, library_slots};

static PyMethodDef module_methods[] = {
    METHOD("export", export_array, METH_FASTCALL,
           "export(array, versioned)\n--\n\nA DLPack capsule of a NumPy array, of any dtype that kernels use."),
    {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                        "_binding",
                                        "The C ABI of Tilekiln libraries for Python.",
                                        -1,
                                        module_methods,
                                        NULL,
                                        NULL,
                                        NULL,
                                        NULL};

static PyMethodDef drain_at_exit = {"drain", streams_drain, METH_NOARGS, "Wait for every stream."};

/* Streams end before the interpreter does. */
static int register_exit(void) {
  PyObject* atexit = PyImport_ImportModule("atexit");
  PyObject* drain = atexit ? PyCFunction_New(&drain_at_exit, NULL) : NULL;
  PyObject* registered = drain ? PyObject_CallMethod(atexit, "register", "O", drain) : NULL;
  const int good = registered != NULL;
  Py_XDECREF(registered);
  Py_XDECREF(drain);
  Py_XDECREF(atexit);
  return good ? 0 : -1;
}

static PyObject* argument_list(void) {
  PyObject* names = PyTuple_New(ARGUMENT_COUNT);
  for (int i = 0; names && i < ARGUMENT_COUNT; ++i) {
    if (!(interned[i] = PyUnicode_InternFromString(argument_names[i])))
      Py_CLEAR(names);
    else
      PyTuple_SET_ITEM(names, i, Py_NewRef(interned[i]));
  }
  return names;
}

PyMODINIT_FUNC PyInit__binding(void) {
  import_array();
  PyObject* module = PyModule_Create(&definition);
  if (!module) return NULL;
  ArgumentError = PyErr_NewExceptionWithDoc(
      "tilekiln.ArgumentError",
      "An argument is wrong: the text names it, what it was and what it must be. Nothing was written.",
      PyExc_ValueError, NULL);
  NoKernelError = PyErr_NewExceptionWithDoc(
      "tilekiln.NoKernelError",
      "The arguments are right and no library at hand has a kernel for them; the text says what would build it.",
      PyExc_LookupError, NULL);
  StreamType = (PyTypeObject*)PyType_FromSpec(&stream_spec);
  PyObject* library_type = PyType_FromSpec(&library_spec);
  PyObject* names = argument_list();
  facade = PyImport_ImportModule("tilekiln._frameworks");
  if (ArgumentError && NoKernelError && StreamType && library_type && names && facade &&
      PyModule_AddObjectRef(module, "ArgumentError", ArgumentError) == 0 &&
      PyModule_AddObjectRef(module, "NoKernelError", NoKernelError) == 0 &&
      PyModule_AddObjectRef(module, "Stream", (PyObject*)StreamType) == 0 &&
      PyModule_AddObjectRef(module, "Library", library_type) == 0 &&
      PyModule_AddObjectRef(module, "ARGUMENTS", names) == 0 &&
      PyModule_AddIntConstant(module, "ABI_VERSION", TILEKILN_ABI_VERSION) == 0 && register_exit() == 0) {
    Py_DECREF(library_type);
    Py_DECREF(names);
    return module;
  }
  Py_XDECREF(library_type);
  Py_XDECREF(names);
  Py_DECREF(module);
  return NULL;
}
