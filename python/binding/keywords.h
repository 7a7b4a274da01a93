/* Arguments by position and by name, found by comparing pointers to interned names. */
#ifndef TILEKILN_BINDING_KEYWORDS_H
#define TILEKILN_BINDING_KEYWORDS_H

#define PY_SSIZE_T_CLEAN
#include <string.h>

#include "stable_abi.h"

/* The arguments of one operator: those that may be given by position come first. */
typedef struct {
  const char* const* names;
  PyObject** interned; /* the names as Python holds them */
  int count;
  int positional; /* how many are required, and may be given by position */
  const char* positional_text;
  unsigned nullable; /* bit i: positional argument i may be None */
} Keywords;

static PyObject* facade; /* tilekiln._frameworks */

/* The index of a keyword, or -1. Callers mostly name arguments in our order, so the search starts where the last one ended. */
__attribute__((always_inline)) static inline int keyword_index(const Keywords* keywords, PyObject* name, int start) {
  for (int i = 0, at = start; i < keywords->count; ++i) {
    if (keywords->interned[at] == name) return at;
    if (++at == keywords->count) at = 0;
  }
  for (int i = 0; i < keywords->count; ++i)
    if (PyUnicode_Compare(keywords->interned[i], name) == 0) return i;
  return -1;
}

/* Puts each argument in its place. None is absent. given[i] is borrowed. Always inline: each operator's table is then a constant. */
__attribute__((always_inline)) static inline int collect(const Keywords* keywords, PyObject* const* values,
                                                         Py_ssize_t positional, PyObject* names, PyObject** given,
                                                         const char* function) {
  memset(given, 0, (size_t)keywords->count * sizeof(*given));
  if (positional > keywords->positional) {
    PyErr_Format(PyExc_TypeError, "%s() takes %s by position and everything else by name; %zd were given by position",
                 function, keywords->positional_text, positional);
    return -1;
  }
  for (Py_ssize_t i = 0; i < positional; ++i) given[i] = values[i];
  const Py_ssize_t named = names ? PyTuple_Size(names) : 0;
  for (Py_ssize_t i = 0, at = keywords->positional; i < named; ++i) {
    PyObject* name = PyTuple_GetItem(names, i);
    const int index = keyword_index(keywords, name, (int)at);
    if (index < 0) {
      PyObject* text = facade ? PyObject_CallMethod(facade, "unknown_argument", "sO", function, name) : NULL;
      if (text) PyErr_SetObject(PyExc_TypeError, text);
      Py_XDECREF(text);
      return -1;
    }
    if (index < positional) {
      PyErr_Format(PyExc_TypeError, "%s() got %s by position and by name", function, keywords->names[index]);
      return -1;
    }
    given[index] = values[positional + i];
    at = index + 1 == keywords->count ? 0 : index + 1;
  }
  for (int i = 0; i < keywords->count; ++i)
    if (given[i] == Py_None) given[i] = NULL;
  for (int i = 0; i < keywords->positional; ++i)
    if (!given[i] && !(keywords->nullable >> i & 1)) {
      PyErr_Format(PyExc_TypeError, "%s() needs the argument %s", function, keywords->names[i]);
      return -1;
    }
  return 0;
}

/* Interns the names. Returns them as a tuple. */
static PyObject* keywords_intern(const Keywords* keywords) {
  PyObject* names = PyTuple_New(keywords->count);
  for (int i = 0; names && i < keywords->count; ++i) {
    if (!(keywords->interned[i] = PyUnicode_InternFromString(keywords->names[i])))
      Py_CLEAR(names);
    else
      PyTuple_SetItem(names, i, Py_NewRef(keywords->interned[i]));
  }
  return names;
}

#endif
