// SPDX-License-Identifier: MIT
// The backward's asynchronous launcher, as CK Tile's runner uses its own: the workspace is taken for an upper bound of the shapes, and all
// that sequence starts decide is copied, packed and copied back in the caller's stream, through pinned memory of the caller's allocator.
// The host never waits before the end, and the launcher may go before the work has run.
//
//   c++ -std=c++17 -I include examples/devices/backward_launcher.cpp LIBRARY -ldl -o launcher && ./launcher cpu    (or cuda)
//
// LIBRARY: libtilekiln_flash.so with bf16 kernels of head dim 64, forward and backward. `cuda` ran under the executor alone.
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tilekiln/tilekiln.h"

namespace {

void check(tilekiln_status status) {
  if (status == TILEKILN_OK) return;
  std::fprintf(stderr, "%s\n", tilekiln_last_error());
  std::exit(1);
}

// Memory of a device, and pinned memory of the host: of CUDA's driver, which is loaded here, or plain memory for the CPU.
class Memory {
 public:
  explicit Memory(bool cuda) : cuda_(cuda) {
    if (!cuda) return;
    driver_ = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver_ == nullptr) std::fprintf(stderr, "%s\n", dlerror()), std::exit(1);
    void* context = nullptr;
    call<unsigned>("cuInit", 0u);
    call<void**, int>("cuDevicePrimaryCtxRetain", &context, 0);
    call<void*>("cuCtxPushCurrent_v2", context);
  }
  // DLPack's number of the kind of device.
  int type() const { return cuda_ ? 2 : 1; }
  void* take(size_t bytes) const {
    void* memory = nullptr;
    cuda_ ? call<void**, size_t>("cuMemAlloc_v2", &memory, bytes) : void(memory = pages(bytes));
    return memory;
  }
  void* take_pinned(size_t bytes) const {
    void* memory = nullptr;
    cuda_ ? call<void**, size_t, unsigned>("cuMemHostAlloc", &memory, bytes, 0u) : void(memory = pages(bytes));
    return memory;
  }
  void give_back_pinned(void* memory) const { cuda_ ? call<void*>("cuMemFreeHost", memory) : std::free(memory); }
  void to_device(void* to, const void* of, size_t bytes) const {
    cuda_ ? call<void*, const void*, size_t>("cuMemcpyHtoD_v2", to, of, bytes) : void(std::memcpy(to, of, bytes));
  }
  void to_host(void* to, const void* of, size_t bytes) const {
    cuda_ ? call<void*, const void*, size_t>("cuMemcpyDtoH_v2", to, of, bytes) : void(std::memcpy(to, of, bytes));
  }
  // A stream of the device; the CPU's is a queue with a worker of its own.
  tilekiln_stream* stream() const {
    tilekiln_stream* made = nullptr;
    void* native = nullptr;
    if (!cuda_) return check(tilekiln_stream_create(&made)), made;
    call<void**, unsigned>("cuStreamCreate", &native, 1u);  // of its own order, whatever the null stream does
    check(tilekiln_stream_wrap(type(), 0, native, &made));
    return made;
  }

 private:
  static void* pages(size_t bytes) { return std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096); }
  template <class... Arguments>
  void call(const char* name, Arguments... arguments) const {
    const int result = reinterpret_cast<int (*)(Arguments...)>(dlsym(driver_, name))(arguments...);
    if (result != 0) std::fprintf(stderr, "%s: %d\n", name, result), std::exit(1);
  }
  bool cuda_;
  void* driver_ = nullptr;
};

// The caller's pinned memory, counted. The library calls release from a thread that is no stream's.
struct Pinned {
  const Memory& memory;
  std::atomic<int> taken{0}, held{0};
  tilekiln_staging_allocator view{sizeof(tilekiln_staging_allocator), allocate, release, this};
  explicit Pinned(const Memory& of) : memory(of) {}
  static void* allocate(void* self, size_t bytes) {
    ++static_cast<Pinned*>(self)->taken, ++static_cast<Pinned*>(self)->held;
    return static_cast<Pinned*>(self)->memory.take_pinned(bytes);
  }
  static void release(void* self, void* memory, size_t) {
    static_cast<Pinned*>(self)->memory.give_back_pinned(memory);
    --static_cast<Pinned*>(self)->held;
  }
};

// A dense array on the device.
struct Array {
  tilekiln_tensor tensor = {};
  size_t bytes = 1;
  Array(const Memory& memory, std::vector<int64_t> shape, int32_t dtype, const void* from = nullptr) {
    bytes = dtype == TILEKILN_BF16 ? 2 : dtype == TILEKILN_UINT8 ? 1 : 4;
    tensor.dtype = dtype, tensor.device_type = memory.type(), tensor.ndim = static_cast<int32_t>(shape.size());
    int64_t count = 1;
    for (size_t i = shape.size(); i-- > 0; count *= shape[i]) tensor.shape[i] = shape[i], tensor.stride[i] = count;
    tensor.data = memory.take(bytes *= static_cast<size_t>(count));
    const std::vector<char> zeros(bytes);
    memory.to_device(tensor.data, from == nullptr ? zeros.data() : from, bytes);
  }
};
std::vector<unsigned short> numbers(size_t count) {  // bf16 between -1 and 1
  std::vector<unsigned short> made(count);
  for (unsigned short& one : made)
    one = static_cast<unsigned short>(0x3e00 + std::rand() % 0x180 + std::rand() % 2 * 0x8000);
  return made;
}

}  // namespace

