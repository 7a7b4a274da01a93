// SPDX-License-Identifier: MIT
// Registries: priorities, filters, merging, threads, JSON there and back; broken JSON is held to Python's (twin_test.cpp).
#include <atomic>
#include <thread>

namespace registry_test {

void priorities_replace_upwards() {
  Registry registry("one");
  const Key key = attention_key("fmha_fwd", 64, 64, 128);
  CHECK(!registry.add(nullptr));
  CHECK(registry.add(kernel(key, "first")));
  CHECK(!registry.add(kernel(key, "same"), Priority::normal));
  CHECK(!registry.add(kernel(key, "lower"), Priority::low));
  CHECK_TEXT(registry.lookup(key)->name().c_str(), "first");
  CHECK(registry.add(kernel(key, "higher"), Priority::high));
  CHECK_TEXT(registry.lookup(key.id())->name().c_str(), "higher");
  CHECK(registry.size() == 1);
  CHECK(registry.lookup("no such id") == nullptr);
  registry.clear();
  CHECK(registry.size() == 0);
}

void order_and_filters() {
  Registry registry("one");
  Choice late = holding_head_dims();
  late.rank = 2;
  registry.add(kernel(attention_key("fmha_fwd", 128, 128, 64), "wide"));
  registry.add(kernel(attention_key("fmha_fwd", 64, 64, 128), "tall"));
  registry.add(kernel(attention_key("fmha_fwd", 64, 64, 64), "short"));
  registry.add(kernel(attention_key("fmha_fwd", 32, 32, 64), "late", late));
  registry.add(kernel(attention_key("fmha_fwd", 256, 256, 64, "gfx942"), "high"), Priority::high);
  std::string order;
  for (const auto& one : registry.get_all()) order += one->name() + " ";
  CHECK_TEXT(order.c_str(), "high short tall wide late ");
  CHECK(registry.filter([](const Instance& one) { return one.key().algorithm["tile_m0"] == Value(64); }).size() == 4);
  CHECK(registry.filter_by_target("cpu-generic") == 1);
  CHECK(registry.size() == 4);
  Key shared = attention_key("fmha_fwd", 96, 96, 64), flash = shared, aiter = shared;
  flash.receipt = "flash";
  aiter.receipt = "aiter";
  for (const Key& key : {shared, flash, aiter}) registry.add(kernel(key));
  CHECK((registry.available_receipts() == std::vector<std::string>{"aiter", "flash"}));
  CHECK(registry.filter_by_receipt("flash") == 1);
  CHECK(registry.lookup(shared) != nullptr && registry.lookup(flash) != nullptr && registry.lookup(aiter) == nullptr);
}

void a_measured_rank_decides() {
  Registry registry("ranked");
  const Key first = attention_key("fmha_fwd", 64, 64, 64, "one");
  registry.add(kernel(first, "one"));
  registry.add(kernel(attention_key("fmha_fwd", 64, 64, 64, "two"), "two"));
  CHECK_TEXT(registry.index()->select(attention().build())->instance->name().c_str(), "one");
  CHECK(registry.set_rank(first.id(), 1) && !registry.set_rank("no such id", 1));
  CHECK_TEXT(registry.index()->select(attention().build())->instance->name().c_str(), "two");
  Registry merged("merged");
  CHECK(merged.merge_from(registry) == 2);
  CHECK_TEXT(merged.index()->select(attention().build())->instance->name().c_str(), "two");
}

void merging_and_names() {
  Registry one("one"), other("other");
  const Key both = attention_key("fmha_fwd", 64, 64, 128), high = attention_key("fmha_fwd", 96, 96, 128);
  one.add(kernel(both, "ours"));
  one.add(kernel(high, "ours, high"), Priority::high);
  other.add(kernel(both, "theirs"));
  other.add(kernel(high, "theirs"));
  other.add(kernel(attention_key("fmha_fwd", 32, 32, 128), "new"));
  CHECK(one.merge_from(other) == 2);
  CHECK(one.merge_from(one) == 0);
  CHECK_TEXT(one.lookup(both)->name().c_str(), "theirs");
  CHECK_TEXT(one.lookup(high)->name().c_str(), "ours, high");
  CHECK(one.size() == 3 && other.size() == 3);
  CHECK(&Registry::named("a") == &Registry::named("a"));
  CHECK(&Registry::named("a") != &Registry::named("b"));
  CHECK(&Registry::instance() == &Registry::named("default"));
}

void json_and_back(const std::string& folder) {
  Registry registry("a \"name\"\n\x01");
  Choice choice = holding_head_dims();
  choice.best = SizeRule("seqlen_q>=1 seqlen_q<=8 or seqlen_q=100");
  choice.order = 30;
  Key key = attention_key("fmha_fwd", 64, 64, 128);
  key.receipt = "flash";
  registry.add(kernel(key, "caf\xc3\xa9 \\", choice), Priority::high);
  registry.add(kernel(attention_key("fmha_fwd_splitkv", 64, 32, 64, "gfx942")));
  registry.set_rank(key.id(), 7);
  const std::string json = registry.to_json();
  Registry back("a \"name\"\n\x01");
  CHECK(from_json(back, json, "kernels.json") == 2);
  CHECK_TEXT(back.to_json().c_str(), json.c_str());
  CHECK_HOLDS(json.c_str(),
              "{\"metadata\":{\"registry_name\":\"a \\\"name\\\"\\n\\u0001\",\"total_kernels\":2,"
              "\"export_version\":\"1.0.0\"},");
  CHECK_HOLDS(json.c_str(), "\"by_gfx_arch\":{\"cpu-generic\":1,\"gfx942\":1}");
  CHECK(registry.to_json(true, true).find("\"timestamp\":\"20") != std::string::npos);
  CHECK(registry.to_json(false).find("statistics") == std::string::npos);
  CHECK(back.lookup(key)->choice().best.holds(attention(64, 64, 100).build()));
  CHECK(!back.lookup(key)->choice().best.holds(attention(64, 64, 99).build()));
  const tilekiln_fmha_fwd_args args = tilekiln_fmha_fwd_defaults();
  CHECK_HOLDS(thrown<std::runtime_error>([&] { back.lookup(key)->launch(Call("fmha_fwd", args)); }).c_str(),
              "has no code here");

  CHECK_HOLDS(thrown<FileError>([&] { from_file(back, folder + "/none.json"); }).c_str(),
              "none.json:1: cannot be read");
  CHECK(!registry.to_file(folder + "/no/such/place.json"));

  const std::string each = folder + "/each.json", end = folder + "/end.json";
  {
    Registry automatic("automatic");
    automatic.enable_auto_export(each);
    automatic.add(kernel(key));
    CHECK_TEXT(JsonReader::contents(each).c_str(), automatic.to_json().c_str());
    automatic.enable_auto_export(end, false, false);
    automatic.add(kernel(attention_key("fmha_fwd", 32, 32, 64)));
    CHECK(thrown<FileError>([&] { JsonReader::contents(end); }) != "");
  }
  Registry read("automatic");
  CHECK(from_file(read, end) == 2);
}

void threads() {
  Registry registry("threads");
  std::atomic<bool> stop = false;
  std::vector<std::thread> all;
  std::atomic<int> chosen = 0, named = 0;
  for (int i = 0; i < 2; ++i) {
    all.emplace_back([&, i] {
      for (int n = 0; n < 40; ++n) {
        registry.add(kernel(attention_key("fmha_fwd", 64 + n, 64, 128 + i)));
        if (n % 10 == 9) registry.filter_by_target("cpu-generic");
      }
      registry.to_json();
    });
    all.emplace_back([&, i] {
      const Problem problem = attention(60, 60, 100 + i).set("word " + std::to_string(i), "value").build();
      while (!stop) chosen += registry.index()->select(attention(60, 60, 100).build()) != nullptr;
      named += !problem.canonical_key().empty();
    });
  }
  all[0].join();
  all[2].join();
  stop = true;
  all[1].join();
  all[3].join();
  CHECK(registry.size() == 80 && named == 2);
  CHECK(registry.index()->select(attention(60, 60, 100).build()) != nullptr);
}

int run(char** arguments) {
  priorities_replace_upwards();
  order_and_filters();
  a_measured_rank_decides();
  merging_and_names();
  json_and_back(arguments[1]);
  threads();
  return check_result();
}
}  // namespace registry_test
