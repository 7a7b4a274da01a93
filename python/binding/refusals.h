// SPDX-License-Identifier: MIT
/* Reasons of a refused call: tilekiln_refusal as a named tuple, which the exception has as `refusals`. */
#ifndef TILEKILN_BINDING_REFUSALS_H
#define TILEKILN_BINDING_REFUSALS_H

#include <string.h>

#include "stable_abi.h"
#include "tilekiln/tilekiln.h"

static PyObject *ArgumentError, *NoKernelError;
static PyTypeObject* RefusalType;

static PyStructSequence_Field refusal_fields[] = {
    {"reason",
     "'argument', 'device', 'size', 'rule', 'machine', 'isa', 'axis', 'needs', 'not built' or 'not listed', as "
     "tilekiln_reason in "
     "tilekiln.h has them; 'other': a newer library's"},
    {"instance", "the number of the instance that it is about, or None"},
    {"problem", "the problem of the call, in the language of selections"},
    {"axis", "an axis of the signature, or an argument"},
    {"have", "what the library or the instance has"},
    {"want", "what the call wants"},
    {"asked", "the arguments that ask for that"},
    {"rule", "the rule that forbids it"},
    {"target", "the target whose rule it is; None: every one"},
    {"says", "the rule in words"},
    {"build", "the command that builds the kernel"},
    {"text", "its line of the error's text; None where the line of the reason before says it, too"},
    {NULL, NULL}};

static PyStructSequence_Desc refusal_description = {
    "tilekiln._binding.Refusal", "A reason why a library refused a call. What a reason has no need of is None.",
    refusal_fields, 12};

static PyObject* refusal_text(const char* text) {
  if (text) return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
  return Py_NewRef(Py_None);
}

static PyObject* refusal_new(const tilekiln_refusal* of) {
  static const char* const words[] = {"other", "argument", "device", "size",      "rule",      "machine",
                                      "isa",   "axis",     "needs",  "not built", "not listed"};
  const int known = of->reason > 0 && of->reason < (int)(sizeof(words) / sizeof(*words));
  const char* const texts[] = {of->problem, of->axis,   of->have, of->want,  of->asked,
                               of->rule,    of->target, of->says, of->build, of->text};
  PyObject* made = PyStructSequence_New(RefusalType);
  if (!made) return NULL;
  PyStructSequence_SetItem(made, 0, PyUnicode_FromString(words[known ? of->reason : 0]));
  PyStructSequence_SetItem(made, 1, of->instance < 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(of->instance));
  for (int i = 0; i < 10; ++i) PyStructSequence_SetItem(made, 2 + i, refusal_text(texts[i]));
  if (!PyErr_Occurred()) return made;
  Py_DECREF(made);
  return NULL;
}

/* Sets an exception with `refusals` and, where the problem is known, `problem`. Returns null. */
static PyObject* refusal_error(PyObject* type, PyObject* text, const tilekiln_refusal* refusals, int32_t count) {
  PyObject* error = PyObject_CallFunctionObjArgs(type, text, NULL);
  PyObject* tuple = error ? PyTuple_New(count) : NULL;
  int good = tuple != NULL;
  for (int32_t i = 0; good && i < count; ++i) {
    PyObject* one = refusal_new(&refusals[i]);
    good = one && PyTuple_SetItem(tuple, i, one) == 0;
  }
  good = good && PyObject_SetAttrString(error, "refusals", tuple) == 0;
  if (good && refusals[0].problem) {
    PyObject* problem = refusal_text(refusals[0].problem);
    good = problem && PyObject_SetAttrString(error, "problem", problem) == 0;
    Py_XDECREF(problem);
  }
  if (good) PyErr_SetObject(type, error);
  Py_XDECREF(tuple);
  Py_XDECREF(error);
  return NULL;
}

/* Makes the types; -1 with an exception. Exceptions have no reasons where only their text is known. */
static int refusal_types(void) {
  RefusalType = PyStructSequence_NewType(&refusal_description);
  PyObject* defaults = Py_BuildValue("{s:(),s:O}", "refusals", "problem", Py_None);
  if (RefusalType && defaults) {
    ArgumentError = PyErr_NewExceptionWithDoc(
        "tilekiln.ArgumentError",
        "An argument is wrong: the text names it, what it was and what it must be. Nothing was written.\n\n"
        "refusals: what a library refused, as data: the tuple has one, whose `axis` is the argument; () where no "
        "library was asked.",
        PyExc_ValueError, defaults);
    NoKernelError = PyErr_NewExceptionWithDoc(
        "tilekiln.NoKernelError",
        "The arguments are right and no available library has a kernel for them; the text says what would build it.\n\n"
        "problem: what `jit` builds, a text; None where nothing can be built. refusals: the reasons of each library as "
        "data, of which the "
        "text is made: `reason`, `axis`, `have`, `want`, `rule`, `build` and others.",
        PyExc_LookupError, defaults);
  }
  Py_XDECREF(defaults);
  return RefusalType && ArgumentError && NoKernelError ? 0 : -1;
}

#endif
