// SPDX-License-Identifier: MIT
// Everything that runs at once: callers, pool, streams, a caller's executor, calls within calls. Results are compared bit for bit
// with those of one thread. Built for ThreadSanitizer too; runs on any library with fp32.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "check.h"
#include "tilekiln/tilekiln.h"

namespace {

// Enough work for the pool to be woken, little enough for a sanitizer.
constexpr int B = 2, S = 200, H = 4, D = 48;

struct Problem {
  std::vector<float> q, k, v, out;
  tilekiln_tensor tensors[4] = {};
  tilekiln_fmha_fwd_args args = tilekiln_fmha_fwd_defaults();

  explicit Problem(unsigned seed) : out(size_t(B) * S * H * D, -1) {
    for (auto* data : {&q, &k, &v}) {
      data->resize(out.size());
      for (float& x : *data) {
        seed = seed * 1664525u + 1013904223u;
        x = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
      }
    }
    std::vector<float>* const arrays[] = {&q, &k, &v, &out};
    const int64_t shape[] = {B, S, H, D};
    for (int i = 0; i < 4; ++i) {
      tilekiln_tensor& t = tensors[i];
      t.data = arrays[i]->data();
      t.dtype = TILEKILN_FP32;
      t.ndim = 4;
      t.device_type = TILEKILN_CPU;
      int64_t stride = 1;
      for (int d = 3; d >= 0; --d) {
        t.shape[d] = shape[d];
        t.stride[d] = stride;
        stride *= shape[d];
      }
    }
    args.q = &tensors[0];
    args.k = &tensors[1];
    args.v = &tensors[2];
    args.out = &tensors[3];
    args.num_threads = 1;
  }
  Problem(const Problem&) = delete;
  tilekiln_status run() { return tilekiln_fmha_fwd(&args); }
};

std::vector<float> expected(unsigned seed) {
  Problem problem(seed);
  if (problem.run() != TILEKILN_OK) fprintf(stderr, "%s\n", tilekiln_last_error());
  return problem.out;
}

std::atomic<int> failures = 0;
// The check macros count without locks: threads note what failed here, main checks it.
void expect(bool held) {
  if (!held) ++failures;
}

void run_all(std::vector<std::thread>& threads) {
  for (std::thread& thread : threads) thread.join();
  CHECK(failures == 0);
}

void callers() {
  constexpr int count = 4;
  std::vector<std::vector<float>> right;
  for (int i = 0; i < count; ++i) right.push_back(expected(i));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      Problem problem(i);
      for (int round = 0; round < 12; ++round) {
        problem.args.num_threads = 1 + (i + round) % 4;
        std::fill(problem.out.begin(), problem.out.end(), -1.0f);
        expect(problem.run() == TILEKILN_OK);
        expect(problem.out == right[i]);
        // Errors belong to the thread that made them.
        problem.args.causal = 5 + i;
        expect(problem.run() == TILEKILN_INVALID_ARGUMENT);
        char text[64];
        snprintf(text, sizeof(text), "causal: was %d, must be 0 or 1", 5 + i);
        expect(strcmp(tilekiln_last_error(), text) == 0);
        problem.args.causal = 0;
      }
    });
  }
  run_all(threads);
}

