/* tilekiln._binding: the one place where Python meets the C ABI. It knows no receipt and no axis: it turns Python arguments into
 * tilekiln_fmha_fwd_args (here), tilekiln_fmha_bwd_args (backward.h) or those of a KV cache (kv.h), and status codes into exceptions. The library checks the
 * values; only what C cannot see is checked here. */
#include "arrays.h"
#include "docs.h"
#include "export.h"
#include "keywords.h"
#include "kv.h"
#include "kv_docs.h"
#include "launcher.h"
#include "library.h"
#include "scalars.h"
#include "stream.h"

#include <stddef.h>

/* ---- arguments ------------------------------------------------------------------------------------------------------ */

/* Arrays first, in the order of the fields of tilekiln_fmha_fwd_args, so that an index finds the field. */
#define ARRAYS(X)                                                                                                     \
  X(q)                                                                                                                \
  X(k)                                                                                                                \
  X(v) X(out) X(lse) X(bias) X(alibi_slopes) X(sink) X(q_descale) X(k_descale) X(v_descale) X(block_scale_seqstart_q) \
      X(block_scale_seqstart_k) X(seqstart_q) X(seqstart_k) X(seqlen_q) X(seqlen_k) X(cu_seqlens_q) X(cu_seqlens_k)   \
          X(randval)
#define SCALARS(X) SHARED_SCALARS(X) X(min_seqlen_q) X(return_lse) X(out_dtype)

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

static PyObject* interned[ARGUMENT_COUNT];
static const Keywords keywords = {argument_names, interned, ARGUMENT_COUNT, 3, "q, k and v", 0};

/* ---- one call ------------------------------------------------------------------------------------------------------- */

typedef struct {
  PyObject* given[ARGUMENT_COUNT];
  tilekiln_fmha_fwd_args args;
  Stream* stream;
  int32_t return_lse;
  float softmax_scale;
  PyObject *out, *lse; /* strong references when this call made them */
  Results results;
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
  PyObject* const* given = call->given;
  tilekiln_fmha_fwd_args* args = &call->args;
  return READ_SHARED_SCALARS(self, given + ARRAY_COUNT, args, &call->softmax_scale, &call->stream) < 0 ||
                 read_int32(given[A_min_seqlen_q], "min_seqlen_q", 0, &args->min_seqlen_q) < 0 ||
                 read_flag(given[A_return_lse], "return_lse", &call->return_lse) < 0
             ? -1
             : 0;
}

static int read_arrays(Call* call) {
  const unsigned written = 1u << A_out | 1u << A_lse | 1u << A_randval;
  return view_arrays(ARRAY_COUNT, call->given, argument_names, written, call->tensor, &call->args.q, call->held,
                     &call->held_count);
}

/* Can an output be shaped after q and v? */
static int can_allocate(const Call* call) {
  const tilekiln_tensor *q = call->args.q, *v = call->args.v;
  const int floating =
      q->dtype == TILEKILN_FP32 || q->dtype == TILEKILN_FP16 || q->dtype == TILEKILN_BF16 || q->dtype == TILEKILN_FP8;
  return floating && (q->ndim == 3 || q->ndim == 4) && v->ndim == q->ndim && q->device_type == TILEKILN_CPU;
}

/* Describes what the caller did not give. Rows that a call leaves untouched (padding, skipped sequences) read as zero. */
static int describe_outputs(Call* call) {
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
      nothing->data = result_place(0);
      call->args.out = nothing;
    }
    return 0;
  }
  call->results.zero = q->ndim == 3 || args->seqlen_q || args->cu_seqlens_q;
  if (!args->out) {
    tilekiln_tensor* out = &call->tensor[A_out];
    out->dtype = q->dtype != TILEKILN_FP8 ? q->dtype : out_dtype ? TILEKILN_FP32 : TILEKILN_BF16;
    out->ndim = q->ndim;
    memcpy(out->shape, q->shape, sizeof(out->shape[0]) * (size_t)q->ndim);
    out->shape[q->ndim - 1] = args->v->shape[q->ndim - 1];
    add_result(&call->results, "out", out, &call->out);
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
    add_result(&call->results, "lse", lse, &call->lse);
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
  call->results.count = 0;
  call->results.bytes = 0;
  if (collect(&keywords, values, positional, names, call->given, function) < 0 || read_scalars(self, call) < 0 ||
      read_arrays(call) <
          0) /* last: __index__ and __float__ of the others are Python code, which may change an array */
    return -1;
  call->results.like = call->given[A_q];
  return describe_outputs(call);
}

