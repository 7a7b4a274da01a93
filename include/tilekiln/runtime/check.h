// What the generated checks of arguments (generated/operators/*.h) call, whatever the operator.
#pragma once
#include "tilekiln/runtime/array.h"
#include "tilekiln/runtime/run.h"
#include "tilekiln/runtime/stream.h"

namespace tilekiln::op {

// The arrays of a call, in the order they were read.
class GivenArrays {
 public:
  [[nodiscard]] tilekiln_status add(const char* name, const tilekiln_tensor& tensor, Array* array) {
    list_[count_++] = array;
    return check_array(name, tensor, array);
  }
  // No output may share memory with another array, or hold two elements at one address. `in_place`: the array that it
  // may be, with its strides.
  [[nodiscard]] tilekiln_status check_own(const Array& output, const Array* in_place = nullptr) const;

 private:
  const Array* list_[32];
  int count_ = 0;
};

// The size that a struct of arguments says of itself. `name`: of the function, without _args.
[[nodiscard]] tilekiln_status check_size(size_t was, size_t must, const char* name);

// "fp16, the dtype of q"
[[nodiscard]] tilekiln_status check_dtype_like(const Array& array, const Array& like);

[[nodiscard]] tilekiln_status check_one_element(const Array& array);

// Two dimensions, one of which is contiguous: row- or column-major.
[[nodiscard]] tilekiln_status check_matrix(const Array& array);

// The threads of a call: as many as num_threads asks for, or those of the executor.
[[nodiscard]] tilekiln_status check_run(int32_t num_threads, const tilekiln_executor* executor, Run* run);

template <class Args, class Call>
[[nodiscard]] tilekiln_status where_to_run(const Args& args, Call* call) {
  if (args.stream != nullptr) TILEKILN_TRY(check_stream(args.stream));
  call->stream = args.stream;
  return check_run(args.num_threads, args.executor, call);
}

}  // namespace tilekiln::op
