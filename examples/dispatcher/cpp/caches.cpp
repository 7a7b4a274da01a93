// SPDX-License-Identifier: MIT
// Attention over caches of keys and values: split-KV, pages, appends, prefill.
#include "example.hpp"

using namespace example;

TILEKILN_KERNEL_SET(split_alone, .add(Signature("fwd_splitkv").dtype("bf16").hdim(128).lse(any),
                                      Algorithm().tile(64, 128), "gfx942"));

EXAMPLE(_02_splitkv_plan, "Split-KV has two stages; both are planned, or neither.") {
  const Session session(given);
  for (const int splits : {1, 8}) {
    const Problem problem = fp32(1, 1, 4096).api_family("fwd_splitkv").num_splits(splits).build();
    const std::string size = std::to_string(problem.num_ops() / 1000000) + " MFLOP";
    say(session, {{std::to_string(splits) + " splits of " + size, problem}});
  }
  // A set that declares the first stage alone makes no plan.
  Registry registry("split alone");
  registry.add_all(KernelSets::get("split_alone").listing());
  Dispatcher dispatcher(registry, "ck-gfx942");
  for (const auto& [name, stages] : given.library->operators()) dispatcher.add_operator(name, stages);
  ProblemBuilder builder = ProblemBuilder().api_family("fwd_splitkv").data_type("bf16").nheads(4, 4);
  say(dispatcher.plan(builder.dims(128, 128, 1, 1, 4096).build()), "without its combine:");
}

EXAMPLE(_03_paged_plan, "A paged KV cache: prefill from it, decode over it, and what takes no pages.") {
  const Session session(given);
  const auto cache = [](const char* family, int64_t seqlen_q) {
    return fp32(2, seqlen_q, 1024).api_family(family).set("has_block_table", true).set("page_size", 64);
  };
  say(session, {{"prefill", cache("fwd_pagedkv", 128).mask_type("causal").build()},
                {"prefill, varlen", cache("fwd_pagedkv", 128).group_mode(true).max_seqlen(128, 1024).build()},
                {"decode", cache("fwd_splitkv", 1).paged_kv(true).num_splits(4).build()},
                {"plain forward", cache("fwd", 128).paged_kv(true).build()}});
}

EXAMPLE(_05_appendkv_plan,
        "Append to a KV cache of pages of 16 tokens, with interleaved RoPE; with and without the attention over it.") {
  const Session session(given);
  const ProblemBuilder paged = fp32(2, 1, 512).api_family("fwd_appendkv").paged_kv(true).set("page_size", 16);
  const auto append = [&](const char* rope) { return ProblemBuilder(paged).rope_type(rope).set("rotary_dim", 64); };
  say(session, {{"append alone", append("interleaved").build()},
                {"append and attend", append("interleaved").set("attend", true).mask_type("causal").build()},
                {"half-rotated, contiguous", append("half_rotated").paged_kv(false).build()}});
}

EXAMPLE(_06_batch_prefill_plan,
        "Batch prefill as serving engines keep their caches: layouts, page tables and page sizes.") {
  const Session session(given);
  for (const char* layout : {"linear", "vectorized"})
    for (const char* lookup : {"sglang", "vllm"}) {
      std::printf("%s, %s: pages of", layout, lookup);
      for (const int page_size : {1, 16, 1024}) {
        ProblemBuilder builder = ProblemBuilder().api_family("batch_prefill").data_type("bf16").nheads(8, 2).lse(true);
        builder.dims(128, 128, 2, 128, 512).group_mode(true).max_seqlen(128, 512).mask_type("causal");
        const Problem problem = builder.kv_cache(layout, lookup, page_size).build();
        std::printf(" %d %s", page_size, session.dispatcher.plan(problem).is_valid() ? "yes" : "no");
      }
      std::printf("\n");
    }
}

