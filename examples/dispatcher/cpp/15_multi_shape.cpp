// One kernel for many shapes.
#include "example.hpp"

using namespace example;

int main(int count, char** words) {
  const Session session(options(count, words, "Runs one kernel over many shapes."));
  std::set<std::string> kernels;
  for (const auto& [batch, seqlen_q, seqlen_k] :
       {std::array<int64_t, 3>{1, 1, 128}, {1, 7, 7}, {2, 64, 64}, {1, 100, 33}, {1, 64, 200}}) {
    const Arrays arrays(batch, seqlen_q, seqlen_k);
    const Problem problem = fp32(batch, seqlen_q, seqlen_k).build();
    kernels.insert(session.dispatcher.select(problem)->key().id());
    const tilekiln_fmha_fwd_args args = arrays.forward();
    const bool ran = session.run("fmha_fwd", args, &problem);
    std::printf("%d x %3d x %3d %s\n", static_cast<int>(batch), static_cast<int>(seqlen_q), static_cast<int>(seqlen_k),
                ran ? verdict(arrays.out, attention(arrays.q, arrays.k, arrays.v).out).c_str() : "planned");
  }
  std::printf("kernels: %zu\n", kernels.size());
  return 0;
}
