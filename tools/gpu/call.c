/* SPDX-License-Identifier: MIT */
/* call LIBRARY: host time of tilekiln_fmha_fwd from C on a GPU, in a wrapped stream and (null stream) with the wait for its end; and of what
 * the driver takes for the least of it: the launch of an empty kernel with a row of as many bytes, and the maps of three arrays.
 * cc -O2 -Iinclude tools/gpu/call.c -o call -ldl */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tilekiln/operators/fmha_fwd.h"
#include "tilekiln/tilekiln.h"

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}
static int order(const void* a, const void* b) {
  return (*(const double*)a > *(const double*)b) - (*(const double*)a < *(const double*)b);
}

/* An empty kernel whose argument has the bytes of the forward's row. */
static const char empty_kernel[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry empty(.param .align 128 .b8 row[768]) { ret; }\n";

/* The median of rounds of 200 calls; `end` waits for what they enqueued. */
#define MEDIAN(took, call, end)                             \
  for (int round = 0; round < 21; ++round) {                \
    end;                                                    \
    const double begun = now();                             \
    for (int i = 0; i < 200; ++i)                           \
      if (call) return fprintf(stderr, "call: it failed\n"), 1; \
    took[round] = (now() - begun) / 200;                    \
  }                                                         \
  end;                                                      \
  qsort(took, 21, sizeof(double), order)

static int driver_times(void* cuda, uint64_t memory) {
  int (*load)(void**, const void*) = dlsym(cuda, "cuModuleLoadData");
  int (*function_of)(void**, void*, const char*) = dlsym(cuda, "cuModuleGetFunction");
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**) =
      dlsym(cuda, "cuLaunchKernel");
  int (*synchronize)(void*) = dlsym(cuda, "cuStreamSynchronize");
  int (*encode)(void*, int, unsigned, void*, const uint64_t*, const uint64_t*, const uint32_t*, const uint32_t*, int,
                int, int, int) = dlsym(cuda, "cuTensorMapEncodeTiled");
  int (*current)(void**) = dlsym(cuda, "cuCtxGetCurrent");
  int (*capturing)(void*, int*) = dlsym(cuda, "cuStreamIsCapturing");
  void *module = NULL, *function = NULL, *context = NULL, *const legacy = (void*)1;
  if (load(&module, empty_kernel) || function_of(&function, module, "empty"))
    return fprintf(stderr, "call: the empty kernel was not loaded\n"), 1;
  _Alignas(128) char row[768] = {0};
  void* parameters[] = {row};
  _Alignas(64) char map[128];
  const uint64_t lengths[5] = {64, 64, 1, 1, 1}, strides[4] = {128, 128, 8192, 8192};
  const uint32_t box[5] = {64, 64, 1, 1, 1}, every[5] = {1, 1, 1, 1, 1};
  double took[21];
  MEDIAN(took, launch(function, 1, 1, 1, 384, 1, 1, 0, legacy, parameters, NULL), synchronize(legacy));
  printf("the driver's launch of an empty kernel: %.2f us\n", took[10]);
  MEDIAN(took, encode(map, 9, 5, (void*)memory, lengths, strides, box, every, 0, 3, 2, 0), (void)0);
  printf("its map of an array, of which a call has three: %.2f us\n", took[10]);
  int yes = 0;
  MEDIAN(took, current(&context) || capturing(legacy, &yes), (void)0);
  printf("its answers about the context and a capture: %.2f us\n", took[10]);
  return 0;
}

int main(int count, char** arguments) {
  if (count != 2) return fprintf(stderr, "usage: call LIBRARY\n"), 2;
  void *library = dlopen(arguments[1], RTLD_NOW), *cuda = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library || !cuda) return fprintf(stderr, "call: %s\n", dlerror()), 1;
  int (*init)(unsigned) = dlsym(cuda, "cuInit");
  int (*retain)(void**, int) = dlsym(cuda, "cuDevicePrimaryCtxRetain");
  int (*current)(void*) = dlsym(cuda, "cuCtxSetCurrent");
  int (*allocate)(uint64_t*, size_t) = dlsym(cuda, "cuMemAlloc_v2");
  int (*fill)(uint64_t, unsigned short, size_t) = dlsym(cuda, "cuMemsetD16_v2");
  int (*read)(void*, uint64_t, size_t) = dlsym(cuda, "cuMemcpyDtoH_v2");
  tilekiln_status (*run)(const tilekiln_fmha_fwd_args*) = dlsym(library, "tilekiln_fmha_fwd");
  tilekiln_status (*wrap)(int32_t, int32_t, void*, tilekiln_stream**) = dlsym(library, "tilekiln_stream_wrap");
  tilekiln_status (*wait)(tilekiln_stream*) = dlsym(library, "tilekiln_stream_synchronize");
  const char* (*error)(void) = dlsym(library, "tilekiln_last_error");
  void* context = NULL;
  uint64_t memory[4];
  const size_t elements = 64 * 64;
  if (init(0) || retain(&context, 0) || current(context)) return fprintf(stderr, "call: no device\n"), 1;
  for (int i = 0; i < 4; ++i)
    if (allocate(&memory[i], 2 * elements) || fill(memory[i], i == 3 ? 0x7fff : 0x3f80, elements)) return 1;
  tilekiln_tensor tensor[4] = {{0}};
  for (int i = 0; i < 4; ++i) {
    tensor[i].data = (void*)memory[i];
    tensor[i].dtype = TILEKILN_BF16;
    tensor[i].ndim = 4;
    tensor[i].device_type = 2;
    const int64_t shape[4] = {1, 64, 1, 64}, stride[4] = {64 * 64, 64, 64, 1};
    for (int d = 0; d < 4; ++d) tensor[i].shape[d] = shape[d], tensor[i].stride[d] = stride[d];
  }
  tilekiln_fmha_fwd_args args = tilekiln_fmha_fwd_defaults();
  args.q = &tensor[0], args.k = &tensor[1], args.v = &tensor[2], args.out = &tensor[3];
  uint16_t out[64 * 64];
  if (run(&args) || read(out, memory[3], sizeof(out))) return fprintf(stderr, "call: %s\n", error()), 1;
  for (size_t i = 0; i < elements; ++i)
    if (out[i] != 0x3f80) return fprintf(stderr, "call: out[%zu] is %#x, must be 1\n", i, out[i]), 1;
  tilekiln_stream* stream = NULL;
  if (wrap(2, 0, NULL, &stream)) return fprintf(stderr, "call: %s\n", error()), 1;
  for (int wrapped = 0; wrapped < 2; ++wrapped) {
    args.stream = wrapped ? stream : NULL;
    double took[21];
    for (int round = 0; round < 21; ++round) {
      wait(stream);
      const double begun = now();
      for (int i = 0; i < 200; ++i)
        if (run(&args)) return fprintf(stderr, "call: %s\n", error()), 1;
      took[round] = (now() - begun) / 200;
    }
    wait(stream);
    qsort(took, 21, sizeof(double), order);
    printf("call from C, %s: %.2f us\n", wrapped ? "in a stream" : "null stream (waits for its end)", took[10]);
  }
  tilekiln_status (*find)(const tilekiln_fmha_fwd_args*, int64_t*) = dlsym(library, "tilekiln_fmha_fwd_find");
  int64_t instance;
  double took[21];
  MEDIAN(took, find(&args, &instance), (void)0);
  printf("its checks and the choice of a kernel alone: %.2f us\n", took[10]);
  return driver_times(cuda, memory[0]);
}
