// SPDX-License-Identifier: MIT
// The inline namespace of the target being compiled, and the two attributes every kernel file needs.
//
// A header that is compiled at several -march levels puts its functions in `inline TILEKILN_TARGET`, so that the linker
// can never merge the AVX-512 body of a function into code for an older machine. Host code and tests compile as `host`.
#pragma once

#ifndef TILEKILN_TARGET
#define TILEKILN_TARGET host
#endif

#define TILEKILN_INLINE __attribute__((always_inline)) inline
// One copy for all callers: neither in them nor specialised for one.
#ifdef __clang__
#define TILEKILN_ONE_COPY __attribute__((noinline))
#else
#define TILEKILN_ONE_COPY __attribute__((noinline, noclone))
#endif
// GCC gives a variable that loops carry one register for all its lives where it can; with two dozen accumulators it then spills them.
#ifdef __clang__
#define TILEKILN_APART_VARIABLES
#else
#define TILEKILN_APART_VARIABLES __attribute__((optimize("no-tree-coalesce-vars")))
#endif
#define TILEKILN_PRAGMA(text) _Pragma(#text)
#define TILEKILN_UNROLL(count) TILEKILN_PRAGMA(GCC unroll count)
