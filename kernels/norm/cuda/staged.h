// SPDX-License-Identifier: MIT
// Rows too long for a few registers: a block has one in shared memory, and while it works on it the next one is on its
// way there, as far as there is room. A thread reads what it asked for itself, so that no barrier is needed for it.
#pragma once

#include "kernels/norm/cuda/whole.h"

namespace tilekiln::cuda::norm {

// Takes the place of Whole for rows block, block + grid, ..: `begin` before each, `last_groups` or `put` after all
// passes.
struct Staged {
  static constexpr bool kPartly = false;
  uint32_t own;  // this thread's first vector, a vector of each thread apart from the next
  int stages;    // as many as a row has vectors of this thread, or more
  int vectors, columns;
  const Element* x;
  long long x_row, rows, next_row;
  int next, asked;  // the vector of the row that is asked for next, and its stage
  int first;        // stage of the row's first vector

  __device__ __forceinline__ uint32_t place_of(int stage) const { return own + stage * (kStagedThreads * 16); }
  __device__ __forceinline__ int after(int stage, int count) const {
    return stage + count >= stages ? stage + count - stages : stage + count;
  }
  __device__ __forceinline__ void ask() {
    const int j = (threadIdx.x + next * kStagedThreads) * kWide;
    if (next_row < rows && j < columns) copy_async(place_of(asked), x + next_row * x_row + j, true);
    copy_async_commit();
    asked = after(asked, 1);
    if (++next == vectors) next = 0, next_row += gridDim.x;
  }
  __device__ __forceinline__ void begin() { copy_async_wait(stages - vectors); }
  // `kWrites`: what f makes of the vectors takes their place. `kLast`: the next vectors do.
  template <bool kWrites, bool kLast, class F> __device__ __forceinline__ void groups(F&& f) {
    int stage = first;
#pragma unroll 1
    for (int g = 0; g < vectors; g += kHeld) {
      const Place at = place(g);
      Vectors vector;
      uint32_t from[kHeld];
#pragma unroll
      for (int i = 0; i < kHeld; ++i, stage = after(stage, 1)) {
        from[i] = place_of(stage);
        vector[i] = at.there(i) ? load_shared(from[i]) : make_uint4(0, 0, 0, 0);
      }
      f(vector, at);
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (kWrites && at.there(i)) store_shared(from[i], vector[i]);
        if (kLast && g + i < vectors) ask();
      }
    }
    if (kLast) first = after(first, vectors);
  }
  template <class F> __device__ __forceinline__ void pass(F&& f) {
    groups<false, false>([&](const Vectors& vector, Place at)
                             __attribute__((always_inline)) { each_of(vector, at, f); });
  }
  template <class F> __device__ __forceinline__ void change(F&& f) { groups<true, false>(f); }
  template <class F> __device__ __forceinline__ void last_groups(F&& f) { groups<false, true>(f); }
  template <class F> __device__ __forceinline__ void put(Element* y, F&& f) {
    last_groups([&](Vectors& vector, Place at) __attribute__((always_inline)) { put_each(vector, at, y, f); });
  }
  // Keeps vectors as Whole does, but makes them twice.
  template <class Make> __device__ __forceinline__ void keep(Make&& make) {
    groups<false, false>([&](const Vectors& vector, Place at) __attribute__((always_inline)) {
      Values made;
      make(vector, at, made);
    });
  }
  template <class Make, class Use> __device__ __forceinline__ void kept(Make&& make, Use&& use) {
    last_groups([&](const Vectors& vector, Place at) __attribute__((always_inline)) {
      Values made;
      make(vector, at, made), use(made, at);
    });
  }
  __device__ __forceinline__ Place place(int vector) const {
    return {int(threadIdx.x + vector * kStagedThreads) * kWide, kStagedThreads * kWide, columns};
  }
  __device__ __forceinline__ void gamma(Place at, const void* from, Vectors& to) const { load_beside(at, from, to); }
  __device__ __forceinline__ void beta(Place at, const void* from, Vectors& to) const { load_beside(at, from, to); }
};
// Ring whose row leaves shared memory for registers at once: for passes that need no others.
struct Ring : Staged {
  Vectors vector[kRingVectors / kHeld];

  __device__ __forceinline__ void begin() {
    Staged::begin();
    int stage = first;
#pragma unroll
    for (int i = 0; i < kRingVectors; ++i, stage = after(stage, 1)) {
      if (place(i).there(0)) vector[i / kHeld][i % kHeld] = load_shared(place_of(stage));
    }
    for (int i = 0; i < vectors; ++i) ask();
    first = after(first, vectors);
  }
  template <class F> __device__ __forceinline__ void pass(F&& f) {
#pragma unroll
    for (int g = 0; g < kRingVectors / kHeld; ++g) each_of(vector[g], place(g * kHeld), f), forget(vector[g]);
  }
  template <class F> __device__ __forceinline__ void put(Element* y, F&& f) {
#pragma unroll
    for (int g = 0; g < kRingVectors / kHeld; ++g) put_each(vector[g], place(g * kHeld), y, f), forget(vector[g]);
  }
};
TILEKILN_DEVICE void stage(Staged& to, const void* x, long long x_row, long long rows, int columns, int stages) {
  extern __shared__ __align__(16) char ring[];
  constexpr int wide = kStagedThreads * kWide;
  to.own = shared_address(ring) + threadIdx.x * 16, to.stages = stages;
  to.vectors = (columns + wide - 1) / wide, to.columns = columns;
  to.x = static_cast<const Element*>(x), to.x_row = x_row, to.rows = rows, to.next_row = blockIdx.x;
  to.next = to.asked = to.first = 0;
  for (int i = 0; i < stages; ++i) to.ask();
}

}  // namespace tilekiln::cuda::norm
