// SPDX-License-Identifier: MIT
/* An operator of PyTorch over an operator of a library: how the arguments of the one become the struct that the table of the other
 * (tilekiln/operator.h) describes, and its results tensors. Whatever is unusual is not done here: the call is then Python's. */
#ifndef TILEKILN_TORCH_OPERATORS_H
#define TILEKILN_TORCH_OPERATORS_H

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../huge_pages.h"
#include "shim.h"
#include "tilekiln/operator.h"
#include "tilekiln/tilekiln.h"

namespace tilekiln::torch {

enum { kCuda = 2 }; /* of DLPack */
enum { kMaxArguments = 64, kMaxArrays = 32, kMaxResults = 8, kMaxStruct = 640, kMaxPointers = 4 };

/* ---- dtypes and tensors ----------------------------------------------------------------------------------------------- */

inline int32_t ours[64]; /* tilekiln's dtype of PyTorch's; 0: none */

inline void number_dtypes() {
  const auto put = [](int32_t theirs, int32_t dtype) {
    if (theirs >= 0 && theirs < 64) ours[theirs] = dtype;
  };
  put(shim.aoti_torch_dtype_float32(), TILEKILN_FP32);
  put(shim.aoti_torch_dtype_float16(), TILEKILN_FP16);
  put(shim.aoti_torch_dtype_bfloat16(), TILEKILN_BF16);
  put(shim.aoti_torch_dtype_float64(), TILEKILN_FP64);
  put(shim.aoti_torch_dtype_float8_e4m3fn(), TILEKILN_FP8);
  put(shim.aoti_torch_dtype_float8_e5m2(), TILEKILN_BF8);
  put(shim.aoti_torch_dtype_int8(), TILEKILN_INT8);
  put(shim.aoti_torch_dtype_int16(), TILEKILN_INT16);
  put(shim.aoti_torch_dtype_int32(), TILEKILN_INT32);
  put(shim.aoti_torch_dtype_int64(), TILEKILN_INT64);
  put(shim.aoti_torch_dtype_uint8(), TILEKILN_UINT8);
  put(shim.aoti_torch_dtype_uint16(), TILEKILN_UINT16);
  put(shim.aoti_torch_dtype_uint32(), TILEKILN_UINT32);
  put(shim.aoti_torch_dtype_uint64(), TILEKILN_UINT64);
  put(shim.aoti_torch_dtype_bool(), TILEKILN_BOOL);
}

inline int32_t theirs_of(int32_t dtype) {
  for (int32_t theirs = 0; theirs < 64; ++theirs)
    if (ours[theirs] == dtype) return theirs;
  return -1;
}

/* A view of a tensor of the host or of a CUDA device; false for any other. */
inline bool view(AtenTensorHandle tensor, tilekiln_tensor& view) {
  int32_t dtype = 0, device = 0;
  int64_t ndim = 0, *sizes = nullptr, *strides = nullptr;
  view.device_type = TILEKILN_CPU;
  view.device_id = 0;
  if (shim.aoti_torch_get_device_type(tensor, &device)) return false;
  if (device != shim.aoti_torch_device_type_cpu()) {
    if (device != shim.aoti_torch_device_type_cuda() || !shim.current_stream ||
        shim.aoti_torch_get_device_index(tensor, &view.device_id))
      return false;
    view.device_type = kCuda;
  }
  if (shim.aoti_torch_get_dtype(tensor, &dtype) || dtype < 0 || dtype >= 64 || !ours[dtype] ||
      shim.aoti_torch_get_dim(tensor, &ndim) || ndim > TILEKILN_MAX_NDIM || shim.aoti_torch_get_sizes(tensor, &sizes) ||
      shim.aoti_torch_get_strides(tensor, &strides) || shim.aoti_torch_get_data_ptr(tensor, &view.data))
    return false;
  view.dtype = ours[dtype];
  view.ndim = int32_t(ndim);
  for (int64_t i = 0; i < ndim; ++i) {
    view.shape[i] = sizes[i];
    view.stride[i] = strides[i];
  }
  return true;
}

inline bool is_of_host(const tilekiln_tensor& view) { return view.device_type == TILEKILN_CPU; }

/* A tensor of the view's device, dtype, shape and strides, whose memory becomes the view's. Null: there is no memory. */
inline AtenTensorHandle make(tilekiln_tensor& view) {
  AtenTensorHandle made = nullptr;
  const int32_t device = is_of_host(view) ? shim.aoti_torch_device_type_cpu() : shim.aoti_torch_device_type_cuda();
  if (shim.aoti_torch_empty_strided(view.ndim, view.shape, view.stride, theirs_of(view.dtype), device, view.device_id,
                                    &made))
    return nullptr;
  shim.aoti_torch_get_data_ptr(made, &view.data);
  int64_t bytes = (view.dtype & 0xff) / 8;
  for (int i = 0; i < view.ndim; ++i) bytes *= view.shape[i];
  if (is_of_host(view)) ask_for_huge_pages(view.data, bytes);
  return made;
}

/* The strides of a dense array; its bytes, or -1 for more than there can be. */
inline int64_t lay_densely(tilekiln_tensor& view) {
  int64_t bytes = (view.dtype & 0xff) / 8;
  int64_t dense = 1;
  for (int i = view.ndim - 1; i >= 0; --i) {
    view.stride[i] = dense;
    if (view.shape[i] < 0 || __builtin_mul_overflow(dense, view.shape[i], &dense)) return -1;
  }
  return __builtin_mul_overflow(dense, bytes, &bytes) ? -1 : bytes;
}

/* ---- what Python says of an operator ---------------------------------------------------------------------------------- */

/* One argument of PyTorch's operator. kind: T tensor, R seed and offset as a tensor, f float, b flag, i integer, s word; whether it may
 * be absent, the name and place of what it sets, and the value that sets nothing: a word, or the bits of a number. */
struct Argument {
  char kind = 0;
  bool optional = false;
  bool contiguous = false;
  bool has_default = false;
  uint64_t default_bits = 0;
  std::string default_word;
  std::string name;
  int part = 0;
};

/* A result: the argument of the library that it is, "" for one that only Python makes; its dtype when it is absent, 0: the first's. */
struct Made {
  std::string name;
  int32_t absent = 0;
  std::string asked_by;
};

struct Operator {
  std::string name;
  std::vector<Argument> arguments;
  std::vector<Made> results;
  int looks[2] = {0, 0};
};

/* The same over the operator of one library. */
struct Bound {
  const tilekiln_operator* table = nullptr;
  std::vector<int> arguments; /* of each argument, that of the table; -1: it sets nothing */
  std::vector<int> results;   /* of each result, that of the table; -1: Python makes it */
  int stream = -1;            /* the argument of the table; -1: there is none */
  decltype(&tilekiln_stream_wrap) wrap = nullptr;
  decltype(&tilekiln_stream_destroy) destroy = nullptr;
};

/* "kind[?][!]name.part[=default]", as in "T?bias.0": !, contiguous in its last dimension; a default is a word or the bits of a number. */
inline Argument argument_of(const std::string& text) {
  Argument one;
  size_t at = 1;
  one.kind = text[0];
  for (; text[at] == '?' || text[at] == '!'; ++at) (text[at] == '?' ? one.optional : one.contiguous) = true;
  const size_t dot = text.find('.', at), is = text.find('=', at);
  one.name = text.substr(at, dot - at);
  one.part = std::stoi(text.substr(dot + 1));
  if ((one.has_default = is != std::string::npos)) {
    one.default_word = text.substr(is + 1);
    if (one.kind != 's') one.default_bits = std::stoull(one.default_word);
  }
  return one;
}

inline std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  for (size_t from = 0; from <= text.size();) {
    const size_t to = std::min(text.find(at, from), text.size());
    parts.push_back(text.substr(from, to - from));
    from = to + 1;
  }
  return parts;
}

