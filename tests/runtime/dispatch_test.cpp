// SPDX-License-Identifier: MIT
// The dispatcher on hand-made tables: several tiles, targets, ranks and head dims, and the sentences of explain.h.
#include <stdint.h>

#include <algorithm>
#include <deque>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/runtime/backend.h"
#include "kernels/runtime/explain.h"

using namespace tilekiln;

namespace {

const char* const dtypes[] = {"fp32", "bf16"};
const char* const masks[] = {"none", "window"};
const char* const words[] = {"_a", "_b"};
const char* const around[] = {"_d", ""};
const Axis axes[] = {{"dtype", 1, 0, 4, 2, false, dtypes, words},
                     {"hdim_q", 2, 0, 10, 0, false, nullptr, around},
                     {"hdim_v", 2, 10, 10, 0, false, nullptr, around},
                     {"mask", 1, 4, 4, 2, false, masks, words},
                     {"lse", 0, 8, 1, 2, false, nullptr, words}};
struct Key { uint64_t codes, integers; };
constexpr Key key(int dtype, int hdim_q, int hdim_v, int mask, int lse) {
  return {uint64_t(dtype) | uint64_t(mask) << 4 | uint64_t(lse) << 8, uint64_t(hdim_q) | uint64_t(hdim_v) << 10};
}

// lse needs fp32; bf16 has no window.
const Condition bf16_lse[] = {{0, 0, 2, nullptr}, {4, 0, 2, nullptr}};
const uint32_t only_192[] = {192};
const Condition wide_window[] = {{1, 1, 0, only_192}, {3, 0, 2, nullptr}};
const Rule rules[] = {{"lse_fp32_only", "LSE is written for fp32 only", {bf16_lse, 2}},
                      {"no_192_window", "192x128 has no window", {wide_window, 2}}};
const Condition plain_only[] = {{3, 0, 1, nullptr}};
const Condition fp32_only[] = {{0, 0, 1, nullptr}};
const Clause small_clauses[] = {{plain_only, 1}};
const Clause full_clauses[] = {{fp32_only, 1}, {plain_only, 1}};
const ReceiptInfo receipts[] = {{"full", full_clauses, 2}, {"small", small_clauses, 1}};
const uint32_t head_dims[] = {0, 64, 64, 0, 128, 128, 0, 192, 128, 0, 256, 256, 1, 128, 128};
const char* const sizes[] = {"seqlen_q", "cache_bytes", "page_tokens"};
const Fit fits[] = {{0, 0}};
constexpr SizeRule always = {"", nullptr, 0};

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
  std::vector<Target> targets = {{"cpu-generic", "generic", 0, 0, yes, built, nullptr},
                                 {"cpu-avx2", "avx2", 1, 10, yes, built, nullptr},
                                 {"cpu-avx512", "avx512", 2, 20, yes, built, nullptr},
                                 {"cpu-next", "next", 3, 30, no, built, nullptr}};
  std::deque<std::vector<uint32_t>> numbers;
  std::vector<Algorithm> hows;  // every target has them all
  Algorithms how;
  std::vector<Group> groups;
  std::vector<RowRef> plan;
  std::vector<uint32_t> instance_of;
  std::deque<std::string> words;  // of algorithms, by row
  RowSource source;
  Family family = {"toy", axes, 5, pipeline_names, 2, rules,   2, receipts, 2, {"head dims", 0, head_dims, 5}, sizes,
                   3,     fits, 1, nullptr,        0, nullptr, 0, 0};
  Table table;

