// SPDX-License-Identifier: MIT
/* Arguments that need a library or a stream to be read, and results handed over. */
#ifndef TILEKILN_BINDING_SCALARS_H
#define TILEKILN_BINDING_SCALARS_H

#include "library.h"
#include "stream.h"
#include "values.h"

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

static int read_stream(PyObject* value, Stream** stream) {
  if (!value) return 0;
  if (Py_TYPE(value) != StreamType) return refuse("stream", "was %R, must be a tilekiln.Stream", value);
  *stream = (Stream*)value;
  return 0;
}

/* A framework without the exchange API receives the NumPy array that was made for it; what it made itself is its own. */
static PyObject* adopt(PyObject* like, PyObject* made) {
  if (PyArray_CheckExact(like) || exchange_api(Py_TYPE(like)) || PyArray_Check(like) || !PyArray_CheckExact(made))
    return Py_NewRef(made);
  return PyObject_CallMethod(facade, "adopt", "OO", like, made);
}

static int read_pair_of(const tilekiln_argument* argument, PyObject* value, void* place) {
  PyObject* pair;
  if (read_pair(value, argument->name, argument->words[0], &pair) < 0) return -1;
  int bad = 0;
  for (int i = 0; i < 2 && !bad; ++i) {
    PyObject* item = PyTuple_GetItem(pair, i);
    bad = argument->kind == TILEKILN_PAIR_INT
              ? read_int32(item, argument->name, argument->least, (int32_t*)place + i) < 0
              : read_uint64(item, argument->name, (uint64_t*)place + i) < 0;
  }
  Py_DECREF(pair);
  return bad ? -1 : 0;
}

#endif
