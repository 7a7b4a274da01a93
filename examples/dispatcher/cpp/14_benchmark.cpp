// Time a call: cold runs, repeats, a flushed cache, rotating buffers; and check that it computed something.
#include "example.hpp"

using namespace example;

int main(int count, char** words) {
  Session session(options(count, words, "Times one attention (the figures go to standard error) and checks it."));
  const Arrays first(1, 128, 128), second(1, 128, 128);
  const Problem problem = fp32(1, 128, 128).build();
  const tilekiln_fmha_fwd_args one = first.forward(), two = second.forward();
  session.dispatcher.timing().set(2, 6).flush_bytes = 1 << 20;
  if (session.planned) return std::printf("planned: nothing to time\n"), 0;
  const Times times = session.dispatcher.run(problem, {Call("fmha_fwd", one), Call("fmha_fwd", two)});
  std::fprintf(stderr, "%.3f ms, %.1f GFLOP/s\n", times.median,
               1e-6 * static_cast<double>(problem.num_ops()) / times.median);
  std::printf("%d runs, min <= median <= max: %d\n", times.runs,
              0 < times.min && times.min <= times.median && times.median <= times.max);
  const std::vector<double> expected = attention(first.q, first.k, first.v).out;
  std::printf("first %s, second %s\n", verdict(first.out, expected).c_str(), verdict(second.out, expected).c_str());
  session.dispatcher.set_benchmarking(false);
  std::printf("benchmarking off: %d timed runs\n", session.dispatcher.run(problem, Call("fmha_fwd", one)).runs);
  return 0;
}