  void add(Key key, int target, int tile_q, int rank = 0, int pipeline = 0, SizeRule needs = always,
           SizeRule best = always) {
    numbers.push_back({static_cast<uint32_t>(tile_q), 64});
    words.push_back("row_" + std::to_string(rows.size()));
    hows.push_back({words.back().c_str(), static_cast<uint8_t>(pipeline), static_cast<uint8_t>(rank),
                    numbers.back().data(), needs, best});
    rows.push_back(
        {key.codes, key.integers, static_cast<unsigned short>(hows.size() - 1), static_cast<unsigned char>(target)});
  }
  int tile_q(const Row& row) const { return static_cast<int>(hows[row.algorithm].fields[0]); }
  Dispatcher make(Limit limit = {}, const char* where = "") {
    const auto count = static_cast<uint32_t>(rows.size());
    how = {hows.data(), static_cast<uint32_t>(hows.size())};
    for (Target& target : targets) target.algorithms = &how;
    source = {rows.data(), count};
    std::map<uint64_t, std::vector<uint32_t>> by_codes;
    for (uint32_t i = 0; i < count; ++i) by_codes[rows[i].codes].push_back(i);
    for (auto& [codes, members] : by_codes) {
      const auto begin = static_cast<uint32_t>(instance_of.size());
      for (uint32_t i : members) instance_of.push_back(i);
      groups.push_back({codes, begin, static_cast<uint32_t>(instance_of.size())});
    }
    for (uint32_t i = 0; i < count; ++i) plan.push_back({0, i});
    family.groups = groups.data();
    family.group_count = static_cast<uint32_t>(groups.size());
    family.instance_of = instance_of.data();
    family.instance_count = count;
    table = {"1.0",       "small", where, targets.data(), static_cast<uint32_t>(targets.size()), &source, 1, &family, 1,
             plan.data(), count,   "",    nullptr};
    return Dispatcher(table, 0, Machine(table, limit));
  }
};

Query query(int dtype, int hdim_q, int hdim_v, int mask = 0, int lse = 0, int64_t seqlen_q = 1000) {
  return {key(dtype, 0, 0, mask, lse).codes, {hdim_q, hdim_v}, {seqlen_q}};
}

// A text with `row_3` for the name of that row, whatever its signature.
const char* brief(const char* text) {
  static std::string result;
  static const std::regex name("(toy|norm)_[a-z0-9_]*(row_[0-9]+)_cpu_[a-z0-9]+");
  result = std::regex_replace(text, name, "$2");
  return result.c_str();
}

