// SPDX-License-Identifier: MIT
// The backward of attention: stages, masks, grouped heads, alibi, dropout, determinism; compared with float64.
#include "example.hpp"

using namespace example;

struct Gradients { std::vector<double> q, k, v; };
// D = rowsum(dout out); dS = P (dout v^T - D); dq = scale dS k; dk = scale dS^T q; dv = P^T dout.
inline Gradients gradients(const Arrays& arrays, const Array& dout, const Asked& asked = {}) {
  const Expected forward = attention(arrays.q, arrays.k, arrays.v, asked);
  const int64_t batch = arrays.q.shape(0), sq = arrays.q.shape(1), heads = arrays.q.shape(2), d = 64,
                sk = arrays.k.shape(1), hk = arrays.k.shape(2);
  Gradients result;
  result.q.resize(arrays.q.size()), result.k.resize(arrays.k.size()), result.v.resize(arrays.v.size());
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < sq; ++i) {
        const auto row = [&](int64_t at) { return static_cast<size_t>(((b * sq + at) * heads + h) * d); };
        const auto key = [&](int64_t at) { return static_cast<size_t>(((b * sk + at) * hk + h / (heads / hk)) * d); };
        double sum = 0;
        for (int64_t x = 0; x < d; ++x)
          sum += dout[row(i) + static_cast<size_t>(x)] * forward.out[row(i) + static_cast<size_t>(x)];
        for (int64_t j = 0; j < sk; ++j) {
          const double weight = forward.weights[static_cast<size_t>(((b * heads + h) * sq + i) * sk + j)];
          double product = 0;
          for (size_t x = 0; x < 64; ++x) product += dout[row(i) + x] * arrays.v[key(j) + x];
          const double ds = weight * (product - sum) / 8;  // the scale is 1 / sqrt(64)
          for (size_t x = 0; x < 64; ++x) {
            result.q[row(i) + x] += ds * arrays.k[key(j) + x];
            result.k[key(j) + x] += ds * arrays.q[row(i) + x];
            result.v[key(j) + x] += weight * dout[row(i) + x];
          }
        }
      }
  return result;
}

// q, k and v, the forward's results, dout, and the gradients.
struct Backward {
  Arrays arrays;
  Array dout, dq, dk, dv;
  Backward(int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t nhead_q = 4, int64_t nhead_k = 4)
      : arrays(batch, seqlen_q, seqlen_k, nhead_q, nhead_k),
        dout({batch, seqlen_q, nhead_q, 64}, 4),
        dq({batch, seqlen_q, nhead_q, 64}),
        dk({batch, seqlen_k, nhead_k, 64}),
        dv({batch, seqlen_k, nhead_k, 64}) {}
  explicit Backward(const Problem& of)
      : Backward(of.number("batch"), of.number("seqlen_q"), of.number("seqlen_k"), of.number("nhead_q"),
                 of.number("nhead_k")) {}
  tilekiln_fmha_bwd_args args(const Asked& asked = {}) const {
    tilekiln_fmha_bwd_args args = tilekiln_fmha_bwd_defaults();
    args.window_left = static_cast<int32_t>(asked.left), args.window_right = static_cast<int32_t>(asked.right);
    args.mask_origin = asked.top_left;
    if (asked.alibi_slopes != nullptr) args.alibi_slopes = asked.alibi_slopes->tensor();
    args.q = arrays.q.tensor(), args.k = arrays.k.tensor(), args.v = arrays.v.tensor();
    args.out = arrays.out.tensor(), args.lse = arrays.lse.tensor(), args.dout = dout.tensor();
    args.dq = dq.tensor(), args.dk = dk.tensor(), args.dv = dv.tensor();
    return args;
  }
  // Runs the forward of what a backward is asked for; false where nothing runs.
  bool forward(const Session& session, const tilekiln_fmha_bwd_args& asked,
               const tilekiln_tensor* randval = nullptr) const {
    tilekiln_fmha_fwd_args args = arrays.forward();
    args.lse = arrays.lse.tensor(), args.alibi_slopes = asked.alibi_slopes, args.randval = randval;
    args.causal = asked.causal, args.window_left = asked.window_left, args.window_right = asked.window_right,
    args.mask_origin = asked.mask_origin;
    args.dropout_p = asked.dropout_p, args.rng_seed = asked.rng_seed, args.rng_offset = asked.rng_offset;
    return session.run("fmha_fwd", args);
  }
  // Runs forward and backward and compares all three gradients; "planned" where nothing runs.
  std::string checked(const Session& session, const Problem& problem, const Asked& asked = {}) const {
    const tilekiln_fmha_bwd_args asking = args(asked);
    return forward(session, asking) && session.run("fmha_bwd", asking, &problem) ? verdict(asked) : "planned";
  }
  std::string verdict(const Asked& asked = {}) const {
    const Gradients expected = gradients(arrays, dout, asked);
    std::string worst = "agrees with float64";
    for (const auto& [got, want] : {std::pair{&dq, &expected.q}, {&dk, &expected.k}, {&dv, &expected.v}})
      if (const std::string said = example::verdict(*got, *want, 5e-5); said != worst) return said;
    return worst;
  }
};

