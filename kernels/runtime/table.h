// SPDX-License-Identifier: MIT
// The plan of one library as tables, which the generator writes and the runtime reads. Everything is constant data.
#pragma once
#include <stdint.h>

#include "kernels/runtime/row.h"
#include "tilekiln/tilekiln.h"

namespace tilekiln {

struct RowSource {                   // the rows of one generated source
  const Row* rows;
  uint32_t count;
};
struct RowRef {
  uint32_t source, index;
};
struct Axis {                    // one signature axis, in listing order
  const char* name;
  uint8_t kind;                  // 0 boolean, 1 one of values, 2 integer
  uint8_t shift, bits;           // where it lies in Row::codes; of an integer, in Row::integers
  uint8_t value_count;           // of an integer 0
  bool equal;                    // an integer: a problem has exactly its value; else at most that
  const char* const* values;     // kind 1: the names, by code. kind 0 and 2: null
  const char* const* words;      // of instance names, by code; of an integer what stands before and after its value
  const char* const* asked = nullptr;  // by code the arguments that ask for a value, where their names say it better; may be null
};
// axis in a set: `allowed` has bit c set for code c (booleans: bit 0 no, bit 1 yes); integers list their values instead.
struct Condition {
  uint8_t axis;                  // index into Family::axes
  uint32_t integer_count;
  uint64_t allowed;
  const uint32_t* integers;
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
struct Rules {
  const Rule* list;
  uint32_t count;
};
struct ReceiptInfo {             // a signature that meets one clause is listed by this receipt
  const char* name;
  const Clause* clauses;
  uint32_t clause_count;
};
struct Group {                   // the instances of one signature apart from the integers: instance_of[begin, end)
  uint64_t codes;
  uint32_t begin, end;
};
struct Integers {                // the values of the integer axes that exist together
  const char* name;              // what they are, for people: "head dims"
  uint8_t by;                    // index of the axis that says which are legal; 255: they are legal for all
  const uint32_t* legal;         // rows of the code of `by` (0 without one) and a value for each integer axis
  uint32_t count;
};
struct SizeRange {               // a size of the problem in [least, most]
  uint8_t size;                  // index into Family::sizes
  int64_t least, most;
};
struct SizeClause {              // all ranges hold
  const SizeRange* ranges;
  uint32_t count;
};
struct SizeRule {                // one clause holds; without clauses always
  const char* text;              // as the target's file says it
  const SizeClause* clauses;
  uint32_t clause_count;
};
struct Algorithm {               // how instances answer on one target
  const char* word;              // of instance names: "qlanes_b64x64"
  uint8_t pipeline;              // index of the pipeline in the family
  uint8_t rank;                  // lower is preferred among instances that fit equally well
  const uint32_t* fields;        // by the family's fields (kernels/generated/<family>.h)
  SizeRule needs;                // it answers no other problems
  SizeRule best;                 // problems where it is preferred; elsewhere those without come before it
};
struct Algorithms {
  const Algorithm* list;         // by Row::algorithm
  uint32_t count;
};
struct Fit {                     // the tile that covers a size
  uint8_t size, field;           // indices into Family::sizes and Algorithm::fields
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
  Integers integers;
  const char* const* sizes;      // names, by index
  uint32_t size_count;
  const Fit* fits;
  uint32_t fit_count;
  const Group* groups;           // ascending by codes
  uint32_t group_count;
  const uint32_t* instance_of;   // by group, then integers, target, rank: the number of the instance in the plan
  uint32_t first_instance, instance_count;  // its instances in the plan, one after another
  bool (*answers)(const void* engine, uint64_t codes);  // whether an engine has a function for a signature; null: not asked
};
struct Tuned {                   // a measured choice that the receipt pins
  const char* machine;           // where it was measured
  tilekiln_tuned choice;
};
struct Backend;                  // runtime/backend.h
struct Target {
  const char* name;              // "cpu-avx512", what TILEKILN_TARGET takes
  const char* isa;               // "avx512", what TILEKILN_ISA takes; "" of another backend than the CPU's
  uint8_t index;                 // Row::target
  uint8_t order;                 // higher is faster: the best usable one wins
  bool (*supported)();           // does this machine have it; asked by its backend. Null: `arch` says all
  const void* const* const* engines;  // by family as in Table::families, then by pipeline; null: not built.
                                      // Pointer of the type that the family declares (fmha_fwd: const fmha::FwdEngine*), or
                                      // that the backend does, of one with kernels of its own
  const Algorithms* algorithms;  // by family, alike
  const Rules* refusals;         // by family, alike: rules of this target alone; null: it has none
  const Backend* backend;        // null: the CPU's
  const char* arch;              // the machine that its flags are for: "any", "x86_64", "sm_90a"
  const char* (*refusal)() = nullptr;  // asks the system to let this process use it: why not, null where it may. Null: nothing to ask
};
// Text before the manifest's stream, by which `codegen verify` finds it in a file, and the lengths of stream and JSON, 8
// bytes each, the lowest first.
constexpr uint64_t manifest_lengths = 24, manifest_mark = 40;

struct Table {
  const char* version;           // of Tilekiln
  const char* receipt;
  const char* where;             // the selection the library was narrowed by, "" if none
  const Target* targets;         // the targets of this library, ascending by order
  uint32_t target_count;
  const RowSource* sources;
  uint32_t source_count;
  const Family* families;
  uint32_t family_count;
  const RowRef* plan;            // instance number -> row
  uint32_t instance_count;
  const char* plan_hash;         // of the names in the order of the plan, as in the manifest
  const unsigned char* manifest;  // JSON as a zlib stream, behind manifest_mark bytes
  const void* const* fixed = nullptr;  // instance number -> its kernel, in place of that of its pipeline; null: there are none
  const Tuned* tuned = nullptr;
  uint32_t tuned_count = 0;
};

extern const Table table;        // defined by the generated table.cpp of the library

}  // namespace tilekiln