int main(int count, char** words) {
  const std::string device = count == 2 ? words[1] : "";
  if (device != "cpu" && device != "cuda") return std::fprintf(stderr, "usage: %s cpu|cuda\n", words[0]), 2;
  const Memory memory(device == "cuda");
  Pinned pinned(memory);
  tilekiln_stream* const stream = memory.stream();

  // Three sequences, packed; their starts are known to the device alone.
  const int32_t starts_of_q[] = {0, 40, 47, 100}, starts_of_k[] = {0, 50, 90, 130};
  const int64_t rows = 100, keys = 130, heads = 4, heads_k = 2, dim = 64;
  const auto random = [&](int64_t n, int64_t of) {
    return Array(memory, {n, of, dim}, TILEKILN_BF16, numbers(static_cast<size_t>(n * of * dim)).data());
  };
  const Array q = random(rows, heads), k = random(keys, heads_k), v = random(keys, heads_k), dout = random(rows, heads);
  const Array out(memory, {rows, heads, dim}, TILEKILN_BF16), lse(memory, {heads, rows}, TILEKILN_FP32);
  const Array starts_q(memory, {4}, TILEKILN_INT32, starts_of_q), starts_k(memory, {4}, TILEKILN_INT32, starts_of_k);
  const Array dq(memory, {rows, heads, dim}, TILEKILN_BF16), dk(memory, {keys, heads_k, dim}, TILEKILN_BF16),
      dv(memory, {keys, heads_k, dim}, TILEKILN_BF16);

  tilekiln_fmha_fwd_args forward = tilekiln_fmha_fwd_defaults();
  forward.q = &q.tensor, forward.k = &k.tensor, forward.v = &v.tensor, forward.out = &out.tensor,
  forward.lse = &lse.tensor;
  forward.seqstart_q = &starts_q.tensor, forward.seqstart_k = &starts_k.tensor;
  forward.max_seqlen_q = 53, forward.max_seqlen_k = 50, forward.stream = stream;
  check(tilekiln_fmha_fwd(&forward));

  tilekiln_fmha_bwd_problem problem = tilekiln_fmha_bwd_problem_defaults();
  problem.dtype = TILEKILN_BF16, problem.hdim_q = problem.hdim_v = dim, problem.nhead_q = heads,
  problem.nhead_k = heads_k;
  problem.group = 1, problem.batch = 3, problem.seqlen_q = rows, problem.seqlen_k = 50, problem.max_seqlen_q = 53;
  problem.deterministic = 1, problem.device_type = memory.type();
  tilekiln_fmha_bwd_args backward = tilekiln_fmha_bwd_defaults();
  backward.dout = &dout.tensor, backward.q = &q.tensor, backward.k = &k.tensor, backward.v = &v.tensor;
  backward.out = &out.tensor, backward.lse = &lse.tensor, backward.dq = &dq.tensor, backward.dk = &dk.tensor,
  backward.dv = &dv.tensor;
  backward.seqstart_q = &starts_q.tensor, backward.seqstart_k = &starts_k.tensor;
  backward.max_seqlen_q = 53, backward.max_seqlen_k = 50, backward.deterministic = 1, backward.stream = stream;

  std::vector<unsigned char> gradients[2];
  uint64_t bytes = 0;
  for (std::vector<unsigned char>& to : gradients) {
    tilekiln_fmha_bwd_launcher* launcher = nullptr;
    check(tilekiln_fmha_bwd_launcher_create(&problem, &launcher));
    check(tilekiln_fmha_bwd_launcher_workspace_size(launcher, &bytes));  // no start is looked at
    const Array workspace(memory, {static_cast<int64_t>(bytes)}, TILEKILN_UINT8);
    check(tilekiln_fmha_bwd_launcher_prepare_async(launcher, &workspace.tensor, &starts_q.tensor, &starts_k.tensor,
                                                   stream, &pinned.view));
    backward.workspace = &workspace.tensor;
    check(tilekiln_fmha_bwd_launcher_run(launcher, &backward));
    check(tilekiln_fmha_bwd_launcher_destroy(launcher));  // what it enqueued owns all it needs
    check(tilekiln_stream_synchronize(stream));           // the first time that the host waits
    to.resize(dq.bytes);
    memory.to_host(to.data(), dq.tensor.data, dq.bytes);
  }
  check(tilekiln_staging_drain());
  check(tilekiln_stream_destroy(stream));
  size_t zeros = 0;
  for (const unsigned char one : gradients[0]) zeros += one == 0;
  std::printf("%s: the same bits twice: %d, gradients are there: %d\n", device.c_str(), gradients[0] == gradients[1],
              zeros < gradients[0].size() / 4);
  std::printf("pinned memory was taken: %d, and is given back: %d\n", pinned.taken > 0, pinned.held == 0);
}
