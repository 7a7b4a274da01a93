// A table of features: whether a kernel here has each.
#include "example.hpp"

using namespace example;

int main(int count, char** words) {
  const Session session(options(count, words, "A table of features."));
  const auto bf16 = [](int64_t hdim) {
    return ProblemBuilder().data_type("bf16").dims(hdim, hdim, 2, 128, 128).nheads(16, 4);
  };
  const std::pair<const char*, Problem> all[] = {
      {"bf16", bf16(128).build()},
      {"head dim 64", bf16(64).build()},
      {"head dim 256", bf16(256).build()},
      {"mask top-left", fp32(2, 64, 128).mask_type("top_left").build()},
      {"mask bottom-right", fp32(2, 64, 128).mask_type("bottom_right").build()},
      {"dropout", fp32(2, 128, 128).dropout(true).build()},
      {"grouped heads 16:4", fp32(2, 128, 128, 16, 4).build()},
      {"elementwise bias", fp32(2, 128, 128).bias_type("elementwise").build()},
      {"alibi", fp32(2, 128, 128).bias_type("alibi").build()},
      {"group mode", fp32(2, 128, 128).group_mode(true).max_seqlen(128, 128).build()},
      {"sinks", fp32(2, 128, 128).sink_size(4).window(32, 0).build()},
      {"soft cap", fp32(2, 128, 128).logits_soft_cap(true).build()},
      {"soft cap and a bias", fp32(2, 128, 128).logits_soft_cap(true).bias_type("elementwise").build()},
      {"column-major v", fp32(2, 128, 128).v_rowmajor(false).build()},
  };
  for (const auto& [name, problem] : all)
    std::printf("%-20s %s\n", name, session.dispatcher.plan(problem).is_valid() ? "yes" : "no");
  return 0;
}
