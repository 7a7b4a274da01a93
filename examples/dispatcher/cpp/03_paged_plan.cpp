// A paged KV cache: prefill from it, decode over it, and what takes no pages.
#include "example.hpp"

using namespace example;

int main(int count, char** words) {
  const Session session(options(count, words, "Plans attention over a paged cache."));
  const auto cache = [](const char* family, int64_t seqlen_q) {
    return fp32(2, seqlen_q, 1024).api_family(family).set("has_block_table", true).set("page_size", 64);
  };
  std::printf("prefill\n");
  say(session.dispatcher.plan(cache("fwd_pagedkv", 128).mask_type("causal").build()));
  std::printf("prefill, varlen\n");
  say(session.dispatcher.plan(cache("fwd_pagedkv", 128).group_mode(true).max_seqlen(128, 1024).build()));
  std::printf("decode\n");
  say(session.dispatcher.plan(cache("fwd_splitkv", 1).paged_kv(true).num_splits(4).build()));
  std::printf("plain forward\n");
  say(session.dispatcher.plan(cache("fwd", 128).paged_kv(true).build()));
  return 0;
}
