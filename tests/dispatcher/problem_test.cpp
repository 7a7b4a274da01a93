// SPDX-License-Identifier: MIT
// Keys, values and kernel sets. Builders are held to Python's (twin_test.cpp).

namespace problem_test {

using Invalid = std::invalid_argument;

void keys_that_differ() {
  const Key key = attention_key("fmha_fwd", 64, 64, 128);
  const auto changed = [&](const std::function<void(Key&)>& change) {
    Key other = key;
    change(other);
    CHECK(!(other == key) && other.id() != key.id());
  };
  changed([](Key& other) { other.family = "fmha_bwd"; });
  changed([](Key& other) { other.target = "gfx942"; });
  changed([](Key& other) { other.receipt = "flash"; });
  changed([](Key& other) { other.signature.set("lse", true); });
  changed([](Key& other) { other.algorithm.set("wave_m2", 1); });
  // A field that moves from the algorithm to the signature makes another key; one that is said earlier does not.
  changed([](Key& other) { other.signature.set("pipeline", "qr"); });
  Key again = key;
  const std::vector<Values::Pair> pairs(key.signature.begin(), key.signature.end());
  again.signature = Values();
  for (auto at = pairs.rbegin(); at != pairs.rend(); ++at) again.signature.set(at->field, at->value);
  CHECK(again == key && again.id() == key.id());
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

int run() {
  kernel_sets();
  keys_that_differ();
  values();
  return check_result();
}
}  // namespace problem_test
