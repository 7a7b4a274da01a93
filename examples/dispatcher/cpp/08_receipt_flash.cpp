// Problems that the receipt flash answers: no bias or alibi, soft cap, split-KV.
#include "receipts.hpp"

using namespace example;

int main(int count, char** words) {
  const Options given = options(count, words, "Shows what receipt flash answers.");
  table(one_listing(given),
        {{"fp16 causal with lse", of("fp16").mask_type("causal").lse(true).build()},
         {"alibi and a soft cap", of("bf16").lse(true).bias_type("alibi").logits_soft_cap(true).build()},
         {"elementwise bias", of("bf16").lse(true).bias_type("elementwise").build()},
         {"split-KV", of("bf16").api_family("fwd_splitkv").lse(true).num_splits(4).build()},
         {"min_seqlen_q", of("bf16").skip_min_seqlen_q(true).build()}});
  return 0;
}
