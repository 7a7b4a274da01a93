/* The backward launcher, and the inspection of its workspace. */
#ifndef TILEKILN_BINDING_LAUNCHER_H
#define TILEKILN_BINDING_LAUNCHER_H

#include "reader.h"

typedef struct {
  PyObject ob_base;
  Library* library;    /* a strong reference */
  Operator* operator_; /* fmha_bwd as run() reads it: a strong reference */
  tilekiln_fmha_bwd_launcher* native;
  Stream* stream; /* the last one it prepared on, which must outlive it: a strong reference, or null */
} Launcher;

static const char* const dtype_words[] = {"fp32", "fp16", "bf16", NULL};
static const char* const mode_words[] = {"batch", "group", NULL};
static const char* const mask_words[] = {"none", "window", NULL};
static const char* const bias_words[] = {"none", "elementwise", "alibi", NULL};
static const char* const dropout_words[] = {"none", "apply", "store", NULL};

/* What run() reads its arguments by, or null with an exception. */
static Operator* launcher_operator(Library* library) {
  int32_t count = 0;
  const tilekiln_operator* const* tables = library->operators(&count);
  for (int32_t i = 0; i < count; ++i) {
    if (strcmp(tables[i]->name, "fmha_bwd")) continue;
    Operator* self = operator_new(library, tables[i], DO_RUN, 0, "");
    if (self) strcpy(self->name, "run");
    return self;
  }
  PyErr_Format(NoKernelError, "the library of receipt %s has no operator fmha_bwd", library->receipt());
  return NULL;
}

static PyObject* launcher_new(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static char* names[] = {"library", "dtype",    "hdim_q",        "hdim_v",  "nhead_q", "nhead_k",      "mode",
                          "batch",   "seqlen_q", "seqlen_k",      "mask",    "bias",    "dbias",        "dropout",
                          "softcap", "sink",     "deterministic", "workers", "device",  "max_seqlen_q", NULL};
  static const int32_t dtypes[] = {TILEKILN_FP32, TILEKILN_FP16, TILEKILN_BF16};
  PyObject *library, *dtype, *hdim_q, *hdim_v, *nhead_q, *nhead_k, *mode, *batch, *seqlen_q, *seqlen_k, *mask, *bias,
      *dbias, *dropout, *softcap, *sink, *deterministic, *workers, *device, *max_seqlen_q;
  int device_type = 0, device_id = 0;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!OOOOOOOOOOOOOOOOOOO:BackwardLauncher", names, LibraryType,
                                   &library, &dtype, &hdim_q, &hdim_v, &nhead_q, &nhead_k, &mode, &batch, &seqlen_q,
                                   &seqlen_k, &mask, &bias, &dbias, &dropout, &softcap, &sink, &deterministic, &workers,
                                   &device, &max_seqlen_q))
    return NULL;
  if (!PyTuple_Check(device) || !PyArg_ParseTuple(device, "ii", &device_type, &device_id)) {
    PyErr_Format(ArgumentError, "device: was %R, must be (type, id) as __dlpack_device__() gives it", device);
    return NULL;
  }
  tilekiln_fmha_bwd_problem problem = tilekiln_fmha_bwd_problem_defaults();
  int32_t dtype_word = 0;
  long long rows = 0, keys = 0, longest = 0;
  if (read_word(dtype, "dtype", dtype_words, &dtype_word) < 0 || read_int32(hdim_q, "hdim_q", 1, &problem.hdim_q) < 0 ||
      read_int32(hdim_v, "hdim_v", 1, &problem.hdim_v) < 0 || read_int32(nhead_q, "nhead_q", 1, &problem.nhead_q) < 0 ||
      read_int32(nhead_k, "nhead_k", 1, &problem.nhead_k) < 0 ||
      read_word(mode, "mode", mode_words, &problem.group) < 0 || read_int32(batch, "batch", 0, &problem.batch) < 0 ||
      read_integer(seqlen_q, "seqlen_q", 0, INT64_MAX, &rows) < 0 ||
      read_integer(seqlen_k, "seqlen_k", 0, INT64_MAX, &keys) < 0 ||
      read_word(mask, "mask", mask_words, &problem.mask) < 0 ||
      read_word(bias, "bias", bias_words, &problem.bias) < 0 || read_flag(dbias, "dbias", &problem.dbias) < 0 ||
      read_word(dropout, "dropout", dropout_words, &problem.dropout) < 0 ||
      read_flag(softcap, "softcap", &problem.softcap) < 0 || read_flag(sink, "sink", &problem.sink) < 0 ||
      read_flag(deterministic, "deterministic", &problem.deterministic) < 0 ||
      read_int32(workers, "workers", 0, &problem.workers) < 0 ||
      read_integer(max_seqlen_q, "max_seqlen_q", 0, INT64_MAX, &longest) < 0)
    return NULL;
  problem.dtype = dtypes[dtype_word];
  problem.seqlen_q = rows;
  problem.seqlen_k = keys;
  problem.device_type = device_type;
  problem.device_id = device_id;
  problem.max_seqlen_q = longest;
  Launcher* self = (Launcher*)object_new(type);
  if (!self) return NULL;
  self->library = (Library*)Py_NewRef(library);
  if (!(self->operator_ = launcher_operator(self->library))) {
    Py_DECREF(self);
    return NULL;
  }
  const tilekiln_status status = self->library->fmha_bwd_launcher_create(&problem, &self->native);
  if (status == TILEKILN_OK) return (PyObject*)self;
  library_error(self->library, status);
  Py_DECREF(self);
  return NULL;
}

