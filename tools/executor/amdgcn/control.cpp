// SPDX-License-Identifier: MIT
// Branches, barriers, waits, and what has no function here.
#include <cstdarg>

#include "operands.h"

namespace amdgcn {

void fault(const char* kind, const Wave& wave, const Instruction& in, const char* format, ...) {
  char text[400];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  fail("%s: %s | wave %d pc %llx: %s", kind, text, wave.number, (unsigned long long)in.address, in.text.c_str());
}

void issue(Wave& wave, int queue, Access access, bool writes, int vgpr, int vgprs, int sgpr, int sgprs) {
  wave.queue[queue].push_back({access, writes, u16(vgpr), u16(vgprs), u16(sgpr), u16(sgprs)});
  for (int i = 0; i < vgprs; i++) {
    wave.vgpr_pending[vgpr + i]++;
    wave.vgpr_queue[vgpr + i] = u8(queue);
    wave.pending++;
  }
  for (int i = 0; i < sgprs; i++) {
    wave.sgpr_pending[sgpr + i]++;
    wave.pending++;
  }
}

namespace {

/// Waits until at most `left` operations of a queue are outstanding.
void retire(const Machine& machine, Wave& wave, const Instruction& in, int queue, int left) {
  if (machine.options.ignore_waits) return;
  auto& waiting = wave.queue[queue];
  if (left > 0)
    for (const Outstanding& one : waiting)
      if (one.access == Access::scalar) return;  // scalar loads return out of order: only a wait for 0 proves anything
  while (int(waiting.size()) > left) {
    const Outstanding one = waiting.front();
    waiting.pop_front();
    in.retired++;
    for (int i = 0; i < one.vgprs; i++) wave.vgpr_pending[one.vgpr + i]--;
    for (int i = 0; i < one.sgprs; i++) wave.sgpr_pending[one.sgpr + i]--;
    wave.pending -= one.vgprs + one.sgprs;
  }
}

/// A wave that signals while its own LDS operations are outstanding has not released what it wrote.
void check_signal(const Machine& machine, const Wave& wave, const Instruction& in) {
  if (!machine.options.races) return;
  for (const Outstanding& one : wave.queue[LDS_QUEUE])
    if (one.access == Access::lds)
      fault("RACE", wave, in, "barrier signalled with an LDS %s still outstanding", one.writes ? "write" : "read");
}

void jump(Wave& wave, const Instruction& in) {
  if (in.target < 0) fault("PC", wave, in, "branch outside the kernel");
  wave.pc = in.target;
}

bool scc(const Wave& wave, const Instruction& in) {
  if (!wave.scc_defined) fault("POISON", wave, in, "branch on an undefined scc");
  return wave.scc;
}

bool vcc_is_zero(Wave& wave, const Instruction& in) {
  Operand vcc;
  vcc.kind = Kind::sgpr, vcc.index = VCC;
  u64 defined = ~0ull;
  const u64 mask = read_mask(wave, in, vcc, defined);
  if (wave.lanes == 32) defined |= 0xffffffff00000000ull;
  if (~defined) fault("POISON", wave, in, "branch on undefined bits of vcc, %016llx", (unsigned long long)~defined);
  return mask == 0;
}

}  // namespace

INSTRUCTION("s_waitcnt", {
  if (in.vmcnt >= 0) retire(machine, wave, in, LOADS, in.vmcnt);
  if (in.lgkmcnt >= 0) retire(machine, wave, in, LDS_QUEUE, in.lgkmcnt);
})
INSTRUCTION("s_wait_loadcnt", { retire(machine, wave, in, LOADS, int(in.immediate)); })
INSTRUCTION("s_waitcnt_vscnt s_wait_storecnt", { retire(machine, wave, in, STORES, int(in.immediate)); })
INSTRUCTION("s_wait_dscnt", { retire(machine, wave, in, LDS_QUEUE, int(in.immediate)); })
INSTRUCTION("s_wait_kmcnt", { retire(machine, wave, in, SCALARS, int(in.immediate)); })
INSTRUCTION("s_wait_loadcnt_dscnt", {
  retire(machine, wave, in, LOADS, in.immediate >> 8 & 63);
  retire(machine, wave, in, LDS_QUEUE, in.immediate & 63);
})
INSTRUCTION("s_wait_storecnt_dscnt", {
  retire(machine, wave, in, STORES, in.immediate >> 8 & 63);
  retire(machine, wave, in, LDS_QUEUE, in.immediate & 63);
})

// Hints, caches (memory here is immediate) and MODE (rounding and denormals stay as they are).
INSTRUCTION(
    "s_delay_alu s_clause s_wait_alu s_waitcnt_depctr s_setprio s_sethalt s_sleep s_inst_prefetch "
    "s_set_inst_prefetch_distance s_sendmsg s_wait_idle s_wait_expcnt s_wait_samplecnt s_wait_bvhcnt s_wait_xcnt "
    "s_ttracedata s_icache_inv s_dcache_inv buffer_gl0_inv buffer_gl1_inv global_inv global_wb buffer_wbl2 buffer_inv "
    "s_setreg_imm32_b32 s_setreg_b32",
    {})
INSTRUCTION("s_nop",
            { wave.wait_states += u32(in.immediate); })  // n + 1 states; the one every instruction has is counted

INSTRUCTION("s_code_end", { fault("PC", wave, in, "ran into the padding behind the kernel"); })
INSTRUCTION("s_endpgm", { wave.state = WaveState::done; })
INSTRUCTION("s_barrier", {
  check_signal(machine, wave, in);
  wave.signals++;
  wave.state = WaveState::at_barrier;
})
INSTRUCTION("s_barrier_signal", {
  check_signal(machine, wave, in);
  wave.signals++;
})
INSTRUCTION("s_barrier_wait", { wave.state = WaveState::at_barrier; })

INSTRUCTION("s_branch", { jump(wave, in); })
INSTRUCTION("s_cbranch_scc0", {
  if (!scc(wave, in)) jump(wave, in);
})
INSTRUCTION("s_cbranch_scc1", {
  if (scc(wave, in)) jump(wave, in);
})
INSTRUCTION("s_cbranch_vccz", {
  if (vcc_is_zero(wave, in)) jump(wave, in);
})
INSTRUCTION("s_cbranch_vccnz", {
  if (!vcc_is_zero(wave, in)) jump(wave, in);
})
INSTRUCTION("s_cbranch_execz", {
  if (!wave.exec()) jump(wave, in);
})
INSTRUCTION("s_cbranch_execnz", {
  if (wave.exec()) jump(wave, in);
})

}  // namespace amdgcn
