// What the generator writes for one library, and the runtime reads: the plan as tables. Everything is constant data.
#pragma once
#include <stdint.h>

#include "tilekiln/runtime/row.h"

namespace tilekiln {

struct Batch {                   // the rows of one generated unit
  const Row* rows;
  uint32_t count;
};
struct RowRef {
  uint16_t batch, index;
};
struct Axis {                    // one signature axis, in listing order
  const char* name;
  uint8_t kind;                  // 0 boolean, 1 one of values, 2 integer
  uint8_t shift, bits;           // where it lies in the packed signature
  uint8_t value_count;
  const char* const* values;     // kind 1: the names, by code. kind 0 and 2: null
};
// axis in a set: `allowed` has bit c set for code c (booleans: bit 0 no, bit 1 yes); integers list their values instead.
struct Condition {
  uint8_t axis;                  // index into Family::axes
  uint8_t integer_count;
  uint64_t allowed;
  const uint16_t* integers;
};
struct Clause {                  // all conditions hold
  const Condition* conditions;
  uint32_t count;
};
struct Rule {                    // a signature that meets `when` is illegal, for the reason `says`
  const char* name;
  const char* says;
  Clause when;
};
struct ReceiptInfo {             // a signature that meets one clause is listed by this receipt
  const char* name;
  const Clause* clauses;
  uint32_t clause_count;
};
struct Group {                   // the instances of one signature apart from head dims: refs[begin, end)
  uint64_t features;             // signature with hdim_q = hdim_v = 0
  uint32_t begin, end;
};
struct HeadDims {
  uint8_t dtype;                 // code of the dtype axis
  uint16_t hdim_q, hdim_v;       // 0: the family has no such axis
};
struct Family {
  const char* name;
  const Axis* axes;
  uint32_t axis_count;
  const char* const* pipelines;  // names, by index
  uint32_t pipeline_count;
  const Rule* rules;
  uint32_t rule_count;
  const ReceiptInfo* receipts;   // every receipt of the tree, so that an error can name one that would do; none of a companion (a
                                 // family that exists for another, such as fmha_bwd_convert_dq): it is there wherever it is needed
  uint32_t receipt_count;
  const HeadDims* head_dims;     // the legal pairs
  uint32_t head_dim_count;
  const Group* groups;           // ascending by features
  uint32_t group_count;
  const RowRef* refs;            // by group, then (hdim_q, hdim_v), target, rank
  const uint32_t* instance_of;   // refs[i] is instance instance_of[i] of the plan
};
struct Target {
  const char* name;              // "cpu-avx512"
  const char* isa;               // "avx512", what TILEKILN_ISA takes
  uint8_t index;                 // Row::target
  uint8_t order;                 // higher is faster: the best usable one wins
  bool (*supported)();           // does this machine have it
  const void* const* const* engines;  // by family as in Table::families, then by pipeline; null: not built.
                                      // fmha_fwd: const fmha::FwdEngine*; fmha_bwd_*: const fmha::BwdEngine*, one object for the three
};
struct Table {
  const char* version;           // of Tilekiln
  const char* receipt;
  const char* where;             // the selection the library was narrowed by, "" if none
  const Target* targets;         // the targets of this library, ascending by order
  uint32_t target_count;
  const Batch* batches;
  uint32_t batch_count;
  const Family* families;
  uint32_t family_count;
  const RowRef* plan;            // instance number -> row
  const uint32_t* name_offset;   // instance number -> its name in names
  const char* names;             // every name, each ended by 0
  uint32_t instance_count;
  const char* manifest;          // JSON
  uint64_t manifest_length;
};

extern const Table table;        // defined by the generated table.cpp of the library

}  // namespace tilekiln
