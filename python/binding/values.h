// SPDX-License-Identifier: MIT
/* Python values as C ones, or ArgumentError with the argument's name. */
#ifndef TILEKILN_BINDING_VALUES_H
#define TILEKILN_BINDING_VALUES_H

#include "torch_tensors.h"

static int read_integer(PyObject* value, const char* name, long long low, long long high, long long* result) {
  PyObject* index = PyLong_CheckExact(value) ? Py_NewRef(value) : PyNumber_Index(value);
  if (!index) {
    PyErr_Clear();
    return refuse(name, "was %R, must be an integer", value);
  }
  int overflow = 0;
  *result = PyLong_AsLongLongAndOverflow(index, &overflow);
  Py_DECREF(index);
  if (overflow || *result < low || *result > high)
    return refuse(name, "was %R, must be in [%lld, %lld]", value, low, high);
  return 0;
}

static int read_int32(PyObject* value, const char* name, int32_t low, int32_t* result) {
  long long wide;
  if (!value) return 0;
  if (read_integer(value, name, low, INT32_MAX, &wide) < 0) return -1;
  *result = (int32_t)wide;
  return 0;
}

static int read_int64(PyObject* value, const char* name, int64_t low, int64_t* result) {
  long long wide;
  if (read_integer(value, name, low, INT64_MAX, &wide) < 0) return -1;
  *result = wide;
  return 0;
}

static int read_uint64(PyObject* value, const char* name, uint64_t* result) {
  PyObject* index = PyNumber_Index(value);
  if (index) *result = PyLong_AsUnsignedLongLong(index);
  Py_XDECREF(index);
  if (!PyErr_Occurred()) return 0;
  PyErr_Clear();
  return refuse(name, "held %R, must hold two integers in [0, 2^64): seed and offset", value);
}

static int read_float(PyObject* value, const char* name, float* result) {
  if (!value) return 0;
  if (is_torch(value) && check_no_gradient(value, name) < 0) return -1;
  const double wide = PyFloat_AsDouble(value);
  if (wide == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    return refuse(name, "was %R, must be a number", value);
  }
  *result = (float)wide;
  return 0;
}

static int read_flag(PyObject* value, const char* name, int32_t* result) {
  if (!value || value == Py_False)
    *result = 0;
  else if (value == Py_True)
    *result = 1;
  else {
    const int truth = PyUnicode_Check(value) ? -1 : PyObject_IsTrue(value); /* "no" is true in Python: refuse words */
    if (truth < 0) {
      PyErr_Clear();
      return refuse(name, "was %R, must be True or False", value);
    }
    *result = truth;
  }
  return 0;
}

static inline const char* dtype_name(int32_t dtype) {
  switch (dtype) {
    case TILEKILN_FP32: return "fp32";
    case TILEKILN_FP16: return "fp16";
    case TILEKILN_BF16: return "bf16";
    case TILEKILN_FP8: return "fp8";
    case TILEKILN_BF8: return "bf8";
    case TILEKILN_FP8FNUZ: return "fp8fnuz";
    case TILEKILN_BF8FNUZ: return "bf8fnuz";
    case TILEKILN_INT8: return "int8";
    case TILEKILN_INT32: return "int32";
    case TILEKILN_INT64: return "int64";
    case TILEKILN_FP64: return "fp64";
    default: return "another dtype";
  }
}

static int read_word(PyObject* value, const char* name, const char* const* words, int32_t* result) {
  if (!value) return 0;
  for (int32_t i = 0; words[i]; ++i)
    if (PyUnicode_Check(value) && PyUnicode_CompareWithASCIIString(value, words[i]) == 0) {
      *result = i;
      return 0;
    }
  char list[512] = "";
  size_t length = 0;
  for (int32_t i = 0; words[i] && length < sizeof(list); ++i)
    length += (size_t)snprintf(list + length, sizeof(list) - length, "%s'%s'",
                               i == 0         ? ""
                               : words[i + 1] ? ", "
                                              : " or ",
                               words[i]);
  return refuse(name, "was %R, must be %s", value, list);
}

/* The number of the dtype that one of the words names. */
static int read_dtype(PyObject* value, const char* name, const char* const* words, int32_t* result) {
  static const int32_t dtypes[] = {TILEKILN_FP32, TILEKILN_FP16, TILEKILN_BF16, TILEKILN_FP8, TILEKILN_BF8};
  int32_t word = 0;
  if (read_word(value, name, words, &word) < 0) return -1;
  for (size_t i = 0; i < sizeof(dtypes) / sizeof(*dtypes); ++i)
    if (strcmp(dtype_name(dtypes[i]), words[word]) == 0) *result = dtypes[i];
  return 0;
}

/* Dimensions: one number, or a sequence of them. */
static int read_dims(PyObject* value, const char* name, tilekiln_dims* dims) {
  dims->count = 0;
  PyObject* items = PyIndex_Check(value)     ? PyTuple_Pack(1, value)
                    : PyUnicode_Check(value) ? NULL
                                             : PySequence_Tuple(value);
  if (!items) {
    PyErr_Clear();
    return refuse(name, "was %R, must be a dimension or several", value);
  }
  int bad = 0;
  const Py_ssize_t count = PyTuple_Size(items);
  if (count > TILEKILN_MAX_NDIM)
    bad = refuse(name, "had %zd dimensions, must have at most %d", count, TILEKILN_MAX_NDIM);
  for (Py_ssize_t i = 0; i < count && !bad; ++i)
    bad = read_int32(PyTuple_GetItem(items, i), name, INT32_MIN, &dims->dim[i]);
  dims->count = (int32_t)count;
  Py_DECREF(items);
  return bad;
}

/* The two items of a pair; *holder keeps them alive. */
static int read_pair(PyObject* value, const char* name, const char* meaning, PyObject** holder) {
  *holder = PyTuple_CheckExact(value) ? Py_NewRef(value) : PyUnicode_Check(value) ? NULL : PySequence_Tuple(value);
  if (*holder && PyTuple_Size(*holder) == 2) return 0;
  PyErr_Clear();
  Py_CLEAR(*holder);
  return refuse(name, "was %R, must be a pair (%s)", value, meaning);
}

/* One number, or a tuple of as many as there are stages. */
static PyObject* stage_numbers(const int64_t* instances, int count) {
  if (count == 1) return PyLong_FromLongLong(instances[0]);
  PyObject* result = PyTuple_New(count);
  for (int i = 0; result && i < count; ++i) {
    PyObject* number = PyLong_FromLongLong(instances[i]);
    if (!number)
      Py_CLEAR(result);
    else
      PyTuple_SetItem(result, i, number);
  }
  return result;
}

#endif
