/* Stream: an in-order queue for calls into any libraries. Each library has a runtime of its own, so a stream holds one native queue
 * per library it was used with; moving to another library waits for the one before, which keeps the order.
 * Every array of a call stays referenced until the stream is seen idle. */
#ifndef TILEKILN_BINDING_STREAM_H
#define TILEKILN_BINDING_STREAM_H

#include "library.h"

typedef struct {
  Library* library; /* a strong reference */
  tilekiln_stream* native;
} Queue;

typedef struct Stream {
  PyObject ob_base;
  struct Stream *next, *previous; /* of all that are alive, see streams_drain */
  Queue* queues;
  Py_ssize_t count;
  Py_ssize_t current; /* index of the queue in use; -1: none yet */
  PyObject* held;     /* list: what enqueued work still uses */
  PyObject* failure;  /* the first exception of a host function, or null */
} Stream;

static PyTypeObject* StreamType;
static Stream* streams_alive;

/* Call this and enqueue without letting go of the GIL between: else another thread may see the stream idle and drop the object. */
static int stream_hold(Stream* self, PyObject* object) { return PyList_Append(self->held, object); }

static PyObject* stream_new(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static char* names[] = {NULL};
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, ":Stream", names)) return NULL;
  Stream* self = (Stream*)object_new(type);
  if (!self) return NULL;
  self->current = -1;
  self->held = PyList_New(0);
  self->next = streams_alive;
  if (streams_alive) streams_alive->previous = self;
  streams_alive = self;
  if (!self->held) Py_CLEAR(self);
  return (PyObject*)self;
}

/* Waits for the queue in use. Returns -1 with the first error of its work, or of a host function, set. */
static int stream_drain(Stream* self) {
  PyObject* held = PyList_New(0);
  if (!held) return -1;
  PyObject* done = self->held; /* what others enqueue while the GIL is away stays held */
  self->held = held;
  tilekiln_status status = TILEKILN_OK;
  Library* library = NULL;
  if (self->current >= 0) {
    const Queue queue = self->queues[self->current];
    library = queue.library;
    Py_BEGIN_ALLOW_THREADS status = library->stream_synchronize(queue.native);
    Py_END_ALLOW_THREADS
  }
  if (status != TILEKILN_OK) library_error(library, status);
  Py_DECREF(done);
  if (!self->failure) return status == TILEKILN_OK ? 0 : -1;
  PyObject* failure = self->failure;
  self->failure = NULL;
  PyErr_SetObject((PyObject*)Py_TYPE(failure), failure);
  Py_DECREF(failure);
  return -1;
}

/* The queue of this stream in a library. */
static tilekiln_stream* stream_native(Stream* self, Library* library) {
  if (self->current >= 0 && self->queues[self->current].library == library) {
    const Queue* queue = &self->queues[self->current];
    int32_t idle = 0; /* nothing runs any more: let go of what finished work used */
    if (PyList_Size(self->held) && library->stream_query(queue->native, &idle) == TILEKILN_OK && idle &&
        PyList_SetSlice(self->held, 0, PyList_Size(self->held), NULL) < 0)
      return NULL;
    return queue->native;
  }
  if (stream_drain(self) < 0) return NULL;
  for (Py_ssize_t i = 0; i < self->count; ++i)
    if (self->queues[i].library == library) {
      self->current = i;
      return self->queues[i].native;
    }
  Queue* queues = PyMem_Realloc(self->queues, (size_t)(self->count + 1) * sizeof(Queue));
  if (!queues) return (tilekiln_stream*)PyErr_NoMemory();
  self->queues = queues;
  tilekiln_stream* native = NULL;
  const tilekiln_status status = library->stream_create(&native);
  if (status != TILEKILN_OK) return (tilekiln_stream*)library_error(library, status);
  queues[self->count] = (Queue){(Library*)Py_NewRef(library), native};
  self->current = self->count++;
  return native;
}

static PyObject* stream_synchronize(Stream* self, PyObject* unused) {
  (void)unused;
  if (stream_drain(self) < 0) return NULL;
  Py_RETURN_NONE;
}

/* Python calls this before it shuts down: afterwards no worker can run a host function any more, and waiting for one would never
 * end. Errors are raised, as no one else is left to hear of them. */
static PyObject* streams_drain(PyObject* module, PyObject* unused) {
  (void)module, (void)unused;
  int bad = 0;
  for (Stream* stream = streams_alive; stream && !bad;) {
    Py_INCREF(stream);
    bad = stream_drain(stream) < 0;
    Stream* next = stream->next;
    Py_DECREF(stream);
    stream = next;
  }
  if (bad) return NULL;
  Py_RETURN_NONE;
}