EXAMPLE(_04_backward_plan,
        "The backward has three stages: dot_do_o, dq_dk_dv, convert_dq. The last is planned where there is a kernel of "
        "it.") {
  const Session session(given);
  const auto backward = [] { return fp32(1, 128, 128).api_family("bwd").lse(true); };
  say(session.dispatcher.plan(backward().build()));
  std::printf("deterministic, causal, dropout\n");
  say(session.dispatcher.plan(backward().mask_type("causal").dropout(true).bwd_flags(false, false, true).build()));

  Registry without("without convert_dq");
  without.add_all(
      session.registry.filter([](const Instance& one) { return one.key().family != "fmha_bwd_convert_dq"; }));
  Dispatcher two(without);
  two.add_operator("fmha_bwd", {{"fmha_bwd_dot_do_o", "fmha_bwd_dq_dk_dv", "fmha_bwd_convert_dq"},
                                "fmha_bwd_dq_dk_dv",
                                {{"fmha_bwd_convert_dq", "found"}}});
  std::printf("without convert_dq: %zu stages\n", two.plan(backward().build()).stages.size());
  try {
    fp32(1, 128, 128).api_family("bwd").build();
  } catch (const std::invalid_argument& error) {
    std::printf("%s\n", error.what());
  }
}

EXAMPLE(_22_backward_run,
        "Forward, then backward: out and LSE in, the gradients of q, k and v out; planned where there is no device.") {
  const Session session(given);
  const Backward call(1, 64, 80);
  tilekiln_fmha_bwd_args args = call.args();
  args.causal = 1;
  const Problem problem = fp32(1, 64, 80).api_family("bwd").mask_type("bottom_right").lse(true).build();
  say(session.dispatcher.plan(problem));
  if (!call.forward(session, args) || !session.run("fmha_bwd", args, &problem)) return void(std::printf("planned\n"));
  const Gradients expected = gradients(call.arrays, call.dout, {-1, 0});
  std::printf("dq %s\ndk %s\ndv %s\n", verdict(call.dq, expected.q, 5e-5).c_str(),
              verdict(call.dk, expected.k, 5e-5).c_str(), verdict(call.dv, expected.v, 5e-5).c_str());
}

EXAMPLE(_28_backward_masks,
        "Backward through masks: none, causal from the top left and from the bottom right, a window.") {
  table<Backward>(Session(given), masks(fp32(1, 48, 80).api_family("bwd").lse(true)));
}

