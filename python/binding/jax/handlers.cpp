/* The XLA handlers of tilekiln.jax: attention forward and backward as custom calls of jaxlib's FFI, over the C ABI.
 *
 * It knows no receipt and nothing of Python. Python names each library once (tilekiln_jax_add) and puts that name, never
 * an address, into the program: a program from JAX's compilation cache runs in any process that has named its libraries.
 *
 * A call carries its operands in the order of its attribute "operands", "q,k,v,bias", and its results in that of "results". */
#include <dlfcn.h>

#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tilekiln/tilekiln.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

/* ---- libraries ------------------------------------------------------------------------------------------------------ */

struct Library {
  decltype(&tilekiln_fmha_fwd) fmha_fwd = nullptr;
  decltype(&tilekiln_fmha_bwd) fmha_bwd = nullptr;
  decltype(&tilekiln_last_error) last_error = nullptr;
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

/* ---- operands ------------------------------------------------------------------------------------------------------- */

template <class Args>
struct Tensor {
  std::string_view name;
  const tilekiln_tensor* Args::* member;
};
template <class Args>
struct Scalar {
  const char* name;
  int32_t Args::* member;
};

#define FWD(name) {#name, &tilekiln_fmha_fwd_args::name}
#define BWD(name) {#name, &tilekiln_fmha_bwd_args::name}
constexpr Tensor<tilekiln_fmha_fwd_args> forward_tensors[] = {
    FWD(q),    FWD(k),          FWD(v),          FWD(out),      FWD(lse),      FWD(bias),         FWD(alibi_slopes),
    FWD(sink), FWD(seqstart_q), FWD(seqstart_k), FWD(seqlen_q), FWD(seqlen_k), FWD(cu_seqlens_q), FWD(cu_seqlens_k),
};
constexpr Tensor<tilekiln_fmha_bwd_args> backward_tensors[] = {
    BWD(dout),       BWD(q),          BWD(k),        BWD(v),        BWD(out),          BWD(lse),          BWD(dq),
    BWD(dk),         BWD(dv),         BWD(dbias),    BWD(d_sink),   BWD(bias),         BWD(alibi_slopes), BWD(sink),
    BWD(seqstart_q), BWD(seqstart_k), BWD(seqlen_q), BWD(seqlen_k), BWD(cu_seqlens_q), BWD(cu_seqlens_k),
};
constexpr Scalar<tilekiln_fmha_fwd_args> forward_scalars[] = {
    FWD(causal), FWD(window_left), FWD(window_right), FWD(mask_origin), FWD(sink_size), FWD(layout),
};
constexpr Scalar<tilekiln_fmha_bwd_args> backward_scalars[] = {
    BWD(causal), BWD(window_left), BWD(window_right), BWD(mask_origin), BWD(sink_size), BWD(layout), BWD(deterministic),
};
#undef FWD
#undef BWD

/* What went wrong, as a sentence; XLA makes an exception of it. */
struct Failure { ffi::Error error; };

[[noreturn]] void fail(std::string sentence) { throw Failure{ffi::Error::InvalidArgument(std::move(sentence))}; }

int32_t dtype_of(ffi::DataType type, std::string_view name) {
  switch (type) {
    case ffi::F32: return TILEKILN_FP32;
    case ffi::F16: return TILEKILN_FP16;
    case ffi::BF16: return TILEKILN_BF16;
    case ffi::S32: return TILEKILN_INT32;
    default:
      fail(std::string(name) + ": has XLA's dtype " + std::to_string(int(type)) +
           ", must be fp32, fp16, bf16 or int32");
  }
}

tilekiln_tensor view(const ffi::AnyBuffer& buffer, std::string_view name) {
  tilekiln_tensor tensor{};
  const auto shape = buffer.dimensions();
  if (shape.size() > TILEKILN_MAX_NDIM) fail(std::string(name) + ": has too many dimensions");
  tensor.data = buffer.untyped_data();
  tensor.dtype = dtype_of(buffer.element_type(), name);
  tensor.ndim = int32_t(shape.size());
  tensor.device_type = TILEKILN_CPU;
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

std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> found;
  while (!text.empty()) {
    const size_t end = text.find(',');
    found.push_back(text.substr(0, end));
    text = end == text.npos ? "" : text.substr(end + 1);
  }
  return found;
}

/* The arguments of one call, and the views they point to. */
template <class Args>
struct Call {
  Args args;
  std::array<tilekiln_tensor, 24> views{};
  size_t used = 0;
  float softmax_scale = 0;
  bool has_lengths = false; /* rows past a logical length are not written */