EXAMPLE(_18_splitkv_run, "Split-KV on a device: however many splits, the same result to rounding.") {
  const Session session(given);
  const Arrays arrays(1, 2, 300, 8, 2);
  const Expected expected = attention(arrays.q, arrays.k, arrays.v, {-1, 0});
  for (const int splits : {1, 2, 5}) {
    tilekiln_fmha_fwd_splitkv_args args = tilekiln_fmha_fwd_splitkv_defaults();
    args.q = arrays.q.tensor(), args.k = arrays.k.tensor(), args.v = arrays.v.tensor(), args.out = arrays.out.tensor(),
    args.lse = arrays.lse.tensor();
    args.causal = 1, args.num_splits = splits;
    const Problem problem =
        fp32(1, 2, 300, 8, 2).api_family("fwd_splitkv").mask_type("causal").lse(true).num_splits(splits).build();
    const bool ran = session.run("fmha_fwd_splitkv", args, &problem);
    std::printf("%d splits: out %s, lse %s\n", splits, ran ? verdict(arrays.out, expected.out).c_str() : "planned",
                ran ? verdict(arrays.lse, expected.lse).c_str() : "planned");
  }
}

EXAMPLE(_25_append_and_prefill, "Append new keys to a cache, and prefill over pages; planned, then run for real.") {
  const Session session(given);
  // A cache of 40 keys of room, of which 30 are there; 2 are new, and one query attends over all 32.
  const Arrays cache(1, 1, 40), fresh(1, 1, 2);
  const Array lengths = Array::indices({30});
  tilekiln_fmha_fwd_appendkv_args args = tilekiln_fmha_fwd_appendkv_defaults();
  args.k = cache.k.tensor(), args.v = cache.v.tensor(), args.knew = fresh.k.tensor(), args.vnew = fresh.v.tensor();
  args.q = cache.q.tensor(), args.out = cache.out.tensor(), args.seqlen_k = lengths.tensor();
  const Problem append = fp32(1, 1, 40).api_family("fwd_appendkv").set("attend", true).build();
  say(session.dispatcher.plan(append));
  if (session.run("fmha_fwd_appendkv", args, &append)) {
    const Array k = Array::part({1, 32, 4, 64}, cache.k), v = Array::part({1, 32, 4, 64}, cache.v);
    bool same = true;
    for (size_t i = 0; i < fresh.k.size(); ++i) same = same && k[30 * 4 * 64 + i] == fresh.k[i];
    std::printf("new keys are in the cache: %d, out %s\n", same,
                verdict(cache.out, attention(cache.q, k, v).out).c_str());
  }

  // Two pages of 16 tokens, one of them in use; bf16, by block table.
  const Array q({12, 2, 128}, 1, TILEKILN_BF16), k({2, 16, 2, 128}, 2, TILEKILN_BF16),
      v({2, 16, 2, 128}, 3, TILEKILN_BF16), out({12, 2, 128}, 0, TILEKILN_BF16);
  const Array starts = Array::indices({0, 12}), pages = Array::indices({1}), keys = Array::indices({16});
  tilekiln_fmha_batch_prefill_args prefill = tilekiln_fmha_batch_prefill_defaults();
  prefill.q = q.tensor(), prefill.k = k.tensor(), prefill.v = v.tensor(), prefill.out = out.tensor(),
  prefill.cu_seqlens_q = starts.tensor();
  tilekiln_tensor of_table = *pages.tensor();
  of_table.ndim = 2, of_table.shape[1] = 1, of_table.stride[1] = 1;
  prefill.block_table = &of_table, prefill.seqlen_k = keys.tensor();
  if (session.planned || !session.run("fmha_batch_prefill", prefill)) return void(std::printf("prefill planned\n"));
  const std::vector<int64_t> page = {1, 16, 2, 128};
  const size_t second = k.size() / 2;
  const Expected expected =
      attention(Array::part({1, 12, 2, 128}, q), Array::part(page, k, second), Array::part(page, v, second));
  std::printf("prefill over page 1 %s\n", verdict(out, expected.out, 1e-2).c_str());
}

int main(int count, char** words) { return run_examples(count, words); }
