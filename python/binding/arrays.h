// SPDX-License-Identifier: MIT
/* Arrays of any framework as tilekiln_tensor: NumPy through its C API, others through DLPack's C exchange API, else the capsule.
 * A view is never a copy. Everything here runs with the GIL held, where there is one (threads.h). */
#ifndef TILEKILN_BINDING_ARRAYS_H
#define TILEKILN_BINDING_ARRAYS_H

#include "stable_abi.h"
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION
#include <numpy/arrayobject.h>
#include <string.h>

#include "dlpack.h"
#include "refusals.h"
#include "threads.h"

static PyObject* facade;        /* tilekiln._core.frameworks */
static PyObject* exchange_name; /* "__dlpack_c_exchange_api__" */

/* Sets ArgumentError "argument: ...", whose reason is the argument, and returns -1. */
static int refuse(const char* argument, const char* format, ...) {
  va_list rest;
  va_start(rest, format);
  PyObject* why = PyUnicode_FromFormatV(format, rest);
  va_end(rest);
  PyObject* text = why ? PyUnicode_FromFormat("%s: %U", argument, why) : NULL;
  const tilekiln_refusal refusal = {.reason = TILEKILN_REFUSED_ARGUMENT, .instance = -1, .axis = argument};
  if (text) refusal_error(ArgumentError, text, &refusal, 1);
  Py_XDECREF(why);
  Py_XDECREF(text);
  return -1;
}

/* ---- ml_dtypes: NumPy gives their types numbers at run time -------------------------------------------------------- */

static struct {
  int bf16, fp8, bf8, fp8fnuz, bf8fnuz; /* type numbers; -1: not known yet */
  PyArray_Descr *bf16_descr, *fp8_descr, *bf8_descr;
} ml_dtypes = {-1, -1, -1, -1, -1, NULL, NULL, NULL};

static int ml_dtypes_number(PyObject* module, const char* name, PyArray_Descr** keep) {
  PyObject* type = PyObject_GetAttrString(module, name);
  PyArray_Descr* descr = NULL;
  if (!type || !PyArray_DescrConverter(type, &descr)) {
    Py_XDECREF(type);
    return -1;
  }
  const int number = descr->type_num;
  Py_DECREF(type);
  if (keep)
    *keep = descr; /* kept for the life of the process */
  else
    Py_DECREF(descr);
  return number;
}

/* Are they known? Then all of them are. */
static inline int ml_dtypes_known(void) { return __atomic_load_n(&ml_dtypes.bf16_descr, __ATOMIC_ACQUIRE) != NULL; }

/* Numbers the types of ml_dtypes. When the module cannot be imported no array can have them. */
static int ml_dtypes_import(void) {
  PyObject* module = PyImport_ImportModule("ml_dtypes");
  if (!module) return -1;
  __typeof__(ml_dtypes) made = {-1, -1, -1, -1, -1, NULL, NULL, NULL};
  made.fp8 = ml_dtypes_number(module, "float8_e4m3fn", &made.fp8_descr);
  made.bf8 = ml_dtypes_number(module, "float8_e5m2", &made.bf8_descr);
  made.fp8fnuz = ml_dtypes_number(module, "float8_e4m3fnuz", NULL);
  made.bf8fnuz = ml_dtypes_number(module, "float8_e5m2fnuz", NULL);
  made.bf16 = ml_dtypes_number(module, "bfloat16", &made.bf16_descr);
  Py_DECREF(module);
  share();
  if (!ml_dtypes_known()) {
    PyArray_Descr* const last = made.bf16_descr;
    made.bf16_descr = NULL;
    ml_dtypes = made;
    __atomic_store_n(&ml_dtypes.bf16_descr, last, __ATOMIC_RELEASE);
  }
  shared_end();
  return PyErr_Occurred() ? -1 : 0;
}

