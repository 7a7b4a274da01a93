// SPDX-License-Identifier: MIT
/* New arrays of any framework, for the results that a caller did not give. */
#ifndef TILEKILN_BINDING_RESULTS_H
#define TILEKILN_BINDING_RESULTS_H

#include "arrays.h"
#include "huge_pages.h"

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
  if (host) ask_for_huge_pages(view->data, bytes);
  if (zero && bytes && host) memset(view->data, 0, (size_t)bytes);
  void* object = NULL;
  if (api->managed_to_object(managed, &object) < 0) return NULL;
  if (zero && bytes && !host) { /* by the framework, in its current stream */
    PyObject* zeroed = PyObject_HasAttrString(object, "zero_") ? PyObject_CallMethod(object, "zero_", NULL)
                                                               : PyObject_CallMethod(object, "fill", "i", 0);
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

/* By the facade, on the device of `like`; *held as of view_array. stream: of the call, where the framework works in another one now;
 * else 0. */
static PyObject* new_foreign(PyObject* like, tilekiln_tensor* view, int zero, const char* name, CallStream* in,
                             uintptr_t stream, PyObject** held) {
  const tilekiln_tensor wanted = *view;
  PyObject* shape = PyTuple_New(wanted.ndim);
  for (int i = 0; shape && i < wanted.ndim; ++i) PyTuple_SetItem(shape, i, PyLong_FromLongLong(wanted.shape[i]));
  PyObject* array = shape ? PyObject_CallMethod(facade, "make", "OsOiiiK", like, name, shape, (int)(wanted.dtype >> 8),
                                                (int)(wanted.dtype & 0xff), zero, (unsigned long long)stream)
                          : NULL;
  Py_XDECREF(shape);
  if (!array || view_array(array, view, 0, name, in, held) < 0) {
    Py_XDECREF(array);
    return NULL;
  }
  int alike = view->dtype == wanted.dtype && view->ndim == wanted.ndim && view->device_type == wanted.device_type &&
              view->device_id == wanted.device_id;
  int64_t count = 1;
  for (int i = 0; alike && i < wanted.ndim; count *= wanted.shape[i++]) alike = view->shape[i] == wanted.shape[i];
  for (int i = 0; alike && count > 1 && i < wanted.ndim; ++i)
    alike = wanted.shape[i] == 1 || view->stride[i] == wanted.stride[i];
  if (alike) return array;
  refuse(name, "was not given, must be here: %S makes arrays of another dtype or order", (PyObject*)Py_TYPE(like));
  Py_DECREF(array);
  return NULL;
}

/* A dense array of like's framework; view has dtype, ndim, shape and strides, and receives data. zero: filled with zeros. On the host
 * frameworks without the exchange API get a NumPy array here, which the facade hands over to them after the call. */
static PyObject* new_array(PyObject* like, tilekiln_tensor* view, int zero, const char* name, CallStream* in,
                           PyObject** held) {
  const DLPackExchangeAPI* api = PyArray_CheckExact(like) ? NULL : exchange_api(Py_TYPE(like));
  *held = NULL;
  if (api) {
    uintptr_t now = in->native;
    if (now && view->device_type == DLPACK_CUDA && told_stream(like, view->device_id, &now) < 0) return NULL;
    return now == in->native ? new_exchanged(api, view, zero)
                             : new_foreign(like, view, zero, name, in, in->native, held);
  }
  if (view->device_type != TILEKILN_CPU) return new_foreign(like, view, zero, name, in, 0, held);
  if (view->dtype == TILEKILN_BF16 || view->dtype == TILEKILN_FP8 || view->dtype == TILEKILN_BF8) {
    if (!ml_dtypes_known() && ml_dtypes_import() < 0) return NULL;
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

/* Makes the results. held receives what must live as long as their views. Returns -1 with MemoryError, which names the one there was no
 * memory for, or ArgumentError. */
static int make_results(const Results* results, CallStream* in, PyObject** held, int* held_count) {
  for (int i = 0; i < results->count; ++i) {
    const Result* result = &results->result[i];
    PyObject* one;
    *result->made = new_array(results->like, result->view, results->zero, result->name, in, &one);
    if (one) held[(*held_count)++] = one;
    if (*result->made) continue;
    if (PyErr_ExceptionMatches(ArgumentError)) return -1;
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
