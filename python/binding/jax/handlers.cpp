// SPDX-License-Identifier: MIT
/* The XLA handler of tilekiln.jax: any operator as a custom call of jaxlib's FFI, by the tables that libraries have.
 *
 * It knows no receipt and nothing of Python. Python names each library once (tilekiln_jax_add) and puts that name, never
 * an address, into the program: a program from JAX's compilation cache runs in any process that has named its libraries.
 *
 * A call names its "operator", its operands in order ("operands": "q,k,v,bias") and its results; other attributes are
 * arguments: int32 (flags too), float, a pair of int32, a word. One that is missing is absent. */
#include <dlfcn.h>

#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cuda_memory.h"
#include "tilekiln/operator.h"
#include "tilekiln/tilekiln.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

/* ---- libraries ------------------------------------------------------------------------------------------------------ */

struct Library {
  const tilekiln_operator* const* operators = nullptr;
  int32_t operator_count = 0;
  decltype(&tilekiln_last_error) last_error = nullptr;
  decltype(&tilekiln_stream_wrap) stream_wrap = nullptr;
  decltype(&tilekiln_stream_destroy) stream_destroy = nullptr;
};

std::mutex libraries_mutex;
std::map<std::string, Library, std::less<>> libraries;

std::optional<Library> find_library(std::string_view receipt) {
  std::lock_guard lock(libraries_mutex);
  const auto found = libraries.find(receipt);
  if (found == libraries.end()) return std::nullopt;
  return found->second;
}

template <class Function>
bool resolve(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  return function != nullptr;
}

/* ---- places ----------------------------------------------------------------------------------------------------------- */

/* The place of a program: on the host, or in a stream of a CUDA device. */
struct Place {
  int32_t device_type = TILEKILN_CPU, device_id = 0;
  void* stream = nullptr;

  bool zero(void* to, size_t bytes) const {
    if (device_type == cuda_memory::device_type) return cuda_memory::zero(to, bytes, stream);
    std::memset(to, 0, bytes);
    return true;
  }
  bool read(void* to, const void* from, size_t bytes) const {
    if (device_type == cuda_memory::device_type) return cuda_memory::read(to, from, bytes, stream);
    std::memcpy(to, from, bytes);
    return true;
  }
};

/* A place's stream as a library takes it; null on the host. */
class Stream {
 public:
  Stream(const Library& library, const Place& place) : library_(library) {
    if (place.device_type != TILEKILN_CPU)
      status_ = library.stream_wrap(place.device_type, place.device_id, place.stream, &stream_);
  }
  Stream(const Stream&) = delete;
  ~Stream() {
    if (stream_ != nullptr) library_.stream_destroy(stream_);
  }
  tilekiln_status status() const { return status_; }
  tilekiln_stream* get() const { return stream_; }

 private:
  const Library& library_;
  tilekiln_stream* stream_ = nullptr;
  tilekiln_status status_ = TILEKILN_OK;
};

/* ---- operands ------------------------------------------------------------------------------------------------------- */

/* An error with its sentence; XLA makes an exception of it. */
struct Failure { ffi::Error error; };

[[noreturn]] void fail(std::string sentence) { throw Failure{ffi::Error::InvalidArgument(std::move(sentence))}; }

int32_t dtype_of(ffi::DataType type, std::string_view name) {
  switch (type) {
    case ffi::F32: return TILEKILN_FP32;
    case ffi::F16: return TILEKILN_FP16;
    case ffi::BF16: return TILEKILN_BF16;
    case ffi::S32: return TILEKILN_INT32;
    case ffi::S8: return TILEKILN_INT8;
    case ffi::U8: return TILEKILN_UINT8;
    default:
      fail(std::string(name) + ": has XLA's dtype " + std::to_string(int(type)) +
           ", must be fp32, fp16, bf16, int32, int8 or uint8");
  }
}

tilekiln_tensor view(const ffi::AnyBuffer& buffer, std::string_view name, const Place& place) {
  tilekiln_tensor tensor{};
  const auto shape = buffer.dimensions();
  if (shape.size() > TILEKILN_MAX_NDIM) fail(std::string(name) + ": has too many dimensions");
  tensor.data = buffer.untyped_data();
  tensor.dtype = dtype_of(buffer.element_type(), name);
  tensor.ndim = int32_t(shape.size());
  tensor.device_type = place.device_type;
  tensor.device_id = place.device_id;
  int64_t stride = 1;
  for (int32_t i = tensor.ndim - 1; i >= 0; --i) {
    tensor.shape[i] = shape[size_t(i)];
    tensor.stride[i] = stride;
    stride *= shape[size_t(i)];
  }
  return tensor;
}

template <class T>
T attribute(const ffi::Dictionary& attributes, const char* name) {
  const auto value = attributes.get<T>(name);
  if (value.has_error()) fail(std::string("attribute ") + name + " is missing");
  return *value;
}

