// SPDX-License-Identifier: MIT
// A forked child starts afresh: its calls use several threads, its inherited streams work, nothing hangs; the parent goes on.
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "check.h"
#include "tilekiln/tilekiln.h"

namespace {

constexpr int S = 300, H = 4, D = 48;
std::vector<float> q(S * H * D), out(S * H * D);
tilekiln_tensor tensors[2];

tilekiln_fmha_fwd_args make_args() {
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>((i * 7919) % 1000) / 500.0f - 1.0f;
  std::vector<float>* const arrays[] = {&q, &out};
  const int64_t shape[] = {1, S, H, D}, stride[] = {S * H * D, H * D, D, 1};
  for (int i = 0; i < 2; ++i) {
    tilekiln_tensor& t = tensors[i];
    t.data = arrays[i]->data();
    t.dtype = TILEKILN_FP32;
    t.ndim = 4;
    t.device_type = TILEKILN_CPU;
    for (int d = 0; d < 4; ++d) t.shape[d] = shape[d], t.stride[d] = stride[d];
  }
  tilekiln_fmha_fwd_args args = tilekiln_fmha_fwd_defaults();
  args.q = args.k = args.v = &tensors[0];
  args.out = &tensors[1];
  args.num_threads = 3;
  return args;
}

// Calls and streams as a process uses them; 0 when all is right.
int work(const tilekiln_fmha_fwd_args& args, tilekiln_stream* stream, const std::vector<float>& right) {
  for (int round = 0; round < 20; ++round) {
    std::fill(out.begin(), out.end(), -1.0f);
    if (tilekiln_fmha_fwd(&args) != TILEKILN_OK || out != right) return 1;
  }
  tilekiln_fmha_fwd_args streamed = args;
  streamed.stream = stream;
  std::fill(out.begin(), out.end(), -1.0f);
  if (tilekiln_fmha_fwd(&streamed) != TILEKILN_OK || tilekiln_stream_synchronize(stream) != TILEKILN_OK || out != right)
    return 2;
  tilekiln_stream* own = nullptr;
  if (tilekiln_stream_create(&own) != TILEKILN_OK) return 3;
  streamed.stream = own;
  std::fill(out.begin(), out.end(), -1.0f);
  if (tilekiln_fmha_fwd(&streamed) != TILEKILN_OK || tilekiln_stream_destroy(own) != TILEKILN_OK || out != right)
    return 4;
  return 0;
}

}  // namespace

int main() {
  alarm(120);  // a hang is a failure
  const tilekiln_fmha_fwd_args args = make_args();
  tilekiln_fmha_fwd_args alone = args;
  alone.num_threads = 1;
  CHECK(tilekiln_fmha_fwd(&alone) == TILEKILN_OK);
  const std::vector<float> right = out;
  tilekiln_stream* stream = nullptr;
  CHECK(tilekiln_stream_create(&stream) == TILEKILN_OK);
  CHECK(work(args, stream, right) == 0);

  // Forks at any moment: while a thread of the parent keeps the pool and a stream busy.
  bool stop = false;
  std::vector<float> busy_out(out.size());
  std::thread busy([&] {
    tilekiln_tensor target = tensors[1];
    target.data = busy_out.data();
    tilekiln_fmha_fwd_args more = args;
    more.out = &target;
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
      more.stream = nullptr;
      tilekiln_fmha_fwd(&more);
      more.stream = stream;
      tilekiln_fmha_fwd(&more);
    }
  });
  for (int round = 0; round < 12; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      int result = work(args, stream, right);
      // A grandchild too.
      const pid_t grandchild = fork();
      if (grandchild == 0) _exit(work(args, stream, right));
      int status = 0;
      waitpid(grandchild, &status, 0);
      if (status != 0) result = 9;
      // Ends as a program ends: exit handlers run while pool threads sleep.
      exit(result);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  __atomic_store_n(&stop, true, __ATOMIC_RELEASE);
  busy.join();
  CHECK(tilekiln_stream_synchronize(stream) == TILEKILN_OK);
  CHECK(work(args, stream, right) == 0);
  CHECK(tilekiln_stream_destroy(stream) == TILEKILN_OK);
  return check_result();
}
