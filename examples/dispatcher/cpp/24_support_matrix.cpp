// A registry for each receipt, and a matrix of what each answers.
#include "receipts.hpp"

using namespace example;

int main(int count, char** words) {
  const Options given = options(count, words, "The matrix of receipts and features: give the listing of each receipt.");
  one_listing(given);
  const std::pair<const char*, Problem> all[] = {
      {"bf16", of("bf16").lse(true).build()},
      {"bias", of("bf16").lse(true).bias_type("elementwise").build()},
      {"alibi", of("bf16").lse(true).bias_type("alibi").build()},
      {"softcap", of("bf16").lse(true).logits_soft_cap(true).build()},
      {"group", of("bf16").lse(true).group_mode(true).max_seqlen(128, 128).build()},
      {"fp32", of("fp32").build()},
      {"fp8", of("fp8bf16").qscale_type("pertensor").build()},
  };
  std::printf("%-12s", "");
  for (const auto& [name, problem] : all) std::printf(" %-7s", name);
  for (const Listing& listing : given.listings) {
    Registry registry(listing.receipt);
    registry.add_all(listing.instances);
    std::printf("\n%-12s", listing.receipt.c_str());
    for (const auto& [name, problem] : all)
      std::printf(" %-7s", registry.index()->select(problem) == nullptr ? "-" : "x");
  }
  std::printf("\n");
  return 0;
}
