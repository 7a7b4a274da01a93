// SPDX-License-Identifier: MIT
// Decoding of one instruction: its modifiers in their order, and the kinds and types of its operands.
// PTX ISA 9.0: "Instruction Operands", "Type Information for Instructions and Operands".
#include <algorithm>
#include <map>

#include "program.h"

namespace ptx {

bool Decode::take(const char* word) {
  if (at_ >= words_.size() || words_[at_] != word) return false;
  at_++;
  return true;
}
int Decode::one_of(std::initializer_list<const char*> list) {
  int k = 0;
  for (const char* word : list) {
    if (take(word)) return k;
    k++;
  }
  refuse(at_ < words_.size() ? "the modifier ." + words_[at_] + " is unknown" : "a modifier is missing");
}
std::string Decode::next() {
  if (at_ >= words_.size()) refuse("a modifier is missing");
  return words_[at_++];
}
void Decode::end(int operands, Handler run) { end(operands, operands, run); }
void Decode::end(int least, int most, Handler run) {
  if (at_ < words_.size()) refuse("the modifier ." + words_[at_] + " is unknown");
  if (in.operands < least || in.operands > most)
    refuse("it has " + std::to_string(in.operands) + " operands, must have " + std::to_string(most));
  in.run = run;
}
void Decode::refuse(const std::string& why) const { fail("DECODE: %s: %.600s", why.c_str(), in.text.c_str()); }

void Decode::bind(Operand& operand, int bytes, bool is_float) {
  if (operand.kind == Kind::lanes) {
    if ((bytes == 8) != (operand.bytes == 8)) refuse("the register " + operand.text + " has another width");
    return;
  }
  if (operand.kind != Kind::constant) refuse("the operand " + operand.text + " is no value");
  const std::string begin = operand.text.substr(0, 2), letters = bytes == 8 ? "dD" : "fF";
  if (is_float && (begin.size() < 2 || begin[0] != '0' || letters.find(begin[1]) == std::string::npos))
    refuse("the constant " + operand.text + " is no float");
  const u64 bits = bytes == 2 ? u64(operand.immediate) & 0xffff : u64(operand.immediate);
  auto& [narrow, wide] = module.known[bits];
  if (!narrow) {
    module.constants.push_back(std::make_unique<u32[]>(32));
    module.constants64.push_back(std::make_unique<u64[]>(32));
    std::fill_n(module.constants.back().get(), 32, u32(bits));
    std::fill_n(module.constants64.back().get(), 32, bits);
    narrow = module.constants.back().get();
    wide = module.constants64.back().get();
  }
  operand.constant = narrow;
  operand.constant64 = wide;
}
void Decode::value(int i, int bytes, bool is_float) { bind(in.operand[i], bytes, is_float); }
void Decode::values(int from, int to, int bytes, bool is_float) {
  for (int i = from; i < to; i++) value(i, bytes, is_float);
}
void Decode::predicate(int i) {
  const Operand& one = in.operand[i];
  if (one.kind != Kind::predicate && one.kind != Kind::constant) refuse("the operand " + one.text + " is no predicate");
}
void Decode::address(int i) {
  Operand& one = in.operand[i];
  if (one.kind != Kind::address || one.count < 1) refuse("the operand " + one.text + " is no address");
  Operand& base = in.items[size_t(one.first)];
  if (base.kind == Kind::constant) bind(base, 8, false);
  if (base.kind != Kind::constant && base.kind != Kind::lanes) refuse("the address " + one.text + " is unknown");
}
void Decode::list(int i, int count, int bytes, bool is_float) {
  Operand& one = in.operand[i];
  if (count == 1 && one.kind != Kind::list) return bind(one, bytes, is_float);
  if (one.kind != Kind::list || one.count != count)
    refuse("the list " + one.text + " must have " + std::to_string(count) + " values");
  for (int k = 0; k < count; k++) {
    Operand& item = in.items[size_t(one.first + k)];
    if (item.kind != Kind::none) bind(item, bytes, is_float);
  }
}

Type type_of(Decode& d, const std::string& word) {
  static const std::map<std::string, Type> known = {
      {"b8", {1, 'b'}},  {"u8", {1, 'u'}},  {"s8", {1, 's'}},  {"b16", {2, 'b'}}, {"u16", {2, 'u'}}, {"s16", {2, 's'}},
      {"b32", {4, 'b'}}, {"u32", {4, 'u'}}, {"s32", {4, 's'}}, {"f32", {4, 'f'}}, {"b64", {8, 'b'}}, {"u64", {8, 'u'}},
      {"s64", {8, 's'}}, {"f64", {8, 'f'}}, {"f16", {2, 'h'}}, {"pred", {0, 'p'}}};
  const auto found = known.find(word);
  if (found == known.end()) d.refuse("the type ." + word + " is unknown");
  return found->second;
}

}  // namespace ptx
