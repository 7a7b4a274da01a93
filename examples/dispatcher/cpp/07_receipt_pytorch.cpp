// Problems that the receipt pytorch answers: 16-bit, elementwise bias, neither soft cap nor scales.
#include "receipts.hpp"

using namespace example;

int main(int count, char** words) {
  const Options given = options(count, words, "Shows what receipt pytorch answers.");
  table(one_listing(given),
        {{"bf16 with lse", of("bf16").lse(true).build()},
         {"elementwise bias", of("bf16").lse(true).bias_type("elementwise").build()},
         {"bwd with a bias gradient",
          of("bf16").api_family("bwd").lse(true).bias_type("elementwise").bwd_flags(true, false, false).build()},
         {"soft cap", of("bf16").lse(true).logits_soft_cap(true).build()},
         {"fp8bf16", of("fp8bf16").qscale_type("pertensor").build()}});
  return 0;
}
