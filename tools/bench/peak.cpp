// SPDX-License-Identifier: MIT
// The arithmetic peak of one core, by the instructions the kernels use: what "share of peak" is a share of.
//
// tilekiln_peak(kind, seconds) runs independent accumulator chains in registers, in bursts of about a millisecond, for that long
// and returns the best burst in flop/s of thread CPU time: other tenants can only slow a burst down. 0: this CPU lacks the kind.
#include <time.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

constexpr long kRounds = 200000;

// One burst; returns its flops.
using Burst = double (*)();

#if defined(__x86_64__)
// Operands are zero, so that nothing overflows; the speed does not depend on values (measured: equal with random ones).
#define CHAIN_12(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define CHAIN_16(X) CHAIN_12(X) X(12) X(13) X(14) X(15)
#define ZERO_12 "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11"
#define LOOP(clear, body) \
  asm volatile(clear "1:\n" body "dec %0\njnz 1b\n" : "+r"(rounds) : : "cc", ZERO_12, "xmm12", "xmm13", "xmm14", "xmm15")

double fma_avx2() {  // 12 chains of 8 lanes
  long rounds = kRounds;
#define ZERO(i) "vxorps %%xmm" #i ",%%xmm" #i ",%%xmm" #i "\n"
#define STEP(i) "vfmadd231ps %%ymm14,%%ymm15,%%ymm" #i "\n"
  LOOP(CHAIN_16(ZERO), CHAIN_12(STEP));
#undef STEP
  return 12.0 * 8 * 2 * kRounds;
}

double fma_avx512() {  // 14 chains of 16 lanes
  long rounds = kRounds;
#define STEP(i) "vfmadd231ps %%zmm14,%%zmm15,%%zmm" #i "\n"
  LOOP(CHAIN_16(ZERO), CHAIN_12(STEP) STEP(12) STEP(13));
#undef STEP
  return 14.0 * 16 * 2 * kRounds;
}

double bf16_avx512() {  // vdpbf16ps: 16 lanes of two products
  long rounds = kRounds;
#define STEP(i) "vdpbf16ps %%zmm14,%%zmm15,%%zmm" #i "\n"
  LOOP(CHAIN_16(ZERO), CHAIN_12(STEP) STEP(12) STEP(13));
#undef STEP
  return 14.0 * 32 * 2 * kRounds;
}

struct alignas(64) Tiles {
  unsigned char palette = 1, start = 0, unused[14] = {};
  unsigned short bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  unsigned char rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

double bf16_tiles() {  // tdpbf16ps: 4 chains of 16 x 16 sums of 32 products
  static const Tiles tiles;
  long rounds = kRounds / 16;
  asm volatile("ldtilecfg %0" : : "m"(tiles));
  asm volatile(
      "1:\ntdpbf16ps %%tmm6,%%tmm4,%%tmm0\ntdpbf16ps %%tmm7,%%tmm4,%%tmm1\n"
      "tdpbf16ps %%tmm6,%%tmm5,%%tmm2\ntdpbf16ps %%tmm7,%%tmm5,%%tmm3\ndec %0\njnz 1b\n"
      : "+r"(rounds)
      :
      : "cc");
  asm volatile("tilerelease");
  return 4.0 * 16 * 16 * 32 * 2 * (kRounds / 16);
}

// The processor has tiles of bf16, and Linux lets this process use them (arch_prctl, ARCH_REQ_XCOMP_PERM).
bool has_tiles() {
  unsigned a, b, c, d;
  constexpr unsigned kWanted = 1u << 22 | 1u << 24;  // amx_bf16, amx_tile
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kWanted) != kWanted) return false;
#ifdef __linux__
  return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
#else
  return false;
#endif
}

Burst burst_of(int kind) {
  __builtin_cpu_init();
  if (kind == 2) return has_tiles() ? bf16_tiles : nullptr;
  const bool avx512 = __builtin_cpu_supports("avx512f");
  if (kind == 1) return avx512 && __builtin_cpu_supports("avx512bf16") ? bf16_avx512 : nullptr;
  if (kind != 0 && kind != 3) return nullptr;
  return avx512 && kind == 0                                               ? fma_avx512
         : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? fma_avx2
                                                                           : nullptr;
}
#else
typedef float Lanes __attribute__((vector_size(16)));

double fma_portable() {  // 12 chains of 4 lanes; contracted to fused multiply-adds where the machine has them
  Lanes sum[12] = {}, a = {1e-9f, 1e-9f, 1e-9f, 1e-9f}, b = a;
  for (long round = 0; round < kRounds; ++round) {
    asm volatile("" : "+w"(a), "+w"(b));
    for (Lanes& s : sum) s += a * b;
  }
  for (Lanes& s : sum) asm volatile("" : : "w"(s));
  return 12.0 * 4 * 2 * kRounds;
}

Burst burst_of(int kind) { return kind == 0 ? fma_portable : nullptr; }
#endif

}  // namespace

// kind 0: fp32 fused multiply-add; 1: bf16 dot product into fp32; 2: tiles of bf16; 3: fp32 of AVX2.
extern "C" __attribute__((visibility("default"))) double tilekiln_peak(int kind, double seconds) {
  const Burst burst = burst_of(kind);
  if (burst == nullptr) return 0;
  double best = 0;
  const double end = thread_seconds() + seconds;
  for (double begin = thread_seconds(); begin < end;) {
    const double flops = burst(), now = thread_seconds();
    if (now > begin && flops / (now - begin) > best) best = flops / (now - begin);
    begin = now;
  }
  return best;
}