void streams() {
  constexpr int count = 3, rounds = 8;
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([i] {
      const std::vector<float> right = expected(100 + i);
      Problem problem(100 + i);
      tilekiln_stream* stream = nullptr;
      expect(tilekiln_stream_create(&stream) == TILEKILN_OK);
      struct Order {
        Problem* problem;
        const std::vector<float>* right;
        int ran = 0;
      } order = {&problem, &right};
      problem.args.stream = stream;
      problem.args.num_threads = 2;
      for (int round = 0; round < rounds; ++round) {
        // Calls stay in order: the host function sees the call before it done, and spoils the result for the one after it.
        tilekiln_fmha_fwd_args args = problem.args;  // the struct may go as soon as the call returns
        tilekiln_tensor tensors[4];
        std::copy(problem.tensors, problem.tensors + 4, tensors);
        args.q = &tensors[0], args.k = &tensors[1], args.v = &tensors[2], args.out = &tensors[3];
        expect(tilekiln_fmha_fwd(&args) == TILEKILN_OK);
        args.size = 0;
        expect(tilekiln_stream_launch_host(
                   stream,
                   [](void* context) {
                     Order& o = *static_cast<Order*>(context);
                     expect(o.problem->out == *o.right);
                     std::fill(o.problem->out.begin(), o.problem->out.end(), -1.0f);
                     ++o.ran;
                   },
                   &order) == TILEKILN_OK);
        if (round == rounds / 2) expect(tilekiln_stream_synchronize(stream) == TILEKILN_OK && order.ran == round + 1);
      }
      int32_t idle = -1;
      expect(tilekiln_stream_query(stream, &idle) == TILEKILN_OK && (idle == 0 || idle == 1));
      expect(tilekiln_stream_destroy(stream) == TILEKILN_OK);  // waits
      expect(order.ran == rounds);
    });
  }
  run_all(threads);
}

// A pool as a framework has one: its own threads, tasks from a queue.
class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this, i] { serve(i); });
  }
  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  void run(int64_t count, const std::function<void(int64_t, int32_t)>& task) {
    std::unique_lock lock(mutex_);
    int64_t left = count;
    for (int64_t i = 0; i < count; ++i) {
      queue_.push_back([&, i](int32_t worker) {
        task(i, worker);
        std::lock_guard done(mutex_);
        if (--left == 0) ended_.notify_all();
      });
    }
    wake_.notify_all();
    ended_.wait(lock, [&] { return left == 0; });
  }

 private:
  void serve(int32_t worker) {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      auto task = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      task(worker);
      lock.lock();
    }
  }
  std::mutex mutex_;
  std::condition_variable wake_, ended_;
  std::deque<std::function<void(int32_t)>> queue_;
  std::vector<std::thread> threads_;
  bool stop_ = false;
};

void executors() {
  const std::vector<float> right = expected(7);
  Pool pool(3);
  const tilekiln_executor executor = {sizeof(tilekiln_executor),
                                      [](void* own, int64_t count, int32_t, tilekiln_task task, void* context) {
                                        static_cast<Pool*>(own)->run(
                                            count, [&](int64_t i, int32_t worker) { task(context, i, worker); });
                                      },
                                      &pool, 3};
  Problem problem(7);
  problem.args.num_threads = 0;
  problem.args.executor = &executor;
  for (int round = 0; round < 5; ++round) {
    std::fill(problem.out.begin(), problem.out.end(), -1.0f);
    CHECK(problem.run() == TILEKILN_OK);
    CHECK(problem.out == right);
  }
  // An executor that runs nothing at all: the call is still complete when it returns.
  const tilekiln_executor idle = {sizeof(tilekiln_executor), [](void*, int64_t, int32_t, tilekiln_task, void*) {},
                                  nullptr, 4};
  problem.args.executor = &idle;
  std::fill(problem.out.begin(), problem.out.end(), -1.0f);
  CHECK(problem.run() == TILEKILN_OK);
  CHECK(problem.out == right);

  // Calls from within the tasks of an executor, onto the library's pool and in streams: nothing waits for itself.
  pool.run(6, [&](int64_t i, int32_t) {
    const unsigned seed = 200 + static_cast<unsigned>(i);
    Problem inner(seed);
    inner.args.num_threads = 3;
    expect(inner.run() == TILEKILN_OK);
    expect(inner.out == expected(seed));
    std::fill(inner.out.begin(), inner.out.end(), -1.0f);
    tilekiln_stream* stream = nullptr;
    expect(tilekiln_stream_create(&stream) == TILEKILN_OK);
    inner.args.stream = stream;
    expect(inner.run() == TILEKILN_OK);
    expect(tilekiln_stream_destroy(stream) == TILEKILN_OK);
    expect(inner.out == expected(seed));
  });
  CHECK(failures == 0);
}

