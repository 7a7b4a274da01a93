// SPDX-License-Identifier: MIT
// One decoded instruction, and the table that gives a mnemonic its meaning.
#pragma once
#include <string>
#include <unordered_map>

#include "fault.h"
#include "formats.h"

namespace amdgcn {

using namespace executor;  // tools/executor/common. Kinds of faults: DECODE, POISON, WAIT, RACE, OOB, HAZARD, LAYOUT,
                           // EXEC, PC, DEADLOCK, RUNAWAY

enum class Kind : u8 { none, vgpr, sgpr, immediate, null, off };
enum class Half : u8 { whole, low, high };  // .l and .h of RDNA's 16-bit registers

/// Numbers of special scalar registers, as the encoding has them; scc is a number of our own.
enum : int { FLAT_SCRATCH = 102, VCC = 106, TTMP = 108, M0 = 124, EXEC = 126, SCC = 128, SGPRS = 130 };
enum : int { AGPR = 256, VGPRS = 512 };  // accumulation registers are the upper half of the vector file

struct Operand {
  Kind kind = Kind::none;
  Half half = Half::whole;
  u16 index = 0;
  u8 count = 1;
  bool negate = false, absolute = false, sign_extend = false;
  bool is_float = false;    // an inline constant written as a float; `value` holds it
  bool is_literal = false;  // written in hexadecimal: 64-bit integer operands extend it with zeros
  u32 bits = 0;
  double value = 0;
  const char* text = "";  // as written; lives as long as the program
};

struct Machine;
struct Wave;
struct Instruction;
using Handler = void (*)(Machine&, Wave&, const Instruction&);

/// SDWA selections: BYTE_0..3, WORD_0..1, DWORD.
enum : int { SDWA_DWORD = 6 };

struct Instruction {
  u64 address = 0;
  u32 bytes = 0;
  std::string mnemonic, text;  // without encoding suffix; the whole line
  Handler run = nullptr;
  Operand operand[6];
  int operands = 0;
  u64 executed = 0;
  mutable u64 retired = 0;  // of a wait: operations that it found outstanding and waited for

  int offset = 0, offset0 = 0, offset1 = 0;
  u8 op_sel = 0, op_sel_hi = 0xf, neg_lo = 0, neg_hi = 0;
  bool has_op_sel = false, has_op_sel_hi = false;
  bool clamp = false, offen = false, idxen = false, glc = false, lds = false;
  int output_scale = 0;  // 1: times 2, 2: times 4, 3: halved
  int bitop3 = 0;
  int dpp = -1, row_mask = 15, bank_mask = 15;
  bool bound_ctrl = false;
  bool sdwa = false;
  int sdwa_to = SDWA_DWORD, sdwa_from[2] = {SDWA_DWORD, SDWA_DWORD}, sdwa_unused = 0;

  i64 immediate = 0;
  int target = -1;                      // of a branch: an index of the program, or -1 outside it
  int vmcnt = -1, lgkmcnt = -1;         // of s_waitcnt
  const Instruction* second = nullptr;  // of a VOPD pair
  Handler first = nullptr;              // of its other half
  bool is_cmpx = false;

  bool selects(int source, bool high) const {
    return high ? op_sel_hi >> source & 1 : has_op_sel && (op_sel >> source & 1);
  }
};

/// Handlers by mnemonic, for every architecture: the gfx9 and the RDNA spelling of one operation stand in one line.
std::unordered_map<std::string, Handler>& mnemonics();

struct Register { Register(const char* names, Handler handler); };

#define AMDGCN_JOIN2(a, b) a##b
#define AMDGCN_JOIN(a, b) AMDGCN_JOIN2(a, b)
/// INSTRUCTION("v_add_f32 ...", { body }): machine, wave and in are the body's.
#define INSTRUCTION(names, ...)                                                                                        \
  static const Register AMDGCN_JOIN(register_, __COUNTER__)(                                                           \
      names, [](Machine & machine, Wave & wave, const Instruction& in) {                                               \
        (void)machine, (void)wave, (void)in;                                                                           \
        __VA_ARGS__                                                                                                    \
      });

}  // namespace amdgcn
