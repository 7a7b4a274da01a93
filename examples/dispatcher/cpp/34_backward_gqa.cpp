// Backward of grouped heads, 8 of q over 2 of k and v: dk and dv are sums over a group.
#include "gradients.hpp"

using namespace example;

int main(int count, char** words) {
  const Session session(options(count, words, "Runs the backward of 8 heads over 8, 2 and 1."));
  for (const int64_t nhead_k : {8, 2, 1}) {
    const Backward call(1, 40, 56, 8, nhead_k);
    const Problem problem = fp32(1, 40, 56, 8, nhead_k).api_family("bwd").lse(true).build();
    const tilekiln_fmha_bwd_args args = call.args();
    const bool ran = call.forward(session, args) && session.run("fmha_bwd", args, &problem);
    std::printf("8 heads over %lld: %s\n", static_cast<long long>(nhead_k), ran ? call.verdict().c_str() : "planned");
  }
  return 0;
}
