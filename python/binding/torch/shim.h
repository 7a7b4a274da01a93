// SPDX-License-Identifier: MIT
/* The C functions of PyTorch's stable ABI that are called, resolved when the library starts: it links to no PyTorch, and serves any
 * version that has them. Only their declarations come from PyTorch's headers. */
#ifndef TILEKILN_TORCH_SHIM_H
#define TILEKILN_TORCH_SHIM_H

#include <dlfcn.h>
#include <torch/csrc/stable/c/shim.h>

#include <string>

namespace tilekiln::torch {

#define TILEKILN_TORCH_FUNCTIONS(X)                                                                              \
  X(aoti_torch_copy_) X(aoti_torch_delete_tensor_object) X(aoti_torch_device_type_cpu)                           \
  X(aoti_torch_device_type_cuda) X(aoti_torch_empty_strided) X(aoti_torch_get_data_ptr)                          \
  X(aoti_torch_get_device_index) X(aoti_torch_get_device_type) X(aoti_torch_get_dim) X(aoti_torch_get_dtype)     \
  X(aoti_torch_get_sizes) X(aoti_torch_get_strides) X(aoti_torch_grad_mode_is_enabled) X(aoti_torch_is_defined)  \
  X(aoti_torch_library_init_impl) X(aoti_torch_new_tensor_handle) X(aoti_torch_new_uninitialized_tensor)         \
  X(torch_call_dispatcher) X(torch_delete_list) X(torch_delete_string)                  \
  X(torch_library_impl) X(torch_string_c_str)                                                                      \
  X(aoti_torch_dtype_float32) X(aoti_torch_dtype_float16) X(aoti_torch_dtype_bfloat16) X(aoti_torch_dtype_float64) \
  X(aoti_torch_dtype_float8_e4m3fn) X(aoti_torch_dtype_float8_e5m2) X(aoti_torch_dtype_int8)                     \
  X(aoti_torch_dtype_int16) X(aoti_torch_dtype_int32) X(aoti_torch_dtype_int64) X(aoti_torch_dtype_uint8)        \
  X(aoti_torch_dtype_uint16) X(aoti_torch_dtype_uint32) X(aoti_torch_dtype_uint64) X(aoti_torch_dtype_bool)

struct Shim {
#define X(name) decltype(&::name) name = nullptr;
  TILEKILN_TORCH_FUNCTIONS(X)
#undef X
  /* From PyTorch 2.13; before that whoever took an optional value deleted it. */
  AOTITorchError (*torch_delete_stable_ivalue)(StableIValue*) = nullptr;
  /* Not of the stable ABI: whether autograd watches a tensor, by the pointer that a tensor is. Null: nobody knows. */
  bool (*requires_grad)(const void* implementation) = nullptr;
  /* The stream that PyTorch works in now; null: this PyTorch has no CUDA. */
  AOTITorchError (*current_stream)(int32_t device, void** stream) = nullptr;
};

inline Shim shim;

/* The version whose conventions the calls below follow: the first that has all of them. */
constexpr uint64_t kConventions = uint64_t(2) << 56 | uint64_t(10) << 48;

/* The first function that this PyTorch lacks, or null when all are there. */
inline const char* resolve() {
  void* const library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
  if (!library) return "libtorch_cpu.so";
#define X(name) \
  if (!(shim.name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name)))) return #name;
  TILEKILN_TORCH_FUNCTIONS(X)
#undef X
  shim.torch_delete_stable_ivalue =
      reinterpret_cast<decltype(shim.torch_delete_stable_ivalue)>(dlsym(library, "torch_delete_stable_ivalue"));
  if (void* const core = dlopen("libc10.so", RTLD_NOW | RTLD_NOLOAD))
    shim.requires_grad = reinterpret_cast<bool (*)(const void*)>(dlsym(core, "_ZNK3c1010TensorImpl13requires_gradEv"));
  if (void* const cuda = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD))
    shim.current_stream =
        reinterpret_cast<decltype(shim.current_stream)>(dlsym(cuda, "aoti_torch_get_current_cuda_stream"));
  return nullptr;
}

/* A tensor that an absent result is. */
inline StableIValue undefined() {
  AtenTensorHandle none = nullptr;
  shim.aoti_torch_new_uninitialized_tensor(&none);
  return reinterpret_cast<StableIValue>(none);
}

inline AtenTensorHandle tensor_of(StableIValue value) { return reinterpret_cast<AtenTensorHandle>(value); }

}  // namespace tilekiln::torch

#endif
