/* SPDX-License-Identifier: MIT */
/* A host program as people write it for HIP without its headers: opens the runtime, finds the code object of this GPU
   by trial load, launches `scale` (out[i] = factor * in[i]) with packed arguments, and looks at every error.
   host ACTION FILE...: run, far (past the end), touch (follows a device pointer). */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTIONS(F)                                                                                                   \
  F(hipInit, (unsigned))                                                                                               \
  F(hipGetDeviceCount, (int*))                                                                                         \
  F(hipMalloc, (void**, size_t))                                                                                       \
  F(hipFree, (void*))                                                                                                  \
  F(hipMemcpy, (void*, const void*, size_t, int))                                                                      \
  F(hipMemset, (void*, int, size_t))                                                                                   \
  F(hipStreamCreate, (void**))                                                                                         \
  F(hipStreamSynchronize, (void*))                                                                                     \
  F(hipEventCreate, (void**))                                                                                          \
  F(hipEventRecord, (void*, void*))                                                                                    \
  F(hipEventElapsedTime, (float*, void*, void*))                                                                       \
  F(hipModuleLoadData, (void**, const void*))                                                                          \
  F(hipModuleGetFunction, (void**, void*, const char*))                                                                \
  F(hipModuleLaunchKernel, (void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,        \
                            void**, void**))                                                                           \
  F(hipGetLastError, (void))
#define DECLARE(name, arguments) static int(*name) arguments;
FUNCTIONS(DECLARE)
static const char* (*hipGetErrorString)(int);

static void* find(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (!found) printf("missing %s\n", name), exit(2);
  return found;
}
static void open_runtime(void) {
  void* library = dlopen("libamdhip64.so", RTLD_NOW | RTLD_LOCAL);
  if (!library) printf("%s\n", dlerror()), exit(2);
#define FIND(name, arguments) *(void**)&name = find(library, #name);
  FUNCTIONS(FIND)
  *(void**)&hipGetErrorString = find(library, "hipGetErrorString");
}
static char* contents(const char* path) {
  FILE* file = fopen(path, "rb");
  if (!file) perror(path), exit(2);
  char* bytes = malloc(1 << 20);
  const size_t size = fread(bytes, 1, 1 << 20, file);
  fclose(file);
  return size ? bytes : NULL;
}

enum { COUNT = 128 };

int main(int count, char** arguments) {
  open_runtime();
  int devices = 0, error = hipInit(0);
  hipGetDeviceCount(&devices);
  printf("init %d, devices %d\n", error, devices);
  void *module = NULL, *kernel, *in, *out, *stream, *start, *stop;
  for (int k = 2; k < count && !module; k++) {
    char* image = contents(arguments[k]);
    printf("load %d\n", hipModuleLoadData(&module, image));
    free(image);
  }
  if (!module) return 3;
  hipGetLastError();
  printf("absent %d\n", hipModuleGetFunction(&kernel, module, "absent"));
  error = hipModuleGetFunction(&kernel, module, "scale");
  printf("scale %d, last %d\n", error, hipGetLastError());
  float values[COUNT];
  for (int k = 0; k < COUNT; k++) values[k] = k - 60.f;
  hipMalloc(&in, sizeof values), hipMalloc(&out, sizeof values);
  if (!strcmp(arguments[1], "touch")) return *(volatile int*)in;
  hipStreamCreate(&stream), hipEventCreate(&start), hipEventCreate(&stop);
  hipMemcpy(in, values, sizeof values, 1);
  struct {
    void *in, *out;
    float factor;
    int count;
  } packed = {in, out, 2.5f, COUNT};
  if (!strcmp(arguments[1], "far")) packed.count = COUNT + 1;
  size_t bytes = sizeof packed;
  void* extra[] = {(void*)1, &packed, (void*)2, &bytes, (void*)3};
  hipEventRecord(start, stream);
  error = hipModuleLaunchKernel(kernel, 3, 1, 1, 64, 1, 1, 0, stream, NULL, extra);
  hipEventRecord(stop, stream);
  float milliseconds = -1;
  const int timed = hipEventElapsedTime(&milliseconds, start, stop);
  printf("launch %d, sync %d, %s\n", error, hipStreamSynchronize(stream), hipGetErrorString(error));
  if (error) return 4;
  printf("events %d, %s\n", timed, milliseconds > 0 ? "time went by" : "no time");
  hipMemcpy(values, out, sizeof values, 2);
  int wrong = 0;
  for (int k = 0; k < COUNT; k++) wrong += values[k] != 2.5f * (k - 60.f);
  hipMemset(out, 0, sizeof values), hipMemcpy(values, out, sizeof values, 2);
  printf("wrong %d, cleared %g\n", wrong, (double)values[100]);
  const int freed_in = hipFree(in), freed_out = hipFree(out);
  printf("free %d %d, again %d\n", freed_in, freed_out, hipFree(out));
  return 0;
}