/* The DLPack dtype of a NumPy array; -1 when it has none, with an exception set. */
static int numpy_dtype(PyArrayObject* array, const char* argument) {
  PyArray_Descr* descr = PyArray_DESCR(array);
  const int number = descr->type_num;
  switch (number) {
    case NPY_FLOAT: return TILEKILN_FP32;
    case NPY_HALF: return TILEKILN_FP16;
    case NPY_INT: return TILEKILN_INT32;
    case NPY_BYTE: return TILEKILN_INT8;
    case NPY_UBYTE: return TILEKILN_UINT8;
    default: break;
  }
  if (number >= NPY_USERDEF) {
    if (!ml_dtypes_known() && ml_dtypes_import() < 0) PyErr_Clear(); /* refused below, by the dtype's own name */
    if (number == ml_dtypes.bf16) return TILEKILN_BF16;
    if (number == ml_dtypes.fp8) return TILEKILN_FP8;
    if (number == ml_dtypes.bf8) return TILEKILN_BF8;
    if (number == ml_dtypes.fp8fnuz) return TILEKILN_FP8FNUZ;
    if (number == ml_dtypes.bf8fnuz) return TILEKILN_BF8FNUZ;
  } else { /* not ours to use, but the library can name it */
    const int bits = (int)PyArray_ITEMSIZE(array) * 8;
    if (PyDataType_ISBOOL(descr)) return TILEKILN_DTYPE(6, 8);
    if (PyDataType_ISUNSIGNED(descr)) return TILEKILN_DTYPE(1, bits);
    if (PyDataType_ISSIGNED(descr)) return TILEKILN_DTYPE(0, bits);
    if (PyDataType_ISFLOAT(descr) && bits <= 64) return TILEKILN_DTYPE(2, bits);
    if (PyDataType_ISCOMPLEX(descr) && bits <= 128) return TILEKILN_DTYPE(5, bits);
  }
  return refuse(argument, "dtype was %S, must be fp32, fp16, bf16, fp8 (e4m3), int8, int32 or uint8", descr);
}

static int view_numpy(PyArrayObject* array, tilekiln_tensor* view, int written, const char* argument) {
  const int dtype = numpy_dtype(array, argument);
  if (dtype < 0) return -1;
  const int ndim = PyArray_NDIM(array);
  if (ndim > TILEKILN_MAX_NDIM)
    return refuse(argument, "had %d dimensions, must have at most %d", ndim, TILEKILN_MAX_NDIM);
  const int flags = PyArray_FLAGS(array);
  if (written && !(flags & NPY_ARRAY_WRITEABLE))
    return refuse(argument, "was read-only, must be writable: it is written to");
  if (PyArray_ISBYTESWAPPED(array))
    return refuse(
        argument,
        "had the other byte order, must have that of this machine: convert it with astype(dtype.newbyteorder('='))");
  view->data = PyArray_DATA(array);
  view->dtype = dtype;
  view->ndim = ndim;
  view->device_type = TILEKILN_CPU;
  view->device_id = 0;
  const npy_intp item = (dtype & 0xff) / 8; /* 1, 2, 4, 8 or 16: a shift, for divisions are slow */
  const int shift = __builtin_ctz((unsigned)item);
  const npy_intp *const shape = PyArray_DIMS(array), *const strides = PyArray_STRIDES(array);
  for (int i = 0; i < ndim; ++i) {
    const npy_intp stride = strides[i];
    view->shape[i] = shape[i];
    if (stride & (item - 1))
      return refuse(argument,
                    "the stride of dimension %d was %zd bytes, must be a multiple of the %zd bytes of an element", i,
                    (Py_ssize_t)stride, (Py_ssize_t)item);
    view->stride[i] = stride >> shift;
  }
  return 0;
}

/* ---- DLPack -------------------------------------------------------------------------------------------------------- */

