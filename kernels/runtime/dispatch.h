// SPDX-License-Identifier: MIT
// Problem -> instance: the one place that says which instance answers a problem, and why the others do not.
#pragma once
#include "kernels/runtime/machine.h"
#include "kernels/runtime/names.h"
#include "kernels/runtime/query.h"
#include "kernels/runtime/small_array.h"
#include "kernels/runtime/status.h"
#include "kernels/runtime/table.h"
#include "tilekiln/choice/fit.h"

namespace tilekiln {

// Reasons why an instance was not chosen, in the order the choice asks. `chosen` last: a lower value is a worse instance.
enum class Refusal : uint8_t {
  other_codes,     // it answers another signature
  other_integers,  // a value that a problem must have exactly is another
  integers_small,  // the problem is larger than the instance
  sizes_unmet,     // its algorithm needs other sizes
  other_device,    // it runs on devices of another type than the arrays'
  not_built,       // the library holds the row, not the engine
  machine_lacks,   // this machine has not its ISA
  isa_forbidden,   // TILEKILN_ISA or TILEKILN_TARGET is below it
  system_refuses,  // the system does not let this process use it
  integers_waste,  // another holds the problem with less to spare
  best_elsewhere,  // another is made for these sizes, or this one for others
  tile_fit,        // another tile wastes less
  slower_target,
  rank,
  chosen,
};

struct Choice {
  const Row* row = nullptr;  // null: no instance answers
  const void* engine = nullptr;
  int64_t instance = -1;
  const Algorithm* how = nullptr;  // of the row
};

// The choice among the instances of one family, for one table on one device. Immutable after construction: any number
// of threads may ask at once, and asking allocates nothing.
class Dispatcher {
 public:
  // Throws std::bad_alloc.
  Dispatcher(const Table& table, uint32_t family, const Machine& machine);

  // OK, or what the machine's status or sound() says.
  [[nodiscard]] tilekiln_status status() const { return __builtin_expect(fine_, 1) ? TILEKILN_OK : trouble(); }
  // OK, or that an engine lacks what the plan lists of it.
  [[nodiscard]] tilekiln_status sound() const;
  // The best instance for a problem; {} when there is none.
  Choice find(const Query& query) const;
  // The reason why find, which made this choice, passed over an instance of the family (index into Family::instance_of).
  Refusal judge(const Query& query, uint32_t ref, const Choice& choice) const;
  // The instance of that number, whatever the problem; the row is null when it is of another family.
  Choice at(int64_t instance) const;
  // Tells whether an instance can answer a problem here, whether or not it is the best.
  bool fits(const Query& query, const Choice& choice) const { return refuse(query, *choice.row) == Refusal::chosen; }
  // The refusal of a row that cannot run the problem at all; `chosen` when it can.
  Refusal refuse(const Query& query, const Row& row) const;

  const Table& table() const { return table_; }
  const Family& family() const { return family_; }
  const Machine& machine() const { return machine_; }
  const Row& row(uint32_t ref) const { return row_of(family_.instance_of[ref]); }
  const Row& row_of(int64_t instance) const { return tilekiln::row_of(table_, instance); }
  int64_t instance(uint32_t ref) const { return family_.instance_of[ref]; }
  const Target* target(const Row& row) const { return machine_.use(row).target; }
  const Algorithm& how(const Row& row) const { return engines_[row.target].algorithms.list[row.algorithm]; }
  // The group of these codes, null when the library has none.
  const Group* group(uint64_t codes) const;
  // The value of the family's integer axis `at`, counted among the integers.
  int64_t integer(const Row& row, int at) const {
    return static_cast<int64_t>(row.integers >> fields_[at].shift) & fields_[at].most;
  }
  // Tells whether it may find what the system can refuse to a process, and nobody has asked it yet.
  bool asks() const { return asks_; }
  int integer_count() const { return integer_count_; }
  // Sum of the excesses of a row's values over a problem's, on the axes that hold problems up to their value; negative
  // where the row is too small.
  int64_t waste(const Query& query, const Row& row) const;

 private:
  struct Engines {
    const void* const* list = nullptr;  // by pipeline
    Algorithms algorithms = {};
  };
  // An integer axis in Row::integers. Its highest bit is 0 there: with it set in a row, the rows' fields are compared
  // with those of a problem by one subtraction.
  struct Field {
    uint8_t shift;
    bool equal;
    int64_t most;  // what a problem's value is cut to; no row has it
  };
  // The fields by which an instance is chosen, close together: the rows of one group lie in as many units as it has
  // integers and targets, and reading them there cost 150 ns a lookup.
  struct Entry {
    uint64_t integers;
    uint32_t held;  // the sum over the axes that hold problems up to their value
    uint32_t ref;
    const Algorithm* how;
    uint8_t order;
  };
  // The entries of one combination of codes.
  struct Slot {
    uint64_t codes;
    uint32_t begin, end;  // equal: no combination lies here
  };
  // The refusal of a row that cannot run here, whatever the problem.
  Refusal refuse_here(const Row& row) const;
  Entry entry(const Row& row, uint32_t ref) const;
  int64_t held(const Row& row) const;
  // The first criterion in which a fits worse than b; `chosen` when it fits no worse in any.
  Refusal compare(const Query& query, const Entry& a, const Entry& b) const;
  // 0: made for these sizes; 1: for any; 2: for others.
  static int preference(const Query& query, const Algorithm& how);
  tilekiln_fit fitted(const Query& query, const Algorithm& how) const;
  // Tells whether two entries of equal integers differ for no problem but in their target and rank.
  bool alike(const Entry& a, const Entry& b) const;
  size_t first_slot(uint64_t codes) const { return (codes * 0x9e3779b97f4a7c15u) >> slot_shift_; }
  [[nodiscard]] tilekiln_status trouble() const;
  void read_axes();
  void ask_engines();
  void make_index();

  const Table& table_;
  const Family& family_;
  const Machine machine_;
  bool fine_ = true, asks_ = false;
  int64_t unanswered_ = -1;  // an instance whose engine has no function for it
  int integer_count_ = 0;
  Field fields_[max_integers] = {};
  uint64_t guards_ = 0;  // the highest bits of the integers
  uint64_t at_least_ = 0,
           equal_ = 0;    // the guards of those that hold problems up to their value, all bits of the others
  Engines engines_[256];  // by Row::target
  // Entries of every group of instances usable here, least integers first, without those that another one of the
  // same integers and tile always beats; and where each group's entries lie, by codes, with open addressing.
  SmallArray<Entry, 1> entries_;
  SmallArray<Slot, 1> slots_;
  int slot_shift_ = 0;
};

}  // namespace tilekiln
