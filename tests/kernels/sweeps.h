// SPDX-License-Identifier: MIT
// Shared parts of the engine tests of the forward and of the backward: sweeps over lengths, mask edges, scales and
// dropout, and the command line.
//
//   PROGRAM [TARGET [DTYPE [quick|few [FIRST]]]]   one target (cpu_avx2) or any, one dtype (bf16), a ninth or a 29th of the cases
// Exit code 77: the target asked for is not linked in, or this machine cannot run it.
#pragma once

#include <cstdio>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "attention_case.h"
#include "runs.h"
#include "steps.h"

namespace tilekiln::test {

template <class Case> using Visitor = std::function<void(const Case&)>;

// Every tail of queries and of keys: full blocks of every height and width.
template <class Case> void tails(const Visitor<Case>& visit) {
  for (int n = 1; n <= 66; ++n) {
    Case t;
    t.name = "tail";
    t.nhead_q = 1, t.hdim_q = t.hdim_v = 24;
    t.seqlen_q = 80, t.seqlen_k = n;
    visit(t);
    t.seqlen_q = n, t.seqlen_k = 80;
    visit(t);
    t.seqlen_q = t.seqlen_k = 64 + n;
    t.dropout_p = 0.5f;
    visit(t);
    t.bias = Bias::alibi;
    t.dropout_p = 0;
    t.window_right = 3;
    visit(t);
  }
}

// Windows x mask origins x features of `base`. {300, 97} bottom right and {97, 300} top left leave rows without keys, or keys
// without rows. biased(t) changes the case with a bias.
template <class Case> void windows(const Visitor<Case>& visit, const Case& base, void (*biased)(Case&)) {
  const std::pair<int, int> seqlens[] = {{200, 200}, {97, 300}, {300, 97}, {64, 448}, {33, 64}};
  const std::pair<int, int> limits[] = {{-1, -1}, {-1, 0},  {0, 0},   {16, 0}, {70, 10},
                                        {-1, 40}, {40, -1}, {130, 5}, {64, 64}};
  for (auto [seqlen_q, seqlen_k] : seqlens) {
    for (auto [left, right] : limits) {
      for (bool top_left : {false, true}) {
        Case t = base;
        t.seqlen_q = seqlen_q, t.seqlen_k = seqlen_k, t.window_left = left, t.window_right = right,
        t.top_left = top_left;
        t.name = "window";
        visit(t);
        Case softcap = t, alibi = t, bias = t, dropout = t, sink = t;
        softcap.name = "window, softcap", softcap.softcap = 5;
        alibi.name = "window, alibi", alibi.bias = Bias::alibi;
        bias.name = "window, bias", bias.bias = Bias::elementwise;
        biased(bias);
        dropout.name = "window, dropout", dropout.dropout_p = 0.2f;
        sink.name = "window, sink", sink.sink = true, sink.sink_size = 5;
        for (const Case& x : {softcap, alibi, bias, dropout, sink}) visit(x);
      }
    }
  }
}

// Mask edges at tile - 3 .. tile + 2, one key either side of every block border.
template <class Case> void borders(const Visitor<Case>& visit) {
  for (int edge = 61; edge <= 66; ++edge) {
    for (int side = 0; side < 3; ++side) {
      for (int seqlen_q : {192, 180}) {
        Case t;
        t.name = "border";
        t.nhead_q = 1, t.seqlen_q = seqlen_q, t.seqlen_k = 192, t.hdim_q = t.hdim_v = 32, t.top_left = true;
        t.window_left = side == 1 ? -1 : edge;
        t.window_right = side == 0 ? -1 : 127 - edge;
        visit(t);
        t.window_right = side == 0 ? -1 : edge;
        visit(t);
        t.sink_size = edge;
        visit(t);
      }
    }
  }
}

template <class Case> void scales(const Visitor<Case>& visit) {
  for (float scale : {-0.125f, 1.f, 0.f, 1e-12f}) {
    Case t;
    t.name = "scale";
    t.nhead_q = 1, t.seqlen_q = 70, t.seqlen_k = 100, t.scale_given = true, t.scale = scale;
    visit(t);
    t.window_right = 0;
    visit(t);
    t.softcap = 3;
    visit(t);
  }
}

// Soft caps far below the scores and far above: the error follows the score, not the cap. With alibi the cap comes first.
template <class Case> void caps(const Visitor<Case>& visit) {
  for (float cap : {1e-3f, 0.1f, 1.f, 50.f, 1e4f, 1e8f, 1e20f}) {
    Case t;
    t.name = "soft cap";
    t.nhead_q = 1, t.seqlen_q = 70, t.seqlen_k = 100, t.hdim_q = t.hdim_v = 32, t.softcap = cap;
    visit(t);
    t.name = "soft cap, small scores";
    t.scale_given = true, t.scale = 1e-3f;
    visit(t);
    t.name = "soft cap, alibi";
    t.scale_given = false, t.bias = Bias::alibi, t.window_left = 40, t.window_right = 3;
    visit(t);
  }
}

// Sink logits far below the scores and far above. Of 130 rows over 70 keys some have nothing else.
template <class Case> void sinks(const Visitor<Case>& visit) {
  for (float logit : {-20.f, -90.f, 4.f}) {
    Case t;
    t.name = "far sink";
    t.sink = true, t.sink_logit = logit, t.seqlen_q = 130, t.seqlen_k = 70, t.hdim_q = t.hdim_v = 32,
    t.window_right = 0;
    visit(t);
    t.name = "far sink, scale 0";
    t.scale_given = true, t.scale = 0;
    visit(t);
    t.name = "far sink, tiny scale";
    t.scale = 1e-38f;
    visit(t);
  }
}

template <class Case> void dropouts(const Visitor<Case>& visit) {
  for (float p : {0.01f, 0.1f, 0.2f, 0.5f, 0.9f, 0.999f}) {
    Case t;
    t.name = "dropout";
    t.batch = 2, t.seqlen_q = 100, t.seqlen_k = 150, t.dropout_p = p, t.randval = true;
    visit(t);
    t.window_right = 0, t.group = true;
    visit(t);
    t.softcap = 4;
    visit(t);
  }
}

// An engine that may be linked in.
template <class Engine> struct Target {
  const char* name;
  const Engine* engine;
};

// Tells whether an engine has functions for a dtype.
template <class Engine> bool has(const Engine& engine, size_t dtype) {
  if constexpr (requires { engine.tile; })
    return engine.tile[dtype] != nullptr;
  else
    return engine.chunk[dtype] != nullptr;
}

// test(target, dtype, steps) for all that the command line asks for: returns the number of failures.
template <class Engine>
int test_engines(int argc, char** argv, const std::vector<Target<Engine>>& targets,
                 const std::vector<const char*>& dtypes, int (*test)(const Target<Engine>&, Dtype, Steps)) {
  const Steps steps = steps_of(argc, argv, 9);
  int failures = 0, tested = 0;
  for (const Target<Engine>& target : targets) {
    const bool asked = argc < 2 || std::strcmp(argv[1], "any") == 0 || std::strcmp(argv[1], target.name) == 0;
    if (target.engine == nullptr || !runs(target.name) || !asked) continue;
    for (size_t dtype = 0; dtype < dtypes.size(); ++dtype) {
      if ((argc > 2 && std::strcmp(argv[2], dtypes[dtype]) != 0) || !has(*target.engine, dtype)) continue;
      ++tested;
      failures += test(target, Dtype(dtype), steps);
    }
  }
  if (tested == 0) {
    std::printf("no engine %s %s here\n", argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "");
    return 77;
  }
  return failures != 0;
}

}  // namespace tilekiln::test
