// SPDX-License-Identifier: MIT
// A row in the registers of a workgroup, in vectors of 16 bytes; what does not fit is read again for each pass.
// Emulated (functional), never run on AMD silicon.
#pragma once

#include "kernels/backends/hip/vocabulary.h"
#include "kernels/norm/hip/params.h"

namespace tilekiln::hip::norm {

#if TK_FP32
using Element = float;
constexpr int kDtype = 0;
#else
using Element = T;
constexpr int kDtype = TK_BF16 ? 2 : 1;
#endif
constexpr int kWide = 16 / sizeof(Element);  // elements of a vector
using Vector = Element __attribute__((ext_vector_type(kWide)));
using Floats = float __attribute__((ext_vector_type(kWide)));

TK_DEVICE Floats floats(Vector v) { return __builtin_convertvector(v, Floats); }
TK_DEVICE Vector rounded(Floats v) { return __builtin_convertvector(v, Vector); }

template <class Value> TK_DEVICE TK_GLOBAL Value* global(Value* pointer) { return (TK_GLOBAL Value*)pointer; }

// The first `count` elements of a vector, which is whole where `wide`; the rest are 0, or are left alone.
TK_DEVICE Vector load_vector(const TK_GLOBAL Element* from, int count, bool wide) {
  if (wide && count >= kWide) return *(const TK_GLOBAL Vector*)from;
  Vector made = Vector(0);
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    if (i < count) made[i] = from[i];
  }
  return made;
}
TK_DEVICE void store_vector(TK_GLOBAL Element* to, Vector v, int count, bool wide) {
  if (wide && count >= kWide) {
    *(TK_GLOBAL Vector*)to = v;
    return;
  }
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    if (i < count) to[i] = v[i];
  }
}

// The threads that share a row; rows first, first + step, .. are theirs.
struct Team { int thread, threads, wave, waves, first, step; };
template <class Problem> TK_DEVICE Team team_of(const Params<Problem>& p) {
  const int thread = __builtin_amdgcn_workitem_id_x();
  return {thread,
          p.threads,
          __builtin_amdgcn_readfirstlane(thread / kLanes),
          p.threads / kLanes,
          int(__builtin_amdgcn_workgroup_id_x()),
          p.blocks};
}

TK_DEVICE u32 of_lane(u32 value, int from) { return u32(__builtin_amdgcn_ds_bpermute(from << 2, int(value))); }

// The values of all threads of a team combined in one order, in every thread. `shared`: 32 words that no other call of a row uses.
template <class Value, class Combine> TK_DEVICE Value joined(const Team& team, Value v, Value* shared,
                                                             Combine combine) {
  const auto join = [&](int count) TK_INLINE {  // of the values of `count` lanes
    for (int i = count / 2; i > 0; i /= 2) v = combine(v, bit_cast<Value>(of_lane(bit_cast<u32>(v), lane() ^ i)));
  };
  join(kLanes);
  if (team.waves == 1) return v;
  if (lane() == 0) shared[team.wave] = v;
  publish();
  v = shared[lane() & (team.waves - 1)];  // waves are a power of two
  join(team.waves);
  return v;
}
TK_DEVICE float sum_of(const Team& team, float v, float* shared) {
  return joined(team, v, shared, [](float a, float b) TK_INLINE { return a + b; });
}

// A row's vectors: `first(j)` makes that of column j, once; `again(j)` makes it anew, of those that no register holds.
template <class Again> struct Held {
  Vector vector[TK_HELD];
  int columns;
  Team team;
  Again again;

  // f(vector, column, elements of the row from there on)
  template <class F> __attribute__((device, always_inline)) void each(F f) {
    const int step = team.threads * kWide;
#pragma unroll
    for (int i = 0; i < TK_HELD; ++i) {
      const int j = team.thread * kWide + i * step;
      if (j < columns) f(vector[i], j, columns - j);
    }
    for (int j = team.thread * kWide + TK_HELD * step; j < columns; j += step) f(again(j), j, columns - j);
  }
};
template <class First, class Again> TK_DEVICE Held<Again> held(const Team& team, int columns, First first,
                                                               Again again) {
  Held<Again> made = {{}, columns, team, again};
#pragma unroll
  for (int i = 0; i < TK_HELD; ++i) {
    const int j = (team.thread + i * team.threads) * kWide;
    if (j < columns) made.vector[i] = first(j);
  }
  return made;
}

// Every wave has done with the row's shared words.
TK_DEVICE void end_row(const Team& team) {
  if (team.waves > 1) __builtin_amdgcn_s_barrier();
}

}  // namespace tilekiln::hip::norm

#define TK_ROWS(Problem)                                                                                               \
  extern "C" __attribute__((constant, used)) const tilekiln::hip::norm::Build tilekiln_rows_build = {                   \
      TK_HELD, tilekiln::hip::norm::kDtype};                                                                           \
  TK_KERNEL __attribute__((amdgpu_flat_work_group_size(64, 512))) void tilekiln_rows(                                 \
      tilekiln::hip::norm::Params<Problem> p)
