// SPDX-License-Identifier: MIT
// Attention forward: plans, runs, features, layouts and times; each result compared with float64.
#include "example.hpp"

using namespace example;

TILEKILN_KERNEL_SET(basic, .add(Signature("fwd").dtype("fp32").hdim(64).lse(any), Algorithm().tile_m0(64)));

EXAMPLE(_01_basic_forward, "Declare kernels, register those of a library, plan, run, compare.") {
  const KernelSet set = KernelSets::get("basic");
  Registry registry("basic");
  registry.add_all(set.of(given.library));
  std::printf("set %s: %zu declaration, %zu kernels\n", set.tag().c_str(), set.size(), registry.size());

  Dispatcher dispatcher(registry);
  for (const auto& [name, stages] : given.library->operators()) dispatcher.add_operator(name, stages);
  const Problem problem = fp32(2, 64, 128).build();
  say(dispatcher.plan(problem));

  const Arrays arrays(2, 64, 128);
  const tilekiln_fmha_fwd_args args = arrays.forward();
  dispatcher.run(problem, Call("fmha_fwd", args));
  std::printf("out %s\n", verdict(arrays.out, attention(arrays.q, arrays.k, arrays.v).out).c_str());
}

EXAMPLE(_14_benchmark,
        "Time a call: cold runs, repeats, a flushed cache, rotating buffers; and check that it computed something.") {
  Session session(given);
  const Arrays first(1, 128, 128), second(1, 128, 128);
  const Problem problem = fp32(1, 128, 128).build();
  const tilekiln_fmha_fwd_args one = first.forward(), two = second.forward();
  session.dispatcher.timing().set(2, 6).flush_bytes = 1 << 20;
  if (session.planned) return void(std::printf("planned: nothing to time\n"));
  const Times times = session.dispatcher.run(problem, {Call("fmha_fwd", one), Call("fmha_fwd", two)});
  std::fprintf(stderr, "%.3f ms, %.1f GFLOP/s\n", times.median,
               1e-6 * static_cast<double>(problem.num_ops()) / times.median);
  std::printf("%d runs, min <= median <= max: %d\n", times.runs,
              0 < times.min && times.min <= times.median && times.median <= times.max);
  const std::vector<double> expected = attention(first.q, first.k, first.v).out;
  std::printf("first %s, second %s\n", verdict(first.out, expected).c_str(), verdict(second.out, expected).c_str());
  session.dispatcher.set_benchmarking(false);
  std::printf("benchmarking off: %d timed runs\n", session.dispatcher.run(problem, Call("fmha_fwd", one)).runs);
}

EXAMPLE(_15_multi_shape, "One kernel for many shapes.") {
  const Session session(given);
  std::set<std::string> kernels;
  std::vector<Row> rows;
  for (const auto& [batch, seqlen_q, seqlen_k] :
       {std::array<int, 3>{1, 1, 128}, {1, 7, 7}, {2, 64, 64}, {1, 100, 33}, {1, 64, 200}}) {
    rows.push_back({std::to_string(batch) + " x " + std::to_string(seqlen_q) + " x " + std::to_string(seqlen_k),
                    fp32(batch, seqlen_q, seqlen_k).build()});
    kernels.insert(session.dispatcher.select(rows.back().problem)->key().id());
  }
  table(session, rows);
  std::printf("kernels: %zu\n", kernels.size());
}

EXAMPLE(_19_masks,
        "Masks: none, causal from the top left and from the bottom right, a window. One kernel serves all but none.") {
  const Session session(given);
  const std::vector<Row> rows = masks(fp32(1, 64, 128));
  table(session, rows);
  const auto kernel = [&](size_t row) { return session.dispatcher.select(rows[row].problem)->key().id(); };
  std::printf("top_left and bottom_right share a kernel: %d; no_mask has another: %d\n", kernel(1) == kernel(2),
              kernel(0) != kernel(1));
}

EXAMPLE(_20_biases, "Biases: none, an array, alibi.") {
  const Array bias({1, 1, 64, 96}, 5), slopes = slopes_of_four();
  Asked elementwise, alibi;
  elementwise.bias = &bias, alibi.alibi_slopes = &slopes;
  table(Session(given), {{"no_bias", fp32(1, 64, 96).bias_type("no_bias").build()},
                         {"elementwise", fp32(1, 64, 96).bias_type("elementwise").build(), elementwise},
                         {"alibi", fp32(1, 64, 96).bias_type("alibi").build(), alibi}});
}

