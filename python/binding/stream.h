// SPDX-License-Identifier: MIT
/* Stream: an in-order queue for calls into any libraries. Each library has a runtime of its own, so a stream holds one native queue
 * per library it was used with; moving to another library waits for the one before, which keeps the order.
 * Every array of a call stays referenced until the stream is seen idle. */
#ifndef TILEKILN_BINDING_STREAM_H
#define TILEKILN_BINDING_STREAM_H

#include <unistd.h>

#include "library.h"

typedef struct {
  Library* library; /* a strong reference */
  tilekiln_stream* native;
} Queue;

/* The work of a stream. It ends after its queues, which can be later than the Stream object: see stream_dealloc. */
typedef struct Work {
  struct Work *next, *previous; /* of all whose Stream is alive, see streams_drain */
  PyObject* lock;               /* held by whoever touches what follows, but `failure`, which `shared` guards */
  Queue* queues;
  Py_ssize_t count;
  Py_ssize_t current; /* index of the queue in use; -1: none yet */
  int wrapped;        /* of a device: each library wraps this one */
  int device_type, device_id;
  void* native;
  PyObject* held;    /* list: what enqueued work still uses */
  PyObject* failure; /* the first exception of a host function, or null */
  int drained;       /* by streams_drain, or it is being */
  int orphan;        /* its Stream died while streams_drain was at it, which ends it */
} Work;

typedef struct Stream {
  PyObject ob_base;
  Work* work;
} Stream;

static PyTypeObject* StreamType;
static Work* works_alive;             /* `shared` guards the list, `orphan` and what is counted */
static Work* work_draining;           /* by streams_drain */
static _Atomic int streams_closed;    /* Python shuts down: no host function is enqueued any more */
static int works_ending;              /* whose Stream has died; threads wait for their queues */
static pid_t works_process;           /* the process that works_ending counts in */
static _Thread_local Work* worker_of; /* the work whose host function this thread runs, or null */

/* Call this and enqueue without letting go of the lock between: else another thread may see the stream idle and drop the object. */
static int stream_hold(Stream* self, PyObject* object) { return PyList_Append(self->work->held, object); }

/* Waits for the queues, lets go of everything and tells of errors nobody asked for. Not in a worker. */
static void work_end(Work* work) {
  for (Py_ssize_t i = 0; i < work->count; ++i) {
    Queue queue = work->queues[i];
    tilekiln_status status = TILEKILN_OK, ended;
    Py_BEGIN_ALLOW_THREADS if (work->wrapped) status = queue.library->stream_synchronize(queue.native);
    ended = queue.library->stream_destroy(queue.native); /* waits for a queue of its own; a wrapped one outlives it */
    if (status == TILEKILN_OK) status = ended;
    Py_END_ALLOW_THREADS if (status != TILEKILN_OK) {
      library_error(queue.library, status);
      PyErr_WriteUnraisable((PyObject*)queue.library);
    }
    Py_DECREF(queue.library);
  }
  if (work->failure) { /* nobody synchronised, so nobody else can be told */
    PyErr_SetObject((PyObject*)Py_TYPE(work->failure), work->failure);
    PyErr_WriteUnraisable(NULL);
    Py_DECREF(work->failure);
  }
  Py_XDECREF(work->held);
  Py_XDECREF(work->lock);
  PyMem_Free(work->queues);
  PyMem_Free(work);
}

static Work* work_new(void) {
  Work* work = PyMem_Calloc(1, sizeof(Work));
  if (!work) return (Work*)PyErr_NoMemory();
  work->current = -1;
  work->held = PyList_New(0);
  work->lock = lock_new();
  if (work->held && work->lock) return work;
  Py_XDECREF(work->held);
  Py_XDECREF(work->lock);
  PyMem_Free(work);
  return NULL;
}