inline int index_of(const tilekiln_operator& table, const std::string& name) {
  for (int i = 0; i < table.argument_count; ++i)
    if (name == table.arguments[i].name) return i;
  return -1;
}

inline bool bind(const Operator& operator_, const tilekiln_operator* table, Bound& bound) {
  if (table->layout != TILEKILN_OPERATOR_LAYOUT || table->argument_count > kMaxArguments ||
      table->array_count > kMaxArrays || table->result_count > kMaxResults || table->args_size > kMaxStruct)
    return false;
  bound.table = table;
  for (const Argument& one : operator_.arguments) bound.arguments.push_back(index_of(*table, one.name));
  for (const Made& one : operator_.results) {
    int found = -1;
    for (int r = 0; r < table->result_count; ++r)
      if (one.name == table->arguments[table->results[r].argument].name) found = r;
    bound.results.push_back(found);
  }
  for (int i = 0; i < table->argument_count; ++i)
    if (table->arguments[i].kind == TILEKILN_STREAM) bound.stream = i;
  return true;
}

/* ---- a call ------------------------------------------------------------------------------------------------------------ */

struct Call {
  const Bound& bound;
  const tilekiln_operator* table;
  uint64_t present = 0;       /* bit i: array i is given */
  uint64_t said = 0, yes = 0; /* bit i: flag i is given, and is true */
  uint32_t asked = 0;         /* bit r: result r is made */
  int form = 0, exchanged = 0, pointers = 0;
  float pointer[kMaxPointers];
  AtenTensorHandle made[kMaxResults] = {};
  tilekiln_tensor tensor[kMaxArrays];
  alignas(16) char args[kMaxStruct];

