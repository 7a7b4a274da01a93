// The dispatcher: what answers, which of those is chosen, plans, runs, timing, and people's own kernels.
#include "made.h"

using namespace made;

namespace {

Call forward_call() {
  static const tilekiln_fmha_fwd_args args = tilekiln_fmha_fwd_defaults();
  return Call("fmha_fwd", args);
}
Call product_call() {
  static const tilekiln_gemm_args args = tilekiln_gemm_defaults();
  return Call("gemm", args);
}

std::string chosen(const Registry& registry, const Problem& problem) {
  const Entry* const entry = registry.index()->select(problem);
  // The index and the kernels themselves are of one mind.
  for (const Entry& one : registry.entries()) CHECK(entry != nullptr || !one.instance->supports(problem));
  CHECK(entry == nullptr || entry->instance->supports(problem));
  return entry == nullptr ? "" : entry->instance->name();
}

// A registry of one kernel.
std::string refused(const Key& key, const Problem& problem, Choice choice = holding_head_dims()) {
  Registry registry("one");
  registry.add(kernel(key, "it", choice));
  const std::string reason = registry.lookup(key)->refusal(problem);
  CHECK(chosen(registry, problem).empty() == !reason.empty());
  return reason;
}

void what_answers() {
  const Key plain = attention_key("fmha_fwd", 64, 64, 128);
  CHECK_TEXT(refused(plain, attention().build()).c_str(), "");
  CHECK_TEXT(refused(plain, attention(60, 33).build()).c_str(), "");
  CHECK_TEXT(refused(plain, attention(65, 64).build()).c_str(), "its hdim_q, 64, is too small");
  CHECK_TEXT(refused(plain, attention(64, 65).build()).c_str(), "its hdim_v, 64, is too small");
  CHECK_TEXT(refused(plain, attention().data_type("fp16").build()).c_str(), "it has dtype=bf16");
  CHECK_TEXT(refused(plain, attention().group_mode(true).max_seqlen(9, 9).build()).c_str(), "it has mode=batch");
  CHECK_TEXT(refused(plain, attention().api_family("fwd_splitkv").build()).c_str(), "it is of fmha_fwd");
  CHECK_TEXT(refused(plain, attention().gfx_arch("gfx942").build()).c_str(), "it is for cpu-generic");
  CHECK_TEXT(refused(plain, attention().gfx_arch("cpu-generic").build()).c_str(), "");
  // One kernel serves every kind of mask; the one without serves none of them.
  CHECK_TEXT(refused(plain, attention().mask_type("causal").build()).c_str(), "it has mask=none");
  Key masked = plain;
  masked.signature.set("mask", "window");
  for (const char* mask : {"top_left", "bottom_right", "window_generic"})
    CHECK_TEXT(refused(masked, attention().mask_type(mask).build()).c_str(), "");
  CHECK_TEXT(refused(masked, attention().build()).c_str(), "it has mask=window");
  // A feature that a kernel does not know is never dropped in silence.
  const std::pair<const char*, Problem> unknown[] = {
      {"it knows no softcap, and the problem has yes", attention().logits_soft_cap(true).build()},
      {"it knows no bias, and the problem has alibi", attention().bias_type("alibi").build()},
      {"it knows no lse, and the problem has yes", attention().lse(true).build()},
      {"it knows no dropout, and the problem has yes", attention().dropout(true).build()},
      {"it knows no qscale, and the problem has pertensor", attention().qscale_type("pertensor").build()},
      {"it knows no rope, and the problem has half", attention().rope_type("half_rotated").build()},
      {"it knows no paged, and the problem has yes", attention().paged_kv(true).build()},
      {"it knows no fp8_static_quant, and the problem has yes", attention().fp8_static_quant(true).build()},
      {"it knows no skip_min_seqlen_q, and the problem has yes", attention().skip_min_seqlen_q(true).build()},
      {"it knows no sink, and the problem has yes", attention().sink_size(3).build()},
      {"it knows no v_layout, and the problem has column", attention().v_rowmajor(false).build()},
      {"it knows no deterministic, and the problem has yes", attention().bwd_flags(false, false, true).build()}};
  for (const auto& [reason, problem] : unknown) CHECK_TEXT(refused(plain, problem).c_str(), reason);
  Key knows = plain;
  knows.signature.set("softcap", true);
  CHECK_TEXT(refused(knows, attention().logits_soft_cap(true).build()).c_str(), "");
  CHECK_TEXT(refused(knows, attention().build()).c_str(), "it has softcap=yes");
  // Compared where the key says it, else any: layouts, lookups and pages of a cache.
  const Problem cached = attention().kv_cache("linear", "vllm", 16).build();
  CHECK_TEXT(refused(plain, cached).c_str(), "");
  Key pages = plain;
  pages.signature.set("page_size", 16);
  pages.signature.set("lookup", "vllm");
  CHECK_TEXT(refused(pages, cached).c_str(), "");
  CHECK_TEXT(refused(pages, attention().kv_cache("linear", "vllm", 32).build()).c_str(), "it has page_size=16");
  CHECK_TEXT(refused(pages, attention().kv_cache("linear", "sglang", 16).build()).c_str(), "it has lookup=vllm");
}

void what_algorithms_ask() {
  Key key = attention_key("fmha_fwd", 64, 64, 128);
  const auto with = [&](const char* field, Value value, const char* more = nullptr, int number = 0) {
    Key other = key;
    other.algorithm.set(field, value);
    if (more != nullptr) other.algorithm.set(more, number);
    return other;
  };
  CHECK_TEXT(refused(with("pad_s", false), attention(64, 64, 256).build()).c_str(), "");
  CHECK_TEXT(refused(with("pad_s", false), attention(64, 64, 200).build()).c_str(),
             "it has pad_s=no and max_seqlen_q=200 is no multiple of tile_m0=128");
  CHECK_TEXT(refused(with("pad_s", true), attention(64, 64, 200).build()).c_str(), "");
  CHECK_TEXT(refused(with("pad_s", false), attention(64, 64, 256).max_seqlen(100, 0).build()).c_str(),
             "it has pad_s=no and max_seqlen_q=100 is no multiple of tile_m0=128");
  CHECK_TEXT(refused(with("pad_sk", false, "tile_n0", 64), attention().build()).c_str(), "");
  CHECK_TEXT(refused(with("pad_sk", false, "tile_n0", 96), attention().build()).c_str(),
             "it has pad_sk=no and max_seqlen_k=256 is no multiple of tile_n0=96");
  CHECK_TEXT(refused(with("pad_sk", false, "tile_n0", 64), attention().set("has_seqlen_k", true).build()).c_str(),
             "it pads no seqlen_k, which varies here");
  CHECK_TEXT(refused(with("pad_d", false, "hdim_q_alignment", 8), attention(60, 64).build()).c_str(),
             "it has pad_d=no and hdim_q=60 is no multiple of hdim_q_alignment=8");
  CHECK_TEXT(refused(with("pad_d", false, "hdim_q_alignment", 8), attention(56, 64).build()).c_str(), "");
  CHECK_TEXT(refused(with("pad_d", false), attention(60, 64).build()).c_str(), "");
  CHECK_TEXT(refused(with("pad_dv", false, "hdim_v_alignment", 8), attention(64, 60).build()).c_str(),
             "it has pad_dv=no and hdim_v=60 is no multiple of hdim_v_alignment=8");
  CHECK_TEXT(refused(with("max_seq_len_q", 100), attention().build()).c_str(),
             "it takes at most 100 queries (max_seq_len_q)");
  CHECK_TEXT(refused(with("max_seq_len_q", 128), attention().build()).c_str(), "");
  CHECK_TEXT(refused(with("max_splits_log2", 3), attention().num_splits(9).build()).c_str(),
             "it takes at most 8 splits (max_splits_log2)");
  CHECK_TEXT(refused(with("max_splits_log2", 3), attention().num_splits(8).build()).c_str(), "");
  Choice needs = holding_head_dims();
  needs.needs = SizeRule("seqlen_q<=8");
  CHECK_TEXT(refused(key, attention().build(), needs).c_str(), "it needs seqlen_q<=8");
  CHECK_TEXT(refused(key, attention(64, 64, 8).build(), needs).c_str(), "");
}

void products() {
  Registry registry("products");
  const auto put = [&](const char* layouts, bool pad) {
    Key key;
    key.family = "gemm";
    key.signature.set("dtype", "bf16");
    const char* const names[] = {"layout_a", "layout_b", "layout_out"};
    for (int i = 0; i < 3; ++i) key.signature.set(names[i], layouts[i] == 'r' ? "row" : "column");
    key.signature.set("out_dtype", "bf16");
    key.algorithm.set("tile_m", 256);
    key.algorithm.set("pad_m", pad);
    registry.add(
        std::make_shared<FunctionInstance>(key, nullptr, Choice(), std::string(layouts) + (pad ? " padded" : "")));
  };
  put("rcr", false);
  put("rrr", true);
  const auto product = [](const char* layouts, int m) {
    return GemmProblemBuilder().dimensions(m, 1024, 512).dtypes("bf16").layouts(layouts);
  };
  CHECK_TEXT(chosen(registry, product("rcr", 1024).build()).c_str(), "rcr");
  CHECK_TEXT(chosen(registry, product("rcr", 1000).build()).c_str(), "");
  CHECK_TEXT(chosen(registry, product("rrr", 1000).build()).c_str(), "rrr padded");
  CHECK_TEXT(chosen(registry, product("crr", 1024).build()).c_str(), "");
  CHECK_TEXT(chosen(registry, product("rcr", 1024).dtypes("bf16", "fp32").build()).c_str(), "");
  CHECK_TEXT(chosen(registry, product("rcr", 1024).activation("relu").build()).c_str(), "");
}

void which_is_chosen() {
  Registry registry("score");
  const auto put = [&](int hdim, int tile, const char* name, Priority priority = Priority::normal,
                       Choice choice = holding_head_dims()) {
    registry.add(kernel(attention_key("fmha_fwd", hdim, hdim, tile), name, choice), priority);
  };
  // The order is that of one text, which Python's tests walk through (test_the_score); here, that C++ tells it all that it weighs.
  put(128, 64, "wide, short tile");
  put(64, 128, "narrow, tall tile");
  put(64, 64, "narrow, short tile");
  CHECK_TEXT(chosen(registry, attention(65, 64, 64).build()).c_str(), "wide, short tile");
  CHECK_TEXT(chosen(registry, attention(64, 64, 128).build()).c_str(), "narrow, tall tile");
  CHECK_TEXT(chosen(registry, attention(64, 64, 130).build()).c_str(), "narrow, short tile");
  Choice decode = holding_head_dims();
  decode.best = SizeRule("seqlen_q>=1 seqlen_q<=8");
  put(64, 16, "decode", Priority::normal, decode);
  CHECK_TEXT(chosen(registry, attention(64, 64, 8).build()).c_str(), "decode");
  // A faster target, then a lower rank, measured or declared.
  Choice fast = holding_head_dims();
  fast.order = 5;
  registry.add(kernel(attention_key("fmha_fwd", 64, 64, 64, "fast"), "fast", fast));
  CHECK_TEXT(chosen(registry, attention(64, 64, 64).build()).c_str(), "fast");
  const Key twin = attention_key("fmha_fwd", 64, 64, 64, "twin");
  registry.add(kernel(twin, "twin", fast));
  CHECK_TEXT(chosen(registry, attention(64, 64, 64).build()).c_str(), "fast");
  CHECK(registry.set_rank(attention_key("fmha_fwd", 64, 64, 64, "fast").id(), 1));
  CHECK_TEXT(chosen(registry, attention(64, 64, 64).build()).c_str(), "twin");
  CHECK(!registry.set_rank("no such id", 1));
  // Priority decides among those that waste alike, and not before.
  Key urgent = attention_key("fmha_fwd", 64, 64, 256, "urgent");
  registry.add(kernel(urgent, "urgent"), Priority::high);
  CHECK_TEXT(chosen(registry, attention(64, 64, 64).build()).c_str(), "urgent");
  registry.add(kernel(attention_key("fmha_fwd", 60, 60, 256), "closest"), Priority::low);
  CHECK_TEXT(chosen(registry, attention(60, 60, 64).build()).c_str(), "closest");
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
  const Problem problem = attention().build();
  CHECK(dispatcher.run(problem, call).runs == 0 && own->launches == 1);
  CHECK_HOLDS(thrown<NoKernelFound>([&] { dispatcher.run(attention(64, 64, 300).build(), call); }).c_str(),
              "it is for short problems");
  CHECK_HOLDS(thrown<NoKernelFound>([&] { dispatcher.run(attention(64, 64, 300).build(), call); }).c_str(),
              "no kernel of fmha_fwd in registry runs");
  CHECK_HOLDS(thrown<std::invalid_argument>([&] { own->launch(product_call()); }).c_str(),
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

void fields_without_effect_are_told() {
  Registry registry("effect");
  Key key = attention_key("fmha_fwd", 64, 64, 64);
  key.algorithm.set("wave_m0", 4);
  registry.add(kernel(key));
  CHECK_HOLDS(Dispatcher(registry).why(attention().build()).c_str(), "wave_m0=4 has no effect on cpu-generic");
}

void plans() {
  Registry registry("plans");
  Dispatcher dispatcher(registry);
  dispatcher.add_operator("fmha_fwd_splitkv",
                          {{"fmha_fwd_splitkv", "fmha_fwd_splitkv_combine"}, "fmha_fwd_splitkv", {}});
  dispatcher.add_operator("fmha_bwd", {{"fmha_bwd_dot_do_o", "fmha_bwd_dq_dk_dv", "fmha_bwd_convert_dq"},
                                       "fmha_bwd_dq_dk_dv",
                                       {{"fmha_bwd_convert_dq", "found"}}});
  dispatcher.add_operator(
      "fmha_fwd_appendkv",
      {{"fmha_fwd_appendkv", "fmha_fwd_splitkv"}, "fmha_fwd_appendkv", {{"fmha_fwd_splitkv", "attend"}}});
  const auto stages = [&](const Problem& problem) {
    std::string text;
    for (const Plan::Stage& stage : dispatcher.plan(problem).stages) text += stage.family + " ";
    return text;
  };
  const Problem split = attention().api_family("fwd_splitkv").build();
  const auto launched = std::make_shared<OwnKernel>(own_key("fmha_fwd_splitkv"));
  registry.add(launched);
  CHECK_TEXT(stages(split).c_str(), "");
  CHECK_HOLDS(dispatcher.plan(split).reason.c_str(), "no kernel of fmha_fwd_splitkv_combine");
  registry.add(std::make_shared<OwnKernel>(own_key("fmha_fwd_splitkv_combine")));
  CHECK_TEXT(stages(split).c_str(), "fmha_fwd_splitkv fmha_fwd_splitkv_combine ");
  dispatcher.run(split, forward_call());
  CHECK(launched->launches == 1);
  registry.add(std::make_shared<OwnKernel>(own_key("fmha_fwd_appendkv")));
  CHECK_TEXT(stages(attention().api_family("fwd_appendkv").build()).c_str(), "fmha_fwd_appendkv ");
  CHECK_TEXT(stages(attention().api_family("fwd_appendkv").set("attend", true).build()).c_str(),
             "fmha_fwd_appendkv fmha_fwd_splitkv ");
  // A feature that one stage knows is not asked of another; one that none knows leaves no plan.
  Key causal = own_key("fmha_bwd_dq_dk_dv");
  causal.signature.set("mask", "window");
  registry.add(std::make_shared<OwnKernel>(causal));
  registry.add(std::make_shared<OwnKernel>(own_key("fmha_bwd_dot_do_o")));
  const auto backward = [] { return attention().api_family("bwd").lse(true); };
  CHECK_TEXT(stages(backward().mask_type("causal").build()).c_str(), "fmha_bwd_dot_do_o fmha_bwd_dq_dk_dv ");
  CHECK_TEXT(stages(backward().build()).c_str(), "");
  CHECK_TEXT(stages(backward().mask_type("causal").dropout(true).build()).c_str(), "");
  CHECK_HOLDS(dispatcher.plan(backward().mask_type("causal").dropout(true).build()).reason.c_str(),
              "it knows no dropout");
  registry.add(std::make_shared<OwnKernel>(own_key("fmha_bwd_convert_dq")));
  CHECK_TEXT(stages(backward().mask_type("causal").build()).c_str(),
             "fmha_bwd_dot_do_o fmha_bwd_dq_dk_dv fmha_bwd_convert_dq ");
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

}  // namespace

int main() {
  what_answers();
  what_algorithms_ask();
  products();
  which_is_chosen();
  runs_and_heuristics();
  fields_without_effect_are_told();
  plans();
  timing();
  return check_result();
}
