// SPDX-License-Identifier: MIT
/* New NumPy arrays for frameworks that read DLPack capsules only. NumPy's own export refuses the types of ml_dtypes, bf16 among them. */
#ifndef TILEKILN_BINDING_EXPORT_H
#define TILEKILN_BINDING_EXPORT_H

#include "arrays.h"

typedef struct {
  union {
    DLManagedTensor old;
    DLManagedTensorVersioned versioned;
  } managed;       /* first: whoever frees it knows this address */
  PyObject* array; /* null: there is none */
  int64_t shape[TILEKILN_MAX_NDIM], strides[TILEKILN_MAX_NDIM];
} Export;

static void export_free(Export* self) {
  const PyGILState_STATE state = PyGILState_Ensure(); /* frameworks free from any thread */
  Py_XDECREF(self->array);
  PyMem_Free(self);
  PyGILState_Release(state);
}
static void export_free_old(DLManagedTensor* managed) { export_free((Export*)managed); }
static void export_free_versioned(DLManagedTensorVersioned* managed) { export_free((Export*)managed); }

/* A capsule that nobody took over; a taken one has another name. */
static void export_dropped(PyObject* capsule) {
  const char* name = PyCapsule_GetName(capsule);
  if (name && strncmp(name, "dltensor", 8) == 0) export_free(PyCapsule_GetPointer(capsule, name));
}

/* export(array, versioned) -> capsule "dltensor", or "dltensor_versioned". */
static PyObject* export_array(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  (void)module;
  if (count != 2 || !PyArray_Check(arguments[0])) {
    PyErr_SetString(PyExc_TypeError, "export() takes a NumPy array and whether the capsule is versioned");
    return NULL;
  }
  const int versioned = PyObject_IsTrue(arguments[1]);
  tilekiln_tensor view;
  if (versioned < 0 || view_numpy((PyArrayObject*)arguments[0], &view, 0, "array") < 0) return NULL;
  Export* self = PyMem_Calloc(1, sizeof(Export));
  if (!self) return PyErr_NoMemory();
  self->array = Py_NewRef(arguments[0]);
  memcpy(self->shape, view.shape, sizeof(self->shape));
  memcpy(self->strides, view.stride, sizeof(self->strides));
  const DLTensor tensor = {
      view.data,   {TILEKILN_CPU, 0}, view.ndim, {(uint8_t)(view.dtype >> 8), (uint8_t)(view.dtype & 0xff), 1},
      self->shape, self->strides,     0};
  if (versioned)
    self->managed.versioned = (DLManagedTensorVersioned){{1, 0}, self, export_free_versioned, 0, tensor};
  else
    self->managed.old = (DLManagedTensor){tensor, self, export_free_old};
  PyObject* capsule = PyCapsule_New(self, versioned ? "dltensor_versioned" : "dltensor", export_dropped);
  if (!capsule) export_free(self);
  return capsule;
}

/* described(shape, code, bits, device_type, device_id) -> capsule "dltensor" */
static PyObject* export_described(PyObject* module, PyObject* arguments) {
  static const char zeros[1 << 20] __attribute__((aligned(256)));
  (void)module;
  PyObject* shape;
  int code, bits, device_type, device_id;
  if (!PyArg_ParseTuple(arguments, "O!iiii:described", &PyTuple_Type, &shape, &code, &bits, &device_type, &device_id))
    return NULL;
  const Py_ssize_t ndim = PyTuple_Size(shape);
  if (ndim > TILEKILN_MAX_NDIM) {
    refuse("shape", "had %zd dimensions, must have at most %d", ndim, TILEKILN_MAX_NDIM);
    return NULL;
  }
  Export* self = PyMem_Calloc(1, sizeof(Export));
  if (!self) return PyErr_NoMemory();
  for (Py_ssize_t i = 0; i < ndim; ++i) self->shape[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
  const DLDataType dtype = {(uint8_t)code, (uint8_t)bits, 1};
  int64_t bytes = bits / 8;
  for (Py_ssize_t i = 0; i < ndim; ++i)
    if (__builtin_mul_overflow(bytes, self->shape[i], &bytes)) bytes = INT64_MAX;
  /* Zeros where a library might read lengths; else no process has memory there, nor is it the place of a result. */
  void* const place = bytes <= (int64_t)sizeof(zeros) ? (void*)zeros : (void*)((uintptr_t)1 << 60);
  const DLTensor tensor = {place, {device_type, device_id}, (int32_t)ndim, dtype, self->shape, NULL, 0};
  self->managed.old = (DLManagedTensor){tensor, self, export_free_old};
  PyObject* capsule = PyErr_Occurred() ? NULL : PyCapsule_New(self, "dltensor", export_dropped);
  if (!capsule) export_free(self);
  return capsule;
}

#endif
