// SPDX-License-Identifier: MIT
/* PyTorch's bookkeeping of a call that it does not make itself: tracing and dispatch modes before it, version counters after it. */
#ifndef TILEKILN_BINDING_TORCH_TENSORS_H
#define TILEKILN_BINDING_TORCH_TENSORS_H

#include "arrays.h"

/* Of the torch that was imported when its first tensor was met; null before. Strong references. `tensor` is written last. */
static struct Torch {
  PyTypeObject* tensor;
  PyObject *modes, *tracing; /* how many dispatch modes this thread is in; whether torch.jit.trace records it */
  PyObject *grad, *increment, *requires_grad;
} torch;

static inline PyTypeObject* torch_tensor(void) { return __atomic_load_n(&torch.tensor, __ATOMIC_ACQUIRE); }

static PyObject* of_module(const char* module, const char* name) {
  PyObject* found = PyImport_ImportModule(module);
  PyObject* value = found ? PyObject_GetAttrString(found, name) : NULL;
  Py_XDECREF(found);
  return value;
}

/* Looks PyTorch up, once it is imported. Returns -1 with an exception. */
static int meet_torch(void) {
  PyObject* modules = PyImport_GetModuleDict(); /* borrowed, as what it holds */
  PyObject* there = modules ? PyDict_GetItemString(modules, "torch") : NULL;
  if (!there || !PyObject_HasAttrString(there, "Tensor") || !PyObject_HasAttrString(there, "autograd")) return 0;
  PyObject* tensor = PyObject_GetAttrString(there, "Tensor");
  struct Torch made = {0};
  made.modes = of_module("torch._C", "_len_torch_dispatch_stack");
  made.tracing = of_module("torch._C", "_is_tracing");
  made.grad = of_module("torch", "is_grad_enabled");
  made.requires_grad = PyUnicode_InternFromString("requires_grad");
  made.increment = of_module("torch._C", "_increment_version"); /* torch.autograd.graph.increment_version calls it */
  if (!made.increment) {
    PyErr_Clear();
    made.increment = of_module("torch.autograd.graph", "increment_version");
  }
  if (!tensor || !made.requires_grad || !made.modes || !made.tracing || !made.grad || !made.increment) return -1;
  share();
  if (!torch_tensor()) { /* else another thread has met it, with the same objects */
    torch = made;
    __atomic_store_n(&torch.tensor, (PyTypeObject*)tensor, __ATOMIC_RELEASE);
  }
  shared_end();
  return 0;
}

static inline int is_torch(PyObject* array) {
  PyTypeObject* const tensor = torch_tensor();
  return tensor && PyObject_TypeCheck(array, tensor);
}

/* Is what a function of torch says true? -1 with an exception. */
static inline int torch_says(PyObject* function) {
  PyObject* said = PyObject_CallNoArgs(function);
  if (!said) return -1;
  const int yes = said == Py_True || (said != Py_False && PyObject_IsTrue(said));
  Py_DECREF(said);
  return yes;
}

/* Does PyTorch record what this thread does with tensors, so that a call must be one of its operators? The first array tells whether a
 * call is PyTorch's; arrays may be among the `count` values that are given by name, behind those by position. 40 ns. */
static inline int torch_records(PyObject* const* values, Py_ssize_t positional, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (PyArray_CheckExact(values[i])) return 0;
    if (values[i] == Py_None) continue;
    if (!torch_tensor() && meet_torch() < 0) return -1;
    if (!is_torch(values[i])) {
      if (i < positional) return 0;
      continue;
    }
    const int modes = torch_says(torch.modes);
    return modes ? modes : torch_says(torch.tracing);
  }
  return 0;
}

/* Was a call refused since its tensors are those of a transform of torch.func (vmap, grad), which have no memory? Then no exception is
 * left. */
__attribute__((noinline, cold)) static int torch_transforms(PyObject* const* values, Py_ssize_t count) {
  int any = 0;
  for (Py_ssize_t i = 0; i < count; ++i) any |= is_torch(values[i]);
  if (!any || !PyErr_ExceptionMatches(ArgumentError)) return 0;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyObject* said = PyObject_CallMethod(facade, "transforms", NULL);
  const int yes = said == Py_True;
  Py_XDECREF(said);
  if (!yes) {
    PyErr_Clear();
    PyErr_Restore(type, value, trace);
    return 0;
  }
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  return 1;
}

/* Would autograd record a gradient of this tensor? -1 with an exception. */
static int is_recorded(PyObject* tensor) {
  PyObject* requires_grad = PyObject_GetAttr(tensor, torch.requires_grad);
  if (!requires_grad) return -1;
  const int recorded = requires_grad == Py_True ? torch_says(torch.grad) : 0;
  Py_DECREF(requires_grad);
  return recorded;
}

/* Refuses a number whose gradient would silently be none. */
static int check_no_gradient(PyObject* tensor, const char* argument) {
  const int recorded = is_recorded(tensor);
  return recorded > 0 ? refuse(argument, "required grad, must be a number: it has no gradient") : recorded;
}

/* Refuses a tensor that a call writes to while autograd would have to record it. */
static int check_written_tensor(PyObject* array, const char* argument) {
  const int refused = is_recorded(array);
  if (refused > 0)
    return refuse(argument,
                  "required grad, must not where it is written to: no gradient is recorded; pass a tensor without, or "
                  "call under torch.no_grad()");
  return refused;
}

/* Tells autograd of tensors that a call has written to, so that it refuses to use what it saved of them. */
static int count_written(PyObject* const* arrays, int count) {
  PyObject* all = PyTuple_New(count);
  for (int i = 0; all && i < count; ++i) PyTuple_SetItem(all, i, Py_NewRef(arrays[i]));
  PyObject* none = all ? PyObject_CallFunctionObjArgs(torch.increment, all, NULL) : NULL;
  Py_XDECREF(all);
  Py_XDECREF(none);
  return none ? 0 : -1;
}

#endif