/* Makes the results of a call that is to run. */
static int make_outputs(Library* self, Call* call) {
  int64_t instance;
  if (results_are_large(&call->results)) {
    const tilekiln_status status = self->fmha_fwd_find(&call->args, &instance);
    if (status != TILEKILN_OK) return library_error(self, status), -1;
  }
  return make_results(&call->results);
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

static PyObject* fmha_fwd(Library* self, PyObject* const* values, Py_ssize_t positional, PyObject* names) {
  Call call;
  PyObject *result = NULL, *out = NULL, *lse = NULL;
  tilekiln_status status;
  if (call_begin(self, &call, values, positional, names, "fmha_fwd") < 0 || make_outputs(self, &call) < 0) goto end;
  if (call.stream) {
    if (!(call.args.stream = stream_native(call.stream, self)) || hold_arrays(&call) < 0) goto end;
    status = self->fmha_fwd(&call.args);
  } else if (is_long(call.args.q, call.args.k, call.args.layout)) {
    Py_BEGIN_ALLOW_THREADS status = self->fmha_fwd(&call.args);
    Py_END_ALLOW_THREADS
  } else
    status = self->fmha_fwd(&call.args);
  if (status != TILEKILN_OK) {
    library_error(self, status);
    goto end;
  }
  out = call.out ? adopt(call.given[A_q], call.out) : Py_NewRef(call.given[A_out]);
  if (!out || !call.return_lse) {
    result = out;
    goto end;
  }
  lse = call.lse ? adopt(call.given[A_q], call.lse) : Py_NewRef(call.given[A_lse]);
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
    METHOD("fmha_bwd", fmha_bwd, FAST, fmha_bwd_doc),
    METHOD("fmha_bwd_find", fmha_bwd_find, FAST, fmha_bwd_find_doc),
    METHOD("fmha_bwd_why", fmha_bwd_why, FAST, fmha_bwd_why_doc),
    METHOD("fmha_bwd_workspace_size", fmha_bwd_workspace_size, FAST, fmha_bwd_workspace_size_doc),
#define KV_METHOD(name) \
  METHOD(#name, name, FAST, name##_doc), METHOD(#name "_find", name##_find, FAST, name##_find_doc), \
      METHOD(#name "_why", name##_why, FAST, name##_why_doc)
    KV_METHOD(fmha_fwd_splitkv),
    KV_METHOD(fmha_fwd_pagedkv),
    KV_METHOD(fmha_fwd_appendkv),
    KV_METHOD(fmha_batch_prefill),
    METHOD("fmha_fwd_splitkv_num_splits", fmha_fwd_splitkv_num_splits, FAST, fmha_fwd_splitkv_num_splits_doc),
    METHOD("bwd_workspace_plan", library_workspace_plan, METH_VARARGS | METH_KEYWORDS,
           "The C ABI's tilekiln_bwd_workspace_plan; tilekiln.plan_backward_workspace is for people."),
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
    {"unusable", (getter)library_unusable, NULL,
     "Why isa is '': what TILEKILN_ISA must be, or what this machine has not; '' when it can be used.", NULL},
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
  const int full = registered && Py_AtExit(streams_wait) < 0;
  if (full) PyErr_SetString(PyExc_RuntimeError, "Python takes no exit function more (Py_AtExit), and streams need one");
  const int good = registered && !full;
  Py_XDECREF(registered);
  Py_XDECREF(drain);
  Py_XDECREF(atexit);
  return good ? 0 : -1;
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
  LibraryType = (PyTypeObject*)PyType_FromSpec(&library_spec);
  PyObject* launcher_type = PyType_FromSpec(&launcher_spec);
  PyObject* names = keywords_intern(&keywords);
  PyObject* bwd_argument_names = keywords_intern(&bwd_keywords);
  PyObject* kv_argument_names = kv_intern();
  facade = PyImport_ImportModule("tilekiln._frameworks");
  const int good = ArgumentError && NoKernelError && StreamType && LibraryType && launcher_type && names &&
                   bwd_argument_names && kv_argument_names && facade &&
                   PyModule_AddObjectRef(module, "ArgumentError", ArgumentError) == 0 &&
                   PyModule_AddObjectRef(module, "NoKernelError", NoKernelError) == 0 &&
                   PyModule_AddObjectRef(module, "Stream", (PyObject*)StreamType) == 0 &&
                   PyModule_AddObjectRef(module, "Library", (PyObject*)LibraryType) == 0 &&
                   PyModule_AddObjectRef(module, "BackwardLauncher", launcher_type) == 0 &&
                   PyModule_AddObjectRef(module, "ARGUMENTS", names) == 0 &&
                   PyModule_AddObjectRef(module, "BACKWARD_ARGUMENTS", bwd_argument_names) == 0 &&
                   PyModule_AddObjectRef(module, "KV_ARGUMENTS", kv_argument_names) == 0 &&
                   PyModule_AddIntConstant(module, "ABI_VERSION", TILEKILN_ABI_VERSION) == 0 &&
                   PyModule_AddStringConstant(module, "__version__", TILEKILN_VERSION) == 0 && register_exit() == 0;
  Py_XDECREF(launcher_type);
  Py_XDECREF(names);
  Py_XDECREF(bwd_argument_names);
  Py_XDECREF(kv_argument_names);
  if (good) return module;
  Py_DECREF(module);
  return NULL;
}
