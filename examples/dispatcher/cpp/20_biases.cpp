// Biases: none, an array, alibi.
#include "example.hpp"

using namespace example;

int main(int count, char** words) {
  const Session session(options(count, words, "Runs each bias."));
  const Arrays arrays(1, 64, 96);
  const Array bias({1, 1, 64, 96}, 5);
  Array slopes({4});
  for (size_t h = 0; h < 4; ++h) slopes.set(h, std::pow(2.f, -2.f * static_cast<float>(h + 1)));
  for (const char* name : {"no_bias", "elementwise", "alibi"}) {
    const Problem problem = fp32(1, 64, 96).bias_type(name).build();
    tilekiln_fmha_fwd_args args = arrays.forward();
    Asked asked;
    if (problem["bias"] == Value("elementwise")) args.bias = bias.tensor(), asked.bias = &bias;
    if (problem["bias"] == Value("alibi")) args.alibi_slopes = slopes.tensor(), asked.alibi_slopes = &slopes;
    const bool ran = session.run("fmha_fwd", args, &problem);
    std::printf("%-12s %s\n", name,
                ran ? verdict(arrays.out, attention(arrays.q, arrays.k, arrays.v, asked).out).c_str() : "planned");
  }
  return 0;
}
