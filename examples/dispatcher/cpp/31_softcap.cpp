// Scores that are capped: cap tanh(s / cap). The smaller the cap, the flatter the weights.
#include "example.hpp"

using namespace example;

int main(int count, char** words) {
  const Session session(options(count, words, "Runs soft caps of 50, 5 and 0.5."));
  const Arrays arrays(1, 64, 96);
  const Problem problem = fp32(1, 64, 96).logits_soft_cap(true).build();
  say(session.dispatcher.plan(problem));
  for (const float cap : {50.f, 5.f, 0.5f}) {
    tilekiln_fmha_fwd_args args = arrays.forward();
    args.softcap = cap;
    Asked asked;
    asked.softcap = static_cast<double>(cap);
    if (!session.run("fmha_fwd", args, &problem)) return std::printf("planned\n"), 0;
    const Expected expected = attention(arrays.q, arrays.k, arrays.v, asked);
    const double most = *std::max_element(expected.weights.begin(), expected.weights.end());
    std::printf("cap %4.1f: largest weight %.3f, out %s\n", static_cast<double>(cap), most,
                verdict(arrays.out, expected.out).c_str());
  }
  return 0;
}
