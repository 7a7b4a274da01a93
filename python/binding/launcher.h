// SPDX-License-Identifier: MIT
/* Launchers of operators that have them, by the operator's table. */
#ifndef TILEKILN_BINDING_LAUNCHER_H
#define TILEKILN_BINDING_LAUNCHER_H

#include "reader.h"

typedef struct {
  PyObject ob_base;
  Library* library;    /* a strong reference */
  Operator* operator_; /* as run() reads it: a strong reference */
  const tilekiln_launchers* launchers;
  void* native;
  Stream* stream; /* the last one it prepared on, which must outlive it: a strong reference, or null */
} Launcher;

/* The table of the operator that makes launchers of this name, or null with an exception. */
static const tilekiln_operator* launching_operator(Library* library, const char* name) {
  int32_t count = 0;
  const tilekiln_operator* const* tables = library->operators(&count);
  for (int32_t i = 0; i < count; ++i)
    if (tables[i]->launchers && strcmp(tables[i]->name, name) == 0) return tables[i];
  PyErr_Format(NoKernelError, "the library of receipt %s has no operator %s", library->receipt(), name);
  return NULL;
}

static int read_device(const tilekiln_argument* field, PyObject* value, int32_t* place) {
  int type = 0, id = 0;
  if (!PyTuple_Check(value) || !PyArg_ParseTuple(value, "ii", &type, &id)) {
    PyErr_Clear();
    return refuse(field->name, "was %R, must be (%s) as __dlpack_device__() gives it", value, field->words[0]);
  }
  place[0] = type;
  place[1] = id;
  return 0;
}

static int read_field(const tilekiln_argument* field, PyObject* value, char* problem) {
  void* place = problem + field->offset;
  switch (field->kind) {
    case TILEKILN_DTYPE_WORD: return read_dtype(value, field->name, field->words, place);
    case TILEKILN_WORD: return read_word(value, field->name, field->words, place);
    case TILEKILN_FLAG: return read_flag(value, field->name, place);
    case TILEKILN_INT: return read_int32(value, field->name, field->least, place);
    case TILEKILN_LONG: return read_int64(value, field->name, field->least, place);
    default: return read_device(field, value, place);
  }
}

/* BackwardLauncher(library, operator, **problem) */
static PyObject* launcher_new(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  Library* library;
  const char* name;
  if (!PyArg_ParseTuple(arguments, "O!s:BackwardLauncher", LibraryType, &library, &name)) return NULL;
  const tilekiln_operator* table = launching_operator(library, name);
  if (!table) return NULL;
  const tilekiln_launchers* launchers = table->launchers;
  char problem[MAX_ARGS] __attribute__((aligned(16)));
  memcpy(problem, launchers->defaults, launchers->problem_size);
  for (int i = 0; i < launchers->problem_count; ++i) {
    const tilekiln_argument* field = &launchers->problem[i];
    PyObject* value = keywords ? PyDict_GetItemString(keywords, field->name) : NULL;
    if (value && read_field(field, value, problem) < 0) return NULL;
  }
  Launcher* self = (Launcher*)object_new(type);
  if (!self) return NULL;
  self->library = (Library*)Py_NewRef((PyObject*)library);
  self->launchers = launchers;
  if (!(self->operator_ = operator_new(library, table, DO_RUN, 0, ""))) {
    Py_DECREF(self);
    return NULL;
  }
  strcpy(self->operator_->name, "run");
  const tilekiln_status status = launchers->create(problem, &self->native);
  if (status == TILEKILN_OK) return (PyObject*)self;
  library_error(self->library, status);
  Py_DECREF(self);
  return NULL;
}

static void launcher_dealloc(Launcher* self) {
  PyTypeObject* type = Py_TYPE(self);
  if (self->native) self->launchers->destroy(self->native); /* it never waits and never fails */
  Py_XDECREF(self->stream);
  Py_XDECREF(self->operator_);
  Py_XDECREF(self->library);
  object_free(type, self);
}

static PyObject* launcher_workspace_size(Launcher* self, void* unused) {
  (void)unused;
  uint64_t bytes = 0;
  const tilekiln_status status = self->launchers->workspace_size(self->native, &bytes);
  return status == TILEKILN_OK ? PyLong_FromUnsignedLongLong(bytes) : library_error(self->library, status);
}

static PyObject* launcher_instances(Launcher* self, void* unused) {
  (void)unused;
  int64_t instances[TILEKILN_MAX_STAGES];
  const tilekiln_status status = self->launchers->find(self->native, instances);
  return status == TILEKILN_OK ? stage_numbers(instances, self->operator_->table->stage_count)
                               : library_error(self->library, status);
}

static PyObject* launcher_library(Launcher* self, void* unused) {
  (void)unused;
  return Py_NewRef((PyObject*)self->library);
}

