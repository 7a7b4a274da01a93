// SPDX-License-Identifier: MIT
/* Library: the C ABI of one libtilekiln_<receipt>.so, loaded RTLD_LOCAL. */
#ifndef TILEKILN_BINDING_LIBRARY_H
#define TILEKILN_BINDING_LIBRARY_H

#include <dlfcn.h>

#include "arrays.h"
#include "damage.h"
#include "tilekiln/choice/key_hash.h"
#include "tilekiln/machine.h"

/* Every function that all libraries have, so that loading finds a missing one and not a call. */
#define TILEKILN_FUNCTIONS(X)                                                                                         \
  X(stream_create)                                                                                                    \
  X(stream_wrap)                                                                                                      \
  X(stream_destroy)                                                                                                   \
  X(stream_synchronize) X(stream_wait) X(stream_query) X(stream_launch_host) X(operators) X(staging_default)          \
      X(abi_version) X(version) X(receipt) X(manifest_deflated) X(instance_count) X(instance_name) X(instance_usable) X(isa)   \
          X(isa_refusal) X(bf16_arithmetic) X(num_threads) X(last_error) X(last_refusals) X(describe) X(tune)

typedef struct {
  PyObject ob_base;
  PyObject* path; /* str */
  PyObject* dict; /* the functions of its operators, and what Python code adds */
#define X(name) __typeof__(&tilekiln_##name) name;
  TILEKILN_FUNCTIONS(X)
#undef X
  void* handle; /* of dlopen, for what a library of some operators has besides */
} Library;

static PyTypeObject* LibraryType;

/* Sets the exception of a failed call, with its reasons, and returns null. */
static PyObject* library_error(const Library* self, tilekiln_status status) {
  PyObject* type = status == TILEKILN_INVALID_ARGUMENT ? ArgumentError
                   : status == TILEKILN_NO_KERNEL      ? NoKernelError
                   : status == TILEKILN_OUT_OF_MEMORY  ? PyExc_MemoryError
                                                       : PyExc_RuntimeError;
  int32_t count = 0;
  const tilekiln_refusal* refusals = self->last_refusals(&count);
  PyObject* text = PyUnicode_FromString(self->last_error());
  if (text && count && (type == ArgumentError || type == NoKernelError)) {
    refusal_error(type, text, refusals, count);
  } else if (text) {
    PyErr_SetObject(type, text);
  }
  Py_XDECREF(text);
  return NULL;
}

