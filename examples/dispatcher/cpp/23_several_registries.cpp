// A registry for each consumer: what one has, another has not; merged they have all.
#include "example.hpp"

using namespace example;

int main(int count, char** words) {
  const Session session(options(count, words, "Three registries."));
  Registry& training = Registry::named("training");
  Registry& serving = Registry::named("serving");
  training.add_all(session.registry.filter([](const Instance& one) {
    return one.key().family.find("bwd") != std::string::npos || one.key().signature["lse"].yes();
  }));
  serving.add_all(session.registry.filter([](const Instance& one) {
    return one.key().family == "fmha_fwd" && one.key().signature["lse"].off() && one.key().signature["dropout"].off();
  }));
  const auto row = [](const Registry& registry) {
    std::printf("%-9s", registry.name().c_str());
    for (const Problem& problem : {fp32(1, 64, 64).build(), fp32(1, 64, 64).lse(true).build(),
                                   fp32(1, 64, 64).api_family("bwd").lse(true).build()})
      std::printf("  %-3s", registry.index()->select(problem) == nullptr ? "no" : "yes");
    std::printf("\n");
  };
  std::printf("registry   fwd  lse  bwd\n");
  row(training);
  row(serving);
  Registry both("both");
  both.merge_from(training);
  both.merge_from(serving);
  row(both);
  std::printf("by name they are the same: %d\n", &Registry::named("training") == &training);
  return 0;
}
