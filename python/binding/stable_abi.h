// SPDX-License-Identifier: MIT
/* Python's headers, limited to the stable ABI: one extension for Python 3.11 and every later one. The build defines
 * Py_LIMITED_API. */
#ifndef TILEKILN_BINDING_STABLE_ABI_H
#define TILEKILN_BINDING_STABLE_ABI_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdio.h>
#include <stdlib.h>

/* The stable ABI of 3.11 leaves casts to its callers. */
#undef Py_TYPE
#undef Py_INCREF
#undef Py_DECREF
#undef Py_XINCREF
#undef Py_XDECREF
#undef Py_NewRef
#define Py_TYPE(object) Py_TYPE((PyObject*)(object))
#define Py_INCREF(object) Py_INCREF((PyObject*)(object))
#define Py_DECREF(object) Py_DECREF((PyObject*)(object))
#define Py_XINCREF(object) Py_XINCREF((PyObject*)(object))
#define Py_XDECREF(object) Py_XDECREF((PyObject*)(object))
#define Py_NewRef(object) Py_NewRef((PyObject*)(object))

static void* object_new(PyTypeObject* type) { return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0); }

/* The end of a tp_dealloc. */
static void object_free(PyTypeObject* type, void* self) {
  ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

#endif