/* Python's 30 is meant as 30.0. */
float real(const ffi::Dictionary& attributes, const char* name) {
  const auto whole = attributes.get<int32_t>(name);
  return whole.has_error() ? attribute<float>(attributes, name) : float(*whole);
}

std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> found;
  while (!text.empty()) {
    const size_t end = text.find(',');
    found.push_back(text.substr(0, end));
    text = end == text.npos ? "" : text.substr(end + 1);
  }
  return found;
}

/* The arguments of one call of an operator, by its table, and what they point to. */
class Call {
 public:
  Call(const tilekiln_operator& of, const ffi::Dictionary& attributes, const Place& place)
      : of_(of), place_(place), args_((of.args_size + sizeof(uint64_t) - 1) / sizeof(uint64_t)) {
    std::memcpy(args_.data(), of.defaults, of.args_size);
    size_t taken = 0;
    for (int i = of.array_count; i < of.argument_count; ++i)
      if (attributes.contains(of.arguments[i].name)) {
        set(of.arguments[i], attributes);
        ++taken;
      }
    if (taken + std::size(own_attributes) != attributes.size())
      fail(std::string("attributes: some are no argument of ") + of.name);
  }

  void operand(std::string_view name, const ffi::AnyBuffer& buffer) {
    const tilekiln_argument& argument = find(name);
    if (argument.kind == TILEKILN_PAIR_ULONG) { /* the words of a JAX key */
      uint32_t word[2];
      if (buffer.element_type() != ffi::U32 || buffer.element_count() != 2)
        fail(std::string(name) + ": must be uint32 (2)");
      if (!place_.read(word, buffer.untyped_data(), sizeof(word))) fail(std::string(name) + ": could not be read");
      at<uint64_t>(argument) = uint64_t(word[0]) << 32 | word[1];
      return;
    }
    if (&argument - of_.arguments >= of_.array_count) fail(std::string(name) + ": is no array");
    given_ |= uint64_t(1) << (&argument - of_.arguments);
    views_.push_back(view(buffer, name, place_));
    at<const tilekiln_tensor*>(argument) = &views_.back();
  }

  void in(tilekiln_stream* stream) {
    for (int i = of_.array_count; i < of_.argument_count; ++i)
      if (of_.arguments[i].kind == TILEKILN_STREAM) at<tilekiln_stream*>(of_.arguments[i]) = stream;
  }

  /* After all operands: whether rows of results may stay as they are. */
  bool zeroes() const {
    if ((given_ & of_.zero_given) != 0) return true;
    for (int f = 0; f < of_.form_count; ++f)
      if (fits(of_.forms[f])) return (of_.zero_forms >> f & 1) != 0;
    return false;
  }

  tilekiln_status run() const { return of_.run(args_.data()); }

  static constexpr const char* own_attributes[] = {"library", "operator", "operands", "results"};

 private:
  template <class T>
  T& at(const tilekiln_argument& argument, size_t index = 0) {
    return reinterpret_cast<T*>(reinterpret_cast<char*>(args_.data()) + argument.offset)[index];
  }

  const tilekiln_argument& find(std::string_view name) const {
    for (int i = 0; i < of_.argument_count; ++i)
      if (of_.arguments[i].name == name) return of_.arguments[i];
    fail(std::string(name) + ": is no argument of " + of_.name);
  }

  bool fits(const tilekiln_form& form) const {
    if (form.given != (given_ & of_.any_given)) return false;
    for (int i = 0; i < of_.positional; ++i) {
      const tilekiln_tensor* array = *reinterpret_cast<const tilekiln_tensor* const*>(
          reinterpret_cast<const char*>(args_.data()) + of_.arguments[i].offset);
      if (array != nullptr && form.ndim[i] != 0 && array->ndim != form.ndim[i]) return false;
    }
    return true;
  }

  void set(const tilekiln_argument& argument, const ffi::Dictionary& attributes) {
    const char* name = argument.name;
    switch (argument.kind) {
      case TILEKILN_FLAG:
      case TILEKILN_INT: at<int32_t>(argument) = attribute<int32_t>(attributes, name); return;
      case TILEKILN_FLOAT: at<float>(argument) = real(attributes, name); return;
      case TILEKILN_POINTER:
        floats_.push_back(real(attributes, name));
        at<const float*>(argument) = &floats_.back();
        return;
      case TILEKILN_PAIR_INT: {
        const auto values = attribute<ffi::Span<const int32_t>>(attributes, name);
        if (values.size() != 2) fail(std::string(name) + ": must be two numbers");
        at<int32_t>(argument, 0) = values[0];
        at<int32_t>(argument, 1) = values[1];
        return;
      }
      case TILEKILN_WORD: {
        const auto word = attribute<std::string_view>(attributes, name);
        for (int32_t i = 0; argument.words[i] != nullptr; ++i)
          if (argument.words[i] == word) {
            at<int32_t>(argument) = i;
            return;
          }
        fail(std::string(name) + ": was '" + std::string(word) + "', which is none of its words");
      }
      default: fail(std::string(name) + ": cannot be an attribute");
    }
  }

