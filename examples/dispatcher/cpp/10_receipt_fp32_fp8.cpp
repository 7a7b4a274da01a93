// Problems that the receipts for fp32 and for fp8 answer.
#include "receipts.hpp"

using namespace example;

int main(int count, char** words) {
  const Options given =
      options(count, words, "Shows what the receipts fp32, fp32_min and fp8 answer: give the listing of each.");
  one_listing(given);
  for (const Listing& listing : given.listings)
    table(listing, {{"fp32, head dim 48", of("fp32", 48).build()},
                    {"fp32, head dim 256", of("fp32", 256).build()},
                    {"fp8bf16, scales", of("fp8bf16").qscale_type("pertensor").build()},
                    {"fp8fp32, scales", of("fp8fp32").qscale_type("pertensor").build()}});
  return 0;
}
