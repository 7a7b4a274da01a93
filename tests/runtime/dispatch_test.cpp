// The dispatcher on hand-made tables: several tiles, targets, ranks and head dims, and the sentences of explain.h.
#include <stdint.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "check.h"
#include "tilekiln/runtime/explain.h"

using namespace tilekiln;

namespace {

const char* const dtypes[] = {"fp32", "bf16"};
const char* const masks[] = {"none", "window"};
const Axis axes[] = {{"dtype", 1, 0, 4, 2, dtypes},
                     {"hdim_q", 2, 4, 10, 0, nullptr},
                     {"hdim_v", 2, 14, 10, 0, nullptr},
                     {"mask", 1, 24, 4, 2, masks},
                     {"lse", 0, 28, 1, 2, nullptr}};
constexpr uint64_t key(int dtype, int hdim_q, int hdim_v, int mask, int lse) {
  return uint64_t(dtype) | uint64_t(hdim_q) << 4 | uint64_t(hdim_v) << 14 | uint64_t(mask) << 24 | uint64_t(lse) << 28;
}
constexpr uint64_t hdims = uint64_t(0xfffff) << 4;

// lse needs fp32; bf16 has no window.
const Condition bf16_lse[] = {{0, 0, 2, nullptr}, {4, 0, 2, nullptr}};
const uint16_t only_192[] = {192};
const Condition wide_window[] = {{1, 1, 0, only_192}, {3, 0, 2, nullptr}};
const Rule rules[] = {{"lse_fp32_only", "LSE is written for fp32 only", {bf16_lse, 2}},
                      {"no_192_window", "192x128 has no window", {wide_window, 2}}};
const Condition plain_only[] = {{3, 0, 1, nullptr}};
const Condition fp32_only[] = {{0, 0, 1, nullptr}};
const Clause small_clauses[] = {{plain_only, 1}};
const Clause full_clauses[] = {{fp32_only, 1}, {plain_only, 1}};
const ReceiptInfo receipts[] = {{"full", full_clauses, 2}, {"small", small_clauses, 1}};
const HeadDims head_dims[] = {{0, 64, 64}, {0, 128, 128}, {0, 192, 128}, {0, 256, 256}, {1, 128, 128}};

const int engine_marker[2] = {};
const void* const pipelines_built[] = {&engine_marker[0], &engine_marker[1]};
const void* const* const built[] = {pipelines_built};
const void* const pipelines_missing[] = {nullptr, &engine_marker[1]};
const void* const* const half_built[] = {pipelines_missing};
bool yes() { return true; }
bool no() { return false; }
const char* const pipeline_names[] = {"qlanes", "decode"};

// A table made of rows in plan order, as the generator would make it.
struct World {
  std::vector<Row> rows;
  std::vector<Target> targets = {{"cpu-generic", "generic", 0, 0, yes, built},
                                 {"cpu-avx2", "avx2", 1, 10, yes, built},
                                 {"cpu-avx512", "avx512", 2, 20, yes, built},
                                 {"cpu-next", "next", 3, 30, no, built}};
  std::vector<Group> groups;
  std::vector<RowRef> refs, plan;
  std::vector<uint32_t> instance_of, name_offset;
  std::string names;
  Batch batch;
  Family family;
  Table table;

