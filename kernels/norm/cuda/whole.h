// SPDX-License-Identifier: MIT
// Rows of whole vectors at 16 bytes, read once: those of a warp or a block that its registers hold. Vectors are asked
// for by predicates, kHeld before the first of them is used, so that a block waits for memory once; what a thread has
// no column for is zeros, which change no sum and no maximum.
#pragma once

#include "kernels/norm/cuda/rows.h"

namespace tilekiln::cuda::norm {

// The columns of kHeld vectors of a thread.
struct Place {
  int first, step, columns;

  __device__ __forceinline__ int column(int i) const { return first + i * step; }
  __device__ __forceinline__ bool there(int i) const { return column(i) < columns; }
};

using Vectors = uint4[kHeld];
using Values = float[kHeld][kWide];

TILEKILN_DEVICE void load_once(Place at, const void* from, Vectors& to) {
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
    to[i] = load_vector_once(at.there(i), static_cast<const Element*>(from) + at.column(i));
}
// Loads a vector that all rows share: zeros where `from` is null.
TILEKILN_DEVICE void load_beside(Place at, const void* from, Vectors& to) {
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
    to[i] = load_vector_if(from != nullptr && at.there(i), static_cast<const Element*>(from) + at.column(i));
}
TILEKILN_DEVICE void store(Place at, const Vectors& from, void* to) {
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (at.there(i)) *reinterpret_cast<uint4*>(static_cast<Element*>(to) + at.column(i)) = from[i];
  }
}
// to += other, rounded to the type of the elements.
TILEKILN_DEVICE void add(Vectors& to, const Vectors& other) {
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    float v[kWide], w[kWide];
    widen(to[i], v), widen(other[i], w);
#pragma unroll
    for (int e = 0; e < kWide; ++e) v[e] += w[e];
    to[i] = narrow(v);
  }
}

// Values that a pass widened are not kept for the next: they would take twice as many registers.
TILEKILN_DEVICE void forget(Vectors& of) {
#pragma unroll
  for (int i = 0; i < kHeld; ++i) keep_in_registers(of[i]);
}

// Place of a thread of a team: a warp's vectors lie next to each other, so that the places of all follow from the first
// by constants.
TILEKILN_DEVICE Place place_of(const Team& team, int columns) {
  return {((team.lane & ~31) * kHeld + (team.lane & 31)) * kWide, 32 * kWide, columns};
}

// Calls f with kHeld vectors in the dialect of rows.
template <class F> TILEKILN_DEVICE void each_of(const Vectors& vector, Place at, F&& f) {
#pragma unroll
  for (int i = 0; i < kHeld; ++i) f(vector[i], at.column(i), at.there(i) ? kWide : 0);
}
// Makes f(vector) of kHeld vectors in their place, and a row's part.
template <class F> TILEKILN_DEVICE void put_each(Vectors& vector, Place at, Element* y, F&& f) {
#pragma unroll
  for (int i = 0; i < kHeld; ++i) vector[i] = f(vector[i]);
  store(at, vector, y);
}

// A row in registers. `last_groups(f)`: f(vectors, their place). kGamma: gamma has registers too.
template <bool kGamma> struct Whole {
  static constexpr bool kPartly = false;
  Vectors vector, gammas;
  Values made;
  Place at;

  __device__ __forceinline__ Whole(const Team& team, int columns, const void* x, const void* gamma)
      : at(place_of(team, columns)) {
    load_once(at, x, vector);
    if constexpr (kGamma) load_beside(at, gamma, gammas);
  }
  template <class F> __device__ __forceinline__ void pass(F&& f) {
    each_of(vector, at, f);
    forget(vector);
    if constexpr (kGamma) forget(gammas);
  }
  template <class F> __device__ __forceinline__ void last_groups(F&& f) { f(vector, at); }
  template <class F> __device__ __forceinline__ void put(Element* y, F&& f) { put_each(vector, at, y, f); }
  // Values that `make(vectors, place, values)` makes, and then `use(values, place)`: they take the vectors' registers,
  // which nobody needs then.
  template <class Make> __device__ __forceinline__ void keep(Make&& make) { make(vector, at, made); }
  template <class Make, class Use> __device__ __forceinline__ void kept(Make&&, Use&& use) { use(made, at); }
  __device__ __forceinline__ void gamma(Place, const void* from, Vectors& to) const {
    if constexpr (kGamma) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) to[i] = gammas[i];
    } else {
      load_beside(at, from, to);
    }
  }
  __device__ __forceinline__ void beta(Place, const void* from, Vectors& to) const { load_beside(at, from, to); }
};

}  // namespace tilekiln::cuda::norm
