// SPDX-License-Identifier: MIT
// A target that the system may refuse to a process, in a library of a hand-made table: it is asked for when an instance of it is wanted
// and not before, once; where it is refused the next target answers, and everything that tells of choices says why.
//
//   refusal_test granted|refused
#include <string.h>

#include "check.h"
#include "kernels/runtime/choose.h"
#include "kernels/runtime/explain.h"
#include "kernels/runtime/library.h"
#include "tilekiln/tilekiln.h"

namespace {

int asked = 0;
bool granted = false;

}  // namespace

namespace tilekiln {
namespace {

bool yes() { return true; }
const char* refusal() {
  ++asked;
  return granted ? nullptr : "its signal stack is too small";
}

// Instance 0 and 1: dtype a by both targets; 2: dtype b by the slow one alone, which a rule of the fast one forbids there.
const char* const dtypes[] = {"a", "b"};
const char* const words[] = {"_a", "_b"};
const Axis axes[] = {{"dtype", 1, 0, 4, 2, false, dtypes, words}};
const Row rows[] = {{0, 0, 0, 0}, {0, 0, 0, 1}, {1, 0, 0, 0}};
const RowSource sources[] = {{rows, 3}};
const RowRef plan[] = {{0, 0}, {0, 1}, {0, 2}};
const Group groups[] = {{0, 0, 2}, {1, 2, 3}};
const uint32_t instance_of[] = {0, 1, 2};
const char* const pipelines[] = {"rows"};
constexpr SizeRule always = {"", nullptr, 0};
const Algorithm algorithm = {"rows", 0, 0, nullptr, always, always};
const Algorithms algorithms[] = {{&algorithm, 1}};
const int marker = 0;
const void* const engine_list[] = {&marker};
const void* const* const engines[] = {engine_list};
const Condition only_b[] = {{0, 0, 2, nullptr}};
const Rule no_b[] = {{"no_b", "tiles multiply no b", {only_b, 1}}};
const Rules refusals[] = {{no_b, 1}};
const Target targets[] = {
    {"cpu-slow", "slow", 0, 10, yes, engines, algorithms, nullptr, nullptr, "any"},
    {"cpu-tiles", "tiles", 1, 20, yes, engines, algorithms, refusals, nullptr, "any", refusal},
};
const Family families[] = {
    {"toy",   axes, 1,       pipelines, 1,      nullptr, 0,           nullptr, 0, {"", 255, nullptr, 0},
     nullptr, 0,    nullptr, 0,         groups, 2,       instance_of, 0,       3, nullptr}};
const unsigned char manifest[manifest_mark] = {};

}  // namespace

extern const Table table;
const Table table = {"1.0", "toy_receipt", "", targets, 2, sources, 1, families, 1, plan, 3, "", manifest};

}  // namespace tilekiln

int main(int argc, char** argv) {
  using namespace tilekiln;
  granted = argc > 1 && strcmp(argv[1], "granted") == 0;
  const Dispatcher* toy = nullptr;
  CHECK(find_dispatcher("toy", Device(), &toy) == TILEKILN_OK);
  const Query a = {0}, b = {1};
  const auto chosen = [&](const Query& query, int64_t instance = -1) {
    Choice choice;
    CHECK(choose(*toy, instance, query, &choice) == TILEKILN_OK);
    return choice.instance;
  };
  // Nothing that another target answers asks, nor a question about the library.
  CHECK(chosen(b) == 2 && chosen(a, 0) == 0);
  CHECK_TEXT(tilekiln_isa(), "tiles");
  CHECK(tilekiln_instance_usable(1) == 1);
  CHECK(asked == 0);
  char text[2048];
  const auto explained = [&](const Query& query) {
    Text to(text, sizeof(text));
    const Stage stage = {"toy", &query};
    CHECK(explain_stages(to, &stage, 1) == TILEKILN_OK);
    return text;
  };
  CHECK_HOLDS(explained(b), "\n  refused by target cpu-tiles: tiles multiply no b");
  CHECK(asked == 0);

  for (int i = 0; i < 3; ++i) CHECK(chosen(a) == (granted ? 1 : 0));
  CHECK(asked == 1);
  CHECK(chosen(a, preference + 1) == (granted ? 1 : 0));
  Choice choice;
  CHECK(choose(*toy, 1, a, &choice) == (granted ? TILEKILN_OK : TILEKILN_INVALID_ARGUMENT));
  if (granted) {
    CHECK_TEXT(tilekiln_isa(), "tiles");
    CHECK_TEXT(tilekiln_isa_refusal(), "");
    CHECK_HOLDS(explained(a), "chosen: toy_a_rows_cpu_tiles");
  } else {
    CHECK_HOLDS(tilekiln_last_error(),
                "instance: was 1, must be one that fits the problem: toy_a_rows_cpu_tiles needs tiles, which is "
                "refused to this "
                "process: its signal stack is too small");
    CHECK_TEXT(tilekiln_isa(), "slow");
    CHECK_TEXT(tilekiln_isa_refusal(), "tiles: its signal stack is too small");
    CHECK(tilekiln_instance_usable(1) == 0);
    CHECK_HOLDS(explained(a), "chosen: toy_a_rows_cpu_slow");
    CHECK_HOLDS(explained(a),
                "refused: toy_a_rows_cpu_tiles: tiles is refused to this process: its signal stack is too small");
  }
  CHECK(asked == 1);
  return check_result();
}