static PyObject* library_new(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static char* names[] = {"path", NULL};
  PyObject* path = NULL;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O:Library", names, &path)) return NULL;
  PyObject *bytes = NULL, *text = PyOS_FSPath(path);
  if (!text || !PyUnicode_FSConverter(text, &bytes)) {
    Py_XDECREF(text);
    return NULL;
  }
  Library* self = (Library*)object_new(type);
  if (self)
    self->path = text;
  else
    Py_DECREF(text);
  PyObject* damage = self ? library_damage(PyBytes_AsString(bytes)) : NULL;
  if (damage) {
    PyErr_Format(PyExc_ImportError, "cannot load a Tilekiln library: %S: %U", path, damage);
    Py_DECREF(damage);
    Py_DECREF(bytes);
    Py_DECREF(self);
    return NULL;
  }
  /* Never closed: the library's thread pool may outlive every Python object. */
  void* handle = self ? dlopen(PyBytes_AsString(bytes), RTLD_NOW | RTLD_LOCAL) : NULL;
  Py_DECREF(bytes);
  if (!self) return NULL;
  if (!handle) {
    PyErr_Format(PyExc_ImportError, "cannot load a Tilekiln library: %s", dlerror());
    Py_DECREF(self);
    return NULL;
  }
  self->handle = handle;
  const char* missing = NULL;
#define X(name) \
  if (!(*(void**)&self->name = dlsym(handle, "tilekiln_" #name))) missing = #name;
  TILEKILN_FUNCTIONS(X)
#undef X
#define ONE_VERSION "install both in one version, or build both from one tree"
  if (!self->abi_version || !self->version)
    PyErr_Format(PyExc_ImportError, "%S is no Tilekiln library: it has no tilekiln_%s", path,
                 self->abi_version ? "version" : "abi_version");
  else if (strcmp(self->version(), TILEKILN_VERSION))
    PyErr_Format(PyExc_ImportError, "%S is of Tilekiln %s and this is Tilekiln %s: " ONE_VERSION, path, self->version(),
                 TILEKILN_VERSION);
  else if (self->abi_version() != TILEKILN_ABI_VERSION)
    PyErr_Format(PyExc_ImportError, "%S speaks version %d of the Tilekiln ABI and this is version %d: " ONE_VERSION,
                 path, (int)self->abi_version(), TILEKILN_ABI_VERSION);
  else if (missing)
    PyErr_Format(PyExc_ImportError, "%S has no tilekiln_%s, which Tilekiln %s needs: " ONE_VERSION, path, missing,
                 TILEKILN_VERSION);
  else
    return (PyObject*)self;
  Py_DECREF(self);
  return NULL;
}

static int library_traverse(Library* self, visitproc visit, void* arg) {
  Py_VISIT((PyObject*)Py_TYPE(self));
  Py_VISIT(self->dict);
  return 0;
}
static int library_clear(Library* self) {
  Py_CLEAR(self->dict);
  return 0;
}
static void library_dealloc(Library* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  Py_XDECREF(self->path);
  Py_XDECREF(self->dict);
  object_free(type, self);
}

/* Attributes as of any object; the class has the words for one that is missing. (A __getattr__ of the class costs every call of an
 * operator 25 ns: Python then looks for two more functions at each attribute.) */
static PyObject* library_attribute(PyObject* self, PyObject* name) {
  PyObject* found = PyObject_GenericGetAttr(self, name);
  if (found || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
  PyObject *type, *value, *trace, *word = PyUnicode_FromString("_missing");
  PyErr_Fetch(&type, &value, &trace);
  PyObject* missing = word ? PyObject_GenericGetAttr(self, word) : NULL;
  Py_XDECREF(word);
  if (!missing) {
    PyErr_Restore(type, value, trace);
    return NULL;
  }
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  found = PyObject_CallFunctionObjArgs(missing, name, NULL);
  Py_DECREF(missing);
  return found;
}

static PyObject* library_path(Library* self, void* unused) {
  (void)unused;
  return Py_NewRef(self->path);
}
static PyObject* library_version(Library* self, void* unused) {
  (void)unused;
  return PyUnicode_FromString(self->version());
}
static PyObject* library_receipt(Library* self, void* unused) {
  (void)unused;
  return PyUnicode_FromString(self->receipt());
}
static PyObject* library_isa(Library* self, void* unused) {
  (void)unused;
  return PyUnicode_FromString(self->isa());
}
static PyObject* library_unusable(Library* self, void* unused) {
  (void)unused;
  return PyUnicode_FromString(*self->isa() ? "" : self->last_error());
}
static PyObject* library_refused(Library* self, void* unused) {
  (void)unused;
  return PyUnicode_FromString(self->isa_refusal());
}
static PyObject* library_bf16_arithmetic(Library* self, void* unused) {
  (void)unused;
  return PyUnicode_FromString(self->bf16_arithmetic());
}
static PyObject* library_num_threads(Library* self, void* unused) {
  (void)unused;
  return PyLong_FromLong(self->num_threads());
}
static PyObject* library_instance_count(Library* self, void* unused) {
  (void)unused;
  return PyLong_FromLongLong(self->instance_count());
}
static PyObject* library_manifest_text(Library* self, PyObject* unused) {
  (void)unused;
  size_t bytes = 0, length = 0;
  const void* stream = self->manifest_deflated(&bytes, &length);
  PyObject* zlib = PyImport_ImportModule("zlib");
  PyObject* data = zlib ? PyObject_CallMethod(zlib, "decompress", "y#", (const char*)stream, (Py_ssize_t)bytes) : NULL;
  PyObject* text = data ? PyUnicode_DecodeUTF8(PyBytes_AsString(data), (Py_ssize_t)length, "strict") : NULL;
  Py_XDECREF(data);
  Py_XDECREF(zlib);
  return text;
}

/* The digits of the id of a dispatcher's key, from its text. */
static PyObject* key_digits(PyObject* unused, PyObject* text) {
  (void)unused;
  Py_ssize_t length = 0;
  const char* bytes = PyUnicode_AsUTF8AndSize(text, &length);
  char digits[TILEKILN_KEY_DIGITS + 1];
  if (!bytes) return NULL;
  tilekiln_key_digits(bytes, (size_t)length, digits);
  return PyUnicode_FromStringAndSize(digits, TILEKILN_KEY_DIGITS);
}

/* Kind of processor that a file in the form of /proc/cpuinfo is of. */
static PyObject* processor(PyObject* unused, PyObject* path) {
  (void)unused;
  char text[288];
  const char* name = PyUnicode_AsUTF8AndSize(path, NULL);
  if (!name) return NULL;
  tilekiln_processor(name, text, sizeof(text));
  return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

/* Machine as tables of measured choices name it. */
static PyObject* machine_key(PyObject* unused, PyObject* nothing) {
  (void)unused;
  (void)nothing;
  char text[320];
  tilekiln_machine(text, sizeof(text));
  return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

static PyObject* library_instance_name(Library* self, PyObject* number) {
  const long long instance = PyLong_AsLongLong(number);
  if (instance == -1 && PyErr_Occurred()) return NULL;
  const char* name = self->instance_name(instance);
  if (name) return PyUnicode_FromString(name);
  return PyErr_Format(PyExc_IndexError, "instance: is %lld; this library has %lld instances", instance,
                      (long long)self->instance_count());
}

/* take_tuned([(call, instance, num_splits, num_threads), ...]) */
static PyObject* library_take_tuned(Library* self, PyObject* listed) {
  PyObject* all = PySequence_List(listed);
  const Py_ssize_t count = all ? PyList_Size(all) : 0;
  tilekiln_tuned* choices = all ? PyMem_Calloc((size_t)count + 1, sizeof(*choices)) : NULL;
  if (all && !choices) PyErr_NoMemory();
  for (Py_ssize_t i = 0; choices && i < count; ++i) {
    unsigned long long call = 0;
    long long instance = 0;
    int splits = 0, threads = 0;
    if (!PyArg_ParseTuple(PyList_GetItem(all, i), "KLii", &call, &instance, &splits, &threads)) break;
    choices[i] = (tilekiln_tuned){call, instance, splits, threads};
  }
  const tilekiln_status status = PyErr_Occurred() ? TILEKILN_OK : self->tune(choices, (size_t)count);
  PyMem_Free(choices);
  Py_XDECREF(all);
  if (PyErr_Occurred()) return NULL;
  if (status != TILEKILN_OK) return library_error(self, status);
  Py_RETURN_NONE;
}

static PyObject* library_instance_usable(Library* self, PyObject* number) {
  const long long instance = PyLong_AsLongLong(number);
  if (instance == -1 && PyErr_Occurred()) return NULL;
  return PyBool_FromLong(self->instance_usable(instance));
}

#endif
