// SPDX-License-Identifier: MIT
// The dispatcher: plans, runs, timing, and people's own kernels. What answers and what is chosen is held to Python's (twin_test.cpp).

namespace dispatch_test {

Call forward_call() {
  static const tilekiln_fmha_fwd_args args = tilekiln_fmha_fwd_defaults();
  return Call("fmha_fwd", args);
}
// A kernel of somebody's own, which launches and takes part in the choice.
class OwnKernel final : public Instance {
 public:
  explicit OwnKernel(Key key, int64_t longest = INT64_MAX) : key_(std::move(key)), longest_(longest) {}
  const Key& key() const override { return key_; }
  std::string name() const override { return "own " + key_.family; }
  std::string refusal(const Problem& problem) const override {
    if (problem.number("seqlen_q") > longest_) return "it is for short problems";
    return Instance::refusal(problem);
  }
  void launch(const Call& call) const override {
    CHECK(&call.as<tilekiln_fmha_fwd_args>("fmha_fwd") == call.args());
    ++launches;
  }
  mutable int launches = 0;

 private:
  const Key key_;
  const int64_t longest_;
};

Key own_key(const char* family) {
  Key key;
  key.family = family;
  key.signature.set("dtype", "bf16");  // of the rest it says nothing: it answers all of it
  return key;
}

void runs_and_heuristics() {
  Registry registry("runs");
  Dispatcher dispatcher(registry);
  const auto own = std::make_shared<OwnKernel>(own_key("fmha_fwd"), 200);
  registry.add(own);
  const Call call = forward_call();
  const tilekiln_gemm_args product = tilekiln_gemm_defaults();
  const Problem problem = attention().build();
  CHECK(dispatcher.run(problem, call).runs == 0 && own->launches == 1);
  CHECK_HOLDS(thrown<NoKernelFound>([&] { dispatcher.run(attention(64, 64, 300).build(), call); }).c_str(),
              "it is for short problems");
  CHECK_HOLDS(thrown<NoKernelFound>([&] { dispatcher.run(attention(64, 64, 300).build(), call); }).c_str(),
              "no kernel of fmha_fwd in registry runs");
  CHECK_HOLDS(thrown<std::invalid_argument>([&] { own->launch(Call("gemm", product)); }).c_str(),
              "call: was of gemm, must be of fmha_fwd");
  // Run by id: it must be there, and it must answer.
  CHECK(dispatcher.run_explicit(own->key().id(), problem, call).runs == 0 && own->launches == 2);
  CHECK_HOLDS(thrown<NoKernelFound>([&] { dispatcher.run_explicit("nothing", problem, call); }).c_str(),
              "id: was nothing");
  CHECK_HOLDS(thrown<UnsupportedProblem>([&] {
                dispatcher.run_explicit(own->key().id(), attention(64, 64, 300).build(), call);
              }).c_str(),
              "own fmha_fwd: it is for short problems");
  // A heuristic's ids in its order; what is unknown or does not answer is passed over, and at the end stands the first fit.
  const Key other = attention_key("fmha_fwd", 64, 64, 64), narrow = attention_key("fmha_fwd", 32, 32, 64);
  registry.add(kernel(other, "other"));
  registry.add(kernel(narrow, "narrow"));
  CHECK(dispatcher.strategy() == Strategy::first_fit);
  dispatcher.set_heuristic(
      [&](const Problem&) { return std::vector<std::string>{"unknown", narrow.id(), other.id(), own->key().id()}; });
  CHECK(dispatcher.strategy() == Strategy::heuristic);
  CHECK_TEXT(dispatcher.select(problem)->name().c_str(), "other");
  CHECK_TEXT(dispatcher.select(attention(80, 80).build())->name().c_str(), "own fmha_fwd");
  dispatcher.set_heuristic([&](const Problem&) { return std::vector<std::string>{"unknown"}; });
  CHECK(dispatcher.select(problem) != nullptr);
  // A measured table is asked before it.
  dispatcher.set_measured({{problem.to_string(), {own->key().id()}}});
  CHECK_TEXT(dispatcher.select(problem)->name().c_str(), "own fmha_fwd");
  dispatcher.set_heuristic(nullptr);
  CHECK(dispatcher.strategy() == Strategy::first_fit);
  CHECK_HOLDS(dispatcher.why(problem).c_str(), "refused: narrow: its hdim_q, 32, is too small");
  CHECK_HOLDS(dispatcher.why(problem).c_str(), "chosen: own fmha_fwd");
  CHECK(Dispatcher(registry, "gfx942").select(attention().data_type("fp32").build()) == nullptr);
  registry.clear();
  CHECK(dispatcher.select(problem) == nullptr);
  CHECK(!dispatcher.plan(problem).is_valid());
}

void stages_are_launched() {
  Registry registry("plans");
  Dispatcher dispatcher(registry);
  dispatcher.add_operator("fmha_fwd_splitkv",
                          {{"fmha_fwd_splitkv", "fmha_fwd_splitkv_combine"}, "fmha_fwd_splitkv", {}});
  const Problem split = attention().api_family("fwd_splitkv").build();
  const auto first = std::make_shared<OwnKernel>(own_key("fmha_fwd_splitkv")),
             second = std::make_shared<OwnKernel>(own_key("fmha_fwd_splitkv_combine"));
  registry.add(first);
  CHECK_HOLDS(dispatcher.plan(split).reason.c_str(), "no kernel of fmha_fwd_splitkv_combine");
  registry.add(second);
  dispatcher.run(split, forward_call());
  CHECK(first->launches == 1 && second->launches == 1);
}

void timing() {
  Timing timing;
  int runs = 0;
  std::vector<int> sets;
  const auto run = [&](int set) { ++runs, sets.push_back(set); };
  CHECK(measure(timing, run).runs == 0 && runs == 1);
  timing.set(2, 4);
  timing.rotating = 3;
  timing.flush_bytes = 1 << 16;
  runs = 0;
  sets.clear();
  const Times times = measure(timing, run);
  CHECK(times.runs == 4 && runs == 6 && (sets == std::vector<int>{0, 1, 0, 1, 2, 0}));
  CHECK(times.min <= times.median && times.median <= times.max);
  CHECK(times.min <= times.mean && times.mean <= times.max);
  CHECK_TEXT(thrown<std::invalid_argument>([&] { timing.set(-1, 1); }).c_str(), "cold: was -1, must be at least 0");
  CHECK_TEXT(thrown<std::invalid_argument>([&] { timing.set(0, 0); }).c_str(), "repeat: was 0, must be at least 1");
  Registry registry("timing");
  Dispatcher dispatcher(registry);
  const auto own = std::make_shared<OwnKernel>(own_key("fmha_fwd"));
  registry.add(own);
  dispatcher.timing().set(1, 2);
  CHECK(dispatcher.run(attention().build(), forward_call()).runs == 2 && own->launches == 3);
  dispatcher.set_benchmarking(false);
  CHECK(dispatcher.run(attention().build(), forward_call()).runs == 0 && own->launches == 4);
}

int run() {
  runs_and_heuristics();
  stages_are_launched();
  timing();
  return check_result();
}
}  // namespace dispatch_test