EXAMPLE(
    _29_backward_alibi_dropout,
    "Backward with alibi and dropout, in any order and in one: the forward's random numbers again, by their seed.") {
  const Session session(given);
  const Backward call(1, 48, 48);
  const Array slopes = slopes_of_four();
  Asked asked;
  asked.alibi_slopes = &slopes;
  for (const bool deterministic : {false, true}) {
    const Problem problem = fp32(1, 48, 48)
                                .api_family("bwd")
                                .bias_type("alibi")
                                .lse(true)
                                .dropout(true)
                                .bwd_flags(false, true, deterministic)
                                .build();
    say(session.dispatcher.plan(problem));
    tilekiln_fmha_bwd_args args = call.args(asked);
    args.deterministic = deterministic;
    if (!call.forward(session, args) || !session.run("fmha_bwd", args)) continue;
    std::printf("without dropout: %s\n", call.verdict(asked).c_str());
    const Array forward({1, 4, 48, 48}, 0, TILEKILN_UINT8), backward({1, 4, 48, 48}, 0, TILEKILN_UINT8);
    args.dropout_p = 0.25f, args.rng_seed = 7, args.randval = backward.tensor();
    call.forward(session, args, forward.tensor());
    session.run("fmha_bwd", args, &problem);
    const std::vector<unsigned char> first = call.dk.raw();
    session.run("fmha_bwd", args, &problem);
    std::printf("the forward's random bytes: %d; again the same dk: %d\n", forward.raw() == backward.raw(),
                first == call.dk.raw());
  }
}

EXAMPLE(_30_backward_benchmark, "Time backwards of several batches and lengths.") {
  Session session(given);
  session.dispatcher.timing().set(1, 3);
  for (const auto& [batch, seqlen] : {std::pair{1, 32}, {1, 96}, {2, 96}}) {
    const Problem problem = fp32(batch, seqlen, seqlen).api_family("bwd").lse(true).build();
    if (session.planned) return say(session.dispatcher.plan(problem));
    const Backward call(batch, seqlen, seqlen);
    const tilekiln_fmha_bwd_args args = call.args();
    call.forward(session, args);
    const Times times = session.dispatcher.run(problem, Call("fmha_bwd", args));
    // Five products of the size of the forward's two.
    std::fprintf(stderr, "%.3f ms, %.1f GFLOP/s\n", times.median,
                 2.5e-6 * static_cast<double>(problem.num_ops()) / times.median);
    std::printf("batch %d, seqlen %d: %d runs, min <= median <= max: %d, %s\n", batch, seqlen, times.runs,
                times.min <= times.median && times.median <= times.max, call.verdict().c_str());
  }
}

EXAMPLE(_33_backward_deterministic,
        "Deterministic gradients have the same bits in any number of threads; the others agree with float64 alike.") {
  const Session session(given);
  const Backward call(1, 80, 160);
  for (const bool deterministic : {false, true}) {
    const Problem problem = fp32(1, 80, 160).api_family("bwd").lse(true).bwd_flags(false, false, deterministic).build();
    tilekiln_fmha_bwd_args args = call.args();
    args.deterministic = deterministic;
    std::vector<std::vector<unsigned char>> runs;
    for (const int threads : {1, 2, 3}) {
      args.num_threads = threads;
      if (!call.forward(session, args) || !session.run("fmha_bwd", args, &problem))
        return void(std::printf("planned\n"));
      runs.push_back(call.dq.raw());
    }
    std::printf("deterministic %d: %s", deterministic, call.verdict().c_str());
    if (deterministic) std::printf(", the same dq in 1, 2 and 3 threads: %d", runs[0] == runs[1] && runs[0] == runs[2]);
    std::printf("\n");
  }
}

EXAMPLE(_34_backward_gqa, "Backward of grouped heads, 8 of q over 2 of k and v: dk and dv are sums over a group.") {
  std::vector<Row> rows;
  for (const int nhead_k : {8, 2, 1})
    rows.push_back(
        {"8 heads over " + std::to_string(nhead_k), fp32(1, 40, 56, 8, nhead_k).api_family("bwd").lse(true).build()});
  table<Backward>(Session(given), rows);
}

int main(int count, char** words) { return run_examples(count, words); }