/* Enqueues on a stream, which outlives it; with the lock of the stream's work. */
static tilekiln_status launcher_enqueue(Launcher* self, Stream* stream, const tilekiln_tensor* const* field,
                                        PyObject* const* given, PyObject* const* held, int count, int* bad) {
  tilekiln_stream* native = stream_native(stream, self->library);
  *bad = !native;
  for (int i = 0; !*bad && i < count; ++i)
    *bad = (given[i] && stream_hold(stream, given[i]) < 0) || (held[i] && stream_hold(stream, held[i]) < 0);
  if (*bad) return TILEKILN_OK;
  const tilekiln_status status = self->launchers->prepare_async(self->native, field[0], field[1], field[2], native,
                                                                self->library->staging_default());
  if (status != TILEKILN_OK) return status;
  Py_INCREF(stream);
  share();
  Stream* before = self->stream;
  self->stream = stream;
  shared_end();
  Py_XDECREF(before);
  return status;
}

static PyObject* launcher_prepare(Launcher* self, PyObject* arguments, PyObject* keywords) {
  static char* names[] = {"workspace", "seqstart_q", "seqstart_k", "stream", NULL};
  enum { COUNT = 3 };
  PyObject *given[COUNT] = {NULL}, *stream_given = NULL, *held[COUNT] = {NULL}, *result = NULL;
  int held_count = 0;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|OOO:prepare", names, &given[0], &given[1], &given[2],
                                   &stream_given))
    return NULL;
  tilekiln_tensor tensor[COUNT];
  const tilekiln_tensor* field[COUNT] = {NULL};
  Stream* stream = NULL;
  Library* library = self->library;
  for (int i = 0; i < COUNT; ++i)
    if (given[i] == Py_None) given[i] = NULL;
  if (read_stream(stream_given == Py_None ? NULL : stream_given, &stream) < 0) goto end;
  CallStream in = {NULL, stream_number(stream), 0};
  if (view_arrays(COUNT, given, (const char* const*)names, 1, tensor, field, &in, held, &held_count) < 0) goto end;
  tilekiln_status status;
  if (stream) {
    int bad;
    BEGIN_LOCKED(stream->work->lock)
    status = launcher_enqueue(self, stream, field, given, held, COUNT, &bad);
    END_LOCKED
    if (bad) goto end;
  } else {
    Py_BEGIN_ALLOW_THREADS /* it may have much to zero */
        status = self->launchers->prepare(self->native, field[0], field[1], field[2]);
    Py_END_ALLOW_THREADS
  }
  result = status == TILEKILN_OK ? Py_NewRef(Py_None) : library_error(library, status);
end:
  for (int i = 0; i < COUNT; ++i) Py_XDECREF(held[i]);
  return result;
}

static tilekiln_status launcher_run_native(const Library* library, void* self, const void* args) {
  (void)library;
  return ((Launcher*)self)->launchers->run(((Launcher*)self)->native, args);
}

static PyObject* launcher_run(Launcher* self, PyObject* const* values, Py_ssize_t positional, PyObject* names) {
  OperatorCall call;
  PyObject* result = NULL;
  if (call_begin(self->operator_, &call, values, positional, names) == 0)
    result = call_run(&call, launcher_run_native, self);
  call_end(&call);
  return result;
}

static const char launcher_prepare_doc[] =
    "prepare($self, workspace, seqstart_q=None, seqstart_k=None, stream=None)\n--\n\n"
    "Write the host segment to the workspace and zero what the next run adds to. Each run needs its own.\n\n"
    "workspace: uint8 (bytes), contiguous, aligned to 16, at least workspace_size. seqstart_q, seqstart_k: int32 "
    "(batch + "
    "1),\n"
    "    contiguous, in group mode: the physical starts.\n"
    "stream: a tilekiln.Stream: returns at once; the starts are read when the stream has come to it, so earlier work "
    "of the\n"
    "    stream may write them, and what is wrong with them is raised by synchronize().";

static const char launcher_run_doc[] =
    "run($self, dout, q, k, v, out, lse, **arguments)\n--\n\n"
    "The operator of the library with a workspace that prepare has written. The arguments are of the launcher's "
    "problem; in group "
    "mode\n"
    "seqstart_q and seqstart_k as prepared.";

static PyMethodDef launcher_methods[] = {
    {"prepare", (PyCFunction)(void (*)(void))launcher_prepare, METH_VARARGS | METH_KEYWORDS, launcher_prepare_doc},
    {"run", (PyCFunction)(void (*)(void))launcher_run, METH_FASTCALL | METH_KEYWORDS, launcher_run_doc},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef launcher_properties[] = {
    {"library", (getter)launcher_library, NULL, "The library whose kernels it runs.", NULL},
    {"workspace_size", (getter)launcher_workspace_size, NULL,
     "Bytes of workspace that are enough for any sequence starts of the problem: the host segment and an upper bound "
     "of "
     "the accumulator.",
     NULL},
    {"instances", (getter)launcher_instances, NULL, "The instance of each stage, as the find of the operator gives it.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot launcher_slots[] = {{Py_tp_doc, "The C ABI's launcher."}, {Py_tp_new, launcher_new},
                                       {Py_tp_dealloc, launcher_dealloc},    {Py_tp_methods, launcher_methods},
                                       {Py_tp_getset, launcher_properties},  {0, NULL}};
static PyType_Spec launcher_spec = {"tilekiln._binding.BackwardLauncher", sizeof(Launcher), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, launcher_slots};

#endif
