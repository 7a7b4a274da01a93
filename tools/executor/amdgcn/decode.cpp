// SPDX-License-Identifier: MIT
// Decoder of the text of llvm-objdump 22 to instructions. What is unknown is an error that quotes the line.
#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <set>

#include "machine.h"

namespace amdgcn {

std::unordered_map<std::string, Handler>& mnemonics() {
  static std::unordered_map<std::string, Handler> table;
  return table;
}

namespace {

using Words = std::vector<std::string>;

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// Splits at a letter that stands outside brackets.
Words split(const std::string& text, char at) {
  Words parts(1);
  int depth = 0;
  for (const char letter : text) {
    depth += (letter == '[' || letter == '(') - (letter == ']' || letter == ')');
    if (letter == at && !depth)
      parts.emplace_back();
    else
      parts.back() += letter;
  }
  return parts;
}

bool begins(const std::string& text, const char* start) { return text.compare(0, std::strlen(start), start) == 0; }
bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

struct Special {
  const char* name;
  int index, count;
};
constexpr Special kSpecial[] = {
    {"vcc", VCC, 2},
    {"vcc_lo", VCC, 1},
    {"vcc_hi", VCC + 1, 1},
    {"exec", EXEC, 2},
    {"exec_lo", EXEC, 1},
    {"exec_hi", EXEC + 1, 1},
    {"m0", M0, 1},
    {"flat_scratch", FLAT_SCRATCH, 2},
    {"flat_scratch_lo", FLAT_SCRATCH, 1},
    {"flat_scratch_hi", FLAT_SCRATCH + 1, 1},
    {"scc", SCC, 1},
    {"src_scc", SCC, 1},
};

/// "7" or "[4:7]" or "[4]" after the letter of a register file.
bool register_range(const std::string& text, size_t at, int base, Operand& o) {
  int first, last;
  if (at >= text.size()) return false;
  if (text[at] == '[') {
    if (std::sscanf(text.c_str() + at, "[%d:%d]", &first, &last) != 2) {
      if (std::sscanf(text.c_str() + at, "[%d]", &first) != 1) return false;
      last = first;
    }
  } else {
    if (!is_digit(text[at])) return false;
    first = last = std::atoi(text.c_str() + at);
  }
  o.index = u16(first + base);
  o.count = u8(last - first + 1);
  return true;
}

bool number(const std::string& text, Operand& o) {
  char* end;
  o.kind = Kind::immediate;
  if (text.find("0x") != std::string::npos) {
    o.bits = u32(std::strtoll(text.c_str(), &end, 16));
    o.is_literal = true;
  } else if (text.find('.') != std::string::npos || text.find('e') != std::string::npos) {
    o.value = std::strtod(text.c_str(), &end);
    o.is_float = true;
  } else {
    o.bits = u32(std::strtoll(text.c_str(), &end, 10));
  }
  return !*end;
}

/// One string for all that are equal, kept until the process ends: there are as many as operands have spellings.
const char* kept(const std::string& text) {
  static std::set<std::string> all;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  return all.insert(text).first->c_str();
}

bool read_operand(const std::string& written, Operand& o) {
  std::string text = written;
  o.text = kept(written);
  if (text.empty()) return false;
  if (begins(text, "sext(")) o.sign_extend = true, text = text.substr(5, text.size() - 6);
  if (begins(text, "neg(")) o.negate = true, text = text.substr(4, text.size() - 5);
  if (text.size() > 1 && text[0] == '-' && !is_digit(text[1])) o.negate = true, text.erase(0, 1);
  if (text.size() > 2 && text[0] == '|') o.absolute = true, text = text.substr(1, text.size() - 2);
  const size_t size = text.size();
  if (size > 2 && text[size - 2] == '.' && (text[size - 1] == 'l' || text[size - 1] == 'h') &&
      (text[0] == 'v' || text[0] == 's')) {
    o.half = text[size - 1] == 'l' ? Half::low : Half::high;
    text.resize(size - 2);
  }
  for (const Special& special : kSpecial)
    if (text == special.name) {
      o.kind = Kind::sgpr, o.index = u16(special.index), o.count = u8(special.count);
      return true;
    }
  if (text == "null") return o.kind = Kind::null, true;
  if (text == "off") return o.kind = Kind::off, true;
  if (begins(text, "ttmp")) return o.kind = Kind::sgpr, register_range(text, 4, TTMP, o);
  const bool names_register = text.size() > 1 && (text[1] == '[' || is_digit(text[1]));
  if (names_register && text[0] == 'v') return o.kind = Kind::vgpr, register_range(text, 1, 0, o);
  if (names_register && text[0] == 'a') return o.kind = Kind::vgpr, register_range(text, 1, AGPR, o);
  if (names_register && text[0] == 's') return o.kind = Kind::sgpr, register_range(text, 1, 0, o);
  return (is_digit(text[0]) || text[0] == '-') && number(text, o);
}

/// "[0,1,1]" as bits, the first the lowest.
int listed_bits(const std::string& text) {
  int bits = 0, at = 0;
  for (size_t i = text.find('[') + 1; i < text.size() && text[i] != ']'; i++) {
    if (text[i] == ',') continue;
    bits |= (text[i] == '1') << at++;
  }
  return bits;
}

int sdwa_selection(const char* name) {
  static const char* const kNames[] = {"BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1", "DWORD"};
  for (int i = 0; i < 7; i++)
    if (!std::strcmp(name, kNames[i])) return i;
  return -1;
}

/// Reads a modifier that some kernel has; false for any other.
bool read_modifier(Instruction& in, const std::string& text) {
  const auto after = [&](const char* name) -> const char* {
    return begins(text, name) ? text.c_str() + std::strlen(name) : nullptr;
  };
  const auto set = [&](const char* name, int& to, int plus = 0) {
    const char* value = after(name);
    if (value) to = int(std::strtol(value, nullptr, 0)) + plus;
    return value != nullptr;
  };
  const auto flag = [&](const char* name, bool& to) { return text == name && (to = true); };
  const auto bits = [&](const char* name, u8& to, bool* given = nullptr) {
    if (!after(name)) return false;
    to = u8(listed_bits(text));
    if (given) *given = true;
    return true;
  };
  const auto dpp = [&](const char* name, int base) { return set(name, in.dpp, base); };

  if (after("offset:swizzle(")) return true;  // symbolic: the encoding has it
  if (set("offset0:", in.offset0) || set("offset1:", in.offset1) || set("offset:", in.offset)) return true;
  if (bits("op_sel_hi:", in.op_sel_hi, &in.has_op_sel_hi) || bits("op_sel:", in.op_sel, &in.has_op_sel)) return true;
  if (bits("neg_lo:", in.neg_lo) || bits("neg_hi:", in.neg_hi)) return true;
  if (flag("clamp", in.clamp) || flag("offen", in.offen) || flag("idxen", in.idxen) || flag("lds", in.lds)) return true;
  if (flag("glc", in.glc) || flag("sc0", in.glc)) return true;
  if (text == "sc1" || text == "nt" || text == "slc" || text == "dlc" || after("th:") || after("scope:")) return true;
  if (text == "mul:2") return in.output_scale = 1, true;
  if (text == "mul:4") return in.output_scale = 2, true;
  if (text == "div:2") return in.output_scale = 3, true;
  if (set("bitop3:", in.bitop3) || set("byte_sel:", in.sdwa_from[0])) return true;
  if (const char* value = after("quad_perm:")) {
    int lane[4];
    if (std::sscanf(value, "[%d,%d,%d,%d]", lane, lane + 1, lane + 2, lane + 3) != 4) return false;
    in.dpp = lane[0] | lane[1] << 2 | lane[2] << 4 | lane[3] << 6;
    return true;
  }
  if (dpp("row_shl:", 0x100) || dpp("row_shr:", 0x110) || dpp("row_ror:", 0x120)) return true;
  if (dpp("row_share:", 0x150) || dpp("row_newbcast:", 0x150) || dpp("row_xmask:", 0x160)) return true;
  if (text == "row_mirror") return in.dpp = 0x140, true;
  if (text == "row_half_mirror") return in.dpp = 0x141, true;
  if (text == "row_bcast:15") return in.dpp = 0x142, true;
  if (text == "row_bcast:31") return in.dpp = 0x143, true;
  if (text == "wave_shl:1") return in.dpp = 0x130, true;
  if (text == "wave_shr:1") return in.dpp = 0x138, true;
  if (set("row_mask:", in.row_mask) || set("bank_mask:", in.bank_mask)) return true;
  if (after("bound_ctrl:")) return in.bound_ctrl = true;
  if (after("fi:")) return true;
  for (const auto& [name, to] : {std::pair<const char*, int*>{"dst_sel:", &in.sdwa_to},
                                 {"src0_sel:", &in.sdwa_from[0]},
                                 {"src1_sel:", &in.sdwa_from[1]}})
    if (const char* value = after(name)) {
      in.sdwa = true;
      return (*to = sdwa_selection(value)) >= 0;
    }
  if (const char* value = after("dst_unused:")) {
    in.sdwa = true;
    in.sdwa_unused = !std::strcmp(value, "UNUSED_PAD") ? 0 : !std::strcmp(value, "UNUSED_SEXT") ? 1 : 2;
    return true;
  }
  return false;
}

/// Instructions whose operands have no part in what they do here.
constexpr const char* kWithoutOperands[] = {"s_nop",
                                            "s_delay_alu",
                                            "s_clause",
                                            "s_waitcnt_depctr",
                                            "s_sendmsg",
                                            "s_setprio",
                                            "s_setreg_imm32_b32",
                                            "s_setreg_b32",
                                            "s_barrier_signal",
                                            "s_barrier_wait",
                                            "s_code_end",
                                            "s_endpgm",
                                            "s_set_inst_prefetch_distance",
                                            "s_sleep",
                                            "buffer_gl0_inv",
                                            "global_inv",
                                            "global_wb",
                                            "buffer_inv",
                                            "buffer_wbl2",
                                            "s_icache_inv",
                                            "s_dcache_inv",
                                            "s_inst_prefetch"};

int in_brackets(const std::string& text, const char* name) {
  const size_t at = text.find(name);
  return at == std::string::npos ? -1 : std::atoi(text.c_str() + at + std::strlen(name));
}

/// Waits, branches and the like: one immediate, or none. False for any other instruction.
bool read_special(Instruction& in, const std::string& rest) {
  const std::string& name = in.mnemonic;
  if (name == "s_waitcnt") {
    in.vmcnt = in_brackets(rest, "vmcnt("), in.lgkmcnt = in_brackets(rest, "lgkmcnt(");
    if (rest == "0") in.vmcnt = in.lgkmcnt = 0;
    if (in.vmcnt < 0 && in.lgkmcnt < 0 && rest.find("expcnt(") == std::string::npos)
      fail("DECODE: unknown counters in: %s", in.text.c_str());
    return true;
  }
  if (begins(name, "s_wait_") || name == "s_waitcnt_vscnt") {
    const size_t space = rest.rfind(' ');
    in.immediate = std::strtol(rest.c_str() + (space == std::string::npos ? 0 : space + 1), nullptr, 0);
    return true;
  }
  if (name == "s_branch" || begins(name, "s_cbranch")) {
    in.immediate = i16(std::strtol(rest.c_str(), nullptr, 0));
    return true;
  }
  for (const char* other : kWithoutOperands)
    if (name == other) {
      if (name == "s_nop") in.immediate = std::strtol(rest.c_str(), nullptr, 0);
      return true;
    }
  return false;
}

void read_body(Instruction& in, const std::string& body) {
  const size_t space = body.find(' ');
  std::string name = body.substr(0, space);
  const std::string rest = space == std::string::npos ? "" : trimmed(body.substr(space));
  in.text = body;
  for (const char* suffix : {"_e64_dpp", "_e32", "_e64", "_dpp", "_sdwa"}) {
    const size_t size = std::strlen(suffix);
    if (name.size() > size && name.compare(name.size() - size, size, suffix) == 0) {
      name.resize(name.size() - size);
      break;
    }
  }
  if (begins(name, "v_dual_")) name = "v_" + name.substr(7);
  in.mnemonic = name;
  const auto found = mnemonics().find(name);
  if (found == mnemonics().end())
    fail("DECODE: unknown mnemonic %s at %llx: %s", name.c_str(), (unsigned long long)in.address, body.c_str());
  in.run = found->second;
  in.is_cmpx = begins(name, "v_cmpx");
  if (read_special(in, rest) || rest.empty()) return;
  for (const std::string& part : split(rest, ',')) {
    const Words words = split(trimmed(part), ' ');
    if (in.operands >= 6) fail("DECODE: more than six operands: %s", body.c_str());
    if (!read_operand(words[0], in.operand[in.operands]))
      fail("DECODE: unknown operand '%s' in: %s", words[0].c_str(), body.c_str());
    in.operands++;
    for (size_t i = 1; i < words.size(); i++)
      if (!words[i].empty() && !read_modifier(in, words[i]))
        fail("DECODE: unknown modifier '%s' in: %s", words[i].c_str(), body.c_str());
  }
  if (begins(name, "v_cmp_") && in.operands == 2) fail("DECODE: a compare without destination: %s", body.c_str());
}

/// Runs a VOPD pair, of which both halves read before either writes.
void run_pair(Machine& machine, Wave& wave, const Instruction& in) {
  const int to = in.operand[0].index;
  u32 old[64], result[64];
  const u64 old_defined = wave.vgpr_defined[to];
  std::memcpy(old, wave.vgpr[to], sizeof old);
  in.first(machine, wave, in);
  const u64 result_defined = wave.vgpr_defined[to];
  std::memcpy(result, wave.vgpr[to], sizeof result);
  std::memcpy(wave.vgpr[to], old, sizeof old);
  wave.vgpr_defined[to] = old_defined;
  in.second->run(machine, wave, *in.second);
  std::memcpy(wave.vgpr[to], result, sizeof result);
  wave.vgpr_defined[to] = result_defined;
}

/// "// 000000001904: 7E000280 7E020280 <label>": the address, the count of words and the first of them.
void read_encoding(Instruction& in, const std::string& tail, u32& first_word) {
  in.address = std::strtoull(tail.c_str(), nullptr, 16);
  const size_t colon = tail.find(':');
  std::string words = tail.substr(colon + 1);
  words.resize(std::min(words.size(), words.find('<')));
  first_word = u32(std::strtoull(words.c_str(), nullptr, 16));
  for (const std::string& word : split(words, ' ')) in.bytes += trimmed(word).empty() ? 0 : 4;
}

}  // namespace

Register::Register(const char* names, Handler handler) {
  for (const std::string& name : split(names, ' '))
    if (!name.empty()) mnemonics()[name] = handler;
}

void decode(Machine& machine, const char* disassembly) {
  for (const std::string& line : split(disassembly, '\n')) {
    if (line.empty() || line[0] != '\t') continue;
    const size_t comment = line.rfind("//");
    if (comment == std::string::npos) continue;
    const std::string body = trimmed(line.substr(0, comment));
    Instruction in;
    u32 first_word;
    read_encoding(in, line.substr(comment + 2), first_word);
    const size_t pair = body.find(" :: ");
    read_body(in, trimmed(body.substr(0, pair)));
    if (pair != std::string::npos) {
      auto second = std::make_unique<Instruction>();
      second->address = in.address;
      read_body(*second, trimmed(body.substr(pair + 4)));
      in.second = second.get();
      machine.seconds.push_back(std::move(second));
      in.text = body;
      in.first = in.run;
      in.run = run_pair;
    }
    if (in.mnemonic == "ds_swizzle_b32") in.offset = int(first_word & 0xffff);  // printed as a symbol
    machine.at[in.address] = int(machine.program.size());
    machine.program.push_back(std::move(in));
  }
  for (const Instruction& in : machine.program)
    for (const Instruction* one : {&in, in.second})
      for (int k = 0; one && k < one->operands; k++)
        if (const Operand& o = one->operand[k]; o.kind == Kind::vgpr) {
          int& used = machine.registers_used[o.index >= AGPR];
          used = std::max(used, o.index % AGPR + o.count);
        }
  for (Instruction& in : machine.program)
    if (in.mnemonic == "s_branch" || begins(in.mnemonic, "s_cbranch")) {
      const auto found = machine.at.find(in.address + 4 + 4 * u64(in.immediate));
      in.target = found == machine.at.end() ? -1 : found->second;
    }
}

}  // namespace amdgcn