  template <size_t N>
  void set(const Tensor<Args> (&tensors)[N], std::string_view name, const ffi::AnyBuffer& buffer) {
    if (name == "rng") { /* the words of a JAX key */
      const auto* word = static_cast<const uint32_t*>(buffer.untyped_data());
      if (buffer.element_type() != ffi::U32 || buffer.element_count() != 2) fail("rng: must be uint32 (2)");
      args.rng_seed = uint64_t(word[0]) << 32 | word[1];
      return;
    }
    has_lengths |= name.starts_with("seq") || name.starts_with("cu_seqlens");
    for (const auto& tensor : tensors)
      if (tensor.name == name) {
        args.*tensor.member = &(views.at(used) = view(buffer, name));
        ++used;
        return;
      }
    fail(std::string(name) + ": is no argument of this call");
  }

  template <size_t N, size_t M>
  void read(const Tensor<Args> (&tensors)[N], const Scalar<Args> (&scalars)[M], const ffi::RemainingArgs& operands,
            const ffi::RemainingRets& results, const ffi::Dictionary& attributes) {
    const auto operand_names = words(attribute<std::string_view>(attributes, "operands"));
    const auto result_names = words(attribute<std::string_view>(attributes, "results"));
    if (operand_names.size() != operands.size() || result_names.size() != results.size())
      fail("operands: other numbers than their names");
    for (size_t i = 0; i < operand_names.size(); ++i) set(tensors, operand_names[i], *operands.get<ffi::AnyBuffer>(i));
    for (size_t i = 0; i < result_names.size(); ++i) {
      ffi::Result<ffi::AnyBuffer> result = *results.get<ffi::AnyBuffer>(i);
      if (has_lengths && result->size_bytes() != 0) std::memset(result->untyped_data(), 0, result->size_bytes());
      set(tensors, result_names[i], *result);
    }
    for (const auto& scalar : scalars) args.*scalar.member = attribute<int32_t>(attributes, scalar.name);
    args.softcap = attribute<float>(attributes, "softcap");
    args.dropout_p = attribute<float>(attributes, "dropout_p");
    softmax_scale = attribute<float>(attributes, "softmax_scale");
    args.softmax_scale = &softmax_scale;
  }
};

template <class Run>
ffi::Error run(const ffi::Dictionary& attributes, Run body) {
  try {
    const auto receipt = attribute<std::string_view>(attributes, "library");
    const std::optional<Library> library = find_library(receipt);
    if (!library)
      fail("library: this program was compiled for the library of receipt '" + std::string(receipt) +
           "', which is not at hand here; build it: tools/dev scons receipt=" + std::string(receipt));
    const tilekiln_status status = body(*library);
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

ffi::Error forward(ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary attributes) {
  return run(attributes, [&](const Library& library) {
    Call<tilekiln_fmha_fwd_args> call{tilekiln_fmha_fwd_defaults()};
    call.read(forward_tensors, forward_scalars, operands, results, attributes);
    return library.fmha_fwd(&call.args);
  });
}

ffi::Error backward(ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary attributes) {
  return run(attributes, [&](const Library& library) {
    Call<tilekiln_fmha_bwd_args> call{tilekiln_fmha_bwd_defaults()};
    call.read(backward_tensors, backward_scalars, operands, results, attributes);
    return library.fmha_bwd(&call.args);
  });
}

}  // namespace

/* ---- what Python sees ----------------------------------------------------------------------------------------------- */

#pragma GCC visibility push(default)

/* Makes the library at `path` known by the name of its receipt. Null, or why not; valid until this thread's next call. */
extern "C" const char* tilekiln_jax_add(const char* receipt, const char* path) {
  thread_local std::string why;
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  Library library;
  if (handle == nullptr || !resolve(handle, "tilekiln_fmha_fwd", library.fmha_fwd) ||
      !resolve(handle, "tilekiln_fmha_bwd", library.fmha_bwd) ||
      !resolve(handle, "tilekiln_last_error", library.last_error)) {
    const char* error = dlerror();
    why = error ? error : "a function is missing";
    return why.c_str();
  }
  std::lock_guard lock(libraries_mutex);
  libraries.insert_or_assign(receipt, library);
  return nullptr;
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(tilekiln_jax_fmha_fwd, forward, ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());
XLA_FFI_DEFINE_HANDLER_SYMBOL(tilekiln_jax_fmha_bwd, backward,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());

#pragma GCC visibility pop
