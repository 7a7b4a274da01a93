// Split-KV has two stages; both are planned, or neither.
#include "example.hpp"

using namespace example;

TILEKILN_KERNEL_SET(split_alone, .add(Signature("fwd_splitkv").dtype("bf16").hdim(128).lse(any),
                                      Algorithm().tile(64, 128), "gfx942"));

int main(int count, char** words) {
  const Options given = options(count, words, "Plans split-KV.");
  const Session session(given);
  for (const int splits : {1, 8}) {
    const Problem problem = fp32(1, 1, 4096).api_family("fwd_splitkv").num_splits(splits).build();
    std::printf("%d splits of %.1f MFLOP\n", splits, 1e-6 * static_cast<double>(problem.num_ops()));
    say(session.dispatcher.plan(problem));
  }
  // A set that declares the first stage alone makes no plan.
  Registry registry("split alone");
  registry.add_all(KernelSets::get("split_alone").listing());
  Dispatcher dispatcher(registry, "ck-gfx942");
  for (const auto& [name, stages] : given.library->operators()) dispatcher.add_operator(name, stages);
  std::printf("without its combine\n");
  say(dispatcher.plan(
      ProblemBuilder().api_family("fwd_splitkv").data_type("bf16").dims(128, 128, 1, 1, 4096).nheads(4, 4).build()));
  return 0;
}
