// SPDX-License-Identifier: MIT
// A device "cuda" for a PyTorch that has none, over the driver of the process, which is cudasim. The stream is the default one. Built as libtorch_cuda.so, by whose name PyTorch's own is known. Copies, views and new tensors are all
// that there is.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

extern "C" {
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void**, int);
int cuCtxPushCurrent_v2(void*);
int cuMemAlloc_v2(unsigned long long*, size_t);
int cuMemFree_v2(unsigned long long);
int cuMemcpyHtoD_v2(unsigned long long, const void*, size_t);
int cuMemcpyDtoH_v2(void*, unsigned long long, size_t);

// Functions of PyTorch's stable ABI, where it has CUDA.
int streams_asked = 0;
int aoti_torch_get_current_cuda_stream(int, void** stream) {
  ++streams_asked;
  *stream = nullptr;
  return 0;
}
}

namespace {

const c10::Device only(c10::DeviceType::CUDA, 0);

// One device, and its default stream.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = c10::DeviceType::CUDA;
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return static_type; }
  c10::Device exchangeDevice(c10::Device) const override { return only; }
  c10::Device getDevice() const override { return only; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, only); }
  c10::Stream exchangeStream(c10::Stream) const override { return c10::Stream(c10::Stream::DEFAULT, only); }
  void* getStreamNativeHandle(c10::Stream) const override { return nullptr; }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
};
using at::CUDAHooksRegistry, at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks);

void give_back(void* memory) { cuMemFree_v2(reinterpret_cast<unsigned long long>(memory)); }

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    unsigned long long memory = 0;
    TORCH_CHECK(!bytes || !cuMemAlloc_v2(&memory, bytes), "no memory of the device");
    void* const at = reinterpret_cast<void*>(memory);
    return {at, at, &give_back, only};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

Memory* memory() {
  static Memory* const only = [] {
    void* context = nullptr;
    TORCH_CHECK(!cuInit(0) && !cuDevicePrimaryCtxRetain(&context, 0) && !cuCtxPushCurrent_v2(context), "no driver");
    return new Memory;
  }();
  return only;
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), memory(),
                                           c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                           dtype.value_or(at::ScalarType::Float));
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), memory(), c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   dtype.value_or(at::ScalarType::Float), format);
}

// A copy of the host, of all that lies in its memory.
at::Tensor of_host(const at::Tensor& one) {
  if (one.is_cpu()) return one;
  at::Tensor all = at::empty({int64_t(one.storage().nbytes())}, at::kByte);
  cuMemcpyDtoH_v2(all.data_ptr(), reinterpret_cast<unsigned long long>(one.storage().data()), one.storage().nbytes());
  return all.view(one.scalar_type()).as_strided(one.sizes(), one.strides(), one.storage_offset());
}

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool) {
  if (to.is_cpu()) return to.copy_(of_host(from));
  TORCH_CHECK(to.is_contiguous(), "copies to the device are dense ones");
  const at::Tensor dense = of_host(from).to(to.scalar_type()).expand(to.sizes()).contiguous();
  cuMemcpyHtoD_v2(reinterpret_cast<unsigned long long>(to.data_ptr()), dense.data_ptr(), dense.nbytes());
  return to;
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  at::Tensor view = at::detail::make_tensor<at::TensorImpl>(at::TensorImpl::VIEW, at::Storage(self.storage()),
                                                            self.key_set(), self.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                                    offset ? offset->expect_int() : self.storage_offset());
  return view;
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty_strided", empty_strided);
  library.impl("empty.memory_format", empty);
  library.impl("copy_", copy);
  library.impl("as_strided", as_strided);
}

}  // namespace