static PyObject* stream_new(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static char* names[] = {"device", "native", NULL};
  int device_type = 0, device_id = 0;
  PyObject *device = NULL, *native = NULL;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|$OO:Stream", names, &device, &native)) return NULL;
  if (!device != !native) {
    PyErr_Format(ArgumentError, "%s: was given without %s, must be given together: they wrap a stream of a device",
                 device ? "device" : "native", device ? "native" : "device");
    return NULL;
  }
  if (device && (!PyTuple_Check(device) || !PyArg_ParseTuple(device, "ii", &device_type, &device_id))) {
    PyErr_Format(ArgumentError, "device: was %R, must be (type, id) as __dlpack_device__() gives it", device);
    return NULL;
  }
  void* handle = native ? PyLong_AsVoidPtr(native) : NULL;
  if (native && PyErr_Occurred()) {
    PyErr_Format(ArgumentError, "native: was %R, must be the handle of a stream as a number", native);
    return NULL;
  }
  Work* work = work_new();
  if (work)
    *work = (Work){.current = -1,
                   .held = work->held,
                   .lock = work->lock,
                   .wrapped = native != NULL,
                   .device_type = device_type,
                   .device_id = device_id,
                   .native = handle};
  Stream* self = work ? (Stream*)object_new(type) : NULL;
  if (!self) {
    if (work) work_end(work);
    return NULL;
  }
  self->work = work;
  share();
  work->next = works_alive;
  if (works_alive) works_alive->previous = work;
  works_alive = work;
  shared_end();
  return (PyObject*)self;
}

/* ---- waiting -------------------------------------------------------------------------------------------------------- */

/* Waits for what is in a queue now, as long as no signal handler raises. Returns -1 with its exception. */
static int queue_wait(const Queue* queue) {
  const int64_t slice = 50000000; /* ns until Ctrl-C is noticed */
  uint64_t mark = 0;
  int32_t passed = 0;
  if (queue->library->stream_query(queue->native, &passed) == TILEKILN_OK && passed) return 0;
  for (;;) {
    tilekiln_status status;
    Py_BEGIN_ALLOW_THREADS status = queue->library->stream_wait(queue->native, slice, &mark, &passed);
    Py_END_ALLOW_THREADS if (status != TILEKILN_OK || passed) return 0; /* synchronising tells of errors */
    if (PyErr_CheckSignals() < 0) return -1;
  }
}

/* Waits for the queue in use. Returns -1 with the first error of its work, or of a host function, set. patient: signals wait too. */
static int work_drain(Work* work, int patient) {
  PyObject* held = PyList_New(0);
  if (!held) return -1;
  PyObject* done = work->held; /* what others enqueue while the lock is away stays held */
  work->held = held;
  tilekiln_status status = TILEKILN_OK;
  Library* library = NULL;
  if (work->current >= 0) {
    const Queue queue = work->queues[work->current];
    library = queue.library;
    if (!patient && worker_of != work && queue_wait(&queue) < 0) { /* the work goes on, so its arrays stay */
      PyObject *type, *value, *trace;
      PyErr_Fetch(&type, &value, &trace);
      if (PyList_SetSlice(work->held, 0, 0, done) < 0)
        PyErr_Clear(); /* no memory: never freed rather than too early */
      else
        Py_DECREF(done);
      PyErr_Restore(type, value, trace);
      return -1;
    }
    Py_BEGIN_ALLOW_THREADS status = library->stream_synchronize(queue.native);
    Py_END_ALLOW_THREADS
  }
  if (status != TILEKILN_OK) library_error(library, status);
  Py_DECREF(done);
  share();
  PyObject* failure = work->failure;
  work->failure = NULL;
  shared_end();
  if (!failure) return status == TILEKILN_OK ? 0 : -1;
  PyErr_SetObject((PyObject*)Py_TYPE(failure), failure);
  Py_DECREF(failure);
  return -1;
}