void names() {
  World w;
  w.add(key(1, 192, 128, 1, 0), 2, 64);
  w.add(key(0, 64, 64, 0, 1), 0, 64);
  const Dispatcher d = w.make();
  const char* const first = lasting_name(d.table(), 0);
  CHECK_TEXT(first, "toy_b_d192_d128_b_a_row_0_cpu_avx512");
  CHECK_TEXT(lasting_name(d.table(), 1), "toy_a_d64_d64_a_b_row_1_cpu_generic");
  CHECK(lasting_name(d.table(), 0) == first);
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
  CHECK(tilekiln_tile_cost(100, 64) == 128 && tilekiln_tile_cost(100, 16) == 125);
  CHECK(tilekiln_tile_cost(0, 64) == 0 && tilekiln_tile_cost(1, 16) == 16);
  CHECK(tilekiln_tile_cost(64, 64) == 80 && tilekiln_tile_cost(64, 16) == 80);
  World w;
  w.add(key(0, 64, 64, 0, 0), 2, 16);
  w.add(key(0, 64, 64, 0, 0), 2, 64);
  w.add(key(0, 64, 64, 0, 0), 2, 128, 0, 1);
  const Dispatcher d = w.make();
  const auto tile = [&](int64_t seqlen_q) { return d.find(query(0, 64, 64, 0, 0, seqlen_q)).how->fields[0]; };
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

// The needs of an algorithm with 32-bit offsets: a cache within reach, or pages of a key tile or more.
const SizeRange in_reach[] = {{1, INT64_MIN, INT32_MAX}}, whole_pages[] = {{2, 64, INT64_MAX}};
const SizeClause small_cache[] = {{in_reach, 1}, {whole_pages, 1}};
const SizeRule small = {"cache_bytes<=2147483647 or page_tokens>=64", small_cache, 2};

void needs() {
  World w;
  w.add(key(0, 64, 64, 0, 0), 2, 64, 0, 0, small);
  w.add(key(0, 64, 64, 0, 0), 2, 64, 1);
  w.add(key(1, 64, 64, 0, 0), 2, 64, 0, 0, small);  // no twin
  w.add(key(0, 128, 128, 0, 0), 2, 64);             // no limit
  w.add(key(1, 128, 128, 0, 0), 2, 64);
  const Dispatcher d = w.make();
  const auto cached = [](Query asked, int64_t bytes, int64_t tokens) {
    asked.sizes[1] = bytes;
    asked.sizes[2] = tokens;
    return asked;
  };
  constexpr int64_t too_far = int64_t(1) << 31;
  const Query plain = query(0, 64, 64), fits = cached(plain, too_far - 1, 16), exceeds = cached(plain, too_far, 16);
  CHECK(d.find(plain).instance == 0 && d.find(fits).instance == 0 && d.find(exceeds).instance == 1);
  CHECK(d.find(cached(plain, too_far, 64)).instance == 0);
  CHECK(d.judge(exceeds, 0, d.find(exceeds)) == Refusal::sizes_unmet);
  CHECK(d.judge(fits, 1, d.find(fits)) == Refusal::rank);
  // Nothing reaches it, but the next head dims, which need nothing.
  CHECK(d.find(cached(query(1, 64, 64), too_far - 1, 16)).instance == 2);
  CHECK(d.find(cached(query(1, 64, 64), too_far, 16)).instance == 4);
  char text[1024];
  Text answer(text, sizeof(text));
  explain_choice(answer, d, exceeds, d.find(exceeds));
  CHECK_HOLDS(brief(text), "refused: row_0: it needs cache_bytes<=2147483647 or page_tokens>=64");
  Text unfit(text, sizeof(text));
  explain_unfit(unfit, d, exceeds, d.at(0));
  CHECK_TEXT(brief(text), "row_0 does not fit the problem, it needs cache_bytes<=2147483647 or page_tokens>=64");
  World alone;
  alone.add(key(0, 64, 64, 0, 0), 2, 64, 0, 0, small);
  const Dispatcher e = alone.make();
  Text missing(text, sizeof(text));
  explain_missing(missing, error_refusals(), e, exceeds);
  CHECK_HOLDS(brief(text), "\n  nearest: row_0 needs cache_bytes<=2147483647 or page_tokens>=64\n");
}

// Algorithms for the sizes that they are best for come first, however their tile fits; elsewhere those for any size do.
void best_sizes() {
  const SizeRange one_to_8[] = {{0, 1, 8}};
  const SizeClause clause[] = {{one_to_8, 1}};
  const SizeRule few = {"seqlen_q>=1 seqlen_q<=8", clause, 1};
  World w;
  w.add(key(0, 64, 64, 0, 0), 2, 64);
  w.add(key(0, 64, 64, 0, 0), 2, 16, 1, 1, always, few);
  w.add(key(1, 64, 64, 0, 0), 2, 16, 1, 1, always, few);
  w.add(key(0, 128, 128, 0, 0), 2, 16, 0, 1, always, few);
  const Dispatcher d = w.make();
  for (int64_t rows : {0, 1, 2, 7, 8, 9, 12, 16, 17, 63, 64, 65, 100000})
    CHECK(d.find(query(0, 64, 64, 0, 0, rows)).instance == (rows >= 1 && rows <= 8 ? 1 : 0));
  CHECK(d.find(query(1, 64, 64, 0, 0, 1000)).instance == 2);  // nothing else has it
  CHECK(d.find(query(0, 65, 64, 0, 0, 1000)).instance == 3);
  const Query many = query(0, 64, 64, 0, 0, 1000), one = query(0, 64, 64, 0, 0, 1);
  CHECK(d.judge(many, 1, d.find(many)) == Refusal::best_elsewhere);
  CHECK(d.judge(one, 0, d.find(one)) == Refusal::best_elsewhere);
  char text[1024];
  Text first(text, sizeof(text));
  explain_choice(first, d, many, d.find(many));
  CHECK_HOLDS(brief(text), "refused: row_1: it is best for seqlen_q>=1 seqlen_q<=8");
  Text second(text, sizeof(text));
  explain_choice(second, d, one, d.find(one));
  CHECK_HOLDS(brief(text), "refused: row_0: another is made for these sizes");
}

// A family of no attention: rows of up to so many columns, for a number of experts that must be the problem's, with tiles
// of nine numbers and a fit in two sizes. Its first axis is no dtype.
namespace norm {
const char* const kinds[] = {"layer", "rms"};
const char* const kind_words[] = {"_layer", "_rms"};
const char* const column_words[] = {"_n", ""};
const char* const expert_words[] = {"_e", ""};
const Axis axes[] = {{"columns", 2, 0, 22, 0, false, nullptr, column_words},
                     {"kind", 1, 0, 4, 2, false, kinds, kind_words},
                     {"experts", 2, 22, 16, 0, true, nullptr, expert_words}};
constexpr Key key(int kind, int64_t columns, int64_t experts) {
  return {uint64_t(kind), uint64_t(columns) | uint64_t(experts) << 22};
}
const uint32_t legal[] = {0, 64, 1, 0, 64, 8, 0, 16384, 1, 0, 16384, 8, 0, 1048576, 1, 0, 1048576, 8};
const char* const sizes[] = {"rows", "columns"};
const Fit fits[] = {{0, 0}, {1, 8}};

Query query(int kind, int64_t columns, int64_t experts, int64_t rows = 1000) {
  return {uint64_t(kind), {columns, experts}, {rows, columns}};
}
}  // namespace norm

void no_attention() {
  World w;
  w.family = {"norm",
              norm::axes,
              3,
              pipeline_names,
              2,
              nullptr,
              0,
              nullptr,
              0,
              {"columns x experts", 255, norm::legal, 6},
              norm::sizes,
              2,
              norm::fits,
              2,
              nullptr,
              0,
              nullptr,
              0,
              0};
  for (int64_t columns : {64, 16384, 1048576}) {
    for (int64_t experts : {1, 8}) w.add(norm::key(1, columns, experts), 2, 1);
  }
  const std::vector<uint32_t> nine = {4, 1, 1, 2, 2, 1, 1, 1, 256};
  w.numbers.push_back(nine);
  w.hows.push_back({"row_6", 0, 0, w.numbers.back().data(), always, always});
  w.rows.push_back({1, norm::key(1, 16384, 8).integers, static_cast<unsigned short>(w.hows.size() - 1), 2});
  for (std::vector<uint32_t>& numbers : w.numbers) numbers.resize(9, 64);
  for (size_t i = 0; i < w.hows.size(); ++i) w.hows[i].fields = w.numbers[i].data();
  const Dispatcher d = w.make();
  const auto found = [&](int64_t columns, int64_t experts, int64_t rows = 1000) {
    return d.find(norm::query(1, columns, experts, rows)).instance;
  };
  CHECK(found(1, 1) == 0 && found(64, 1) == 0 && found(64, 8) == 1 && found(65, 1) == 2 && found(16385, 1) == 4);
  CHECK(found(1048576, 8) == 5 && found(1048577, 8) == -1 && found(int64_t(1) << 40, 1) == -1);
  CHECK(found(64, 2) == -1 && found(64, 0) == -1 && found(64, 9) == -1 && found(64, int64_t(1) << 22 | 8) == -1);
  CHECK(d.find(norm::query(0, 64, 1)).row == nullptr);
  // Tiles of 1 x 64 and 4 x 256 fit 1000 x 16384 alike: the larger. One row wastes three of the four.
  CHECK(found(16384, 8) == 6 && d.find(norm::query(1, 16384, 8)).how->fields[8] == 256 && found(16384, 8, 1) == 3);
  CHECK(d.judge(norm::query(1, 64, 8), 0, {}) == Refusal::other_integers);
  CHECK(d.judge(norm::query(1, 65, 1), 0, {}) == Refusal::integers_small);
  char text[1024];
  Text answer(text, sizeof(text));
  explain_missing(answer, error_refusals(), d, norm::query(1, 2000000, 8));
  CHECK_TEXT(brief(text),
             "no kernel in library small for norm columns=2000000 kind=rms experts=8\n"
             "  no columns x experts hold 2000000x8; there are 64x1, 64x8, 16384x1, 16384x8, 1048576x1, 1048576x8");
  const tilekiln_refusal& size = error_refusals().last();
  CHECK(error_refusals().count() == 1 && size.reason == TILEKILN_REFUSED_SIZE && size.instance == -1);
  CHECK_TEXT(size.axis, "columns x experts");
  CHECK_TEXT(size.want, "2000000x8");
  CHECK_TEXT(size.have, "64x1, 64x8, 16384x1, 16384x8, 1048576x1, 1048576x8");
  Text none(text, sizeof(text));
  explain_missing(none, error_refusals(), d, norm::query(0, 60, 8));
  CHECK_HOLDS(brief(text), "\n  nearest: row_1 differs in kind=rms (problem: layer)\n");
  Text choice(text, sizeof(text));
  explain_choice(choice, d, norm::query(1, 16384, 8, 1), d.find(norm::query(1, 16384, 8, 1)));
  CHECK_HOLDS(brief(text), "refused: row_6: another tile fits rows and columns better");
  CHECK_HOLDS(brief(text), "refused: row_0: it takes only experts=1");
  CHECK_HOLDS(brief(text), "refused: row_1: its columns x experts, 64x8, are too small");
  CHECK_HOLDS(brief(text), "refused: row_5: another wastes less of the columns x experts");
}

// 50,000 instances of one target, and rows beyond what 16 bits count.
void very_many() {
  World w;
  constexpr uint32_t count = 70000;
  w.add(key(0, 64, 64, 0, 0), 2, 64);
  w.rows.resize(count, w.rows[0]);
  static const Axis wide[] = {{"number", 1, 0, 20, 0, false, nullptr, words}, axes[1], axes[2]};
  w.family.axes = wide;
  w.family.axis_count = 3;
  for (uint32_t i = 0; i < count; ++i) w.rows[i].codes = i;
  const Dispatcher d = w.make();
  for (uint32_t i = 0; i < count; i += 7) CHECK(d.find({i, {64, 64}, {1}}).instance == i && d.at(i).row == &w.rows[i]);
}

void target_and_rank() {
  World w;
  for (int target : {0, 3, 2, 1}) w.add(key(0, 64, 64, 0, 0), target, 64);
  w.add(key(0, 64, 64, 0, 0), 2, 64, 3);
  w.add(key(0, 128, 128, 0, 0), 2, 64, 2);
  w.add(key(0, 128, 128, 0, 0), 2, 64, 1);
  w.add(key(0, 128, 128, 0, 0), 2, 64, 1);
  const Dispatcher d = w.make();
  CHECK(strcmp(d.machine().best()->isa, "avx512") == 0);  // not the machine's missing one, however high its order
  CHECK(d.find(query(0, 64, 64)).instance == 2);          // rank 0 before rank 3
  CHECK(d.find(query(0, 100, 100)).instance == 6);        // of equals, the first of the plan
  CHECK(!d.machine().use(w.rows[1]).usable && !d.machine().use(w.rows[1]).supported &&
        d.machine().use(w.rows[0]).usable);
  Choice lacking = d.at(1);
  CHECK(lacking.row != nullptr && !d.fits(query(0, 64, 64), lacking));

  CHECK(d.judge(query(0, 64, 64), 1, d.find(query(0, 64, 64))) == Refusal::machine_lacks);
  CHECK(d.judge(query(0, 64, 64), 0, d.find(query(0, 64, 64))) == Refusal::slower_target);
  CHECK(d.judge(query(0, 64, 64), 4, d.find(query(0, 64, 64))) == Refusal::rank);
  CHECK(d.judge(query(0, 64, 64), 6, d.find(query(0, 64, 64))) == Refusal::integers_waste);
  CHECK(d.judge(query(0, 100, 64), 2, d.find(query(0, 100, 64))) == Refusal::integers_small);
  // Two shapes that waste alike: the target decides.
  World even;
  even.add(key(0, 128, 64, 0, 0), 1, 64);
  even.add(key(0, 64, 128, 0, 0), 2, 64);
  even.add(key(0, 64, 128, 1, 0), 1, 64);
  even.add(key(0, 128, 64, 1, 0), 2, 64);
  const Dispatcher e = even.make();
  CHECK(e.find(query(0, 64, 64)).instance == 1 && e.find(query(0, 64, 64, 1)).instance == 3);

  World forced = w;
  forced.groups.clear(), forced.plan.clear(), forced.instance_of.clear();
  World generic = forced, unknown = forced, absent = forced;
  const Dispatcher down = forced.make("avx2");
  CHECK(down.status() == TILEKILN_OK && strcmp(down.machine().best()->isa, "avx2") == 0);
  CHECK(down.find(query(0, 64, 64)).instance == 3);
  CHECK(down.find(query(0, 128, 128)).row == nullptr);
  CHECK(generic.make("generic").find(query(0, 64, 64)).instance == 0);
  const Dispatcher bad = unknown.make("avx1024");
  CHECK(bad.status() == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(error_text(),
             "TILEKILN_ISA: was \"avx1024\", must be one that library small holds and this machine has (generic, avx2, "
             "avx512) or unset");
  CHECK(bad.machine().best() == nullptr && bad.find(query(0, 64, 64)).row == nullptr);
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

// An engine without a function for a listed dtype is told when the library is first asked, not met by a call.
void unanswered() {
  World w;
  w.add(key(0, 64, 64, 0, 0), 2, 64);
  CHECK(w.make().sound() == TILEKILN_OK);
  World all, none;
  all.add(key(0, 64, 64, 0, 0), 2, 64);
  none.add(key(0, 64, 64, 0, 0), 2, 64);
  none.add(key(1, 64, 64, 0, 0), 1, 64);
  all.family.answers = none.family.answers = [](const void* engine, uint64_t codes) {
    return engine == &engine_marker[0] && (codes & 15) == 0;
  };
  CHECK(all.make().sound() == TILEKILN_OK);
  const Dispatcher d = none.make();
  CHECK(d.sound() == TILEKILN_INTERNAL && d.status() == TILEKILN_INTERNAL);
  CHECK_TEXT(
      brief(error_text()),
      "library small lists row_1, and the engine of toy for it has no such function (`entries` of its family.yaml)");
  World unbuilt;
  unbuilt.targets[2].engines = half_built;
  unbuilt.add(key(1, 64, 64, 0, 0), 2, 64);
  unbuilt.family.answers = none.family.answers;
  CHECK(unbuilt.make().sound() == TILEKILN_OK);
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
    const int64_t hdim = d.integer(w.rows[i], 0);
    CHECK(d.find({w.rows[i].codes, {hdim, hdim}, {64}}).instance == static_cast<int64_t>(i));
    CHECK(d.find({w.rows[i].codes, {hdim - 31, hdim - 5}, {64}}).instance == static_cast<int64_t>(i));
    CHECK(d.at(static_cast<int64_t>(i)).row == &w.rows[i]);
  }
  CHECK(d.find({key(1, 0, 0, 1, 0).codes, {32, 32}, {64}}).row == nullptr);
  CHECK(d.find({~uint64_t(0), {32, 32}, {64}}).row == nullptr);
  World empty;
  CHECK(empty.make().find(query(0, 1, 1)).row == nullptr);
}

const char* missing(const Dispatcher& d, const Query& q) {
  Text text(error_buffer(), error_capacity);
  explain_missing(text, error_refusals(), d, q);
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
  // The nearest, fewest differing axes first, one per combination of codes.
  CHECK_TEXT(brief(missing(d, query(0, 60, 64, 1))),
             "no kernel in library small for toy dtype=fp32 hdim_q=60 hdim_v=64 mask=window lse=no\n"
             "  nearest: row_0 differs in mask=none (problem: window)\n"
             "  nearest: row_2 differs in mask=none (problem: window), lse=yes (problem: no)\n"
             "  this builds it: scons receipt=full where='dtype=fp32 hdim_q=64 hdim_v=64 mask=window lse=no'");
  // Receipt of this library lists it: it was narrowed when it was built. A rule forbids 192x128 only with a window.
  CHECK_TEXT(brief(missing(d, query(0, 192, 100))),
             "no kernel in library small for toy dtype=fp32 hdim_q=192 hdim_v=100 mask=none lse=no\n"
             "  nearest: row_1 differs in hdim_q=128 (problem: 192)\n"
             "  nearest: row_2 differs in hdim_q=128 (problem: 192), lse=yes (problem: no)\n"
             "  this builds it: scons receipt=small where='dtype=fp32 hdim_q=192 hdim_v=128 mask=none lse=no'");
  CHECK_HOLDS(brief(missing(d, query(0, 192, 100, 1))),
              "scons receipt=full where='dtype=fp32 hdim_q=256 hdim_v=256 mask=window lse=no'");
  CHECK_TEXT(brief(missing(d, query(1, 128, 128, 0, 1))),
             "no kernel in library small for toy dtype=bf16 hdim_q=128 hdim_v=128 mask=none lse=yes\n"
             "  rule lse_fp32_only forbids it: LSE is written for fp32 only");
  // Rules of targets: one target's is no reason, as another could answer; those of all leave nothing to build.
  const Condition fp32_here[] = {{0, 0, 1, nullptr}};
  const Rule no_fp32 = {"no_fp32", "it has no fp32 arithmetic", {fp32_here, 1}};
  const Rules refused = {&no_fp32, 1};
  World two;
  two.targets.resize(2);
  two.add(key(1, 128, 128, 0, 0), 0, 64);
  two.targets[1].refusals = &refused;
  CHECK_HOLDS(brief(missing(two.make(), query(0, 64, 64))), "lse=no\n  nearest: row_0");
  two.targets[0].refusals = &refused;
  CHECK_TEXT(brief(missing(two.make(), query(0, 64, 64))),
             "no kernel in library small for toy dtype=fp32 hdim_q=64 hdim_v=64 mask=none lse=no\n"
             "  rule no_fp32 of target cpu-generic forbids it: it has no fp32 arithmetic\n"
             "  rule no_fp32 of target cpu-avx2 forbids it: it has no fp32 arithmetic");
  CHECK_TEXT(brief(missing(d, query(1, 129, 128))),
             "no kernel in library small for toy dtype=bf16 hdim_q=129 hdim_v=128 mask=none lse=no\n"
             "  no head dims of this dtype hold 129x128; there are 128x128");
  CHECK_TEXT(brief(missing(d, query(1, 100, 100))),
             "no kernel in library small for toy dtype=bf16 hdim_q=100 hdim_v=100 mask=none lse=no\n"
             "  the library has it for next, which this machine has not: row_3\n"
             "  this builds it: scons receipt=small where='dtype=bf16 hdim_q=128 hdim_v=128 mask=none lse=no'");
  CHECK_HOLDS(brief(missing(d, query(1, 128, 128, 1))),
              "\n  no receipt lists it: add it to one in receipts/ and build that");
  char buffer[2000];
  Text text(buffer, sizeof(buffer));
  const Query q = query(0, 100, 100);
  explain_choice(text, d, q, d.find(q));
  CHECK_TEXT(brief(buffer),
             "toy dtype=fp32 hdim_q=100 hdim_v=100 mask=none lse=no\n"
             "  chosen: row_1\n"
             "  refused: row_0: its head dims, 64x64, are too small\n"
             "  refused: row_4: another tile fits seqlen_q better");
  Text unfit(buffer, sizeof(buffer));
  explain_unfit(unfit, d, query(0, 100, 100, 1), d.at(0));
  CHECK_TEXT(brief(buffer),
             "row_0 does not fit the problem, it has hdim_q=64 (problem: 100), hdim_v=64 (problem: 100), mask=none "
             "(problem: window)");
  Text lacking(buffer, sizeof(buffer));
  explain_unfit(lacking, d, query(1, 128, 128), d.at(3));
  CHECK_TEXT(brief(buffer), "row_3 needs next, which this machine has not");

  World forced;
  forced.rows = w.rows;
  forced.hows = w.hows;
  const Dispatcher down = forced.make("generic");
  CHECK_HOLDS(brief(missing(down, query(0, 128, 128))),
              "the library has it for avx512, which TILEKILN_ISA=generic forbids: row_1");
  CHECK_HOLDS(brief(missing(down, query(0, 128, 128))),
              "the library has it for avx2, which TILEKILN_ISA=generic forbids: row_4");
}

// A library for two kinds of device: the arrays say whose targets answer, and a limit is its own devices' only.
void devices() {
  static const Backend unit = {
      "unit", 12, false, false, true, nullptr, [](Device device, const Target&) { return device.id < 2; }};
  const auto two = [](Limit limit, Device device) {
    static World w;
    w = World();
    w.targets[3] = {"unit-one", "", 3, 90, no, built, nullptr, nullptr, &unit};
    w.add(key(0, 64, 64, 0, 0), 0, 64);
    w.add(key(0, 64, 64, 0, 0), 2, 64);
    w.add(key(0, 64, 64, 0, 0), 3, 64);
    w.make();
    return Dispatcher(w.table, 0, Machine(w.table, limit, device));
  };
  constexpr Device host = {}, first = {12, 0}, third = {12, 2};
  const Query asked = query(0, 64, 64);
  CHECK(two({}, host).find(asked).instance == 1);
  CHECK(two({}, first).find(asked).instance == 2);
  CHECK(two({}, third).find(asked).instance == -1);
  CHECK(two({"generic"}, host).find(asked).instance == 0);
  CHECK(two({"generic"}, first).find(asked).instance == 2);
  CHECK(two({"avx512", "cpu-generic"}, host).find(asked).instance == 0);
  CHECK(two({"", "cpu-generic"}, first).find(asked).instance == 2);
  CHECK(two({"", "unit-one"}, first).find(asked).instance == 2);
  CHECK(two({"", "unit-one"}, host).find(asked).instance == 1);
  const Dispatcher on_host = two({}, host);
  CHECK(on_host.judge(asked, 2, on_host.find(asked)) == Refusal::other_device);
  CHECK(two({"", "cpu-avx1024"}, host).status() == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(error_text(),
             "TILEKILN_TARGET: was \"cpu-avx1024\", must be one that library small holds and this machine has "
             "(cpu-generic, cpu-avx2, cpu-avx512) or unset");
  CHECK(two({"", "cuda-sm80"}, first).status() == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(error_text(),
             "TILEKILN_TARGET: was \"cuda-sm80\", must be one that library small holds and this machine has "
             "(unit-one) or unset");
}

}  // namespace

int main() {
  names();
  least_waste();
  tile_fit();
  needs();
  best_sizes();
  no_attention();
  very_many();
  target_and_rank();
  not_built();
  unanswered();
  many();
  sentences();
  devices();
  return check_result();
}
