// SPDX-License-Identifier: MIT
// Measured choices (`tilekiln tune`): the instance, the splits and the threads that a call takes where its caller leaves them open.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <atomic>

#include "tilekiln/tilekiln.h"

namespace tilekiln {

class TunedCalls;
// Null where nothing is measured, which is the one question that every call asks.
extern std::atomic<const TunedCalls*> tuned_calls;

// Copies the struct of arguments to `own`, `bytes` long, with what is measured for such a call of the operator. False, and nothing
// of it, where there is nothing or the caller has chosen otherwise.
bool take_tuned(const char* name, const void* args, void* own, size_t bytes);

// A call's digest: a hash of everything that decides how long it takes, but the values in arrays and of floats.
uint64_t call_digest(const tilekiln_operator& of, const void* args);

}  // namespace tilekiln
