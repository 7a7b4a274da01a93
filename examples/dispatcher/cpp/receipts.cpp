// SPDX-License-Identifier: MIT
// Problems and whether a receipt answers each, from the output of codegen list RECEIPT --format json.
#include "example.hpp"

using namespace example;

using Problems = std::vector<std::pair<const char*, Problem>>;

// The problems that one of the receipt's kernels answers, and those that none does.
static void table(const Options& given, const std::string& receipt, const Problems& problems) {
  Registry registry(receipt);
  registry.add_all(listing(given, receipt).instances);
  std::string answers[2];
  for (const auto& [name, problem] : problems) {
    std::string& to = answers[registry.index()->select(problem) == nullptr];
    to += (to.empty() ? "" : "; ") + std::string(name);
  }
  std::printf("receipt %s answers: %s. Not: %s\n", receipt.c_str(), answers[0].c_str(), answers[1].c_str());
}

static ProblemBuilder of(const char* dtype, int64_t hdim = 128) {
  return ProblemBuilder().data_type(dtype).dims(hdim, hdim, 2, 128, 128).nheads(8, 8);
}
static ProblemBuilder bf16() { return of("bf16").lse(true); }
static ProblemBuilder fp8(const char* dtype) { return of(dtype).qscale_type("pertensor"); }

EXAMPLE(_07_receipt_pytorch,
        "Problems that the receipt pytorch answers: 16-bit, elementwise bias, neither soft cap nor scales.") {
  table(given, "pytorch",
        {{"bf16 with lse", bf16().build()},
         {"elementwise bias", bf16().bias_type("elementwise").build()},
         {"bwd with a bias gradient",
          bf16().api_family("bwd").bias_type("elementwise").bwd_flags(true, false, false).build()},
         {"soft cap", bf16().logits_soft_cap(true).build()},
         {"fp8bf16", fp8("fp8bf16").build()}});
}

EXAMPLE(_08_receipt_flash, "Problems that the receipt flash answers: no bias or alibi, soft cap, split-KV.") {
  table(given, "flash",
        {{"fp16 causal with lse", of("fp16").mask_type("causal").lse(true).build()},
         {"alibi and a soft cap", bf16().bias_type("alibi").logits_soft_cap(true).build()},
         {"elementwise bias", bf16().bias_type("elementwise").build()},
         {"split-KV", bf16().api_family("fwd_splitkv").num_splits(4).build()},
         {"min_seqlen_q", of("bf16").skip_min_seqlen_q(true).build()}});
}

EXAMPLE(_09_receipt_aiter, "Problems that the receipts of aiter answer: by mode, with fp8.") {
  for (const char* receipt : {"aiter_batch", "aiter_group"})
    table(given, receipt,
          {{"bf16, batch", bf16().build()},
           {"bf16, group", bf16().group_mode(true).max_seqlen(128, 128).build()},
           {"fp8bf16, batch", fp8("fp8bf16").build()},
           {"fp32, batch", of("fp32").build()}});
}

EXAMPLE(_10_receipt_fp32_fp8, "Problems that the receipts for fp32 and for fp8 answer.") {
  for (const char* receipt : {"fp32", "fp32_min", "fp8"})
    table(given, receipt,
          {{"fp32, head dim 48", of("fp32", 48).build()},
           {"fp32, head dim 256", of("fp32", 256).build()},
           {"fp8bf16, scales", fp8("fp8bf16").build()},
           {"fp8fp32, scales", fp8("fp8fp32").build()}});
}

EXAMPLE(
    _11_receipt_numbers,
    "CK's numbers of receipts: a number stands for the name, in listings, in libraries and in a registry's filter.") {
  Registry registry("several");
  std::map<int64_t, std::string> names;
  for (const char* receipt : {"flash", "pytorch"}) {
    const Listing& one = listing(given, receipt);
    registry.add_all(one.instances);
    names[one.number] = one.receipt;
    std::printf("receipt %d is %s\n", static_cast<int>(one.number), one.receipt.c_str());
  }
  const size_t all = registry.size();
  const size_t gone = registry.filter_by_receipt(names[4]);
  std::printf("of receipt 4: %s\n",
              registry.size() == listing(given, "pytorch").instances.size() && gone == all - registry.size()
                  ? "its kernels alone"
                  : "wrong");
  for (const std::string& name : registry.available_receipts()) std::printf("left: %s\n", name.c_str());
  std::printf("the library's receipt %s has %s\n", given.library->receipt().c_str(),
              given.library->number() < 0 ? "no number" : "a number");
}

EXAMPLE(_24_support_matrix, "A registry for each receipt, and a matrix of what each answers.") {
  const std::pair<const char*, Problem> all[] = {
      {"bf16", bf16().build()},
      {"bias", bf16().bias_type("elementwise").build()},
      {"alibi", bf16().bias_type("alibi").build()},
      {"softcap", bf16().logits_soft_cap(true).build()},
      {"group", bf16().group_mode(true).max_seqlen(128, 128).build()},
      {"fp32", of("fp32").build()},
      {"fp8", fp8("fp8bf16").build()},
  };
  std::printf("%-12s", "");
  for (const auto& [name, problem] : all) std::printf(" %-7s", name);
  for (const char* receipt : {"flash", "pytorch", "aiter_batch", "fp32", "fp8"}) {
    Registry registry(receipt);
    registry.add_all(listing(given, receipt).instances);
    std::printf("\n%-12s", receipt);
    for (const auto& [name, problem] : all)
      std::printf(" %-7s", registry.index()->select(problem) == nullptr ? "-" : "x");
  }
  std::printf("\n");
}

int main(int count, char** words) { return run_examples(count, words); }
