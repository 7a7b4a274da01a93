// Problems that the receipts of aiter answer: by mode, with fp8.
#include "receipts.hpp"

using namespace example;

int main(int count, char** words) {
  const Options given = options(count, words, "Shows what aiter's receipts answer: give the listing of each.");
  one_listing(given);
  for (const Listing& listing : given.listings)
    table(listing, {{"bf16, batch", of("bf16").lse(true).build()},
                    {"bf16, group", of("bf16").lse(true).group_mode(true).max_seqlen(128, 128).build()},
                    {"fp8bf16, batch", of("fp8bf16").qscale_type("pertensor").build()},
                    {"fp32, batch", of("fp32").build()}});
  return 0;
}
