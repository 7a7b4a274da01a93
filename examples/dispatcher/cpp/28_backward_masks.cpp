// Backward through masks: none, causal from the top left and from the bottom right, a window.
#include "gradients.hpp"

using namespace example;

int main(int count, char** words) {
  const Session session(options(count, words, "Runs the backward of each mask, 48 queries over 80 keys."));
  const Backward call(1, 48, 80);
  for (const auto& [name, asked] : {std::pair<const char*, Asked>{"no_mask", {}},
                                    {"top_left", {-1, 0, true}},
                                    {"bottom_right", {-1, 0}},
                                    {"window_generic", {20, 5}}}) {
    ProblemBuilder builder = fp32(1, 48, 80).api_family("bwd").mask_type(name).lse(true);
    if (asked.left >= 0) builder.window(asked.left, asked.right);
    const Problem problem = builder.build();
    tilekiln_fmha_bwd_args args = call.args();
    args.window_left = static_cast<int32_t>(asked.left), args.window_right = static_cast<int32_t>(asked.right);
    args.mask_origin = asked.top_left;
    const bool ran = call.forward(session, args) && session.run("fmha_bwd", args, &problem);
    std::printf("%-14s %s\n", name, ran ? call.verdict(asked).c_str() : "planned");
  }
  return 0;
}