/* The queue of this stream in a library. */
static tilekiln_stream* stream_native(Stream* self, Library* library) {
  Work* work = self->work;
  if (work->current >= 0 && work->queues[work->current].library == library) {
    const Queue queue = work->queues[work->current];
    int32_t idle = 0; /* nothing runs any more: let go of what finished work used */
    if (PyList_Size(work->held) && library->stream_query(queue.native, &idle) == TILEKILN_OK && idle &&
        PyList_SetSlice(work->held, 0, PyList_Size(work->held), NULL) < 0)
      return NULL;
    return queue.native;
  }
  if (work_drain(work, 0) < 0) return NULL;
  for (Py_ssize_t i = 0; i < work->count; ++i)
    if (work->queues[i].library == library) {
      work->current = i;
      return work->queues[i].native;
    }
  Queue* queues = PyMem_Realloc(work->queues, (size_t)(work->count + 1) * sizeof(Queue));
  if (!queues) return (tilekiln_stream*)PyErr_NoMemory();
  work->queues = queues;
  tilekiln_stream* native = NULL;
  const tilekiln_status status = work->wrapped
                                     ? library->stream_wrap(work->device_type, work->device_id, work->native, &native)
                                     : library->stream_create(&native);
  if (status != TILEKILN_OK) return (tilekiln_stream*)library_error(library, status);
  queues[work->count] = (Queue){(Library*)Py_NewRef(library), native};
  work->current = work->count++;
  return native;
}

/* The stream of the device that it wraps; 0: a queue of the host. */
static uintptr_t stream_number(const Stream* self) {
  if (!self || !self->work->wrapped) return 0;
  return self->work->native ? (uintptr_t)self->work->native : LEGACY_STREAM;
}

/* As work_drain, of work that other threads know. */
static int work_drain_locked(Work* work, int patient) {
  int bad;
  BEGIN_LOCKED(work->lock)
  bad = work_drain(work, patient);
  END_LOCKED
  return bad;
}

static PyObject* stream_synchronize(Stream* self, PyObject* unused) {
  (void)unused;
  if (work_drain_locked(self->work, 0) < 0) return NULL;
  Py_RETURN_NONE;
}

static PyObject* stream_query(Stream* self, PyObject* unused) {
  (void)unused;
  int32_t idle = 1;
  Work* work = self->work;
  tilekiln_status status = TILEKILN_OK;
  Library* library = NULL;
  BEGIN_LOCKED(work->lock)
  if (work->current >= 0) {
    const Queue* queue = &work->queues[work->current];
    library = queue->library;
    status = library->stream_query(queue->native, &idle);
  }
  END_LOCKED
  return status == TILEKILN_OK ? PyBool_FromLong(idle) : library_error(library, status);
}

/* ---- the end of the program ----------------------------------------------------------------------------------------- */

static void work_unlisted(Work* work) {
  if (work->next) work->next->previous = work->previous;
  if (work->previous)
    work->previous->next = work->next;
  else if (works_alive == work)
    works_alive = work->next;
}

/* The next one that streams_drain waits for, which nobody else ends; null where there is none. */
static Work* work_to_drain(void) {
  share();
  Work* work = works_alive;
  while (work && work->drained) work = work->next;
  if (work) work->drained = 1;
  work_draining = work;
  shared_end();
  return work;
}

/* Whether it is for the caller to end it. */
static int work_drain_ended(Work* work) {
  share();
  work_draining = NULL;
  const int orphan = work->orphan;
  if (orphan) work_unlisted(work);
  shared_end();
  return orphan;
}

/* Python calls this before it shuts down: afterwards no worker can take the GIL any more, and one that tried would end the process.
 * So from here on no host function is enqueued, and all that were have run when this returns. The first error is raised, as no one
 * else is left to hear of it; others are printed. */
