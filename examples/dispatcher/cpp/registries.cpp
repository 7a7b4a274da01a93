// SPDX-License-Identifier: MIT
// Registries and declarations: JSON, what is there, choices of your own, one registry for each use.
#include "example.hpp"

using namespace example;

EXAMPLE(_12_json, "A registry as JSON in a file, and back: the same kernels, the same text, the same choice.") {
  const Session session(given);
  if (!session.registry.to_file(given.to)) stop(1, given.to + ": cannot be written");
  Registry back("examples");
  from_file(back, given.to, {given.library});
  std::printf("as many kernels: %d, the same JSON: %d\n", back.size() == session.registry.size(),
              back.to_json() == session.registry.to_json());
  const Problem problem = fp32(1, 64, 64).build();
  std::printf("the same choice: %d\n",
              back.index()->select(problem)->id == session.registry.index()->select(problem)->id);
  std::string broken = back.to_json();
  broken.replace(broken.find("\"dtype\":\"bf16\""), 14, "\"dtype\":\"bf17\"");
  try {
    Registry other("broken");
    from_json(other, broken, "broken.json");
  } catch (const FileError& error) {
    const std::string said = error.what();
    std::printf("%s\n", (said.substr(0, 12) + "LINE" + said.substr(said.find(": "))).c_str());
  }
  std::printf("to no such folder: %d\n", session.registry.to_file("/no/such/folder/kernels.json"));
}

EXAMPLE(_13_feature_coverage, "A table of features: whether a kernel here has each.") {
  const Session session(given);
  const auto bf16 = [](int64_t hdim) {
    return ProblemBuilder().data_type("bf16").dims(hdim, hdim, 2, 128, 128).nheads(16, 4);
  };
  const std::pair<const char*, Problem> all[] = {
      {"bf16", bf16(128).build()},
      {"head dim 64", bf16(64).build()},
      {"head dim 256", bf16(256).build()},
      {"mask top-left", fp32(2, 64, 128).mask_type("top_left").build()},
      {"mask bottom-right", fp32(2, 64, 128).mask_type("bottom_right").build()},
      {"dropout", fp32(2, 128, 128).dropout(true).build()},
      {"grouped heads 16:4", fp32(2, 128, 128, 16, 4).build()},
      {"elementwise bias", fp32(2, 128, 128).bias_type("elementwise").build()},
      {"alibi", fp32(2, 128, 128).bias_type("alibi").build()},
      {"group mode", fp32(2, 128, 128).group_mode(true).max_seqlen(128, 128).build()},
      {"sinks", fp32(2, 128, 128).sink_size(4).window(32, 0).build()},
      {"soft cap", fp32(2, 128, 128).logits_soft_cap(true).build()},
      {"soft cap and a bias", fp32(2, 128, 128).logits_soft_cap(true).bias_type("elementwise").build()},
      {"column-major v", fp32(2, 128, 128).v_rowmajor(false).build()},
  };
  for (const bool there : {true, false}) {
    std::printf("%s:", there ? "here" : "not here");
    for (const auto& [name, problem] : all)
      if (session.dispatcher.plan(problem).is_valid() == there) std::printf(" %s;", name);
    std::printf("\n");
  }
}

EXAMPLE(_16_heuristic, "A heuristic of your own: lanes along the head dim for few queries, along queries for many.") {
  Session session(given);
  const auto choose = [&](const char* who) {
    std::printf("%s:", who);
    for (const int seqlen_q : {1, 8, 16, 64}) {
      const Problem problem = fp32(1, seqlen_q, 512).api_family("fwd_splitkv").build();
      std::printf(" %d %s", seqlen_q,
                  session.dispatcher.plan(problem).stages[0].instance->key().algorithm["pipeline"].text().c_str());
    }
    std::printf("\n");
  };
  choose("first fit");
  std::map<std::string, std::vector<std::string>> by_pipeline;
  for (const Entry& entry : session.registry.entries())
    if (entry.instance->key().family == "fmha_fwd_splitkv")
      by_pipeline[entry.instance->key().algorithm["pipeline"].text()].push_back(entry.id);
  session.dispatcher.set_heuristic([&](const Problem& problem) {
    return problem.number("seqlen_q") <= 16 ? by_pipeline["dlanes"] : by_pipeline["qlanes"];
  });
  choose("heuristic");
  // An id that the heuristic names and that answers nothing is passed over.
  session.dispatcher.set_heuristic([](const Problem&) { return std::vector<std::string>{"no such kernel"}; });
  choose("no such kernel");
}

