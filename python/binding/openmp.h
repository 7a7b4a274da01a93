// SPDX-License-Identifier: MIT
/* The sleep of PyTorch's OpenMP threads. After each of PyTorch's loops they wait without sleep for up to 17 ms, on the cores that the
 * library's threads want. GNU's OpenMP lets them wait for some microseconds only while a process has more of its threads than cores
 * (GOMP_SPINCOUNT in its manual): a second team, which sleeps for ever, makes it so. Lending PyTorch's team to calls instead is slower by
 * far where cores are shared, since each loop then ends with the last of its threads. */
#ifndef TILEKILN_BINDING_OPENMP_H
#define TILEKILN_BINDING_OPENMP_H

#include <Python.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
  void (*loop)(void (*work)(void* data), void* data, unsigned threads, unsigned flags); /* GOMP_parallel */
  unsigned threads;                                                                     /* of the second team */
} openmp;

static void openmp_nothing(void* data) { (void)data; }

static void* openmp_second_team(void* unused) {
  (void)unused;
  openmp.loop(openmp_nothing, NULL, openmp.threads, 0);
  for (;;) pause();
  return NULL;
}

/* Has the user said how long they wait? */
static int openmp_is_told(void) {
  const char* const own = getenv("TILEKILN_TORCH_WAIT");
  if (own && *own && strcmp(own, "long") && strcmp(own, "short"))
    fprintf(stderr, "tilekiln: TILEKILN_TORCH_WAIT: was \"%s\", must be short or long; ignored\n", own);
  const char* const policy = getenv("OMP_WAIT_POLICY");
  const char* const count = getenv("GOMP_SPINCOUNT");
  return (own && !strcmp(own, "long")) || (policy && *policy) || (count && *count);
}

/* Makes them sleep soon; nothing where they are not of GNU's OpenMP, or where PyTorch has one thread. */
static void openmp_begin(void) {
  void* const torch = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
  if (!torch || openmp_is_told() || dlsym(torch, "kmp_set_blocktime")) return;
  int (*threads)(void) = NULL, (*cores)(void) = NULL;
  *(void**)&threads = dlsym(torch, "_ZN2at15get_num_threadsEv"); /* at::get_num_threads */
  *(void**)&cores = dlsym(torch, "omp_get_num_procs");
  *(void**)&openmp.loop = dlsym(torch, "GOMP_parallel");
  if (!threads || !cores || !openmp.loop || threads() < 2 || threads() > cores()) return;
  openmp.threads = (unsigned)(cores() + 2 - threads()); /* its first thread is not counted */
  sigset_t all, before;
  pthread_attr_t detached;
  pthread_t thread;
  sigfillset(&all);
  if (pthread_attr_init(&detached)) return;
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the program's own threads */
  pthread_create(&thread, &detached, openmp_second_team, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&detached);
}

/* The same from Python, once a process. */
static PyObject* openmp_sleep_soon(PyObject* unused, PyObject* nothing) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)unused;
  (void)nothing;
  pthread_once(&once, openmp_begin);
  Py_RETURN_NONE;
}

#endif
