// Problems, builders, keys: every refusal by its field, every field of a key in its id.
#include "made.h"

using namespace made;

namespace {

using Invalid = std::invalid_argument;

void refusals_name_the_field() {
  const auto refused = [](const char* expected, const std::function<void(ProblemBuilder&)>& does) {
    ProblemBuilder builder = attention();
    CHECK_TEXT(thrown<Invalid>([&] { does(builder), builder.build(); }).c_str(), expected);
  };
  refused("api_family: was fmha, must be fwd, fwd_pagedkv, fwd_splitkv, fwd_appendkv, batch_prefill or bwd",
          [](auto& b) { b.api_family("fmha"); });
  refused("hdim_q: was 0, must be at least 1", [](auto& b) { b.dims(0, 64, 1, 1, 1); });
  refused("hdim_v: was -1, must be at least 1", [](auto& b) { b.dims(64, -1, 1, 1, 1); });
  refused("batch: was 0, must be at least 1", [](auto& b) { b.dims(64, 64, 0, 1, 1); });
  refused("seqlen_q: was -1, must be at least 0", [](auto& b) { b.dims(64, 64, 1, -1, 1); });
  refused("nhead_k: was 0, must be at least 1", [](auto& b) { b.nheads(8, 0); });
  refused("nhead_k: was not given, must be at least 1", [](auto& b) { b.set("nhead_k", int64_t{0}); });
  refused("nhead_q: was 8, must be a multiple of nhead_k, 3", [](auto& b) { b.nheads(8, 3); });
  refused("bias_type: was slopes, must be no_bias, none, no, elementwise, elementwise_bias or alibi",
          [](auto& b) { b.bias_type("slopes"); });
  refused("page_size: was 0, must be at least 1", [](auto& b) { b.kv_cache("linear", "vllm", 0); });
  refused("window_left: was -2, must be at least -1", [](auto& b) { b.window(-2, 0); });
  refused("sink_size: was -1, must be at least 0", [](auto& b) { b.sink_size(-1); });
  refused("num_splits: was 0, must be at least 1", [](auto& b) { b.num_splits(0); });
  refused("lse: was no, must be yes for bwd, which reads what the forward wrote", [](auto& b) { b.api_family("bwd"); });
  refused("max_seqlen_q: was 0, must be at least 1 in group mode", [](auto& b) { b.group_mode(true); });
  refused("dbias: was yes, must be no without an elementwise bias", [](auto& b) { b.bwd_flags(true, false, false); });
  refused("store_randval: was yes, must be no without dropout", [](auto& b) { b.bwd_flags(false, true, false); });
  // Every argument is checked before a field is set.
  ProblemBuilder kept = attention();
  CHECK_TEXT(thrown<Invalid>([&] { kept.dims(32, 32, 1, 1, -1); }).c_str(), "seqlen_k: was -1, must be at least 0");
  CHECK_TEXT(thrown<Invalid>([&] { kept.kv_cache("linear", "vllm", 0); }).c_str(),
             "page_size: was 0, must be at least 1");
  CHECK(kept.build().to_string() == attention().build().to_string());
  CHECK_TEXT(thrown<Invalid>([] { ProblemBuilder().build(); }).c_str(),
             "data_type: was not given, must be a dtype such as bf16");
  CHECK_TEXT(thrown<Invalid>([] { ProblemBuilder().data_type("fp16").build(); }).c_str(),
             "hdim_q: was not given, must be at least 1");
}

void every_setter_reaches_its_field() {
  const Problem problem = attention()
                              .api_family("batch_prefill")
                              .gfx_arch("gfx942")
                              .mask_type("top_left")
                              .bias_type("elementwise_bias")
                              .lse(true)
                              .dropout(true)
                              .qscale_type("kv_blockscale")
                              .rope_type("half_rotated")
                              .logits_soft_cap(true)
                              .v_rowmajor(false)
                              .group_mode(true)
                              .paged_kv(true)
                              .fp8_static_quant(true)
                              .skip_min_seqlen_q(true)
                              .kv_cache("vectorized", "sglang", 16)
                              .window(7, 3)
                              .sink_size(4)
                              .max_seqlen(300, 400)
                              .num_splits(8)
                              .bwd_flags(false, true, true)
                              .build();
  CHECK_TEXT(
      problem.to_string().c_str(),
      "fmha_batch_prefill batch=2 bias=elementwise dbias=no deterministic=yes dropout=yes dtype=bf16 "
      "fp8_static_quant=yes "
      "hdim_q=64 hdim_v=64 kv_dtype=same layout=vectorized lookup=sglang lse=yes mask=window mask_origin=top_left "
      "max_seqlen_k=400 max_seqlen_q=300 mode=group nhead_k=4 nhead_q=8 num_splits=8 page_size=16 page_tokens=16 "
      "paged=yes "
      "qscale=kv_blockscale rope=half seqlen_k=256 seqlen_q=128 sink=yes sink_size=4 skip_min_seqlen_q=yes softcap=yes "
      "store_randval=yes target=gfx942 v_layout=column window_left=7 window_right=3");
  // Pages of a prefill are of classes, which its operator's host code knows.
  for (const auto& [tokens, of_class] : {std::pair{1, 1}, {2, 16}, {63, 16}, {64, 1024}, {4096, 1024}}) {
    const Problem pages = attention().api_family("batch_prefill").kv_cache("linear", "vllm", tokens).build();
    CHECK(pages.number("page_size") == of_class && pages.number("page_tokens") == tokens);
  }
  CHECK(attention().api_family("fwd_splitkv").kv_cache("linear", "vllm", 32).build().number("page_size") == 32);
  const Problem backward = attention().api_family("bwd").lse(true).dropout(true).bwd_flags(false, true, false).build();
  CHECK(backward["dropout"] == Value("store"));
  CHECK(backward.family() == Value("fmha_bwd_dq_dk_dv"));
  CHECK(attention().api_family("bwd").lse(true).kernel_family("bwd_dot_do_o").build().family() ==
        Value("fmha_bwd_dot_do_o"));
}

void sizes_and_keys_of_problems() {
  const Problem problem = attention(64, 32).build();
  CHECK(problem.num_ops() == int64_t(2) * 2 * 8 * 128 * 256 * (64 + 32));
  CHECK(attention(64, 32, 0).build().num_ops() == 0);
  const Problem longer = attention(64, 32).max_seqlen(500, 600).build();
  CHECK(longer.effective_max_seqlen_q() == 500);
  CHECK(longer.effective_max_seqlen_k() == 600);
  CHECK(problem.effective_max_seqlen_q() == 128);
  CHECK(!problem.has_variable_seqlen_k());
  for (const char* name : {"has_seqstart_k", "has_seqlen_k", "has_cu_seqlens_k", "is_gappy"})
    CHECK(attention().set(name, true).build().has_variable_seqlen_k());
  // Sizes are not in the canonical key; every other field that says something is.
  CHECK(problem.canonical_key() == attention(64, 32, 7).build().canonical_key());
  CHECK(problem.canonical_key() == attention(64, 32).lse(false).mask_type("no_mask").build().canonical_key());
  std::vector<Problem> others = {attention(32, 32).build(),
                                 attention(64, 64).build(),
                                 attention(64, 32).lse(true).build(),
                                 attention(64, 32).mask_type("top_left").build(),
                                 attention(64, 32).mask_type("bottom_right").build(),
                                 attention(64, 32).bias_type("alibi").build(),
                                 attention(64, 32).logits_soft_cap(true).build(),
                                 attention(64, 32).v_rowmajor(false).build(),
                                 attention(64, 32).gfx_arch("gfx942").build(),
                                 attention(64, 32).sink(true).build(),
                                 attention(64, 32).window(5, 0).build(),
                                 attention(64, 32).paged_kv(true).build(),
                                 attention(64, 32).kv_cache("linear", "vllm", 16).build(),
                                 attention(64, 32).kv_cache("linear", "sglang", 16).build(),
                                 attention(64, 32).set("has_block_table", true).build(),
                                 attention(64, 32).api_family("fwd_splitkv").build()};
  std::set<std::string> keys = {problem.canonical_key()};
  for (const Problem& other : others) CHECK(keys.insert(other.canonical_key()).second);
  CHECK(problem.canonical_key().find('\x1f') != std::string::npos);
}

void products() {
  const Problem problem = GemmProblemBuilder().from_ab(100, 30, 30, 50).dtypes("int8").layouts("rcc").build();
  CHECK_TEXT(
      problem.to_string().c_str(),
      "gemm dtype=int8 k=30 layout_a=row layout_b=column layout_out=column m=100 n=50 out_dtype=int32 stride_a=30 "
      "stride_b=30 stride_out=100");
  CHECK(problem.num_ops() == 2 * 100 * 50 * 30);
  const auto refused = [](const char* expected, const std::function<void(GemmProblemBuilder&)>& does) {
    GemmProblemBuilder builder;
    CHECK_TEXT(thrown<Invalid>([&] { does(builder), builder.build(); }).c_str(), expected);
  };
  refused("m: was not given, must be at least 1", [](auto&) {});
  refused("n: was 0, must be at least 1", [](auto& b) { b.dimensions(1, 0, 1); });
  refused("k: was 31 rows of b, must be 30, the columns of a", [](auto& b) { b.from_ab(100, 30, 31, 50); });
  refused("m: was 99 rows of out, must be 100, the rows of a", [](auto& b) { b.from_shapes(100, 30, 30, 50, 99, 50); });
  refused("dtype: was fp64, must be fp32, fp16, bf16, int8, fp8 or bf8; did you mean fp16?",
          [](auto& b) { b.dtypes("fp64"); });
  refused("out_dtype: was fp64, must be fp32, fp16, bf16 or int32; did you mean fp16?",
          [](auto& b) { b.dtypes("bf16", "fp64"); });
  refused("layouts: was rc, must be three letters of r and c, as in rcr", [](auto& b) { b.layouts("rc"); });
  refused("layout_b: was x, must be r or c", [](auto& b) { b.layouts("rxr"); });
  refused("stride_b: was -1, must be at least 0", [](auto& b) { b.strides(0, -1, 0); });
  refused("stride_a: was 20, must be at least 30", [](auto& b) { b.dimensions(10, 10, 30).strides(20, 0, 0); });
  CHECK(GemmProblemBuilder().dimensions(10, 10, 30).strides(40, 0, 0).build().number("stride_a") == 40);
}

void every_field_of_a_key_is_in_its_id() {
  Key key = attention_key("fmha_fwd", 64, 64, 128);
  for (const char* name :
       {"softcap", "lse", "wave_m2", "wave_n2", "wave_k2", "warp_m2", "warp_n2", "warp_k2", "constraint", "dtype_b",
        "dtype_acc", "transpose_c", "grouped", "block_size", "double_buffer", "num_wave_groups"})
    (std::string_view(name).find('_') == std::string_view::npos ? key.signature : key.algorithm).set(name, 1);
  std::set<std::string> ids = {key.id()};
  int changes = 0;
  const auto changed = [&](const std::function<void(Key&)>& change) {
    Key other = key;
    change(other);
    ++changes;
    CHECK(ids.insert(other.id()).second);
    CHECK(!(other == key));
  };
  changed([](Key& other) { other.family = "fmha_bwd"; });
  changed([](Key& other) { other.target = "gfx942"; });
  changed([](Key& other) { other.receipt = "flash"; });
  for (const auto& [field, value] : key.signature) changed([&](Key& other) { other.signature.set(field, 77); });
  for (const auto& [field, value] : key.algorithm) changed([&](Key& other) { other.algorithm.set(field, 77); });
  // A field that moves from the algorithm to the signature makes another key, too.
  changed([](Key& other) { other.signature.set("pipeline", "qr"); });
  CHECK(changes > 20);
  CHECK(key.id().compare(0, 20, "fmha_fwd-bf16-64x64-") == 0);
  Key again = attention_key("fmha_fwd", 64, 64, 128);
  Values reversed;
  std::vector<Values::Pair> pairs(again.signature.begin(), again.signature.end());
  for (auto at = pairs.rbegin(); at != pairs.rend(); ++at) reversed.set(at->field, at->value);
  again.signature = reversed;
  CHECK(again.id() == attention_key("fmha_fwd", 64, 64, 128).id());
}

void values() {
  CHECK(Value("none").off() && Value(false).off() && Value().off() && Value("no") == Value(false));
  CHECK(Value("none").means(false) && Value("none") != Value(false));
  CHECK(Value("64") == Value(64) && Value("-1") == Value(-1) && Value("-") != Value(0) && Value("64x64").is_word());
  CHECK(Value(true).yes() && !Value(true).is_number() && Value(true) == Value("yes"));
  for (const char* text : {"bf16", "none", "no", "yes", "64", "-5", "a b"})
    CHECK_TEXT(Value(text).text().c_str(), text);
  CHECK(thrown<Invalid>([] { Value(INT64_MAX); }) != "");
}

TILEKILN_KERNEL_SET(of_a_test, .add(Signature("fwd").dtype("fp16").hdim(64)));
TILEKILN_KERNEL_SET(another, .add(Signature("fwd").dtype("bf16").hdim(-1)));
TILEKILN_KERNEL_SET(of_a_test,
                    .add(Signature("fwd").dtype("bf16").hdim(64, 32).mask("causal").lse("*"),
                         Algorithm().tile(64, 32, 16).wave({4, 1, 1}).pipeline("qlanes").auto_fill(), "gfx942")
                        .add(Signature("bwd_dq_dk_dv").dtype("bf16").hdim(64).dropout(true).store_randval(true)));

void kernel_sets() {
  // The last of a name counts, at the place of the first; there is none of another name.
  CHECK((KernelSets::names() == std::vector<std::string>{"of_a_test", "another"}));
  CHECK(KernelSets::get("no such").size() == 0 && KernelSets::get("no such").tag() == "no such");
  KernelSet set = KernelSets::get("of_a_test");
  CHECK(set.size() == 2 && set.needs_expansion());
  CHECK_HOLDS(set.to_yaml().c_str(),
              "  - family: fmha_fwd\n    signature: {dtype: bf16, hdim_q: 64, hdim_v: 32, mask: window, lse: any}\n"
              "    algorithm: {tile_q: 64, tile_k: 32, k0: 16, n1: 32, k1: 16, k0max: 16, qk_m: 4, qk_n: 1, qk_k: 1, "
              "pipeline: qlanes, hdim_q_alignment: 16, hdim_v_alignment: 16}\n    target: ck-gfx942\n");
  CHECK_HOLDS(set.to_yaml().c_str(), "{dtype: bf16, hdim_q: 64, hdim_v: 64, dropout: store}");
  // A listing answers as a kernel does: its key holds CK's words, and its pads their rules.
  const auto listed = set.listing();
  CHECK(listed.size() == 2 && listed[0]->key().algorithm["tile_m0"] == Value(64));
  const auto asked = [](bool lse) {
    return attention(60, 30).mask_type("window_generic").lse(lse).gfx_arch("ck-gfx942").build();
  };
  CHECK(listed[0]->supports(asked(false)) && listed[0]->supports(asked(true)));
  Registry registry("of a test");
  registry.add_all(listed);
  CHECK(registry.index()->select(asked(true))->instance == listed[0]);
  CHECK(registry.index()->select(attention(60, 30).mask_type("causal").sink(true).build()) == nullptr);
  CHECK_HOLDS(listed[0]->refusal(attention(65, 30).mask_type("causal").build()).c_str(), "too small");
  // One that names everything stands for one kernel.
  KernelSet exact("exact", "here.cpp", 7);
  exact.add(Signature("fwd").dtype("bf16").hdim(64), Algorithm().pipeline("qlanes"), "cpu-avx2");
  CHECK(!exact.needs_expansion() && exact.merge(set).size() == 3 && exact.needs_expansion());
  exact.add(Signature("fwd_splitkw").dtype("bf16")).add(Signature().bias("alibo"), Algorithm().wave({1, 2}));
  exact.add(Signature("fwd").dtype("bf16").hdim(64), Algorithm().tile(64, 128).set("tile_k", 32));
  exact.add(Signature("fwd").dtype("bf16").hdim(64), Algorithm().padding(true, true, false, false).set("pads", "npad"));
  const std::string wrong = thrown<Invalid>([&] { exact.to_yaml(); });
  CHECK_HOLDS(wrong.c_str(), "here.cpp:7: kernel set exact, kernel 4: kernel_family: was fwd_splitkw");
  CHECK_HOLDS(wrong.c_str(), "did you mean alibi?");
  CHECK_HOLDS(wrong.c_str(), "kernel 5: wave: was 2 numbers, must be 3, 6 or 9");
  CHECK_HOLDS(wrong.c_str(), "kernel 6: tile_k: was 128 and 32, must be one of them: two words of the algorithm");
  CHECK_HOLDS(wrong.c_str(), "kernel 7: pads: was npad and pssk, must be one of them");
}

}  // namespace

int main() {
  kernel_sets();
  refusals_name_the_field();
  every_setter_reaches_its_field();
  sizes_and_keys_of_problems();
  products();
  every_field_of_a_key_is_in_its_id();
  values();
  return check_result();
}