  void add(uint64_t signature, int target, int tile_q, int rank = 0, int pipeline = 0, KvLoad load = KvLoad::any,
           int tile_k = 64) {
    rows.push_back({signature, static_cast<unsigned short>(tile_q), static_cast<unsigned short>(tile_k),
                    static_cast<unsigned char>(target), static_cast<unsigned char>(pipeline),
                    static_cast<unsigned char>(rank), static_cast<unsigned char>(load)});
  }
  Dispatcher make(const char* isa = "", const char* where = "") {
    batch = {rows.data(), static_cast<uint32_t>(rows.size())};
    std::map<uint64_t, std::vector<uint16_t>> by_features;
    for (uint16_t i = 0; i < rows.size(); ++i) by_features[rows[i].signature & ~hdims].push_back(i);
    for (auto& [features, members] : by_features) {
      const auto begin = static_cast<uint32_t>(refs.size());
      for (uint16_t i : members) {
        refs.push_back({0, i});
        instance_of.push_back(i);
      }
      groups.push_back({features, begin, static_cast<uint32_t>(refs.size())});
    }
    for (uint16_t i = 0; i < rows.size(); ++i) {
      plan.push_back({0, i});
      name_offset.push_back(static_cast<uint32_t>(names.size()));
      names += "row_" + std::to_string(i);
      names.push_back(0);
    }
    family = {"toy",
              axes,
              5,
              pipeline_names,
              2,
              rules,
              2,
              receipts,
              2,
              head_dims,
              5,
              groups.data(),
              static_cast<uint32_t>(groups.size()),
              refs.data(),
              instance_of.data()};
    table = {"1.0",
             "small",
             where,
             targets.data(),
             static_cast<uint32_t>(targets.size()),
             &batch,
             1,
             &family,
             1,
             plan.data(),
             name_offset.data(),
             names.data(),
             static_cast<uint32_t>(rows.size()),
             "{}",
             2};
    return Dispatcher(table, 0, isa);
  }
};

Query query(int dtype, int hdim_q, int hdim_v, int mask = 0, int lse = 0, int64_t seqlen_q = 1000) {
  return {key(dtype, 0, 0, mask, lse), hdim_q, hdim_v, seqlen_q};
}

void least_waste() {
  World w;
  w.add(key(0, 256, 256, 0, 0), 2, 64);
  w.add(key(0, 128, 128, 0, 0), 2, 64);
  w.add(key(0, 192, 128, 0, 0), 2, 64);
  w.add(key(0, 64, 64, 0, 0), 0, 16, 9);  // slow target, poor tile, last rank: still the tightest for small head dims
  const Dispatcher d = w.make();
  CHECK(d.find(query(0, 64, 64)).instance == 3);
  CHECK(d.find(query(0, 1, 1)).instance == 3);
  CHECK(d.find(query(0, 65, 64)).instance == 1);
  CHECK(d.find(query(0, 64, 128)).instance == 1);
  CHECK(d.find(query(0, 129, 128)).instance == 2);
  CHECK(d.find(query(0, 192, 129)).instance == 0);
  CHECK(d.find(query(0, 256, 256)).instance == 0);
  CHECK(d.find(query(0, 257, 1)).row == nullptr);
  CHECK(d.find(query(1, 64, 64)).row == nullptr);
  CHECK(d.find(query(0, 64, 64, 1)).row == nullptr);
  CHECK(d.find(query(0, 64, 64)).engine == &engine_marker[0]);
}

void tile_fit() {
  // A quarter of the rows may be padding before the tall tile is given up.
  CHECK(tile_cost(100, 64) == 128 && tile_cost(100, 16) == 125);
  CHECK(tile_cost(0, 64) == 0 && tile_cost(1, 16) == 16 && tile_cost(64, 64) == 80 && tile_cost(64, 16) == 80);
  World w;
  w.add(key(0, 64, 64, 0, 0), 2, 16);
  w.add(key(0, 64, 64, 0, 0), 2, 64);
  w.add(key(0, 64, 64, 0, 0), 2, 128, 0, 1);
  const Dispatcher d = w.make();
  const auto tile = [&](int64_t seqlen_q) { return d.find(query(0, 64, 64, 0, 0, seqlen_q)).row->tile_q; };
  CHECK(tile(1) == 16 && tile(16) == 16 && tile(17) == 16 && tile(32) == 16 && tile(48) == 16);
  CHECK(tile(52) == 64 && tile(64) == 64 && tile(65) == 16 && tile(104) == 128 && tile(128) == 128 &&
        tile(1000) == 128 && tile(100000) == 128);
  CHECK(tile(0) == 128);
  CHECK(d.find(query(0, 64, 64, 0, 0, 128)).engine == &engine_marker[1]);
  // Tile fit comes before the target.
  World t;
  t.add(key(0, 64, 64, 0, 0), 2, 64);
  t.add(key(0, 64, 64, 0, 0), 1, 16);
  const Dispatcher e = t.make();
  CHECK(e.find(query(0, 64, 64, 0, 0, 1)).instance == 1);
  CHECK(e.find(query(0, 64, 64, 0, 0, 64)).instance == 0);
}

// A target with 32-bit offsets has a twin with 64-bit loads wherever its key tile spans pages.
void kv_load() {
  World w;
  w.add(key(0, 64, 64, 0, 0), 2, 64, 0, 0, KvLoad::small);
  w.add(key(0, 64, 64, 0, 0), 2, 64, 0, 0, KvLoad::large);
  w.add(key(0, 64, 64, 0, 0), 2, 64, 0, 0, KvLoad::small, 128);
  w.add(key(1, 64, 64, 0, 0), 2, 64, 0, 0, KvLoad::small);  // no twin
  w.add(key(0, 128, 128, 0, 0), 2, 64);                     // no limit
  w.add(key(1, 128, 128, 0, 0), 2, 64, 0, 0, KvLoad::large);
  const Dispatcher d = w.make();
  const auto cached = [](Query asked, int64_t pages, int64_t page_size) {
    asked.cache = {pages, page_size, page_size * 1024, 2};
    return asked;
  };
  const Query plain = query(0, 64, 64), fits = cached(plain, 65535, 16), exceeds = cached(plain, 65536, 16);
  CHECK(d.find(plain).instance == 0 && d.find(fits).instance == 0 && d.find(exceeds).instance == 1);
  // Pages of a key tile of 64 have a base each; the tile of 128 spans two of them.
  const Query wide = cached(plain, 1 << 20, 64);
  CHECK(d.find(wide).instance == 0);
  CHECK(d.judge(exceeds, 0, d.find(exceeds)) == Refusal::cache_too_large);
  CHECK(d.judge(fits, 1, d.find(fits)) == Refusal::longer_loads);
  CHECK(d.judge(wide, 2, d.find(wide)) == Refusal::cache_too_large);
  // Nothing reaches it, but the next head dims, whose loads are long whatever the size.
  CHECK(d.find(cached(query(1, 64, 64), 65535, 16)).instance == 3);
  CHECK(d.find(cached(query(1, 64, 64), 65536, 16)).instance == 5);
  CHECK(d.find(cached(query(0, 100, 100), 1 << 20, 16)).instance == 4);
  char text[1024];
  Text answer(text, sizeof(text));
  explain_choice(answer, d, exceeds, d.find(exceeds));
  CHECK_HOLDS(text, "refused: row_0: its 32-bit offsets do not reach the whole cache");
}

void target_and_rank() {
  World w;
  for (int target : {0, 3, 2, 1}) w.add(key(0, 64, 64, 0, 0), target, 64);
  w.add(key(0, 64, 64, 0, 0), 2, 64, 3);
  w.add(key(0, 128, 128, 0, 0), 2, 64, 2);
  w.add(key(0, 128, 128, 0, 0), 2, 64, 1);
  w.add(key(0, 128, 128, 0, 0), 2, 64, 1);
  const Dispatcher d = w.make();
  CHECK(strcmp(d.best()->isa, "avx512") == 0);      // not the machine's missing one, however high its order
  CHECK(d.find(query(0, 64, 64)).instance == 2);    // rank 0 before rank 3
  CHECK(d.find(query(0, 100, 100)).instance == 6);  // of equals, the first of the plan
  CHECK(!d.usable(w.rows[1]) && !d.machine_has(w.rows[1]) && d.usable(w.rows[0]));
  Choice lacking = d.at(1);
  CHECK(lacking.row != nullptr && !d.fits(query(0, 64, 64), lacking));

  CHECK(d.judge(query(0, 64, 64), 1, d.find(query(0, 64, 64))) == Refusal::machine_lacks);
  CHECK(d.judge(query(0, 64, 64), 0, d.find(query(0, 64, 64))) == Refusal::slower_target);
  CHECK(d.judge(query(0, 64, 64), 4, d.find(query(0, 64, 64))) == Refusal::rank);
  CHECK(d.judge(query(0, 64, 64), 6, d.find(query(0, 64, 64))) == Refusal::hdim_waste);
  CHECK(d.judge(query(0, 100, 64), 2, d.find(query(0, 100, 64))) == Refusal::hdim_too_small);
  // Two shapes that waste alike: the target decides.
  World even;
  even.add(key(0, 128, 64, 0, 0), 1, 64);
  even.add(key(0, 64, 128, 0, 0), 2, 64);
  even.add(key(0, 64, 128, 1, 0), 1, 64);
  even.add(key(0, 128, 64, 1, 0), 2, 64);
  const Dispatcher e = even.make();
  CHECK(e.find(query(0, 64, 64)).instance == 1 && e.find(query(0, 64, 64, 1)).instance == 3);

  World forced = w;
  forced.groups.clear(), forced.refs.clear(), forced.plan.clear(), forced.instance_of.clear(),
      forced.name_offset.clear(), forced.names.clear();
  World generic = forced, unknown = forced, absent = forced;
  const Dispatcher down = forced.make("avx2");
  CHECK(down.status() == TILEKILN_OK && strcmp(down.best()->isa, "avx2") == 0);
  CHECK(down.find(query(0, 64, 64)).instance == 3);
  CHECK(down.find(query(0, 128, 128)).row == nullptr);
  CHECK(generic.make("generic").find(query(0, 64, 64)).instance == 0);
  const Dispatcher bad = unknown.make("avx1024");
  CHECK(bad.status() == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(error_text(),
             "TILEKILN_ISA: was \"avx1024\", must be one that library small holds and this machine has (generic, avx2, "
             "avx512) or unset");
  CHECK(bad.best() == nullptr && bad.find(query(0, 64, 64)).row == nullptr);
  const Dispatcher lacks = absent.make("next");
  CHECK(lacks.status() == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(error_text(),
             "TILEKILN_ISA: was \"next\", which this machine has not, must be one that library small holds and this "
             "machine has (generic, avx2, avx512) or unset");
}

void not_built() {
  World w;
  w.targets[2].engines = half_built;
  w.add(key(0, 64, 64, 0, 0), 2, 64, 0, 0);
  w.add(key(0, 64, 64, 0, 0), 1, 64, 0, 0);
  const Dispatcher d = w.make();
  const Query q = query(0, 64, 64);
  const Choice choice = d.find(q);
  CHECK(choice.instance == 1);
  CHECK(d.judge(q, 0, choice) == Refusal::not_built && d.judge(q, 1, choice) == Refusal::chosen);
}

void many() {
  // Every signature of a larger table is found, and no other.
  World w;
  for (int dtype = 0; dtype < 2; ++dtype) {
    for (int mask = 0; mask < 2; ++mask) {
      for (int lse = 0; lse < 2; ++lse) {
        if (dtype == 1 && mask == 1) continue;
        for (int hdim = 32; hdim <= 256; hdim += 32) w.add(key(dtype, hdim, hdim, mask, lse), 2, 64);
      }
    }
  }
  const Dispatcher d = w.make();
  for (size_t i = 0; i < w.rows.size(); ++i) {
    const int hdim = d.hdim_q(w.rows[i]);
    CHECK(d.find({d.features(w.rows[i]), hdim, hdim, 64}).instance == static_cast<int64_t>(i));
    CHECK(d.find({d.features(w.rows[i]), hdim - 31, hdim - 5, 64}).instance == static_cast<int64_t>(i));
    CHECK(d.at(static_cast<int64_t>(i)).row == &w.rows[i]);
  }
  CHECK(d.find({key(1, 0, 0, 1, 0), 32, 32, 64}).row == nullptr);
  CHECK(d.find({~uint64_t(0) & ~hdims, 32, 32, 64}).row == nullptr);
  World empty;
  CHECK(empty.make().find(query(0, 1, 1)).row == nullptr);
}

const char* missing(const Dispatcher& d, const Query& q) {
  Text text(error_buffer(), error_capacity);
  explain_missing(text, d, q);
  CHECK(text.length() == strlen(error_text()));
  return error_text();
}

void sentences() {
  World w;
  w.add(key(0, 64, 64, 0, 0), 2, 64);
  w.add(key(0, 128, 128, 0, 0), 2, 64);
  w.add(key(0, 128, 128, 0, 1), 1, 64);
  w.add(key(1, 128, 128, 0, 0), 3, 64);
  w.add(key(0, 128, 128, 0, 0), 1, 16, 1);
  const Dispatcher d = w.make();
  // The nearest, fewest differing axes first, one per combination of features.
  CHECK_TEXT(missing(d, query(0, 60, 64, 1)),
             "no kernel in library small for toy dtype=fp32 hdim_q=60 hdim_v=64 mask=window lse=no\n"
             "  nearest: row_0 differs in mask=none (problem: window)\n"
             "  nearest: row_2 differs in mask=none (problem: window), lse=yes (problem: no)\n"
             "  this builds it: scons receipt=full where='dtype=fp32 hdim_q=64 hdim_v=64 mask=window lse=no'");
  // This library's own receipt lists it: it was narrowed when it was built. A rule forbids 192x128 only with a window.
  CHECK_TEXT(missing(d, query(0, 192, 100)),
             "no kernel in library small for toy dtype=fp32 hdim_q=192 hdim_v=100 mask=none lse=no\n"
             "  nearest: row_1 differs in hdim_q=128 (problem: 192)\n"
             "  nearest: row_2 differs in hdim_q=128 (problem: 192), lse=yes (problem: no)\n"
             "  this builds it: scons receipt=small where='dtype=fp32 hdim_q=192 hdim_v=128 mask=none lse=no'");
  CHECK_HOLDS(missing(d, query(0, 192, 100, 1)),
              "scons receipt=full where='dtype=fp32 hdim_q=256 hdim_v=256 mask=window lse=no'");
  CHECK_TEXT(missing(d, query(1, 128, 128, 0, 1)),
             "no kernel in library small for toy dtype=bf16 hdim_q=128 hdim_v=128 mask=none lse=yes\n"
             "  rule lse_fp32_only forbids it: LSE is written for fp32 only");
  CHECK_TEXT(missing(d, query(1, 129, 128)),
             "no kernel in library small for toy dtype=bf16 hdim_q=129 hdim_v=128 mask=none lse=no\n"
             "  no head dims of this dtype hold 129x128; there are 128x128");
  CHECK_TEXT(missing(d, query(1, 100, 100)),
             "no kernel in library small for toy dtype=bf16 hdim_q=100 hdim_v=100 mask=none lse=no\n"
             "  the library has it for next, which this machine has not: row_3\n"
             "  this builds it: scons receipt=small where='dtype=bf16 hdim_q=128 hdim_v=128 mask=none lse=no'");
  CHECK_HOLDS(missing(d, query(1, 128, 128, 1)), "\n  no receipt lists it: add it to one in receipts/ and build that");
  char buffer[2000];
  Text text(buffer, sizeof(buffer));
  const Query q = query(0, 100, 100);
  explain_choice(text, d, q, d.find(q));
  CHECK_TEXT(buffer,
             "toy dtype=fp32 hdim_q=100 hdim_v=100 mask=none lse=no\n"
             "  chosen: row_1\n"
             "  refused: row_0: its head dims, 64x64, are too small\n"
             "  refused: row_4: another tile fits seqlen_q better");
  Text unfit(buffer, sizeof(buffer));
  explain_unfit(unfit, d, query(0, 100, 100, 1), d.at(0));
  CHECK_TEXT(buffer,
             "row_0 does not fit the problem, it has hdim_q=64 (problem: 100), hdim_v=64 (problem: 100), mask=none "
             "(problem: window)");
  Text lacking(buffer, sizeof(buffer));
  explain_unfit(lacking, d, query(1, 128, 128), d.at(3));
  CHECK_TEXT(buffer, "row_3 needs next, which this machine has not");

  World forced;
  forced.rows = w.rows;
  const Dispatcher down = forced.make("generic");
  CHECK_HOLDS(missing(down, query(0, 128, 128)),
              "the library has it for avx512, which TILEKILN_ISA=generic forbids: row_1");
  CHECK_HOLDS(missing(down, query(0, 128, 128)),
              "the library has it for avx2, which TILEKILN_ISA=generic forbids: row_4");
}

}  // namespace

int main() {
  least_waste();
  tile_fit();
  kv_load();
  target_and_rank();
  not_built();
  many();
  sentences();
  return check_result();
}