static int view_dlpack(const DLTensor* tensor, tilekiln_tensor* view, const char* argument) {
  if (tensor->ndim < 0 || tensor->ndim > TILEKILN_MAX_NDIM)
    return refuse(argument, "had %d dimensions, must have from 0 to %d", (int)tensor->ndim, TILEKILN_MAX_NDIM);
  if (tensor->ndim && !tensor->shape) return refuse(argument, "was exported without a shape, must have one");
  if (tensor->dtype.lanes != 1) return refuse(argument, "elements had %d lanes, must have 1", tensor->dtype.lanes);
  view->data = tensor->data ? (char*)tensor->data + tensor->byte_offset : NULL;
  view->dtype = TILEKILN_DTYPE(tensor->dtype.code, tensor->dtype.bits);
  view->ndim = tensor->ndim;
  view->device_type = tensor->device.device_type;
  view->device_id = tensor->device.device_id;
  int64_t dense = 1;
  for (int i = tensor->ndim - 1; i >= 0; --i) {
    view->shape[i] = tensor->shape[i];
    view->stride[i] = tensor->strides ? tensor->strides[i] : dense;
    dense = (int64_t)((uint64_t)dense * (uint64_t)tensor->shape[i]); /* the library refuses what is too long */
  }
  return 0;
}

/* The exchange APIs of the first types that have one, for as long as the process: torch.Tensor, torch.nn.Parameter and some more. */
static struct {
  PyTypeObject* type; /* a strong reference */
  const DLPackExchangeAPI* api;
} exchange_cache[8];
static int exchange_count; /* of them; it grows after they are written */

/* The exchange API of a type, or null when it has none. */
static const DLPackExchangeAPI* exchange_api_slow(PyTypeObject* type) {
  PyObject* capsule = PyObject_GetAttr((PyObject*)type, exchange_name);
  const DLPackExchangeAPI* api = NULL;
  if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
    api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  PyErr_Clear();       /* no such attribute, or none that we know: the capsule protocol is tried next */
  Py_XDECREF(capsule); /* the struct lives as long as the type */
  while (api && api->version.major > 1) api = api->previous;
  if (api && (api->version.major != 1 || !api->tensor_from_object)) api = NULL;
  if (!api) return NULL;
  share();
  int at = 0;
  while (at < exchange_count && exchange_cache[at].type != type) ++at;
  if (at == exchange_count && at < (int)(sizeof(exchange_cache) / sizeof(*exchange_cache))) {
    exchange_cache[at].type = (PyTypeObject*)Py_NewRef((PyObject*)type);
    exchange_cache[at].api = api;
    __atomic_store_n(&exchange_count, at + 1, __ATOMIC_RELEASE);
  }
  shared_end();
  return api;
}

static inline const DLPackExchangeAPI* exchange_api(PyTypeObject* type) {
  const int count = __atomic_load_n(&exchange_count, __ATOMIC_ACQUIRE);
  for (int i = 0; i < count; ++i)
    if (exchange_cache[i].type == type) return exchange_cache[i].api;
  return exchange_api_slow(type);
}

/* ---- order on a CUDA device ----------------------------------------------------------------------------------------- */

enum { LEGACY_STREAM = 1 }; /* CUDA's default stream, by the number that DLPack has for it */

/* The stream of a call, for exporters: `__dlpack__` makes an array ready there. Asked for when the first of them is met. */
typedef struct {
  PyObject* like;   /* the array whose framework says it */
  uintptr_t native; /* a CUstream; 0: not asked for yet */
  int waits; /* an array is of a framework that works elsewhere and would not wait: the host does, for the call to end */
} CallStream;

/* The stream in which the framework of an array works now; 0: it does not tell. Returns -1 with an exception. */
static int told_stream(PyObject* array, int32_t device_id, uintptr_t* stream) {
  const DLPackExchangeAPI* api = exchange_api(Py_TYPE(array));
  void* native = NULL;
  *stream = 0;
  if (api) {
    if (!api->current_work_stream) return 0;
    if (api->current_work_stream(DLPACK_CUDA, device_id, &native) < 0) return -1;
  } else {
    PyObject* said = PyObject_CallMethod(facade, "current_stream", "Oi", array, (int)device_id);
    if (!said) return -1;
    const int tells = said != Py_None;
    native = tells ? PyLong_AsVoidPtr(said) : NULL;
    Py_DECREF(said);
    if (PyErr_Occurred()) return -1;
    if (!tells) return 0;
  }
  *stream = native ? (uintptr_t)native : LEGACY_STREAM;
  return 0;
}

