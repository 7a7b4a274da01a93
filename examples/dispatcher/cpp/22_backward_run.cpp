// Forward, then backward: out and LSE in, the gradients of q, k and v out; planned where there is no device.
#include "gradients.hpp"

using namespace example;

int main(int count, char** words) {
  const Session session(options(count, words, "Runs forward and backward."));
  const Arrays arrays(1, 64, 80);
  const Array dout({1, 64, 4, 64}, 4), dq({1, 64, 4, 64}), dk({1, 80, 4, 64}), dv({1, 80, 4, 64});
  tilekiln_fmha_fwd_args forward = arrays.forward();
  forward.causal = 1, forward.lse = arrays.lse.tensor();
  tilekiln_fmha_bwd_args args = tilekiln_fmha_bwd_defaults();
  args.q = arrays.q.tensor(), args.k = arrays.k.tensor(), args.v = arrays.v.tensor(), args.out = arrays.out.tensor(),
  args.lse = arrays.lse.tensor();
  args.dout = dout.tensor(), args.dq = dq.tensor(), args.dk = dk.tensor(), args.dv = dv.tensor(), args.causal = 1;
  const Problem problem = fp32(1, 64, 80).api_family("bwd").mask_type("bottom_right").lse(true).build();
  say(session.dispatcher.plan(problem));
  if (!session.run("fmha_fwd", forward) || !session.run("fmha_bwd", args, &problem)) return std::printf("planned\n"), 0;
  const Gradients expected = gradients(arrays, dout, {-1, 0});
  std::printf("dq %s\ndk %s\ndv %s\n", verdict(dq, expected.q, 5e-5).c_str(), verdict(dk, expected.k, 5e-5).c_str(),
              verdict(dv, expected.v, 5e-5).c_str());
  return 0;
}
