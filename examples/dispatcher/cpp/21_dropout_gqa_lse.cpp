// Dropout by seed, grouped heads, and the log-sum-exp.
#include "example.hpp"

using namespace example;

int main(int count, char** words) {
  const Session session(options(count, words, "Runs dropout, grouped heads and LSE."));
  if (session.planned) return say(session.dispatcher.plan(fp32(1, 96, 96, 8, 2).dropout(true).lse(true).build())), 0;
  const Arrays arrays(1, 96, 96, 8, 2);
  const Expected expected = attention(arrays.q, arrays.k, arrays.v);
  tilekiln_fmha_fwd_args args = arrays.forward();
  args.lse = arrays.lse.tensor();
  session.run("fmha_fwd", args);
  std::printf("8 heads of q over 2 of k: out %s, lse %s\n", verdict(arrays.out, expected.out).c_str(),
              verdict(arrays.lse, expected.lse).c_str());

  const Array randval = Array::bytes({1, 8, 96, 96});
  args.dropout_p = 0.25f, args.rng_seed = 7, args.randval = randval.tensor();
  session.run("fmha_fwd", args);
  const std::vector<unsigned char> first = arrays.out.raw();
  session.run("fmha_fwd", args);
  std::printf("the same seed, the same bits: %d\n", arrays.out.raw() == first);
  double kept = 0;
  for (size_t i = 0; i < randval.size(); ++i) kept += randval[i] < 192;
  std::printf("kept about three quarters: %d\n", std::fabs(kept / static_cast<double>(randval.size()) - 0.75) < 0.01);
  std::printf("lse is that without dropout: %s\n", verdict(arrays.lse, expected.lse).c_str());
  args.rng_seed = 8;
  session.run("fmha_fwd", args);
  std::printf("another seed, other bits: %d\n", arrays.out.raw() != first);
  return 0;
}
