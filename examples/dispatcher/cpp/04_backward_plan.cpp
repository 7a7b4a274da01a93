// The backward has three stages: dot_do_o, dq_dk_dv, convert_dq. The last is planned where there is a kernel of it.
#include "example.hpp"

using namespace example;

int main(int count, char** words) {
  const Session session(options(count, words, "Plans the backward."));
  const auto backward = [] { return fp32(1, 128, 128).api_family("bwd").lse(true); };
  say(session.dispatcher.plan(backward().build()));
  std::printf("deterministic, causal, dropout\n");
  say(session.dispatcher.plan(backward().mask_type("causal").dropout(true).bwd_flags(false, false, true).build()));

  Registry without("without convert_dq");
  without.add_all(
      session.registry.filter([](const Instance& one) { return one.key().family != "fmha_bwd_convert_dq"; }));
  Dispatcher two(without);
  two.add_operator("fmha_bwd", {{"fmha_bwd_dot_do_o", "fmha_bwd_dq_dk_dv", "fmha_bwd_convert_dq"},
                                "fmha_bwd_dq_dk_dv",
                                {{"fmha_bwd_convert_dq", "found"}}});
  std::printf("without convert_dq: %zu stages\n", two.plan(backward().build()).stages.size());
  try {
    fp32(1, 128, 128).api_family("bwd").build();
  } catch (const std::invalid_argument& error) {
    std::printf("%s\n", error.what());
  }
  return 0;
}
