// SPDX-License-Identifier: MIT
// Libraries come and go with dlopen, two of them in one process: each has its own pool and its own errors, no thread runs before a
// call, and closing one while its threads sleep is harmless.
#include <dirent.h>
#include <dlfcn.h>
#include <unistd.h>

#include <vector>

#include "check.h"
#include "tilekiln/tilekiln.h"

namespace {

int threads_now() {
  int count = 0;
  DIR* directory = opendir("/proc/self/task");
  while (const dirent* entry = readdir(directory)) count += entry->d_name[0] != '.';
  closedir(directory);
  return count;
}

struct Library {
  void* handle;
  decltype(&tilekiln_fmha_fwd) fwd;
  decltype(&tilekiln_last_error) last_error;
  decltype(&tilekiln_receipt) receipt;
  explicit Library(const char* path) : handle(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (handle == nullptr) fprintf(stderr, "%s\n", dlerror());
    fwd = reinterpret_cast<decltype(fwd)>(dlsym(handle, "tilekiln_fmha_fwd"));
    last_error = reinterpret_cast<decltype(last_error)>(dlsym(handle, "tilekiln_last_error"));
    receipt = reinterpret_cast<decltype(receipt)>(dlsym(handle, "tilekiln_receipt"));
  }
};

}  // namespace

int main(int count, char** paths) {
  if (count != 3) return fprintf(stderr, "usage: load LIBRARY LIBRARY\n"), 2;
  constexpr int S = 512, H = 4, D = 48;
  std::vector<float> q(S * H * D, 0.5f), out(q.size());
  tilekiln_tensor tensors[2] = {};
  for (int i = 0; i < 2; ++i) {
    tensors[i] = {(i == 0 ? q : out).data(), TILEKILN_FP32, 4, TILEKILN_CPU, 0, {1, S, H, D}, {S * H * D, H * D, D, 1}};
  }
  tilekiln_fmha_fwd_args args = tilekiln_fmha_fwd_defaults();
  args.q = args.k = args.v = &tensors[0];
  args.out = &tensors[1];
  const int before = threads_now();
  Library first(paths[1]), second(paths[2]);
  CHECK(threads_now() == before);
  CHECK(strcmp(first.receipt(), second.receipt()) != 0);
  args.num_threads = 3;
  CHECK(first.fwd(&args) == TILEKILN_OK);
  CHECK(out[0] == 0.5f && out.back() == 0.5f);
  CHECK(threads_now() == before + 2);
  CHECK(second.fwd(&args) == TILEKILN_OK);
  CHECK(threads_now() == before + 4);
  args.causal = 9;
  CHECK(second.fwd(&args) == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(second.last_error(), "causal: was 9, must be 0 or 1");
  CHECK_TEXT(first.last_error(), "");
  args.causal = 0;
  CHECK(dlclose(first.handle) == 0);
  usleep(20000);  // sleepers that lost their code would fall over by now
  CHECK(second.fwd(&args) == TILEKILN_OK);
  Library again(paths[1]);
  CHECK(again.fwd(&args) == TILEKILN_OK);
  CHECK(dlclose(again.handle) == 0 && dlclose(second.handle) == 0);
  return check_result();
}