/* The stream of a call whose arrays are on this device. */
static int call_stream(CallStream* in, int32_t device_id) {
  if (!in->native && in->like && told_stream(in->like, device_id, &in->native) < 0) return -1;
  if (!in->native) in->native = LEGACY_STREAM;
  return 0;
}

/* Adds stream= to the keywords of `__dlpack__` of an array on a CUDA device. */
static int add_stream(PyObject* array, PyObject* keywords, CallStream* in) {
  PyObject* where = PyObject_CallMethod(array, "__dlpack_device__", NULL);
  int type = 0, id = 0;
  if (!where || !PyTuple_Check(where) || !PyArg_ParseTuple(where, "ii", &type, &id)) PyErr_Clear(); /* it cannot tell */
  Py_XDECREF(where);
  if (type != DLPACK_CUDA) return 0;
  uintptr_t own = 0;
  if (told_stream(array, id, &own) < 0 || call_stream(in, id) < 0) return -1;
  in->waits |= own != in->native;
  PyObject* stream = own == in->native ? PyLong_FromLong(-1) /* as it is */ : PyLong_FromVoidPtr((void*)in->native);
  const int bad = stream ? PyDict_SetItemString(keywords, "stream", stream) : -1;
  Py_XDECREF(stream);
  return bad;
}

/* The capsule of an exporter, held by the caller while the view is used. Its own destructor gives the memory back. */
static PyObject* capsule_of(PyObject* array, const char* argument, CallStream* in) {
  PyObject* method = PyObject_GetAttrString(array, "__dlpack__");
  if (!method) {
    PyErr_Clear();
    PyObject* type = PyObject_GetAttrString((PyObject*)Py_TYPE(array), "__name__");
    if (type) refuse(argument, "was a %U, must be an array: of NumPy, of torch, or any object with __dlpack__", type);
    Py_XDECREF(type);
    return NULL;
  }
  PyObject* keywords = Py_BuildValue("{s:(ii)}", "max_version", 1, 0);
  PyObject* none = PyTuple_New(0);
  PyObject* capsule = NULL;
  if (keywords && none && add_stream(array, keywords, in) == 0) {
    capsule = PyObject_Call(method, none, keywords);
    if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) { /* an exporter from before DLPack 1.0 */
      PyErr_Clear();
      if (PyDict_DelItemString(keywords, "max_version") == 0) capsule = PyObject_Call(method, none, keywords);
    }
  }
  Py_XDECREF(keywords);
  Py_XDECREF(none);
  Py_DECREF(method);
  return capsule;
}

static int view_capsule(PyObject* capsule, tilekiln_tensor* view, int written, const char* argument) {
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    const DLManagedTensorVersioned* managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
    if (managed->version.major != 1)
      return refuse(argument, "was exported as DLPack %d, must be DLPack 1", (int)managed->version.major);
    if (written && managed->flags & DLPACK_READ_ONLY)
      return refuse(argument, "was read-only, must be writable: it is written to");
    return view_dlpack(&managed->dl_tensor, view, argument);
  }
  if (PyCapsule_IsValid(capsule, "dltensor"))
    return view_dlpack(&((const DLManagedTensor*)PyCapsule_GetPointer(capsule, "dltensor"))->dl_tensor, view, argument);
  return refuse(argument, "__dlpack__ gave no DLPack capsule, must give one");
}

/* The framework could not export an array: its first line, with the argument's name in front. */
static int refuse_exported(const char* argument) {
  if (PyErr_ExceptionMatches(PyExc_MemoryError) || !PyErr_ExceptionMatches(PyExc_Exception)) return -1;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyObject* text = value ? PyObject_Str(value) : NULL;
  PyObject* lines = text ? PyUnicode_Splitlines(text, 0) : NULL; /* torch appends where in its C++ the error arose */
  PyErr_Clear();
  if (lines && PyList_Size(lines) > 0) {
    refuse(argument, "could not be exported, must be a dense array on one device: %U", PyList_GetItem(lines, 0));
  } else {
    refuse(argument, "could not be exported, must be a dense array on one device");
  }
  Py_XDECREF(lines);
  Py_XDECREF(text);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  return -1;
}

