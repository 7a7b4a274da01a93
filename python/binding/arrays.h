/* Arrays of any framework as tilekiln_tensor: NumPy through its C API, others through DLPack's C exchange API, else the capsule.
 * A view is never a copy. Everything here runs with the GIL held. */
#ifndef TILEKILN_BINDING_ARRAYS_H
#define TILEKILN_BINDING_ARRAYS_H

#include "stable_abi.h"
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION
#include <numpy/arrayobject.h>
#include <string.h>

#include "dlpack.h"
#include "tilekiln/tilekiln.h"

static PyObject *ArgumentError, *NoKernelError;

/* Sets ArgumentError "argument: ..." and returns -1. */
static int refuse(const char* argument, const char* format, ...) {
  va_list rest;
  va_start(rest, format);
  PyObject* why = PyUnicode_FromFormatV(format, rest);
  va_end(rest);
  if (why) PyErr_Format(ArgumentError, "%s: %U", argument, why);
  Py_XDECREF(why);
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

/* Numbers the types of ml_dtypes. When the module cannot be imported no array can have them. */
static int ml_dtypes_import(void) {
  PyObject* module = PyImport_ImportModule("ml_dtypes");
  if (!module) return -1;
  ml_dtypes.fp8 = ml_dtypes_number(module, "float8_e4m3fn", &ml_dtypes.fp8_descr);
  ml_dtypes.bf8 = ml_dtypes_number(module, "float8_e5m2", &ml_dtypes.bf8_descr);
  ml_dtypes.fp8fnuz = ml_dtypes_number(module, "float8_e4m3fnuz", NULL);
  ml_dtypes.bf8fnuz = ml_dtypes_number(module, "float8_e5m2fnuz", NULL);
  ml_dtypes.bf16 = ml_dtypes_number(module, "bfloat16", &ml_dtypes.bf16_descr);
  Py_DECREF(module);
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
    if (ml_dtypes.bf16 < 0 && ml_dtypes_import() < 0) PyErr_Clear(); /* refused below, by the dtype's own name */
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

/* The exchange API of a type, or null when it has none. Two types are remembered: torch.Tensor and one more. */
static struct {
  PyTypeObject* type; /* a strong reference */
  const DLPackExchangeAPI* api;
} exchange_cache[2];

static const DLPackExchangeAPI* exchange_api_slow(PyTypeObject* type) {
  static PyObject* name;
  if (!name && !(name = PyUnicode_InternFromString("__dlpack_c_exchange_api__"))) return NULL;
  PyObject* capsule = PyObject_GetAttr((PyObject*)type, name);
  const DLPackExchangeAPI* api = NULL;
  if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
    api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  PyErr_Clear();       /* no such attribute, or none that we know: the capsule protocol is tried next */
  Py_XDECREF(capsule); /* the struct lives as long as the type */
  while (api && api->version.major > 1) api = api->previous;
  if (api && (api->version.major != 1 || !api->tensor_from_object)) api = NULL;
  if (api) {
    Py_INCREF(type);
    Py_XDECREF(exchange_cache[1].type);
    exchange_cache[1] = exchange_cache[0];
    exchange_cache[0].type = type;
    exchange_cache[0].api = api;
  }
  return api;
}

static inline const DLPackExchangeAPI* exchange_api(PyTypeObject* type) {
  for (int i = 0; i < 2; ++i)
    if (exchange_cache[i].type == type) return exchange_cache[i].api;
  return exchange_api_slow(type);
}

/* The capsule of an exporter, held by the caller while the view is used. Its own destructor gives the memory back. */
static PyObject* capsule_of(PyObject* array, const char* argument) {
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
  PyObject* capsule = keywords && none ? PyObject_Call(method, none, keywords) : NULL;
  if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) { /* an exporter from before DLPack 1.0 */
    PyErr_Clear();
    capsule = PyObject_CallNoArgs(method);
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
    refuse(argument, "could not be exported, must be a dense array on the CPU: %U", PyList_GetItem(lines, 0));
  } else {
    refuse(argument, "could not be exported, must be a dense array on the CPU");
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

/* Makes a view of any array. *held receives a reference that must live as long as the view, or null when the array itself does. */
static inline int view_array(PyObject* array, tilekiln_tensor* view, int written, const char* argument,
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
  *held = capsule_of(array, argument);
  if (*held) return view_capsule(*held, view, written, argument);
  return PyErr_ExceptionMatches(ArgumentError) ? -1 : refuse_exported(argument);
}

/* An exporter is Python code and may have changed another array: views of live objects are taken once more. */
__attribute__((noinline)) static int view_again(int count, PyObject* const* given, const char* const* names,
                                                unsigned written, unsigned exported, tilekiln_tensor* views) {
  for (int i = 0; i < count; ++i) {
    PyObject* none;
    if (given[i] && !(exported >> i & 1) && view_array(given[i], &views[i], written >> i & 1, names[i], &none) < 0)
      return -1;
  }
  return 0;
}

/* Makes views of the arrays of a call. given[i] null: absent, and so is view_of[i]. Bit i of written: it is written to. held receives
 * what must live as long as the views, *held_count how many. */
__attribute__((always_inline)) static inline int view_arrays(int count, PyObject* const* given,
                                                             const char* const* names, unsigned written,
                                                             tilekiln_tensor* views, const tilekiln_tensor** view_of,
                                                             PyObject** held, int* held_count) {
  unsigned exported = 0;
  int held_now = 0;
  for (int i = 0; i < count; ++i) {
    if (!given[i]) continue;
    PyObject* one;
    const int bad = view_array(given[i], &views[i], written >> i & 1, names[i], &one);
    if (one) {
      held[held_now++] = one;
      *held_count = held_now;
      exported |= 1u << i;
    }
    if (bad < 0) return -1;
    view_of[i] = &views[i];
  }
  return exported ? view_again(count, given, names, written, exported, views) : 0;
}

/* ---- new arrays ---------------------------------------------------------------------------------------------------- */

static void allocation_error(void* context, const char* kind, const char* message) {
  (void)context;
  PyErr_Format(PyExc_MemoryError, "%s: %s", kind, message);
}

static PyObject* new_numpy(tilekiln_tensor* view, PyArray_Descr* descr, int zero) {
  _Static_assert(sizeof(npy_intp) == sizeof(int64_t), "a copy by vectors would wait for the lengths just stored");
  const npy_intp* const shape = (const npy_intp*)view->shape;
  Py_INCREF(descr); /* the call takes it over */
  PyObject* array = zero ? PyArray_Zeros(view->ndim, shape, descr, 0) : PyArray_Empty(view->ndim, shape, descr, 0);
  if (array) view->data = PyArray_DATA((PyArrayObject*)array);
  return array;
}

static PyObject* new_exchanged(const DLPackExchangeAPI* api, tilekiln_tensor* view, int zero) {
  DLTensor prototype = {NULL,
                        {view->device_type, view->device_id},
                        view->ndim,
                        {(uint8_t)(view->dtype >> 8), (uint8_t)(view->dtype & 0xff), 1},
                        view->shape,
                        NULL,
                        0};
  DLManagedTensorVersioned* managed = NULL;
  if (api->allocate(&prototype, &managed, NULL, allocation_error) < 0) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_MemoryError, "the framework could not allocate the result");
    return NULL;
  }
  const DLTensor* made = &managed->dl_tensor;
  view->data = made->data ? (char*)made->data + made->byte_offset : NULL;
  int64_t bytes = (view->dtype & 0xff) / 8;
  for (int i = 0; i < view->ndim; ++i) bytes *= view->shape[i];
  const int host = view->device_type == TILEKILN_CPU;
  if (zero && bytes && host) memset(view->data, 0, (size_t)bytes);
  void* object = NULL;
  if (api->managed_to_object(managed, &object) < 0) return NULL;
  if (zero && bytes && !host) { /* by the framework, in its current stream */
    PyObject* zeroed = PyObject_CallMethod(object, "zero_", NULL);
    if (!zeroed) Py_CLEAR(object);
    Py_XDECREF(zeroed);
  }
  return object;
}

/* NumPy's own type of a dtype that is none of ml_dtypes. */
static inline int numpy_number(int32_t dtype) {
  switch (dtype) {
    case TILEKILN_FP16: return NPY_HALF;
    case TILEKILN_INT8: return NPY_BYTE;
    case TILEKILN_INT16: return NPY_INT16;
    case TILEKILN_INT32: return NPY_INT;
    case TILEKILN_INT64: return NPY_INT64;
    case TILEKILN_UINT8: return NPY_UBYTE;
    case TILEKILN_UINT16: return NPY_UINT16;
    case TILEKILN_UINT32: return NPY_UINT32;
    case TILEKILN_UINT64: return NPY_UINT64;
    case TILEKILN_FP64: return NPY_DOUBLE;
    case TILEKILN_BOOL: return NPY_BOOL;
  }
  return NPY_FLOAT;
}

/* A dense array of like's framework; view has dtype, ndim, shape and strides, and receives data. zero: filled with zeros. Frameworks
 * without the exchange API get a NumPy array here, which the facade hands over to them after the call. */
static PyObject* new_array(PyObject* like, tilekiln_tensor* view, int zero) {
  const DLPackExchangeAPI* api = PyArray_CheckExact(like) ? NULL : exchange_api(Py_TYPE(like));
  if (api) return new_exchanged(api, view, zero);
  if (view->dtype == TILEKILN_BF16 || view->dtype == TILEKILN_FP8 || view->dtype == TILEKILN_BF8) {
    if (!ml_dtypes.bf16_descr && ml_dtypes_import() < 0) return NULL;
    PyArray_Descr* const of_8_bits = view->dtype == TILEKILN_FP8 ? ml_dtypes.fp8_descr : ml_dtypes.bf8_descr;
    return new_numpy(view, view->dtype == TILEKILN_BF16 ? ml_dtypes.bf16_descr : of_8_bits, zero);
  }
  PyArray_Descr* descr = PyArray_DescrFromType(numpy_number(view->dtype));
  PyObject* array = new_numpy(view, descr, zero);
  Py_DECREF(descr);
  return array;
}

/* ---- results: described before a call is checked, made after ----------------------------------------------------------- */

typedef struct {
  const char* name;
  tilekiln_tensor* view;
  PyObject** made; /* receives a strong reference */
} Result;

enum { MAX_RESULTS = 8 };
typedef struct {
  PyObject* like; /* the argument whose framework they are of */
  int zero;       /* what a call leaves untouched reads as zero */
  int count;
  int64_t bytes; /* of all; -1: more than there can be */
  Result result[MAX_RESULTS];
} Results;

/* A place where no array of a process lies, which is enough for all checks: the upper half of the address space is the system's. */
static void* result_place(int number) { return (void*)((uintptr_t)(8 + number) << 60); }

/* Adds a dense result on the device of `like`. view has dtype, ndim and shape. */
static void add_result(Results* results, const char* name, const tilekiln_tensor* like, tilekiln_tensor* view,
                       PyObject** made) {
  view->device_type = like->device_type;
  view->device_id = like->device_id;
  view->data = result_place(results->count);
  int64_t dense = 1, bytes = (view->dtype & 0xff) / 8;
  for (int i = view->ndim - 1; i >= 0; --i) {
    view->stride[i] = dense;
    if (view->shape[i] < 0 || __builtin_mul_overflow(dense, view->shape[i], &dense)) dense = bytes = -1;
  }
  if (bytes >= 0 && __builtin_mul_overflow(dense, bytes, &bytes)) bytes = -1;
  if (bytes < 0 || results->bytes < 0 || __builtin_add_overflow(results->bytes, bytes, &results->bytes))
    results->bytes = -1;
  results->result[results->count++] = (Result){name, view, made};
}

/* Arrays broadcast over a stride of 0 can ask for results of any size, so a call with large ones is checked first. */
static int results_are_large(const Results* results) { return results->bytes < 0 || results->bytes > 1 << 28; }

/* Makes the results. Returns -1 with MemoryError, which names the one there was no memory for. */
static int make_results(const Results* results) {
  for (int i = 0; i < results->count; ++i) {
    const Result* result = &results->result[i];
    if ((*result->made = new_array(results->like, result->view, results->zero))) continue;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyErr_Format(PyExc_MemoryError, "%s: could not be made: %S", result->name, value ? value : type);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return -1;
  }
  return 0;
}

#endif