  const tilekiln_operator& of_;
  const Place& place_;
  std::vector<uint64_t> args_;
  std::deque<tilekiln_tensor> views_; /* args_ points to these */
  std::deque<float> floats_;
  uint64_t given_ = 0;
};

const tilekiln_operator& find_operator(const Library& library, std::string_view receipt, std::string_view name) {
  for (int32_t i = 0; i < library.operator_count; ++i)
    if (library.operators[i]->name == name) return *library.operators[i];
  fail("operator: library '" + std::string(receipt) + "' has no " + std::string(name));
}

tilekiln_status run(const Library& library, std::string_view receipt, const ffi::RemainingArgs& operands,
                    const ffi::RemainingRets& results, const ffi::Dictionary& attributes, const Place& place) {
  Call call(find_operator(library, receipt, attribute<std::string_view>(attributes, "operator")), attributes, place);
  const auto operand_names = words(attribute<std::string_view>(attributes, "operands"));
  const auto result_names = words(attribute<std::string_view>(attributes, "results"));
  if (operand_names.size() != operands.size() || result_names.size() != results.size())
    fail("operands: other numbers than their names");
  for (size_t i = 0; i < operand_names.size(); ++i) call.operand(operand_names[i], *operands.get<ffi::AnyBuffer>(i));
  const bool zeroes = call.zeroes();
  for (size_t i = 0; i < result_names.size(); ++i) {
    ffi::Result<ffi::AnyBuffer> result = *results.get<ffi::AnyBuffer>(i);
    if (zeroes && result->size_bytes() != 0 && !place.zero(result->untyped_data(), result->size_bytes()))
      fail(std::string(result_names[i]) + ": could not be filled with zeros");
    call.operand(result_names[i], *result);
  }
  const Stream stream(library, place);
  if (stream.status() != TILEKILN_OK) return stream.status();
  if (stream.get() != nullptr) call.in(stream.get());
  return call.run();
}

ffi::Error call(const Place& place, const ffi::RemainingArgs& operands, const ffi::RemainingRets& results,
                const ffi::Dictionary& attributes) {
  try {
    const auto receipt = attribute<std::string_view>(attributes, "library");
    const std::optional<Library> library = find_library(receipt);
    if (!library)
      fail("library: this program was compiled for the library of receipt '" + std::string(receipt) +
           "', which is not available here; build it: tools/dev scons receipt=" + std::string(receipt));
    const tilekiln_status status = run(*library, receipt, operands, results, attributes, place);
    if (status == TILEKILN_OK) return ffi::Error::Success();
    const auto code = status == TILEKILN_INVALID_ARGUMENT ? ffi::ErrorCode::kInvalidArgument
                      : status == TILEKILN_NO_KERNEL      ? ffi::ErrorCode::kNotFound
                      : status == TILEKILN_OUT_OF_MEMORY  ? ffi::ErrorCode::kResourceExhausted
                                                          : ffi::ErrorCode::kInternal;
    return {code, library->last_error()};
  } catch (const Failure& failure) {
    return failure.error;
  }
}

ffi::Error call_on_host(ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary attributes) {
  return call({}, operands, results, attributes);
}

ffi::Error call_on_cuda(void* stream, int32_t device, ffi::RemainingArgs operands, ffi::RemainingRets results,
                        ffi::Dictionary attributes) {
  return call({cuda_memory::device_type, device, stream}, operands, results, attributes);
}

}  // namespace

/* ---- what Python sees ----------------------------------------------------------------------------------------------- */

#pragma GCC visibility push(default)

/* Makes the library at `path` known by the name of its receipt. Null, or why not; valid until this thread's next call. */
extern "C" const char* tilekiln_jax_add(const char* receipt, const char* path) {
  thread_local std::string why;
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  Library library;
  decltype(&tilekiln_operators) operators = nullptr;
  if (handle == nullptr || !resolve(handle, "tilekiln_operators", operators) ||
      !resolve(handle, "tilekiln_last_error", library.last_error) ||
      !resolve(handle, "tilekiln_stream_wrap", library.stream_wrap) ||
      !resolve(handle, "tilekiln_stream_destroy", library.stream_destroy)) {
    const char* error = dlerror();
    why = error ? error : "a function is missing";
    return why.c_str();
  }
  library.operators = operators(&library.operator_count);
  for (int32_t i = 0; i < library.operator_count; ++i)
    if (library.operators[i]->layout != TILEKILN_OPERATOR_LAYOUT) return "it is of another version of Tilekiln";
  std::lock_guard lock(libraries_mutex);
  libraries.insert_or_assign(receipt, library);
  return nullptr;
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(tilekiln_jax_call, call_on_host,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());
XLA_FFI_DEFINE_HANDLER_SYMBOL(tilekiln_jax_call_cuda, call_on_cuda,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<void*>>()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attrs());

#pragma GCC visibility pop