static PyObject* stream_query(Stream* self, PyObject* unused) {
  (void)unused;
  int32_t idle = 1;
  if (self->current >= 0) {
    const Queue* queue = &self->queues[self->current];
    const tilekiln_status status = queue->library->stream_query(queue->native, &idle);
    if (status != TILEKILN_OK) return library_error(queue->library, status);
  }
  return PyBool_FromLong(idle);
}

typedef struct {
  Stream* stream; /* alive: its dealloc waits for the queue */
  PyObject* function;
} HostCall;

static void host_call(void* context) {
  HostCall* call = context;
  const PyGILState_STATE state = PyGILState_Ensure();
  PyObject* result = PyObject_CallNoArgs(call->function);
  if (!result) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace) PyException_SetTraceback(value, trace);
    if (call->stream->failure)
      Py_DECREF(value); /* the first one is reported */
    else
      call->stream->failure = value;
    Py_XDECREF(type);
    Py_XDECREF(trace);
  }
  Py_XDECREF(result);
  Py_DECREF(call->function);
  free(call);
  PyGILState_Release(state);
}

static PyObject* stream_launch_host(Stream* self, PyObject* function) {
  if (!PyCallable_Check(function)) {
    PyObject* type = PyObject_GetAttrString((PyObject*)Py_TYPE(function), "__name__");
    if (type) PyErr_Format(PyExc_TypeError, "launch_host takes a callable, not %U", type);
    Py_XDECREF(type);
    return NULL;
  }
  if (self->current < 0) return PyObject_CallNoArgs(function); /* nothing was ever enqueued: in order means now */
  HostCall* call = malloc(sizeof(HostCall));
  if (!call) return PyErr_NoMemory();
  *call = (HostCall){self, Py_NewRef(function)};
  const Queue queue = self->queues[self->current];
  const tilekiln_status status = queue.library->stream_launch_host(queue.native, host_call, call);
  if (status != TILEKILN_OK) {
    Py_DECREF(function);
    free(call);
    return library_error(queue.library, status);
  }
  Py_RETURN_NONE;
}

static PyObject* stream_enter(Stream* self, PyObject* unused) {
  (void)unused;
  return Py_NewRef(self);
}

static PyObject* stream_exit(Stream* self, PyObject* const* arguments, Py_ssize_t count) {
  (void)arguments, (void)count;
  return stream_synchronize(self, NULL);
}

static void stream_dealloc(Stream* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject *kept_type, *kept_value, *kept_trace;
  PyErr_Fetch(&kept_type, &kept_value, &kept_trace);
  if (self->next) self->next->previous = self->previous;
  if (self->previous)
    self->previous->next = self->next;
  else
    streams_alive = self->next;
  for (Py_ssize_t i = 0; i < self->count; ++i) {
    Queue queue = self->queues[i];
    tilekiln_status status;
    Py_BEGIN_ALLOW_THREADS status = queue.library->stream_destroy(queue.native);
    Py_END_ALLOW_THREADS if (status != TILEKILN_OK) {
      library_error(queue.library, status);
      PyErr_WriteUnraisable((PyObject*)queue.library);
    }
    Py_DECREF(queue.library);
  }
  if (self->failure) { /* nobody synchronised, so nobody else can be told */
    PyErr_SetObject((PyObject*)Py_TYPE(self->failure), self->failure);
    PyErr_WriteUnraisable(NULL);
    Py_CLEAR(self->failure);
  }
  PyErr_Restore(kept_type, kept_value, kept_trace);
  PyMem_Free(self->queues);
  Py_XDECREF(self->held);
  object_free(type, self);
}

static PyMethodDef stream_methods[] = {
    {"synchronize", (PyCFunction)stream_synchronize, METH_NOARGS,
     "synchronize()\n--\n\nWait until everything enqueued has run. Raises the first error of it and lets go of its "
     "arrays."},
    {"query", (PyCFunction)stream_query, METH_NOARGS, "query()\n--\n\nTrue when everything enqueued has run."},
    {"launch_host", (PyCFunction)stream_launch_host, METH_O,
     "launch_host(function)\n--\n\nCall function() in stream order, in the stream's worker; now when nothing was ever "
     "enqueued. Its exception is\nraised by synchronize()."},
    {"__enter__", (PyCFunction)stream_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))stream_exit, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL}};

static PyType_Slot stream_slots[] = {
    {Py_tp_doc,
     "Stream()\n--\n\nAn in-order queue with its own worker: calls given stream= return at once and run one after "
     "another.\n\n"
     "Arrays of a call stay referenced until the stream is idle; do not write to them before that. Leaving a with "
     "block\n"
     "synchronises. One stream serves all libraries: moving from one to another waits for the first."},
    {Py_tp_new, stream_new},
    {Py_tp_dealloc, stream_dealloc},
    {Py_tp_methods, stream_methods},
    {0, NULL}};
static PyType_Spec stream_spec = {"tilekiln.Stream", sizeof(Stream), 0, Py_TPFLAGS_DEFAULT, stream_slots};

#endif
