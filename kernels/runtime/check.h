// SPDX-License-Identifier: MIT
// Functions that the generated checks of arguments (generated/operators/*.h) of every operator call.
#pragma once
#include <initializer_list>

#include "kernels/runtime/array.h"
#include "kernels/runtime/run.h"
#include "kernels/runtime/stream.h"

namespace tilekiln::op {

// The arrays of a call, in the order they were read.
class GivenArrays {
 public:
  GivenArrays() = default;
  GivenArrays(const GivenArrays&) = delete;
  ~GivenArrays() {
    if (__builtin_expect(copies_ != nullptr, 0)) free_copies();
  }
  [[nodiscard]] tilekiln_status add(const char* name, const tilekiln_tensor& tensor, Array* array) {
    list_[count_++] = array;
    if (__builtin_expect(tensor.device_type != TILEKILN_CPU, 0)) TILEKILN_TRY(take_device(name, tensor));
    return check_array(name, tensor, array);
  }
  // When all are there: that they are on one device, which `call` is told. Those of `read`, which the host reads, may be
  // in its own memory; where it may not read that of the device they become copies, which live as long as this, made when `stream`
  // has come to them. `unread`: they stay on such a device, if any of them is there, and it becomes true. `instead`: the argument
  // that asks for that; null: the operator has none. `by_kernels`: where the backend has kernels they read them, on the device.
  template <class Call>
  [[nodiscard]] tilekiln_status settle(Call* call, std::initializer_list<Array*> read,
                                       tilekiln_stream* stream = nullptr, const char* instead = nullptr,
                                       bool* unread = nullptr, bool by_kernels = false) {
    if (__builtin_expect(on_device_ == 0, 1)) return TILEKILN_OK;
    TILEKILN_TRY(check_devices(read, stream, instead, unread, by_kernels));
    call->device = call->query.device = device_;
    call->backend = backend_;
    return TILEKILN_OK;
  }
  // No output may share memory with another array, or hold two elements at one address. `in_place`: the array that it
  // may be, with its strides.
  [[nodiscard]] tilekiln_status check_own(const Array& output, const Array* in_place = nullptr) const;

 private:
  [[nodiscard]] tilekiln_status take_device(const char* name, const tilekiln_tensor& tensor);
  [[nodiscard]] tilekiln_status check_devices(std::initializer_list<Array*> read, tilekiln_stream* stream,
                                              const char* instead, bool* unread, bool by_kernels);
  [[nodiscard]] tilekiln_status check_not_captured(const Array& array, void* stream, const char* instead) const;
  [[nodiscard]] tilekiln_status copy_to_host(Array* array, void* stream);

  const Array* list_[32];
  int count_ = 0;
  uint32_t on_device_ = 0;  // bit i: array i is not in the host's memory
  Device device_;           // of those
  const Backend* backend_ = &cpu_backend;
  struct Copy { Copy* next; };
  void free_copies();
  Copy* copies_ = nullptr;  // each before its bytes
};

// An array that must be in the host's memory.
[[nodiscard]] tilekiln_status check_host_array(const char* name, const tilekiln_tensor& tensor, Array* array);

// The size that a struct of arguments says of itself. `name`: of the function, without _args.
[[nodiscard]] tilekiln_status check_size(size_t was, size_t must, const char* name);

// "fp16, the dtype of q"
[[nodiscard]] tilekiln_status check_dtype_like(const Array& array, const Array& like);

[[nodiscard]] tilekiln_status check_one_element(const Array& array);

// Checks that there are as many as a list holds. Which dimensions they are is found with those of the array: find_dims.
[[nodiscard]] tilekiln_status check_dims(const char* name, const tilekiln_dims& dims);

// The dimensions of a list, counted from the front of an array of ndim of them, in `dim`; each stands there once.
[[nodiscard]] tilekiln_status find_dims(const char* name, const tilekiln_dims& dims, int ndim, int* dim);

// The shape that `says` finds.
[[nodiscard]] tilekiln_status check_shape(const Array& array, const tilekiln_shape& shape);
template <class Args>
[[nodiscard]] tilekiln_status check_shape(const Array& array, const Args& args,
                                          tilekiln_status (*says)(const Args&, tilekiln_shape*)) {
  tilekiln_shape shape;
  TILEKILN_TRY(says(args, &shape));
  return check_shape(array, shape);
}

// Two dimensions, one of which is contiguous: row- or column-major.
[[nodiscard]] tilekiln_status check_matrix(const Array& array);

// The threads of a call: as many as num_threads asks for, or those of the executor.
[[nodiscard]] tilekiln_status check_run(int32_t num_threads, const tilekiln_executor* executor, Run* run);

template <class Args, class Call>
[[nodiscard]] tilekiln_status where_to_run(const Args& args, Call* call) {
  if (args.stream != nullptr) {
    TILEKILN_TRY(check_stream(args.stream));
    TILEKILN_TRY(check_stream_of(*args.stream, call));
  }
  call->stream = args.stream;
  return check_run(args.num_threads, args.executor, call);
}

}  // namespace tilekiln::op