static PyObject* streams_drain(PyObject* module, PyObject* unused) {
  (void)module, (void)unused;
  PyObject *type = NULL, *value = NULL, *trace = NULL;
  streams_closed = 1;
  for (Work* work; (work = work_to_drain());) {
    if (work_drain_locked(work, 1) < 0) {
      if (type)
        PyErr_WriteUnraisable((PyObject*)StreamType);
      else
        PyErr_Fetch(&type, &value, &trace);
    }
    if (!work_drain_ended(work)) continue;
    PyObject *kept_type, *kept_value, *kept_trace;
    PyErr_Fetch(&kept_type, &kept_value, &kept_trace);
    work_end(work);
    PyErr_Restore(kept_type, kept_value, kept_trace);
  }
  for (;;) {
    share();
    const int ending = works_ending && works_process == getpid();
    shared_end();
    if (!ending) break;
    Py_BEGIN_ALLOW_THREADS usleep(500);
    Py_END_ALLOW_THREADS
  }
  if (type) {
    PyErr_Restore(type, value, trace);
    return NULL;
  }
  Py_RETURN_NONE;
}

/* Python calls this after it has shut down: late calls, such as those of another module's exit handler, end before the process does. */
static void streams_wait(void) {
  for (Work* work = works_alive; work; work = work->next)
    for (Py_ssize_t i = 0; i < work->count; ++i) {
      const Queue queue = work->queues[i];
      queue.library->stream_synchronize(queue.native);
    }
}

/* ---- host functions ------------------------------------------------------------------------------------------------- */

typedef struct {
  Work* work; /* alive: it ends after its queues */
  PyObject* function;
} HostCall;

static void host_call(void* context) {
  HostCall* call = context;
  const PyGILState_STATE state = PyGILState_Ensure();
  worker_of = call->work;
  PyObject* result = PyObject_CallNoArgs(call->function);
  if (!result) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace) PyException_SetTraceback(value, trace);
    share();
    PyObject* const other = call->work->failure ? value : NULL; /* the first one is reported */
    if (!other) call->work->failure = value;
    shared_end();
    Py_XDECREF(other);
    Py_XDECREF(type);
    Py_XDECREF(trace);
  }
  Py_XDECREF(result);
  Py_DECREF(call->function); /* may be the last that knew the stream */
  free(call);
  worker_of = NULL;
  PyGILState_Release(state);
}

static PyObject* stream_launch_locked(Work* work, PyObject* function) {
  if (streams_closed && worker_of)
    return PyErr_Format(PyExc_RuntimeError,
                        "launch_host: was called by a host function after the program had ended, "
                        "must be called before");
  if (streams_closed && work_drain(work, 1) < 0) return NULL;
  if (work->current < 0 || streams_closed) { /* nothing is enqueued: in order means now */
    PyObject* result = PyObject_CallNoArgs(function);
    if (!result) return NULL;
    Py_DECREF(result);
    Py_RETURN_NONE;
  }
  HostCall* call = malloc(sizeof(HostCall));
  if (!call) return PyErr_NoMemory();
  *call = (HostCall){work, Py_NewRef(function)};
  const Queue queue = work->queues[work->current];
  const tilekiln_status status = queue.library->stream_launch_host(queue.native, host_call, call);
  if (status != TILEKILN_OK) {
    Py_DECREF(function);
    free(call);
    return library_error(queue.library, status);
  }
  Py_RETURN_NONE;
}

static PyObject* stream_launch_host(Stream* self, PyObject* function) {
  if (!PyCallable_Check(function)) {
    PyObject* type = PyObject_GetAttrString((PyObject*)Py_TYPE(function), "__name__");
    if (type) PyErr_Format(PyExc_TypeError, "launch_host takes a callable, not %U", type);
    Py_XDECREF(type);
    return NULL;
  }
  PyObject* result;
  BEGIN_LOCKED(self->work->lock)
  result = stream_launch_locked(self->work, function);
  END_LOCKED
  return result;
}

static PyObject* stream_enter(Stream* self, PyObject* unused) {
  (void)unused;
  return Py_NewRef(self);
}

