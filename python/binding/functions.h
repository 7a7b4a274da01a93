// SPDX-License-Identifier: MIT
/* The functions of a library: one for all that its operators can do, bound to what reader.h reads. */
#ifndef TILEKILN_BINDING_FUNCTIONS_H
#define TILEKILN_BINDING_FUNCTIONS_H

#include "operator_calls.h"

static int operator_traverse(Operator* self, visitproc visit, void* arg) {
  Py_VISIT((PyObject*)Py_TYPE(self));
  Py_VISIT((PyObject*)self->library);
  return 0;
}
static int operator_clear(Operator* self) {
  Py_CLEAR(self->library);
  return 0;
}
static void operator_dealloc(Operator* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  for (int i = 0; i < self->table->argument_count; ++i) Py_XDECREF(self->interned[i]);
  Py_XDECREF(self->library);
  object_free(type, (PyObject*)self);
}
static PyType_Slot operator_slots[] = {
    {Py_tp_dealloc, operator_dealloc}, {Py_tp_traverse, operator_traverse}, {Py_tp_clear, operator_clear}, {0, NULL}};
static PyType_Spec operator_spec = {"tilekiln._binding.Operator", sizeof(Operator), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, operator_slots};
static PyTypeObject* OperatorType;

static Operator* operator_new(Library* library, const tilekiln_operator* table, Doing doing, int number,
                              const char* ending) {
  Operator* self = (Operator*)object_new(OperatorType);
  if (!self) return NULL;
  self->library = (Library*)Py_NewRef((PyObject*)library);
  self->table = table;
  self->doing = doing;
  self->number = number;
  for (int i = 0; i < table->argument_count; ++i)
    if (table->arguments[i].kind == TILEKILN_STREAM) self->stream_offset = table->arguments[i].offset;
  PyOS_snprintf(self->name, sizeof(self->name), "%s%s%s", table->name, *ending ? "_" : "", ending);
  for (int i = 0; i < table->argument_count; ++i)
    if (!(self->interned[i] = PyUnicode_InternFromString(table->arguments[i].name))) {
      Py_DECREF(self);
      return NULL;
    }
  return self;
}

/* Sets library.<operator>[_<ending>]. `says`: what the function does; null: the whole page of the operator. */
static int add_function(Library* library, const tilekiln_operator* table, Doing doing, int number, const char* ending,
                        const char* says) {
  Operator* self = operator_new(library, table, doing, number, ending);
  if (!self) return -1;
  /* The text lives as long as the library, which is for ever: its handle is never closed. */
  const char* page = strchr(table->doc, '\n');
  const size_t signature = page ? (size_t)(page - table->doc) : 0;
  const size_t size = strlen(self->name) + (says ? signature + strlen(says) + 8 : strlen(table->doc) + 1);
  char* doc = PyMem_Malloc(size);
  if (!doc) {
    Py_DECREF(self);
    PyErr_NoMemory();
    return -1;
  }
  if (says)
    PyOS_snprintf(doc, size, "%s%.*s\n--\n\n%s", self->name, (int)signature, table->doc, says);
  else
    PyOS_snprintf(doc, size, "%s%s", self->name, table->doc);
  self->method = (PyMethodDef){self->name, NULL, METH_FASTCALL | METH_KEYWORDS, doc};
  self->method.ml_meth = (PyCFunction)(void (*)(void))(doing == DO_RUN ? operator_run : operator_ask);
  PyObject* function = PyCFunction_NewEx(&self->method, (PyObject*)self, NULL);
  Py_DECREF(self);
  const int bad = !function || PyObject_SetAttrString((PyObject*)library, self->name, function) < 0;
  Py_XDECREF(function);
  return bad ? -1 : 0;
}

/* Gives a library a function for all that its operators can do. */
static int add_operators(Library* library) {
  int32_t count = 0;
  const tilekiln_operator* const* tables = library->operators(&count);
  for (int32_t i = 0; i < count; ++i) {
    const tilekiln_operator* table = tables[i];
    if (table->layout != TILEKILN_OPERATOR_LAYOUT) {
      PyErr_Format(PyExc_ImportError,
                   "%S: its tables of operators are laid out in another way than this binding reads: " ONE_VERSION,
                   library->path);
      return -1;
    }
    if (table->argument_count > MAX_ARGUMENTS || table->array_count > MAX_ARRAYS || table->result_count > MAX_RESULTS ||
        table->args_size > MAX_ARGS) {
      PyErr_Format(PyExc_ImportError, "%S: its operator %s is larger than this binding reads", library->path,
                   table->name);
      return -1;
    }
    if (add_function(library, table, DO_RUN, 0, "", NULL) < 0 ||
        add_function(library, table, DO_FIND, 0, "find", find_says) < 0 ||
        add_function(library, table, DO_WHY, 0, "why", why_says) < 0 ||
        add_function(library, table, DO_DESCRIBE, 0, "describe", describe_says) < 0)
      return -1;
    for (int number = 0; number < table->number_count; ++number)
      if (add_function(library, table, DO_NUMBER, number, table->numbers[number].name, table->numbers[number].doc) < 0)
        return -1;
  }
  return 0;
}

#endif
