// Deterministic gradients have the same bits in any number of threads; the others agree with float64 alike.
#include "gradients.hpp"

using namespace example;

int main(int count, char** words) {
  const Session session(options(count, words, "Runs the backward in 1, 2 and 3 threads."));
  const Backward call(1, 80, 160);
  for (const bool deterministic : {false, true}) {
    const Problem problem = fp32(1, 80, 160).api_family("bwd").lse(true).bwd_flags(false, false, deterministic).build();
    tilekiln_fmha_bwd_args args = call.args();
    args.deterministic = deterministic;
    std::vector<std::vector<unsigned char>> runs;
    for (const int threads : {1, 2, 3}) {
      args.num_threads = threads;
      if (!call.forward(session, args) || !session.run("fmha_bwd", args, &problem)) return std::printf("planned\n"), 0;
      runs.push_back(call.dq.raw());
    }
    std::printf("deterministic %d: %s", deterministic, call.verdict().c_str());
    if (deterministic) std::printf(", the same dq in 1, 2 and 3 threads: %d", runs[0] == runs[1] && runs[0] == runs[2]);
    std::printf("\n");
  }
  return 0;
}