TILEKILN_KERNEL_SET(
    styles,
    .add(Signature("fwd").dtype("bf16").hdim(128), Algorithm().tile(128, 128, 32, 128, 32, 32).alignments(32, 32))
        .add(Signature("fwd").dtype("bf16").hdim(128),
             Algorithm().tile_m0(128).tile_n0(128).tile_k0(32).tile_n1(128).tile_k1(32).tile_k0max(32).alignments(32,
                                                                                                                  32))
        .add(Signature("fwd").dtype("bf16").hdim(128), Algorithm().tile(128, 128, 32).auto_fill()));

EXAMPLE(_17_autofill, "Three ways to declare one kernel, and what a wrong word is told.") {
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
}

EXAMPLE(_23_several_registries, "A registry for each consumer: what one has, another has not; merged they have all.") {
  const Session session(given);
  Registry& training = Registry::named("training");
  Registry& serving = Registry::named("serving");
  training.add_all(session.registry.filter([](const Instance& one) {
    return one.key().family.find("bwd") != std::string::npos || one.key().signature["lse"].yes();
  }));
  serving.add_all(session.registry.filter([](const Instance& one) {
    return one.key().family == "fmha_fwd" && one.key().signature["lse"].off() && one.key().signature["dropout"].off();
  }));
  const auto row = [](const Registry& registry) {
    std::printf("%-9s", registry.name().c_str());
    for (const Problem& problem : {fp32(1, 64, 64).build(), fp32(1, 64, 64).lse(true).build(),
                                   fp32(1, 64, 64).api_family("bwd").lse(true).build()})
      std::printf("  %-3s", registry.index()->select(problem) == nullptr ? "no" : "yes");
    std::printf("\n");
  };
  std::printf("registry   fwd  lse  bwd\n");
  row(training);
  row(serving);
  Registry both("both");
  both.merge_from(training);
  both.merge_from(serving);
  row(both);
  std::printf("by name they are the same: %d\n", &Registry::named("training") == &training);
}

EXAMPLE(_26_dtypes_head_dims,
        "Data types and head dims: which kernel answers each head dim, the smallest that holds it.") {
  const Session session(given);
  std::printf("hdim  ");
  for (const int hdim : {16, 32, 40, 64, 72, 96, 128, 160, 192, 256, 300}) std::printf("%5d", hdim);
  for (const char* dtype : {"fp32", "fp16", "bf16"}) {
    std::printf("\n%-6s", dtype);
    for (const int hdim : {16, 32, 40, 64, 72, 96, 128, 160, 192, 256, 300}) {
      const auto found =
          session.dispatcher.select(ProblemBuilder().data_type(dtype).dims(hdim, hdim, 1, 64, 64).nheads(2, 2).build());
      std::printf("%5s", found == nullptr ? "-" : found->key().signature[field::hdim_q].text().c_str());
    }
  }
  const auto both =
      session.dispatcher.select(ProblemBuilder().data_type("bf16").dims(192, 128, 1, 64, 64).nheads(2, 2).build());
  std::printf("\nbf16 192 x 128: %s x %s\n", both->key().signature[field::hdim_q].text().c_str(),
              both->key().signature[field::hdim_v].text().c_str());
}

int main(int count, char** words) { return run_examples(count, words); }