  explicit Call(const Bound& bound_) : bound(bound_), table(bound_.table) {
    std::memcpy(args, table->defaults, table->args_size);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    for (AtenTensorHandle one : made)
      if (one) shim.aoti_torch_delete_tensor_object(one);
  }

  void* field(int i) { return args + table->arguments[i].offset; }
  bool is_given(uint8_t i) const { return i != TILEKILN_NOWHERE && present >> i & 1; }

  void set(int i) {
    *static_cast<const tilekiln_tensor**>(field(i)) = &tensor[i];
    present |= uint64_t(1) << i;
  }

  bool take(int i, AtenTensorHandle given, bool contiguous) {
    if (i < 0 || i >= table->array_count || table->arguments[i].kind != TILEKILN_ARRAY) return false;
    tilekiln_tensor& one = tensor[i];
    if (!view(given, one) || !is_of_host(one)) return false;
    if (contiguous && one.ndim && one.stride[one.ndim - 1] != 1 && one.shape[one.ndim - 1] > 1) return false;
    set(i);
    return true;
  }

  bool take_float(int i, double value) {
    if (i < 0) return false;
    if (table->arguments[i].kind == TILEKILN_FLOAT)
      *static_cast<float*>(field(i)) = float(value);
    else if (table->arguments[i].kind == TILEKILN_POINTER && pointers < kMaxPointers)
      *static_cast<const float**>(field(i)) = &(pointer[pointers++] = float(value));
    else
      return false;
    return true;
  }

  /* A flag without a field of its own asks for a result, or is for the derivative alone. */
  bool take_flag(int i, bool value) {
    if (i < 0) return true;
    said |= uint64_t(1) << i;
    yes |= uint64_t(value) << i;
    if (table->arguments[i].kind == TILEKILN_FLAG) *static_cast<int32_t*>(field(i)) = value;
    return true;
  }

  bool take_integer(int i, int part, int64_t value) {
    if (i < 0 || value < table->arguments[i].least || value > INT32_MAX) return false;
    if (table->arguments[i].kind != TILEKILN_INT && table->arguments[i].kind != TILEKILN_PAIR_INT) return false;
    static_cast<int32_t*>(field(i))[part] = int32_t(value);
    return true;
  }

  bool take_word(int i, const char* word) {
    if (i < 0 || table->arguments[i].kind != TILEKILN_WORD) return false;
    for (int32_t w = 0; table->arguments[i].words[w]; ++w)
      if (!std::strcmp(table->arguments[i].words[w], word)) {
        *static_cast<int32_t*>(field(i)) = w;
        return true;
      }
    return false;
  }

  /* An argument that has its value with it. */
  bool take_setting(int i, const Argument& one) {
    switch (one.kind) {
      case 'f': {
        double value;
        std::memcpy(&value, &one.default_bits, sizeof(value));
        return take_float(i, value);
      }
      case 'b': return take_flag(i, one.default_bits != 0);
      case 'i': return take_integer(i, one.part, int64_t(one.default_bits));
      default: return take_word(i, one.default_word.c_str());
    }
  }

  bool take_random(int i, AtenTensorHandle given) {
    tilekiln_tensor state;
    if (i < 0 || table->arguments[i].kind != TILEKILN_PAIR_ULONG || !view(given, state)) return false;
    if (!is_of_host(state) || state.dtype != TILEKILN_INT64 || state.ndim != 1 || state.shape[0] != 2) return false;
    const int64_t* const numbers = static_cast<const int64_t*>(state.data);
    uint64_t* const pair = static_cast<uint64_t*>(field(i));
    pair[0] = uint64_t(numbers[0]);
    pair[1] = uint64_t(numbers[state.stride[0]]);
    return true;
  }

  /* The form of the call, by the arrays by position; false when it has none. */
  bool find_form() {
    if (!is_given(table->first)) return false;
    const int32_t* dtype = table->dtypes;
    while (*dtype && *dtype != tensor[table->first].dtype) ++dtype;
    if (!*dtype) return false;
    if (table->exchange) exchanged = *reinterpret_cast<int32_t*>(args + table->exchange) == 1;
    for (form = 0; form < table->form_count; ++form) {
      const tilekiln_form& one = table->forms[form];
      bool fits = (present & table->any_given) == one.given;
      for (int i = 0; fits && i < table->positional; ++i)
        fits = !(present >> i & 1) || one.ndim[i] == 0 || tensor[i].ndim == one.ndim[i];
      if (fits) return true;
    }
    return false;
  }

