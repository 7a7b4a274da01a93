// SPDX-License-Identifier: MIT
// The backward of attention: stages, masks, grouped heads, alibi, dropout, determinism; compared with float64.
#include "example.hpp"

using namespace example;

EXAMPLE(_04_backward_plan,
        "The backward has three stages: dot_do_o, dq_dk_dv, convert_dq. The last is planned where there is a kernel of "
        "it.") {
  const Session session(given);
  const auto backward = [] { return fp32(1, 128, 128).api_family("bwd").lse(true); };
  say(session, {{"plain", backward().build()},
                {"deterministic, causal, dropout",
                 backward().mask_type("causal").dropout(true).bwd_flags(false, false, true).build()}});

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
  const Arrays call(1, 64, 80);
  tilekiln_fmha_bwd_args args = call.backward();
  args.causal = 1;
  const Problem problem = fp32(1, 64, 80).api_family("bwd").mask_type("bottom_right").lse(true).build();
  say(session.dispatcher.plan(problem));
  if (!call.run_forward(session, args) || !session.run("fmha_bwd", args, &problem))
    return void(std::printf("planned\n"));
  std::printf("dq, dk and dv: each %s\n", call.of_gradients({-1, 0}).c_str());
}

EXAMPLE(_28_backward_masks,
        "Backward through masks: none, causal from the top left and from the bottom right, a window.") {
  table(Session(given), masks(fp32(1, 48, 80).api_family("bwd").lse(true)));
}

EXAMPLE(
    _29_backward_alibi_dropout,
    "Backward with alibi and dropout, in any order and in one: the forward's random numbers again, by their seed.") {
  const Session session(given);
  const Arrays call(1, 48, 48);
  const Array slopes = slopes_of_four();
  Asked asked;
  asked.alibi_slopes = &slopes;
  for (const bool deterministic : {false, true}) {
    ProblemBuilder builder = fp32(1, 48, 48).api_family("bwd").bias_type("alibi").lse(true).dropout(true);
    const Problem problem = builder.bwd_flags(false, true, deterministic).build();
    say(session.dispatcher.plan(problem));
    tilekiln_fmha_bwd_args args = call.backward(asked);
    args.deterministic = deterministic;
    if (!call.run_forward(session, args) || !session.run("fmha_bwd", args)) continue;
    std::printf("without dropout: %s\n", call.of_gradients(asked).c_str());
    const Array forward({1, 4, 48, 48}, 0, TILEKILN_UINT8), backward({1, 4, 48, 48}, 0, TILEKILN_UINT8);
    args.dropout_p = 0.25f, args.rng_seed = 7, args.randval = backward.tensor();
    call.run_forward(session, args, forward.tensor());
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
    const Arrays call(batch, seqlen, seqlen);
    const tilekiln_fmha_bwd_args args = call.backward();
    call.run_forward(session, args);
    const Times times = session.dispatcher.run(problem, Call("fmha_bwd", args));
    // Five products of the size of the forward's two.
    std::fprintf(stderr, "%.3f ms, %.1f GFLOP/s\n", times.median,
                 2.5e-6 * static_cast<double>(problem.num_ops()) / times.median);
    std::printf("batch %d, seqlen %d: %d runs, min <= median <= max: %d, %s\n", batch, seqlen, times.runs,
                times.min <= times.median && times.median <= times.max, call.of_gradients().c_str());
  }
}

EXAMPLE(_33_backward_deterministic,
        "Deterministic gradients have the same bits in any number of threads; the others agree with float64 alike.") {
  const Session session(given);
  const Arrays call(1, 80, 160);
  for (const bool deterministic : {false, true}) {
    const Problem problem = fp32(1, 80, 160).api_family("bwd").lse(true).bwd_flags(false, false, deterministic).build();
    tilekiln_fmha_bwd_args args = call.backward();
    args.deterministic = deterministic;
    std::vector<std::vector<unsigned char>> runs;
    for (const int threads : {1, 2, 3}) {
      args.num_threads = threads;
      if (!call.run_forward(session, args) || !session.run("fmha_bwd", args, &problem))
        return void(std::printf("planned\n"));
      runs.push_back(call.dq.raw());
    }
    std::printf("deterministic %d: %s", deterministic, call.of_gradients().c_str());
    if (deterministic) std::printf(", the same dq in 1, 2 and 3 threads: %d", runs[0] == runs[1] && runs[0] == runs[2]);
    std::printf("\n");
  }
}

EXAMPLE(_34_backward_gqa, "Backward of grouped heads, 8 of q over 2 of k and v: dk and dv are sums over a group.") {
  std::vector<Row> rows;
  for (const int nhead_k : {8, 2, 1})
    rows.push_back(
        {"8 heads over " + std::to_string(nhead_k), fp32(1, 40, 56, 8, nhead_k).api_family("bwd").lse(true).build()});
  table(Session(given), rows);
}

int main(int count, char** words) { return run_examples(count, words); }