/* PyTorch's imaginary part of a conjugate is a view whose numbers stand with the other sign, which no export tells. It lies in steps of
 * two elements: an array with a step of one is none, and costs no question. */
static inline int check_sign(PyObject* array, const tilekiln_tensor* view, const char* argument) {
  for (int i = view->ndim - 1; i >= 0; --i)
    if (view->stride[i] == 1) return 0;
  if (!PyObject_HasAttrString(array, "is_neg")) return 0;
  PyObject* said = PyObject_CallMethod(array, "is_neg", NULL);
  if (!said) return -1;
  const int negative = PyObject_IsTrue(said);
  Py_DECREF(said);
  if (negative > 0)
    return refuse(argument, "had its negative bit set, must be numbers as they lie in memory: pass its resolve_neg()");
  return negative;
}

/* JAX exports its arrays as if they could be written. */
static int check_writable(PyObject* array, const char* argument) {
  PyObject* why = PyObject_CallMethod(facade, "never_written", "O", array);
  if (!why) return -1;
  const int bad = why == Py_None ? 0 : refuse(argument, "%U", why);
  Py_DECREF(why);
  return bad;
}

/* Makes a view of any array. *held receives a reference that must live as long as the view, or null when the array itself does. */
static inline int view_array(PyObject* array, tilekiln_tensor* view, int written, const char* argument, CallStream* in,
                             PyObject** held) {
  *held = NULL;
  if (PyArray_CheckExact(array)) return view_numpy((PyArrayObject*)array, view, written, argument);
  const DLPackExchangeAPI* api = exchange_api(Py_TYPE(array));
  if (api) {
    DLTensor tensor;
    if (api->tensor_from_object(array, &tensor) < 0) return refuse_exported(argument);
    return view_dlpack(&tensor, view, argument) < 0 ? -1 : check_sign(array, view, argument);
  }
  if (PyArray_Check(array)) return view_numpy((PyArrayObject*)array, view, written, argument);
  if (written && check_writable(array, argument) < 0) return -1;
  *held = capsule_of(array, argument, in);
  if (*held) return view_capsule(*held, view, written, argument);
  return PyErr_ExceptionMatches(ArgumentError) ? -1 : refuse_exported(argument);
}

/* An exporter is Python code and may have changed another array: views of live objects are taken once more. */
__attribute__((noinline)) static int view_again(int count, PyObject* const* given, const char* const* names,
                                                unsigned written, unsigned exported, tilekiln_tensor* views,
                                                CallStream* in) {
  for (int i = 0; i < count; ++i) {
    PyObject* none;
    if (given[i] && !(exported >> i & 1) && view_array(given[i], &views[i], written >> i & 1, names[i], in, &none) < 0)
      return -1;
  }
  return 0;
}

/* Makes views of the arrays of a call. given[i] null: absent, and so is view_of[i]. Bit i of written: it is written to. held receives
 * what must live as long as the views, *held_count how many. */
__attribute__((always_inline)) static inline int view_arrays(int count, PyObject* const* given,
                                                             const char* const* names, unsigned written,
                                                             tilekiln_tensor* views, const tilekiln_tensor** view_of,
                                                             CallStream* in, PyObject** held, int* held_count) {
  unsigned exported = 0;
  int held_now = 0;
  for (int i = 0; i < count; ++i) {
    if (!given[i]) continue;
    PyObject* one;
    const int bad = view_array(given[i], &views[i], written >> i & 1, names[i], in, &one);
    if (one) {
      held[held_now++] = one;
      *held_count = held_now;
      exported |= 1u << i;
    }
    if (bad < 0) return -1;
    view_of[i] = &views[i];
  }
  return exported ? view_again(count, given, names, written, exported, views, in) : 0;
}

#endif
