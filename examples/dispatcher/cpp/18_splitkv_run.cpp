// Split-KV on a device: however many splits, the same result to rounding.
#include "example.hpp"

using namespace example;

int main(int count, char** words) {
  const Session session(options(count, words, "Runs split-KV."));
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
  return 0;
}