  /* Finds the results that are asked for; false where one needs an argument that is not given: Python says so. */
  bool find_asked() {
    for (int r = 0; r < table->result_count; ++r) {
      const tilekiln_result& one = table->results[r];
      bool wanted = one.asked_by == TILEKILN_NOWHERE;
      if (!wanted && said >> one.asked_by & 1)
        wanted = yes >> one.asked_by & 1;
      else if (!wanted)
        wanted = is_given(one.unless);
      if (!wanted) continue;
      bool there = one.needs == TILEKILN_NOWHERE || is_given(one.needs);
      for (int other = 0; !there && other < r; ++other)
        there = table->results[other].argument == one.needs && (asked >> other & 1);
      if (!there) return false;
      asked |= uint32_t(1) << r;
    }
    return true;
  }

  bool describe(const tilekiln_result& one, tilekiln_tensor& result) {
    if (!one.dtype && !is_given(one.dtype_of)) return false;
    result.dtype = one.dtype ? one.dtype : tensor[one.dtype_of].dtype;
    if (!one.dtype)
      for (const tilekiln_choice* choice = one.choices; choice->when; ++choice)
        if (choice->when == tensor[one.dtype_of].dtype) {
          result.dtype = choice->dtypes[0];
          break;
        }
    result.device_type = tensor[table->first].device_type;
    result.device_id = tensor[table->first].device_id;
    if (one.shape_of) {
      tilekiln_shape shape;
      if (one.shape_of(args, &shape) != TILEKILN_OK) return false;
      result.ndim = shape.ndim;
      std::memcpy(result.shape, shape.length, sizeof(result.shape));
      return true;
    }
    result.ndim = one.ndim[form];
    for (int d = 0; d < result.ndim; ++d) {
      const tilekiln_place place = one.shape[form][exchanged][d];
      const int array = place >> 4, index = place & 15;
      if (!(present >> array & 1) || index >= tensor[array].ndim) return false;
      result.shape[d] = tensor[array].shape[index];
    }
    return true;
  }

  /* Makes the results that nobody has given and runs; false: nothing was written, and Python says why. */
  bool run() {
    if (!find_form() || !find_asked()) return false;
    const bool zero = (table->zero_forms >> form & 1) || (present & table->zero_given);
    if (zero && !is_of_host(tensor[table->first])) return false;
    int64_t all = 0;
    uint32_t left = 0;
    for (int r = 0; r < table->result_count; ++r) {
      const int i = table->results[r].argument;
      if (!(asked >> r & 1) || made[r]) continue;
      /* Shapes by rule look at what is given; results are that after all of them are described. */
      if (!describe(table->results[r], tensor[i])) return false;
      const int64_t bytes = lay_densely(tensor[i]);
      if (bytes < 0 || (all += bytes) > int64_t(1) << 28) return false; /* Python checks such a call first */
      left |= uint32_t(1) << r;
    }
    for (int r = 0; r < table->result_count; ++r) {
      if (!(left >> r & 1)) continue;
      tilekiln_tensor& one = tensor[table->results[r].argument];
      if (!(made[r] = make(one))) return false;
      *static_cast<const tilekiln_tensor**>(field(table->results[r].argument)) = &one;
      if (zero && one.data) {
        int64_t bytes = (one.dtype & 0xff) / 8;
        for (int d = 0; d < one.ndim; ++d) bytes *= one.shape[d];
        std::memset(one.data, 0, size_t(bytes));
      }
    }
    return is_of_host(tensor[table->first]) ? table->run(args) == TILEKILN_OK : run_in_stream();
  }

  /* In the stream that PyTorch works in now, which gives the memory of results, too. */
  bool run_in_stream() {
    const tilekiln_tensor& like = tensor[table->first];
    void* native = nullptr;
    tilekiln_stream* stream = nullptr;
    if (bound.stream < 0 || !bound.wrap || !bound.destroy || shim.current_stream(like.device_id, &native) ||
        bound.wrap(like.device_type, like.device_id, native, &stream) != TILEKILN_OK)
      return false;
    *static_cast<tilekiln_stream**>(field(bound.stream)) = stream;
    const bool good = table->run(args) == TILEKILN_OK;
    bound.destroy(stream);
    return good;
  }

  AtenTensorHandle release(int r) {
    AtenTensorHandle one = made[r];
    made[r] = nullptr;
    return one;
  }
};

}  // namespace tilekiln::torch

#endif
