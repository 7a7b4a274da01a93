// Backward with alibi and dropout, in any order and in one: the forward's random numbers again, by their seed.
#include "gradients.hpp"

using namespace example;

int main(int count, char** words) {
  const Session session(options(count, words, "Runs the backward with alibi and dropout."));
  const Backward call(1, 48, 48);
  Array slopes({4});
  for (size_t h = 0; h < 4; ++h) slopes.set(h, std::pow(2.f, -2.f * static_cast<float>(h + 1)));
  Asked asked;
  asked.alibi_slopes = &slopes;
  for (const bool deterministic : {false, true}) {
    const Problem problem = fp32(1, 48, 48)
                                .api_family("bwd")
                                .bias_type("alibi")
                                .lse(true)
                                .dropout(true)
                                .bwd_flags(false, true, deterministic)
                                .build();
    say(session.dispatcher.plan(problem));
    tilekiln_fmha_bwd_args args = call.args();
    args.alibi_slopes = slopes.tensor(), args.deterministic = deterministic;
    if (!call.forward(session, args) || !session.run("fmha_bwd", args)) continue;
    std::printf("without dropout: %s\n", call.verdict(asked).c_str());
    const Array forward = Array::bytes({1, 4, 48, 48}), backward = Array::bytes({1, 4, 48, 48});
    args.dropout_p = 0.25f, args.rng_seed = 7, args.randval = backward.tensor();
    call.forward(session, args, forward.tensor());
    session.run("fmha_bwd", args, &problem);
    const std::vector<unsigned char> first = call.dk.raw();
    session.run("fmha_bwd", args, &problem);
    std::printf("the forward's random bytes: %d; again the same dk: %d\n", forward.raw() == backward.raw(),
                first == call.dk.raw());
  }
  return 0;
}
