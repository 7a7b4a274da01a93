// SPDX-License-Identifier: MIT
/* Locks of what threads share. Under a GIL they are nothing: it is held wherever this extension touches Python. In a free-threaded
 * Python (Py_GIL_DISABLED) an object's lock is a critical section: like the GIL it is let go of where a thread waits. */
#ifndef TILEKILN_BINDING_THREADS_H
#define TILEKILN_BINDING_THREADS_H

#include <pthread.h>

#include "stable_abi.h"

#ifdef Py_GIL_DISABLED
#define BEGIN_LOCKED(object)      \
  {                               \
    PyCriticalSection locked_one; \
    PyCriticalSection_Begin(&locked_one, (PyObject*)(object));
#define END_LOCKED                     \
  PyCriticalSection_End(&locked_one); \
  }
/* An object that is a lock and nothing else; null with an exception. */
static PyObject* lock_new(void) { return PyList_New(0); }
#else
#define BEGIN_LOCKED(object) \
  {                          \
    (void)(object);
#define END_LOCKED }
static PyObject* lock_new(void) { return Py_NewRef(Py_None); }
#endif

/* Guards what one thread makes for all, and lists. Python is never called while it is held. */
static pthread_mutex_t shared = PTHREAD_MUTEX_INITIALIZER;
static void share(void) { pthread_mutex_lock(&shared); }
static void shared_end(void) { pthread_mutex_unlock(&shared); }

#endif
