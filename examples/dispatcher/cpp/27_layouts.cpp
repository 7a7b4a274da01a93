// Padding, group mode, another order of dimensions, and column-major v.
#include "example.hpp"

using namespace example;

int main(int count, char** words) {
  const Session session(options(count, words, "Runs padded, packed and permuted arrays."));
  if (session.planned)
    return say(session.dispatcher.plan(fp32(2, 64, 64).group_mode(true).max_seqlen(64, 64).build())), 0;
  // Two sequences of 30 and 64: padded to 64 with lengths, and packed one after another.
  const Arrays padded(2, 64, 64);
  const Array lengths = Array::indices({30, 64}), starts = Array::indices({0, 30, 94});
  tilekiln_fmha_fwd_args args = padded.forward();
  args.seqlen_q = args.seqlen_k = lengths.tensor();
  session.run("fmha_fwd", args);
  Array q({94, 4, 64}), k({94, 4, 64}), v({94, 4, 64}), out({94, 4, 64});
  const auto at = [](size_t i) { return i < 30 * 256 ? i : i + 34 * 256; };  // a row has 4 x 64 elements
  for (size_t i = 0; i < q.size(); ++i) {
    q.set(i, static_cast<float>(padded.q[at(i)]));
    k.set(i, static_cast<float>(padded.k[at(i)]));
    v.set(i, static_cast<float>(padded.v[at(i)]));
  }
  tilekiln_fmha_fwd_args packed = tilekiln_fmha_fwd_defaults();
  packed.q = q.tensor(), packed.k = k.tensor(), packed.v = v.tensor(), packed.out = out.tensor();
  packed.cu_seqlens_q = packed.cu_seqlens_k = starts.tensor();
  session.run("fmha_fwd", packed);
  bool same = true;
  for (size_t i = 0; i < out.size(); ++i) same = same && out[i] == padded.out[at(i)];
  std::printf("packed and padded are the same to the bit: %d\n", same);
  std::printf("group mode has a kernel of its own: %d\n",
              session.dispatcher.from_call(Call("fmha_fwd", packed))[field::mode] == Value("group"));

  // (batch, nhead, seqlen, hdim) is a view with other strides; what is said is the order alone.
  const Arrays plain(2, 64, 64);
  args = plain.forward();
  session.run("fmha_fwd", args);
  tilekiln_tensor turned[4];
  const Array other({2, 64, 4, 64});
  const tilekiln_tensor* views[] = {plain.q.tensor(), plain.k.tensor(), plain.v.tensor(), other.tensor()};
  for (int i = 0; i < 4; ++i) {
    turned[i] = *views[i];
    std::swap(turned[i].shape[1], turned[i].shape[2]);
    std::swap(turned[i].stride[1], turned[i].stride[2]);
  }
  args.q = &turned[0], args.k = &turned[1], args.v = &turned[2], args.out = &turned[3], args.layout = 1;
  session.run("fmha_fwd", args);
  std::printf("bhsd is the same to the bit: %d\n", other.raw() == plain.out.raw());
  say(session.dispatcher.plan(fp32(2, 64, 64).v_rowmajor(false).build()));
  return 0;
}
