// Declare kernels, register those of a library, plan, run, compare.
#include "example.hpp"

using namespace example;

TILEKILN_KERNEL_SET(basic, .add(Signature("fwd").dtype("fp32").hdim(64).lse(any), Algorithm().tile_m0(64)));

int main(int count, char** words) {
  const Options given = options(count, words, "Plans, runs and checks one attention.");
  const KernelSet set = KernelSets::get("basic");
  Registry registry("basic");
  registry.add_all(set.of(given.library));
  std::printf("set %s: %zu declaration, %zu kernels\n", set.tag().c_str(), set.size(), registry.size());

  Dispatcher dispatcher(registry);
  for (const auto& [name, stages] : given.library->operators()) dispatcher.add_operator(name, stages);
  const Problem problem = fp32(2, 64, 128).build();
  const Plan plan = dispatcher.plan(problem);
  say(plan);

  const Arrays arrays(2, 64, 128);
  const tilekiln_fmha_fwd_args args = arrays.forward();
  dispatcher.run(problem, Call("fmha_fwd", args));
  std::printf("out %s\n", verdict(arrays.out, attention(arrays.q, arrays.k, arrays.v).out).c_str());
  return 0;
}
