/* call LIBRARY: host time of tilekiln_fmha_fwd from C on a GPU, in a wrapped stream and (null stream) with the wait for its end.
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
  return 0;
}
