// SPDX-License-Identifier: MIT
/* The inspection of the workspace of fmha_bwd, in libraries that have the operator. */
#ifndef TILEKILN_BINDING_BACKWARD_WORKSPACE_H
#define TILEKILN_BINDING_BACKWARD_WORKSPACE_H

#include "arrays.h"
#include "library.h"

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
  __typeof__(&tilekiln_bwd_workspace_plan) plan = NULL;
  *(void**)&plan = dlsym(self->handle, "tilekiln_bwd_workspace_plan");
  if (!plan) {
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
  tilekiln_status status = plan(&problem, &layout, NULL, 0, NULL, NULL);
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
    status = plan(&problem, &layout, segment, (size_t)layout.host_bytes, (int32_t*)PyBytes_AsString(map),
                  (int64_t*)PyBytes_AsString(work));
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