EXAMPLE(_21_dropout_gqa_lse, "Dropout by seed, grouped heads, and the log-sum-exp.") {
  const Session session(given);
  if (session.planned) return say(session.dispatcher.plan(fp32(1, 96, 96, 8, 2).dropout(true).lse(true).build()));
  const Arrays arrays(1, 96, 96, 8, 2);
  const Expected expected = attention(arrays.q, arrays.k, arrays.v);
  tilekiln_fmha_fwd_args args = arrays.forward();
  args.lse = arrays.lse.tensor();
  session.run("fmha_fwd", args);
  std::printf("8 heads of q over 2 of k: out %s, lse %s\n", verdict(arrays.out, expected.out).c_str(),
              verdict(arrays.lse, expected.lse).c_str());

  const Array randval({1, 8, 96, 96}, 0, TILEKILN_UINT8);
  args.dropout_p = 0.25f, args.rng_seed = 7, args.randval = randval.tensor();
  session.run("fmha_fwd", args);
  const std::vector<unsigned char> first = arrays.out.raw();
  session.run("fmha_fwd", args);
  std::printf("the same seed, the same bits: %d\n", arrays.out.raw() == first);
  double kept = 0;
  for (size_t i = 0; i < randval.size(); ++i) kept += randval[i] < 192;
  std::printf("kept about three quarters: %d\n", std::fabs(kept / static_cast<double>(randval.size()) - 0.75) < 0.01);
  std::printf("lse is that without dropout: %s\n", verdict(arrays.lse, expected.lse).c_str());
  args.rng_seed = 8;
  session.run("fmha_fwd", args);
  std::printf("another seed, other bits: %d\n", arrays.out.raw() != first);
}

EXAMPLE(_27_layouts, "Padding, group mode, another order of dimensions, and column-major v.") {
  const Session session(given);
  if (session.planned) return say(session.dispatcher.plan(fp32(2, 64, 64).group_mode(true).max_seqlen(64, 64).build()));
  // Two sequences of 30 and 64: padded to 64 with lengths, and packed one after another.
  const Arrays padded(2, 64, 64);
  const Array lengths = Array::indices({30, 64}), starts = Array::indices({0, 30, 94});
  tilekiln_fmha_fwd_args args = padded.forward();
  args.seqlen_q = args.seqlen_k = lengths.tensor();
  session.run("fmha_fwd", args);
  const auto pack = [](const Array& from) {
    Array made({94, 4, 64});  // a row has 4 x 64 elements
    for (size_t i = 0; i < made.size(); ++i) made.set(i, static_cast<float>(from[i < 30 * 256 ? i : i + 34 * 256]));
    return made;
  };
  const Array q = pack(padded.q), k = pack(padded.k), v = pack(padded.v), out({94, 4, 64});
  tilekiln_fmha_fwd_args packed = tilekiln_fmha_fwd_defaults();
  packed.q = q.tensor(), packed.k = k.tensor(), packed.v = v.tensor(), packed.out = out.tensor();
  packed.cu_seqlens_q = packed.cu_seqlens_k = starts.tensor();
  session.run("fmha_fwd", packed);
  std::printf("packed and padded are the same to the bit: %d\n", out.raw() == pack(padded.out).raw());
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
}

EXAMPLE(_31_softcap, "Scores that are capped: cap tanh(s / cap). The smaller the cap, the flatter the weights.") {
  const Session session(given);
  const Arrays arrays(1, 64, 96);
  const Problem problem = fp32(1, 64, 96).logits_soft_cap(true).build();
  say(session.dispatcher.plan(problem));
  if (session.planned) return void(std::printf("planned\n"));
  for (const double cap : {50., 5., .5}) {
    Asked asked;
    asked.softcap = cap;
    const std::vector<double> weights = attention(arrays.q, arrays.k, arrays.v, asked).weights;
    std::printf("cap %4.1f: largest weight %.3f, out %s\n", cap, *std::max_element(weights.begin(), weights.end()),
                arrays.checked(session, problem, asked).c_str());
  }
}

EXAMPLE(_32_sinks, "Sink columns: the first keys are seen by every row of a window, however far it is.") {
  std::vector<Row> rows;
  for (const int sinks : {0, 1, 4}) {
    ProblemBuilder builder = fp32(1, 96, 96).mask_type("window_generic").window(8, 0);
    if (sinks > 0) builder.sink_size(sinks);
    rows.push_back({std::to_string(sinks) + " sink columns", builder.build()});
  }
  table(Session(given), rows);
}

EXAMPLE(_35_windows, "Windows: keys to the left and to the right of a row's own place; -1 is without end.") {
  const Arrays arrays(1, 64, 96);
  std::vector<Row> rows;
  for (const auto& [left, right] : {std::pair{-1, -1}, {-1, 0}, {16, 0}, {0, 16}, {16, -1}, {8, 8}}) {
    rows.push_back({"", fp32(1, 64, 96).window(left, right).build()});
    long seen = 0;
    for (const double weight : attention(arrays.q, arrays.k, arrays.v, Asked().of(rows.back().problem)).weights)
      seen += weight > 0;
    rows.back().label = std::to_string(left) + ", " + std::to_string(right) + " sees " + std::to_string(seen / 4);
  }
  table(Session(given), rows);
}

int main(int count, char** words) { return run_examples(count, words); }
