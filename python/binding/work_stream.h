// SPDX-License-Identifier: MIT
/* The stream in which a framework works now, for calls that are given none. */
#ifndef TILEKILN_BINDING_WORK_STREAM_H
#define TILEKILN_BINDING_WORK_STREAM_H

#include "arrays.h"
#include "library.h"

/* Wrapped, to be destroyed after the call: that of the framework of the array whose view is `first`; of a framework that does not tell,
 * the default one. Null for arrays of the host; *bad is set with an exception. */
static tilekiln_stream* work_stream(Library* library, CallStream* in, const tilekiln_tensor* first, int* bad) {
  if (first->device_type != DLPACK_CUDA) return NULL;
  if (call_stream(in, first->device_id) < 0) {
    *bad = 1;
    return NULL;
  }
  tilekiln_stream* stream = NULL;
  /* A library without such a device refuses the array itself. */
  void* const native = (void*)in->native;
  return library->stream_wrap(first->device_type, first->device_id, native, &stream) == TILEKILN_OK ? stream : NULL;
}

#endif
