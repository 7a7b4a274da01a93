// A table of problems and whether a receipt answers each: for the examples about receipts.
#pragma once
#include "example.hpp"

namespace example {

// A line for each problem: whether one of the kernels answers it. The listing is of codegen list RECEIPT --format json.
inline void table(const Listing& listing, const std::vector<std::pair<const char*, Problem>>& problems) {
  Registry registry(listing.receipt);
  registry.add_all(listing.instances);
  const Dispatcher dispatcher(registry);
  std::printf("receipt %s\n", listing.receipt.c_str());
  for (const auto& [name, problem] : problems)
    std::printf("  %-28s %s\n", name, dispatcher.select(problem) == nullptr ? "no" : "yes");
}

inline ProblemBuilder of(const char* dtype, int64_t hdim = 128) {
  return ProblemBuilder().data_type(dtype).dims(hdim, hdim, 2, 128, 128).nheads(8, 8);
}

inline const Listing& one_listing(const Options& given) {
  if (!given.listings.empty()) return given.listings.front();
  std::fprintf(stderr, "--listing: not given, must be the output of codegen list RECEIPT --format json\n");
  std::exit(2);
}

}  // namespace example
