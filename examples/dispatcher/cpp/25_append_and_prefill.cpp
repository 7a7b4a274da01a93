// Append new keys to a cache, and prefill over pages; planned, then run for real.
#include "example.hpp"

using namespace example;

int main(int count, char** words) {
  const Session session(options(count, words, "Appends to a cache and prefills over pages."));
  // A cache of 40 keys of room, of which 30 are there; 2 are new, and one query attends over all 32.
  const Arrays cache(1, 1, 40), fresh(1, 1, 2);
  const Array lengths = Array::indices({30});
  tilekiln_fmha_fwd_appendkv_args args = tilekiln_fmha_fwd_appendkv_defaults();
  args.k = cache.k.tensor(), args.v = cache.v.tensor(), args.knew = fresh.k.tensor(), args.vnew = fresh.v.tensor();
  args.q = cache.q.tensor(), args.out = cache.out.tensor(), args.seqlen_k = lengths.tensor();
  const Problem append = fp32(1, 1, 40).api_family("fwd_appendkv").set("attend", true).build();
  say(session.dispatcher.plan(append));
  if (session.run("fmha_fwd_appendkv", args, &append)) {
    Array k({1, 32, 4, 64}), v({1, 32, 4, 64});
    bool same = true;
    for (size_t i = 0; i < k.size(); ++i) {
      k.set(i, static_cast<float>(cache.k[i])), v.set(i, static_cast<float>(cache.v[i]));
      if (i >= 30 * 4 * 64) same = same && cache.k[i] == fresh.k[i - 30 * 4 * 64];
    }
    std::printf("new keys are in the cache: %d, out %s\n", same,
                verdict(cache.out, attention(cache.q, k, v).out).c_str());
  }

  // Two pages of 16 tokens, one of them in use; bf16, by block table.
  const Array q = Array::of_bf16({12, 2, 128}, 1), k = Array::of_bf16({2, 16, 2, 128}, 2),
              v = Array::of_bf16({2, 16, 2, 128}, 3), out = Array::of_bf16({12, 2, 128});
  const Array starts = Array::indices({0, 12}), pages = Array::indices({1}), keys = Array::indices({16});
  tilekiln_fmha_batch_prefill_args prefill = tilekiln_fmha_batch_prefill_defaults();
  prefill.q = q.tensor(), prefill.k = k.tensor(), prefill.v = v.tensor(), prefill.out = out.tensor(),
  prefill.cu_seqlens_q = starts.tensor();
  tilekiln_tensor of_table = *pages.tensor();
  of_table.ndim = 2, of_table.shape[1] = 1, of_table.stride[1] = 1;
  prefill.block_table = &of_table, prefill.seqlen_k = keys.tensor();
  if (session.planned || !session.run("fmha_batch_prefill", prefill)) return std::printf("prefill planned\n"), 0;
  Array q4({1, 12, 2, 128}), k4({1, 16, 2, 128}), v4({1, 16, 2, 128});
  for (size_t i = 0; i < q4.size(); ++i) q4.set(i, static_cast<float>(q[i]));
  for (size_t i = 0; i < k4.size(); ++i)
    k4.set(i, static_cast<float>(k[k4.size() + i])), v4.set(i, static_cast<float>(v[v4.size() + i]));
  std::printf("prefill over page 1 %s\n", verdict(out, attention(q4, k4, v4).out, 1e-2).c_str());
  return 0;
}
