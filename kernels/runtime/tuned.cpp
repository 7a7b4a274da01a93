// SPDX-License-Identifier: MIT
#include "kernels/runtime/tuned.h"

#include <string.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/runtime/arguments.h"
#include "kernels/runtime/choose.h"
#include "kernels/runtime/environment.h"
#include "tilekiln/machine.h"

namespace tilekiln {

// Sorted by call. Lists are kept: a call may still look at one that was replaced.
class TunedCalls {
 public:
  constexpr TunedCalls() = default;
  explicit TunedCalls(std::vector<tilekiln_tuned> choices) {
    const auto before = [](const tilekiln_tuned& a, const tilekiln_tuned& b) { return a.call < b.call; };
    std::stable_sort(choices.begin(), choices.end(), before);
    auto* const kept = new tilekiln_tuned[choices.size()];
    end_ = std::copy(choices.begin(), choices.end(), kept);
    begin_ = kept;
  }
  // Null: nothing is measured for the call.
  const tilekiln_tuned* find(uint64_t call) const {
    const auto below = [](const tilekiln_tuned& one, uint64_t wanted) { return one.call < wanted; };
    const tilekiln_tuned* const found = std::lower_bound(begin_, end_, call, below);
    return found != end_ && found->call == call ? found : nullptr;
  }

 private:
  const tilekiln_tuned *begin_ = nullptr, *end_ = nullptr;
};

namespace {

// Stands for what the receipt pins until the first call reads it.
constexpr TunedCalls unread;

// Null where there is nothing in it.
const TunedCalls* made_of(std::vector<tilekiln_tuned> choices) {
  return choices.empty() ? nullptr : new TunedCalls(std::move(choices));
}

const TunedCalls* pinned() {
  if (!environment().tuned || table.tuned_count == 0) return nullptr;
  char machine[320];
  tilekiln_machine(machine, sizeof(machine));
  std::vector<tilekiln_tuned> choices;
  for (uint32_t i = 0; i < table.tuned_count; ++i)
    if (strcmp(table.tuned[i].machine, machine) == 0) choices.push_back(table.tuned[i].choice);
  return made_of(std::move(choices));
}

uint64_t mixed(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}
uint64_t with(uint64_t digest, uint64_t word) { return mixed(digest + 0x9e3779b97f4a7c15u + word); }
uint64_t of_text(const char* text) {
  uint64_t digest = 0;
  for (; *text != 0; ++text) digest = (digest ^ static_cast<unsigned char>(*text)) * 1099511628211u;
  return mixed(digest);
}

uint64_t of_array(uint64_t digest, const tilekiln_tensor& tensor) {
  digest = with(digest, static_cast<uint64_t>(tensor.dtype) << 32 | static_cast<uint64_t>(tensor.device_type));
  const int ndim = std::clamp(tensor.ndim, 0, static_cast<int32_t>(TILEKILN_MAX_NDIM));
  for (int i = 0; i < ndim; ++i) {
    const bool together = tensor.shape[i] > 1 && tensor.stride[i] == 1;
    digest = with(digest, static_cast<uint64_t>(tensor.shape[i]) << 1 | static_cast<uint64_t>(together));
  }
  return digest;
}

// The words of a field whose value decides what runs; 0 where it is enough that it is given.
int words_of(uint8_t kind) {
  switch (kind) {
    case TILEKILN_FLAG:
    case TILEKILN_INT:
    case TILEKILN_WORD: return 1;
    case TILEKILN_PAIR_INT: return 2;
    case TILEKILN_DIMS: return sizeof(tilekiln_dims) / sizeof(int32_t);
    default: return 0;
  }
}

// Tells whether a digest leaves the argument out: a table of measured choices sets it, or, as a float read through a pointer
// (TILEKILN_POINTER), it does not change how long the call takes.
bool is_chosen(const tilekiln_argument& argument) {
  return argument.kind == TILEKILN_INSTANCE || argument.kind == TILEKILN_STREAM || argument.kind == TILEKILN_POINTER ||
         strcmp(argument.name, "num_splits") == 0 || strcmp(argument.name, "num_threads") == 0;
}

template <class T> T* field_of(const tilekiln_argument& argument, void* args) {
  return reinterpret_cast<T*>(static_cast<char*>(args) + argument.offset);
}

}  // namespace

std::atomic<const TunedCalls*> tuned_calls = &unread;

uint64_t call_digest(const tilekiln_operator& of, const void* args) {
  // A sum, so that the order of arguments is no part of it.
  uint64_t digest = of_text(of.name);
  for (int i = 0; i < of.argument_count; ++i) {
    const tilekiln_argument& argument = of.arguments[i];
    if (is_chosen(argument) || !is_given(of, argument, args)) continue;
    uint64_t one = of_text(argument.name);
    if (is_array(argument)) {
      one = of_array(one, *array_of(argument, args));
    } else {
      const auto* const words = static_cast<const int32_t*>(field_of(argument, args));
      for (int at = 0; at < words_of(argument.kind); ++at) one = with(one, static_cast<uint32_t>(words[at]));
    }
    digest += one;
  }
  return digest;
}

bool take_tuned(const char* name, const void* args, void* own, size_t bytes) {
  const TunedCalls* calls = tuned_calls.load(std::memory_order_acquire);
  if (calls == &unread) {
    const TunedCalls* const read = pinned();
    if (tuned_calls.compare_exchange_strong(calls, read, std::memory_order_acq_rel)) calls = read;
  }
  const tilekiln_operator* const of = calls == nullptr ? nullptr : operator_of(name, args);
  const tilekiln_tuned* const found = of == nullptr ? nullptr : calls->find(call_digest(*of, args));
  if (found == nullptr) return false;
  memcpy(own, args, bytes);
  for (int i = 0; i < of->argument_count; ++i) {
    const tilekiln_argument& argument = of->arguments[i];
    if (argument.kind == TILEKILN_INSTANCE) {
      int64_t& instance = *field_of<int64_t>(argument, own);
      // Splits and threads were measured with this instance.
      if (instance >= 0 && instance != found->instance) return false;
      if (instance < 0 && found->instance >= 0) instance = preference + found->instance;
    } else if (argument.kind == TILEKILN_INT) {
      int32_t& number = *field_of<int32_t>(argument, own);
      if (number == 0 && strcmp(argument.name, "num_splits") == 0) number = found->num_splits;
      if (number == 0 && strcmp(argument.name, "num_threads") == 0) number = found->num_threads;
    }
  }
  return true;
}

}  // namespace tilekiln

using namespace tilekiln;

tilekiln_status tilekiln_tune(const tilekiln_tuned* choices, size_t count) {
  if (choices == nullptr && count != 0) return fail_argument("choices", "was null, must point to count (%zu)", count);
  for (size_t i = 0; i < count; ++i) {
    const tilekiln_tuned& one = choices[i];
    if (one.instance < -1 || one.instance >= table.instance_count)
      return fail_argument("choices", "number %zu was of instance %lld, must be from 0 to %lld, or -1", i,
                           static_cast<long long>(one.instance), static_cast<long long>(table.instance_count) - 1);
    if (one.num_splits < 0 || one.num_threads < 0)
      return fail_argument("choices", "number %zu was of %d splits and %d threads, must be of at least 0", i,
                           one.num_splits, one.num_threads);
  }
  try {
    tuned_calls.store(made_of({choices, choices + count}), std::memory_order_release);
    return TILEKILN_OK;
  } catch (...) {
    return fail_exception();
  }
}
