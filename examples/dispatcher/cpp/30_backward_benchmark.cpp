// Time backwards of several batches and lengths.
#include "gradients.hpp"

using namespace example;

int main(int count, char** words) {
  Session session(options(count, words, "Times backwards (the figures go to standard error)."));
  session.dispatcher.timing().set(1, 3);
  for (const auto& [batch, seqlen] : {std::pair{1, 32}, {1, 96}, {2, 96}}) {
    const Problem problem = fp32(batch, seqlen, seqlen).api_family("bwd").lse(true).build();
    if (session.planned) {
      say(session.dispatcher.plan(problem));
      continue;
    }
    const Backward call(batch, seqlen, seqlen);
    const tilekiln_fmha_bwd_args args = call.args();
    call.forward(session, args);
    const Times times = session.dispatcher.run(problem, Call("fmha_bwd", args));
    // Five products of the size of the forward's two.
    std::fprintf(stderr, "%.3f ms, %.1f GFLOP/s\n", times.median,
                 2.5e-6 * static_cast<double>(problem.num_ops()) / times.median);
    std::printf("batch %d, seqlen %d: %d runs, min <= median <= max: %d, %s\n", batch, seqlen, times.runs,
                times.min <= times.median && times.median <= times.max, call.verdict().c_str());
  }
  return 0;
}