static void launcher_dealloc(Launcher* self) {
  PyTypeObject* type = Py_TYPE(self);
  if (self->native) self->library->fmha_bwd_launcher_destroy(self->native); /* it never waits and never fails */
  Py_XDECREF(self->stream);
  Py_XDECREF(self->operator_);
  Py_XDECREF(self->library);
  object_free(type, self);
}

static PyObject* launcher_workspace_size(Launcher* self, void* unused) {
  (void)unused;
  uint64_t bytes = 0;
  const tilekiln_status status = self->library->fmha_bwd_launcher_workspace_size(self->native, &bytes);
  return status == TILEKILN_OK ? PyLong_FromUnsignedLongLong(bytes) : library_error(self->library, status);
}

static PyObject* launcher_instances(Launcher* self, void* unused) {
  (void)unused;
  int64_t instances[TILEKILN_BWD_STAGES];
  const tilekiln_status status = self->library->fmha_bwd_launcher_find(self->native, instances);
  return status == TILEKILN_OK ? stage_numbers(instances, TILEKILN_BWD_STAGES) : library_error(self->library, status);
}

static PyObject* launcher_library(Launcher* self, void* unused) {
  (void)unused;
  return Py_NewRef((PyObject*)self->library);
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
  if (view_arrays(COUNT, given, (const char* const*)names, 1, tensor, field, held, &held_count) < 0) goto end;
  if (read_stream(stream_given == Py_None ? NULL : stream_given, &stream) < 0) goto end;
  tilekiln_status status;
  if (stream) {
    tilekiln_stream* native = stream_native(stream, library);
    if (!native) goto end;
    for (int i = 0; i < COUNT; ++i)
      if ((given[i] && stream_hold(stream, given[i]) < 0) || (held[i] && stream_hold(stream, held[i]) < 0)) goto end;
    status = library->fmha_bwd_launcher_prepare_async(self->native, field[0], field[1], field[2], native,
                                                      library->staging_default());
    if (status == TILEKILN_OK) {
      Stream* before = self->stream;
      self->stream = (Stream*)Py_NewRef((PyObject*)stream);
      Py_XDECREF(before);
    }
  } else {
    Py_BEGIN_ALLOW_THREADS /* it may have much to zero */
        status = library->fmha_bwd_launcher_prepare(self->native, field[0], field[1], field[2]);
    Py_END_ALLOW_THREADS
  }
  result = status == TILEKILN_OK ? Py_NewRef(Py_None) : library_error(library, status);
end:
  for (int i = 0; i < COUNT; ++i) Py_XDECREF(held[i]);
  return result;
}

static tilekiln_status launcher_run_native(const Library* library, void* native, const void* args) {
  return library->fmha_bwd_launcher_run(native, args);
}