static PyObject* stream_exit(Stream* self, PyObject* const* arguments, Py_ssize_t count) {
  (void)arguments, (void)count;
  return stream_synchronize(self, NULL);
}

static void work_end_counted(Work* work) {
  work_end(work);
  share();
  --works_ending;
  shared_end();
}

static void work_end_in_thread(void* work) {
  const PyGILState_STATE state = PyGILState_Ensure();
  work_end_counted(work);
  PyGILState_Release(state);
}

/* Waits for the work, but in a worker, where the last reference can be that of a host function: a worker cannot wait for itself, nor
 * should it for another that may wait for it. There a thread of its own does. */
static void stream_dealloc(Stream* self) {
  PyTypeObject* type = Py_TYPE(self);
  Work* work = self->work;
  PyObject *kept_type, *kept_value, *kept_trace;
  PyErr_Fetch(&kept_type, &kept_value, &kept_trace);
  if (work) {
    share();
    if (works_process != getpid()) works_ending = 0; /* threads of a forked child's parent are none of its own */
    works_process = getpid();
    if (work_draining == work) { /* by this thread or another, which ends it */
      work->orphan = 1;
    } else {
      work_unlisted(work);
      ++works_ending;
    }
    const int ours = !work->orphan;
    shared_end();
    if (ours && !worker_of) {
      work_end_counted(work);
    } else if (ours && PyThread_start_new_thread(work_end_in_thread, work) == (unsigned long)-1) {
      share();
      --works_ending; /* its queues and arrays stay: they are in use */
      shared_end();
      PyErr_SetString(PyExc_RuntimeError, "a stream could not be ended: the system gives no thread more");
      PyErr_WriteUnraisable(NULL);
    }
  }
  PyErr_Restore(kept_type, kept_value, kept_trace);
  object_free(type, self);
}

static PyMethodDef stream_methods[] = {
    {"synchronize", (PyCFunction)stream_synchronize, METH_NOARGS,
     "synchronize()\n--\n\nWait until everything enqueued has run. Raises the first error of it and lets go of its "
     "arrays. Ctrl-C ends the waiting:\nthe work goes on, its arrays stay, and it can be waited for again."},
    {"query", (PyCFunction)stream_query, METH_NOARGS, "query()\n--\n\nTrue when everything enqueued has run."},
    {"launch_host", (PyCFunction)stream_launch_host, METH_O,
     "launch_host(function)\n--\n\nCall function() in stream order, in the stream's worker; now when nothing was ever "
     "enqueued, or when the program\nends, after what is enqueued. Its exception is raised by synchronize(); it may "
     "not "
     "synchronise its own stream."},
    {"__enter__", (PyCFunction)stream_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))stream_exit, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL}};

static PyType_Slot stream_slots[] = {
    {Py_tp_doc,
     "Stream(*, device=None, native=None)\n--\n\nAn in-order queue with its own worker: calls given stream= return at "
     "once and run one after another.\n\n"
     "device, native: instead, a stream of that device, (type, id) as __dlpack_device__() gives it, by its handle as a "
     "number,\nsuch as torch.cuda.current_stream().cuda_stream; it stays its owner's. Calls whose arrays are on that "
     "device go to it.\n\n"
     "Arrays of a call stay referenced until the stream is idle; do not write to them before that. Leaving a with "
     "block\n"
     "synchronises, and so does dropping the last reference (but not from a host function: then its work goes on by "
     "itself). One stream serves all libraries: moving from one to another waits for the first."},
    {Py_tp_new, stream_new},
    {Py_tp_dealloc, stream_dealloc},
    {Py_tp_methods, stream_methods},
    {0, NULL}};
static PyType_Spec stream_spec = {"tilekiln.Stream", sizeof(Stream), 0, Py_TPFLAGS_DEFAULT, stream_slots};

#endif
