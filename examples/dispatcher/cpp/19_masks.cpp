// Masks: none, causal from the top left and from the bottom right, a window. One kernel serves all but none.
#include "example.hpp"

using namespace example;

int main(int count, char** words) {
  const Session session(options(count, words, "Runs each mask, 64 queries over 128 keys."));
  const Arrays arrays(1, 64, 128);
  std::map<std::string, std::string> kernels;
  for (const auto& [name, asked] : {std::pair<const char*, Asked>{"no_mask", {}},
                                    {"top_left", {-1, 0, true}},
                                    {"bottom_right", {-1, 0}},
                                    {"window_generic", {20, 5}}}) {
    ProblemBuilder builder = fp32(1, 64, 128).mask_type(name);
    if (asked.left >= 0) builder.window(asked.left, asked.right);
    const Problem problem = builder.build();
    kernels[name] = session.dispatcher.select(problem)->key().id();
    tilekiln_fmha_fwd_args args = arrays.forward();
    args.window_left = static_cast<int32_t>(asked.left), args.window_right = static_cast<int32_t>(asked.right);
    args.mask_origin = asked.top_left;
    const bool ran = session.run("fmha_fwd", args, &problem);
    std::printf("%-14s %s\n", name,
                ran ? verdict(arrays.out, attention(arrays.q, arrays.k, arrays.v, asked).out).c_str() : "planned");
  }
  std::printf("top_left and bottom_right share a kernel: %d; no_mask has another: %d\n",
              kernels["top_left"] == kernels["bottom_right"], kernels["no_mask"] != kernels["top_left"]);
  return 0;
}