static PyObject* launcher_run(Launcher* self, PyObject* const* values, Py_ssize_t positional, PyObject* names) {
  OperatorCall call;
  PyObject* result = NULL;
  if (call_begin(self->operator_, &call, values, positional, names) == 0)
    result = call_run(&call, launcher_run_native, self->native);
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
    "Library.fmha_bwd with a workspace that prepare has written. The arguments are of the launcher's problem; in group "
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
    {"instances", (getter)launcher_instances, NULL,
     "The instance of each stage, as Library.fmha_bwd_find gives it: dot_do_o, dq_dk_dv, convert_dq.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot launcher_slots[] = {{Py_tp_doc, "The C ABI's launcher."}, {Py_tp_new, launcher_new},
                                       {Py_tp_dealloc, launcher_dealloc},    {Py_tp_methods, launcher_methods},
                                       {Py_tp_getset, launcher_properties},  {0, NULL}};
static PyType_Spec launcher_spec = {"tilekiln._binding.BackwardLauncher", sizeof(Launcher), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, launcher_slots};

/* Library.bwd_workspace_plan: numbers by name; host segment, map and work as bytes. */
static PyObject* library_workspace_plan(Library* self, PyObject* arguments, PyObject* keywords) {
  static char* names[] = {"group",      "deterministic", "batch",   "nhead_q",  "hdim_q",
                          "kM0",        "kN0",           "workers", "seqlen_q", "seqlen_k",
                          "seqstart_q", "seqstart_k",    "causal",  "threads",  NULL};
  tilekiln_bwd_workspace_problem problem;
  tilekiln_bwd_workspace_layout layout;
  memset(&problem, 0, sizeof(problem));
  memset(&layout, 0, sizeof(layout));
  problem.size = sizeof(problem);
  layout.size = sizeof(layout);
  if (!self->bwd_workspace_plan) {
    PyErr_Format(NoKernelError, "the library of receipt %s has no operator fmha_bwd", self->receipt());
    return NULL;
  }
  Py_buffer starts[2] = {{0}, {0}};
  PyObject *result = NULL, *host = NULL, *map = NULL, *work = NULL;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "iiiiiiiiiiz*z*ii:bwd_workspace_plan", names, &problem.group,
                                   &problem.deterministic, &problem.batch, &problem.nhead_q, &problem.hdim_q,
                                   &problem.kM0, &problem.kN0, &problem.workers, &problem.seqlen_q, &problem.seqlen_k,
                                   &starts[0], &starts[1], &problem.causal, &problem.threads))
    return NULL;
  problem.seqstart_q = starts[0].buf;
  problem.seqstart_k = starts[1].buf;
  for (int i = 0; i < 2; ++i)
    if (problem.group && starts[i].len != (Py_ssize_t)sizeof(int32_t) * ((Py_ssize_t)problem.batch + 1)) {
      refuse(names[10 + i], "had %zd bytes, must have batch + 1 int32", starts[i].len);
      goto end;
    }
  tilekiln_status status = self->bwd_workspace_plan(&problem, &layout, NULL, 0, NULL, NULL);
  if (status == TILEKILN_OK) {
    host = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)layout.host_bytes);
    map = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)sizeof(int32_t) * layout.workers);
    work = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)sizeof(int64_t) * layout.workers);
    void* aligned = malloc((size_t)layout.host_bytes + 16); /* the data of bytes is aligned to 16 by luck only */
    if (!host || !map || !work || !aligned) {
      free(aligned);
      PyErr_NoMemory();
      goto end;
    }
    memset(PyBytes_AsString(map), 0, (size_t)PyBytes_Size(map));
    memset(PyBytes_AsString(work), 0, (size_t)PyBytes_Size(work));
    char* segment = (char*)(((uintptr_t)aligned + 15) & ~(uintptr_t)15);
    memset(segment, 0, (size_t)layout.host_bytes);
    status = self->bwd_workspace_plan(&problem, &layout, segment, (size_t)layout.host_bytes,
                                      (int32_t*)PyBytes_AsString(map), (int64_t*)PyBytes_AsString(work));
    memcpy(PyBytes_AsString(host), segment, (size_t)layout.host_bytes);
    free(aligned);
  }
  if (status != TILEKILN_OK) {
    library_error(self, status);
    goto end;
  }
#define U(name) #name, (unsigned long long)layout.name
#define L(name) #name, (long long)layout.name
  result = Py_BuildValue("{sKsKsKsKsKsKsKsKsisisisisLsLsLsLsdsdsdsOsOsO}", U(host_bytes), U(device_bytes),
                         U(upper_bound_bytes), U(nsplits_offset), U(dq_acc_offsets_offset), U(cu_state_offset),
                         U(batch_state_offset), U(dq_acc_offset), "nsplits_count", layout.nsplits_count, "workers",
                         layout.workers, "zero_dq_acc", layout.zero_dq_acc, "prezero", layout.prezero, L(target_w),
                         L(total_w), L(jobs_per_head), L(jobs_per_worker), "worker_balance", layout.worker_balance,
                         "plain_balance", layout.plain_balance, "thread_balance", layout.thread_balance, "host", host,
                         "xcd_map", map, "work", work);
#undef U
#undef L
end:
  for (int i = 0; i < 2; ++i) PyBuffer_Release(&starts[i]);
  Py_XDECREF(host);
  Py_XDECREF(map);
  Py_XDECREF(work);
  return result;
}

#endif
