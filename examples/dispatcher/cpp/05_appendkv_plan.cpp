// Append to a KV cache of pages of 16 tokens, with interleaved RoPE; with and without the attention over it.
#include "example.hpp"

using namespace example;

int main(int count, char** words) {
  const Session session(options(count, words, "Plans an append to a paged cache."));
  const auto append = [] {
    return fp32(2, 1, 512)
        .api_family("fwd_appendkv")
        .rope_type("interleaved")
        .paged_kv(true)
        .set("page_size", 16)
        .set("rotary_dim", 64);
  };
  std::printf("append alone\n");
  say(session.dispatcher.plan(append().build()));
  std::printf("append and attend\n");
  say(session.dispatcher.plan(append().set("attend", true).mask_type("causal").build()));
  std::printf("half-rotated, contiguous\n");
  say(session.dispatcher.plan(append().rope_type("half_rotated").paged_kv(false).build()));
  return 0;
}