void from_a_stream() {
  // A host function may call, and may enqueue into its own stream; it may not wait for it.
  tilekiln_stream* stream = nullptr;
  CHECK(tilekiln_stream_create(&stream) == TILEKILN_OK);
  struct Context {
    tilekiln_stream* stream;
    Problem problem{11};
    tilekiln_status ran = -1, waited = -1, waited_shortly = -1, destroyed = -1;
    int later = 0;
  } context = {stream};
  CHECK(tilekiln_stream_launch_host(
            stream,
            [](void* pointer) {
              Context& c = *static_cast<Context*>(pointer);
              c.problem.args.num_threads = 3;
              c.ran = c.problem.run();
              c.waited = tilekiln_stream_synchronize(c.stream);
              uint64_t mark = 0;
              int32_t passed = 0;
              c.waited_shortly = tilekiln_stream_wait(c.stream, 1, &mark, &passed);
              c.destroyed = tilekiln_stream_destroy(c.stream);
              expect(tilekiln_stream_launch_host(
                         c.stream, [](void* more) { ++static_cast<Context*>(more)->later; }, pointer) == TILEKILN_OK);
            },
            &context) == TILEKILN_OK);
  CHECK(tilekiln_stream_destroy(stream) == TILEKILN_OK);
  CHECK(context.ran == TILEKILN_OK && context.problem.out == expected(11));
  CHECK(context.waited == TILEKILN_INVALID_ARGUMENT && context.destroyed == TILEKILN_INVALID_ARGUMENT);
  CHECK(context.waited_shortly == TILEKILN_INVALID_ARGUMENT && context.later == 1);
  CHECK(failures == 0);
}

void waits() {
  // A wait ends with its time or with what was enqueued before it, whatever comes later.
  tilekiln_stream* stream = nullptr;
  CHECK(tilekiln_stream_create(&stream) == TILEKILN_OK);
  std::atomic<bool> first = false, second = false;
  const auto until = [](void* flag) {
    while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
  };
  uint64_t mark = 0;
  int32_t passed = -1;
  CHECK(tilekiln_stream_wait(stream, 0, &mark, &passed) == TILEKILN_OK && passed == 1 && mark == 0);
  CHECK(tilekiln_stream_launch_host(stream, until, &first) == TILEKILN_OK);
  CHECK(tilekiln_stream_wait(stream, 1000000, &mark, &passed) == TILEKILN_OK && passed == 0 && mark == 1);
  CHECK(tilekiln_stream_launch_host(stream, until, &second) == TILEKILN_OK);
  first = true;
  CHECK(tilekiln_stream_wait(stream, INT64_MAX, &mark, &passed) == TILEKILN_OK && passed == 1 && mark == 1);
  int32_t idle = -1;
  CHECK(tilekiln_stream_query(stream, &idle) == TILEKILN_OK && idle == 0);
  second = true;
  mark = 0;
  CHECK(tilekiln_stream_wait(stream, INT64_MAX, &mark, &passed) == TILEKILN_OK && passed == 1 && mark == 2);
  CHECK(tilekiln_stream_destroy(stream) == TILEKILN_OK);
}

void endings() {
  // Threads that come, call and go leave nothing behind that the next one trips over.
  const std::vector<float> right = expected(3);
  for (int round = 0; round < 6; ++round) {
    std::thread([&] {
      Problem problem(3);
      problem.args.num_threads = 1 + round % 3;
      expect(problem.run() == TILEKILN_OK && problem.out == right);
    }).join();
  }
  CHECK(failures == 0);
}

}  // namespace

int main() {
  callers();
  streams();
  executors();
  from_a_stream();
  waits();
  endings();
  return check_result();
}
