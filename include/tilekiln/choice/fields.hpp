// SPDX-License-Identifier: MIT
// Fields: the names that problems and keys give their values, and what the choice does with each.
#pragma once
#include <bitset>
#include <vector>

#include "tilekiln/choice/terms.hpp"
#include "tilekiln/choice/words.hpp"

namespace tilekiln::dispatcher {

// The part that a field of a problem plays in the choice of a kernel.
enum class Role : uint8_t {
  signature,  // what kernels are made for; one that a kernel does not know refuses the problem, unless it is off or as usual
  detail,  // compared where a kernel says it, else for the kernel to read at run time
  size,    // a number of this one call; no part of the canonical key
};

constexpr uint32_t most_fields = 128;

class Field {
 public:
  Field(const char* name) : Field(std::string_view(name)) {}
  Field(const std::string& name) : Field(std::string_view(name)) {}
  Field(std::string_view name) : number_(static_cast<uint8_t>(table().names.number(name))) {}
  static Field of(uint32_t number) { return Field(number, Numbered()); }
  uint8_t number() const { return number_; }
  const std::string& name() const { return table().names.text(number_); }
  Role role() const { return table().roles[number_]; }
  // The value that a kernel takes when its signature does not name the field: mode=batch, v_layout=row.
  Value usual() const { return table().usual[number_]; }
  friend bool operator==(Field a, Field b) { return a.number_ == b.number_; }
  friend bool operator!=(Field a, Field b) { return a.number_ != b.number_; }

 private:
  struct Table {
    Interned<most_fields> names;
    Role roles[most_fields] = {};
    Value usual[most_fields] = {};

    void put(const char* name, Role role, Value value = {}) {
      const uint32_t at = names.number(name);
      roles[at] = role;
      usual[at] = value;
    }
    // Names that no family declares as an axis; every other name is of a signature.
    Table() {
      for (const char* name : tables::details) put(name, Role::detail);
      for (const char* name : tables::sizes) put(name, Role::size);
      for (const auto& [name, value] : tables::usual) put(name, Role::signature, value);
    }
  };
  static Table& table() {
    static Table all;
    return all;
  }
  struct Numbered {};
  Field(uint32_t number, Numbered) : number_(static_cast<uint8_t>(number)) {}

  uint8_t number_;
};

// Fields that the dispatcher itself asks for, looked up once.
namespace field {
inline const Field operator_name("operator"), family("family"), target("target"), dtype("dtype"), mode("mode");
inline const Field hdim_q("hdim_q"), hdim_v("hdim_v"), batch("batch"), nhead_q("nhead_q"), nhead_k("nhead_k");
inline const Field seqlen_q("seqlen_q"), seqlen_k("seqlen_k"), max_seqlen_q("max_seqlen_q"),
    max_seqlen_k("max_seqlen_k");
inline const Field m("m"), n("n"), k("k"), groups("groups"), channels("channels"), outputs("outputs"), pixels("pixels"),
    taps("taps");
}  // namespace field

// A set of fields, by their numbers.
using Fields = std::bitset<most_fields>;

// Fields with values, as they were said: of keys, which are many and have few.
class Values {
 public:
  struct Pair {
    Field field;
    Value value;
  };
  // Replaces what the field had.
  void set(Field field, Value value) {
    for (Pair& pair : pairs_) {
      if (pair.field != field) continue;
      pair.value = value;
      return;
    }
    pairs_.push_back({field, value});
  }
  // Nothing where the field was never set.
  Value operator[](Field field) const {
    for (const Pair& pair : pairs_)
      if (pair.field == field) return pair.value;
    return {};
  }
  bool has(Field field) const { return !(*this)[field].empty(); }
  size_t size() const { return pairs_.size(); }
  auto begin() const { return pairs_.begin(); }
  auto end() const { return pairs_.end(); }

 private:
  std::vector<Pair> pairs_;
};

}  // namespace tilekiln::dispatcher
