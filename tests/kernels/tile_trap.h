// SPDX-License-Identifier: MIT
// Tile instructions on a processor without them: a handler of SIGILL decodes each and does what the rule says, so that the very object
// code of a library runs on any x86-64 Linux. Vector instructions must be the processor's own.
#pragma once
#if defined(__x86_64__) && defined(__linux__)
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

#include "kernels/backends/cpu/amx/rule.h"
#include "kernels/backends/cpu/tile_permission.h"

namespace tilekiln::test {

class TileTrap {
 public:
  static void install() {
    struct sigaction action = {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGILL, &action, nullptr);
  }

  // Installs it unless the processor has tiles. False: it has, and the system refuses them.
  static bool install_if_needed() {
    if (amx::present()) return amx::refusal() == nullptr;
    install();
    return true;
  }

 private:
  using Row = cpu::tiles::Row;
  struct State {
    Row tile[8][cpu::tiles::kTileRows];
    unsigned char configuration[64];
    uint16_t bytes[8];
    unsigned char rows[8], palette;
  };
  static State& state() {
    static thread_local State one;
    return one;
  }

  // The fields of an instruction: VEX of three bytes, opcode, ModRM, and what ModRM says of memory.
  struct Instruction {
    int prefix, opcode, mod, reg, rm, second;  // second: the operand that VEX names
    char* memory;
    long stride;
    int length;
  };

  static long register_of(const ucontext_t& u, int number) {
    static constexpr int order[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                      REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return u.uc_mcontext.gregs[order[number]];
  }
  static int number_at(const uint8_t* p) {
    int32_t n;
    memcpy(&n, p, sizeof n);
    return n;
  }

  static bool decode(const ucontext_t& u, Instruction& to) {
    const auto* const p = reinterpret_cast<const uint8_t*>(u.uc_mcontext.gregs[REG_RIP]);
    if (p[0] != 0xc4 || (p[1] & 31) != 2) return false;
    const int index_bit = (p[1] & 0x40) == 0 ? 8 : 0, base_bit = (p[1] & 0x20) == 0 ? 8 : 0;
    to = {p[2] & 3, p[3], p[4] >> 6, p[4] >> 3 & 7, p[4] & 7, ~p[2] >> 3 & 15, nullptr, 0, 5};
    if (to.mod == 3) return true;
    long base = 0;
    if (to.rm == 4) {
      const int sib = p[to.length++], index = (sib >> 3 & 7) | index_bit;
      if (index != 4) to.stride = register_of(u, index) * (1L << (sib >> 6));
      if ((sib & 7) == 5 && to.mod == 0) {
        base = number_at(p + to.length), to.length += 4;
      } else {
        base = register_of(u, (sib & 7) | base_bit);
      }
    } else if (to.rm == 5 && to.mod == 0) {
      base = reinterpret_cast<long>(p) + to.length + 4 + number_at(p + to.length), to.length += 4;
    } else {
      base = register_of(u, to.rm | base_bit);
    }
    if (to.mod == 1) base += static_cast<int8_t>(p[to.length]), to.length += 1;
    if (to.mod == 2) base += number_at(p + to.length), to.length += 4;
    to.memory = reinterpret_cast<char*>(base);
    return true;
  }

  static void configure(State& s, const char* from) {
    memset(&s, 0, sizeof s);
    if (from == nullptr) return;
    memcpy(s.configuration, from, sizeof s.configuration);
    s.palette = s.configuration[0];
    for (int t = 0; t < 8; ++t) {
      memcpy(&s.bytes[t], s.configuration + 16 + 2 * t, sizeof s.bytes[t]);
      s.rows[t] = s.configuration[48 + t];
    }
  }

  static bool dot(State& s, const Instruction& of) {
    namespace rule = cpu::tiles::rule;
    Row *const c = s.tile[of.reg], *const a = s.tile[of.rm], *const b = s.tile[of.second];
    const int rows = s.rows[of.reg], columns = s.bytes[of.reg] / 4, depth = s.bytes[of.rm] / 4;
    if (of.opcode == 0x5c) {
      if (of.prefix != 2) return false;
      rule::dot_bf16(c, a, b, rows, columns, depth);
      return true;
    }
    switch (of.prefix) {
      case 0: rule::dot_bytes<false, false>(c, a, b, rows, columns, depth); break;
      case 1: rule::dot_bytes<false, true>(c, a, b, rows, columns, depth); break;
      case 2: rule::dot_bytes<true, false>(c, a, b, rows, columns, depth); break;
      default: rule::dot_bytes<true, true>(c, a, b, rows, columns, depth);
    }
    return true;
  }

  // Acts on a word of tiles. Returns whether it is legal now.
  static bool act(State& s, const Instruction& of) {
    if (of.opcode == 0x49 && of.prefix == 0) return configure(s, of.mod == 3 ? nullptr : of.memory), true;
    if (s.palette == 0) return false;
    if (of.opcode == 0x49 && of.prefix == 3) return memset(s.tile[of.reg], 0, sizeof s.tile[of.reg]), true;
    if (of.opcode == 0x4b && of.prefix != 0) {
      const bool stores = of.prefix == 2;
      if (!stores) memset(s.tile[of.reg], 0, sizeof s.tile[of.reg]);
      for (int r = 0; r < s.rows[of.reg]; ++r) {
        char *const there = of.memory + r * of.stride, *const here = reinterpret_cast<char*>(s.tile[of.reg][r]);
        memcpy(stores ? there : here, stores ? here : there, s.bytes[of.reg]);
      }
      return true;
    }
    return (of.opcode == 0x5c || of.opcode == 0x5e) && of.mod == 3 && dot(s, of);
  }

  static void handle(int, siginfo_t*, void* context) {
    ucontext_t& u = *static_cast<ucontext_t*>(context);
    Instruction of;
    if (decode(u, of) && act(state(), of)) {
      u.uc_mcontext.gregs[REG_RIP] += of.length;
      return;
    }
    signal(SIGILL, SIG_DFL);  // as without the handler: the instruction is met again
  }
};

}  // namespace tilekiln::test

#else

namespace tilekiln::test {

struct TileTrap {
  static bool install_if_needed() { return false; }
};

}  // namespace tilekiln::test

#endif
