// Three ways to declare one kernel, and what a wrong word is told.
#include "example.hpp"

using namespace example;

TILEKILN_KERNEL_SET(
    styles,
    .add(Signature("fwd").dtype("bf16").hdim(128), Algorithm().tile(128, 128, 32, 128, 32, 32).alignments(32, 32))
        .add(Signature("fwd").dtype("bf16").hdim(128),
             Algorithm().tile_m0(128).tile_n0(128).tile_k0(32).tile_n1(128).tile_k1(32).tile_k0max(32).alignments(32,
                                                                                                                  32))
        .add(Signature("fwd").dtype("bf16").hdim(128), Algorithm().tile(128, 128, 32).auto_fill()));

int main(int count, char** words) {
  options(count, words, "Declares a kernel three times.");
  std::set<std::string> ids;
  for (const auto& one : KernelSets::get("styles").listing()) ids.insert(one->key().id());
  std::printf("three declarations, %zu kernel\n", ids.size());
  KernelSet wrong("wrong", "wrong.cpp", 1);
  wrong.add(Signature("fwd").dtype("bf16").hdim(128).mask("causl"))
      .add(Signature("fwd_splitk").dtype("bf16").hdim(128));
  try {
    wrong.check();
  } catch (const std::invalid_argument& error) {
    std::printf("%s\n", error.what());
  }
  return 0;
}
