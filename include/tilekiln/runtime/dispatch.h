// Problem -> instance: the one place that says which instance answers a problem, and why the others do not.
#pragma once
#include "tilekiln/runtime/kv_load.h"
#include "tilekiln/runtime/small_array.h"
#include "tilekiln/runtime/status.h"
#include "tilekiln/runtime/table.h"

namespace tilekiln {

// A problem as the dispatcher sees it.
struct Query {
  uint64_t features;       // the packed signature with hdim_q = hdim_v = 0
  int hdim_q, hdim_v;      // of the problem; an instance holds them when its own are at least these
  int64_t seqlen_q;        // of the longest sequence
  KvCacheSize cache = {};  // of a problem with a paged cache
};

// Why an instance was not chosen, in the order the choice asks. `chosen` last: a lower value is a worse instance.
enum class Refusal : uint8_t {
  other_features,  // it answers another signature
  hdim_too_small,
  cache_too_large,  // for its 32-bit offsets
  not_built,        // the library holds the row, not the engine
  machine_lacks,    // this CPU has not its ISA
  isa_forbidden,    // TILEKILN_ISA is below it
  hdim_waste,       // another holds the problem with less padding of the head dims
  tile_fit,         // another tile wastes fewer query rows
  longer_loads,     // 64-bit offsets where 32 bits do
  slower_target,
  rank,
  chosen,
};

struct Choice {
  const Row* row = nullptr;  // null: no instance answers
  const void* engine = nullptr;
  int64_t instance = -1;
};

// The choice among the instances of one family, for one table on one machine. Immutable after construction: any number
// of threads may ask at once, and asking allocates nothing.
class Dispatcher {
 public:
  // `isa`: the best ISA allowed (TILEKILN_ISA), "" for any. Throws std::bad_alloc.
  Dispatcher(const Table& table, uint32_t family, const char* isa);

  // OK, or that TILEKILN_ISA names no ISA that this library holds and this machine has.
  [[nodiscard]] tilekiln_status status() const;
  // The best instance for a problem; {} when there is none.
  Choice find(const Query& query) const;
  // What find would do with one ref of the family (index into Family::refs) for this problem.
  Refusal judge(const Query& query, uint32_t ref, const Choice& choice) const;
  // The instance of that number, whatever the problem; the row is null when it is of another family.
  Choice at(int64_t instance) const;
  // Whether an instance can answer a problem here, whether or not it is the best.
  bool fits(const Query& query, const Choice& choice) const { return refuse(query, *choice.row) == Refusal::chosen; }
  // Whether this machine has the ISA of a row, and whether TILEKILN_ISA allows it.
  bool machine_has(const Row& row) const { return use_[row.target].supported; }
  bool usable(const Row& row) const { return use_[row.target].usable; }
  // The best usable target; null when there is none.
  const Target* best() const { return best_; }

  const Table& table() const { return table_; }
  const Family& family() const { return family_; }
  const char* isa() const { return isa_; }
  const Row& row(uint32_t ref) const { return row(family_.refs[ref]); }
  const Row& row(RowRef ref) const { return table_.batches[ref.batch].rows[ref.index]; }
  int64_t instance(uint32_t ref) const { return family_.instance_of[ref]; }
  const char* name(int64_t instance) const { return table_.names + table_.name_offset[instance]; }
  const Target* target(const Row& row) const { return use_[row.target].target; }
  // The group of these features, null when the library has none.
  const Group* group(uint64_t features) const;
  int hdim_q(const Row& row) const { return static_cast<int>(row.signature >> shift_q_) & mask_q_; }
  int hdim_v(const Row& row) const { return static_cast<int>(row.signature >> shift_v_) & mask_v_; }
  uint64_t features(const Row& row) const { return row.signature & ~hdims_; }

 private:
  struct Use {
    const Target* target = nullptr;
    const void* const* engines = nullptr;  // by pipeline
    bool supported = false, usable = false;
    uint8_t order = 0;
  };
  // What the choice looks at, close together: the rows of one group lie in as many units as it has head dims and
  // targets, and reading them there cost 150 ns a lookup.
  struct Entry {
    uint16_t hdim_q, hdim_v, tile_q, tile_k;
    uint8_t order, rank;
    KvLoad load;
    uint32_t ref;
  };
  // The entries of one combination of features.
  struct Slot {
    uint64_t features;
    uint32_t begin, end;  // equal: no combination lies here
  };
  // How well an instance fits, in the order of the choice; smaller is better in each.
  struct Score { int64_t hdim_waste, tile_fit, tile, load, order, rank; };
  // The refusal of a row that cannot run the problem at all; `chosen` when it can.
  Refusal refuse(const Query& query, const Row& row) const;
  // The refusal of a row that cannot run here, whatever the problem.
  Refusal refuse_here(const Row& row) const;
  Entry entry(const Row& row, uint32_t ref) const;
  static Score score(const Query& query, const Entry& entry);
  // The first criterion in which a is worse than b; `chosen` when it is not worse in any.
  static Refusal compare(const Score& a, const Score& b);
  size_t first_slot(uint64_t features) const { return (features * 0x9e3779b97f4a7c15u) >> slot_shift_; }
  void make_index();

  const Table& table_;
  const Family& family_;
  const char* isa_;
  const Target* best_ = nullptr;
  bool isa_known_ = true;
  int shift_q_ = 0, shift_v_ = 0, mask_q_ = 0, mask_v_ = 0;
  uint64_t hdims_ = 0;
  Use use_[256];  // by Row::target
  // Of the instances usable here: every group's entries, least head dims first, without those that another one of the
  // same head dims and tile always beats; and where each group's entries lie, by features, with open addressing.
  SmallArray<Entry, 1> entries_;
  SmallArray<Slot, 1> slots_;
  int slot_shift_ = 0;
};

// The query rows a tile height costs: whole tiles, with a quarter of the problem forgiven, so that a tall tile (which
// reads each key less often) is given up only when it would waste more than that.
int64_t tile_cost(int64_t seqlen_q, int64_t tile_q);

}  // namespace tilekiln
