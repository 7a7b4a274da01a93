// CK's numbers of receipts: a number stands for the name, in listings, in libraries and in a registry's filter.
#include "receipts.hpp"

using namespace example;

int main(int count, char** words) {
  const Options given = options(count, words, "Takes the kernels of a receipt by its number: give some listings.");
  Registry registry("several");
  std::map<int64_t, std::string> names;
  for (const Listing& listing : given.listings) {
    registry.add_all(listing.instances);
    names[listing.number] = listing.receipt;
    std::printf("receipt %d is %s\n", static_cast<int>(listing.number), listing.receipt.c_str());
  }
  const size_t all = registry.size();
  const size_t gone = registry.filter_by_receipt(names[4]);
  std::printf("of receipt 4: %s\n",
              registry.size() == given.listings.back().instances.size() && gone == all - registry.size()
                  ? "its kernels alone"
                  : "wrong");
  for (const std::string& name : registry.available_receipts()) std::printf("left: %s\n", name.c_str());
  std::printf("the library's receipt %s has %s\n", given.library->receipt().c_str(),
              given.library->number() < 0 ? "no number" : "a number");
  return 0;
}
