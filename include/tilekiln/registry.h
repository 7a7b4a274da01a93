/* SPDX-License-Identifier: MIT */
/* registry.h - a registry of kernels and the choice among them, as data: which of them answers a problem, and why each other does not.
 *
 * Part of the C ABI of every library, for programs that bring kernels of their own, in C or by any language's foreign functions. Kernels
 * and problems are described in words; a registry runs nothing and needs no machine. C++ programs have the same choice without a library
 * (tilekiln/dispatcher.hpp).
 */
#ifndef TILEKILN_REGISTRY_H
#define TILEKILN_REGISTRY_H

#include "tilekiln/tilekiln.h"

TILEKILN_BEGIN_C

/* A field with its value in the language of selections: "bf16", "64", "yes"; "" or null: any value, or nothing. */
typedef struct tilekiln_pair {
  const char* field;
  const char* value;
} tilekiln_pair;

/* A kernel: the problems that it answers, and how. Null texts and lists are empty. */
typedef struct tilekiln_kernel_description {
  size_t size;                                /* sizeof(tilekiln_kernel_description) */
  const char* family;                         /* such as "fmha_fwd" */
  const char* target;                         /* null: any */
  const char* origin;                         /* of whom it is: a choice may be held to one origin */
  const tilekiln_pair* signature;             /* a field that is not here it does not know; one without a value it answers with any */
  const tilekiln_pair* algorithm;             /* pads, tiles and limits are looked at, such as pad_s, tile_m0, max_seq_len_q */
  const tilekiln_pair* fit;                   /* a size of problems, and the rows of the tile that covers it: {"seqlen_q", "64"} */
  const char* const* holds;                   /* fields of the signature that hold problems up to their value; others must be equal */
  const char* needs;                          /* a selection over sizes, "seqlen_q>=1 seqlen_q<=8 or ...": it answers no others */
  const char* best;                           /* it is preferred there to one without, and one without to it elsewhere */
  int32_t signature_count, algorithm_count, fit_count, hold_count;
  int32_t priority, rank, order;              /* higher first; lower first; of its target, higher (faster) first */
  int32_t (*accepts)(void* context, int64_t kernel); /* null; or 0 where it does not answer a problem that all else lets it answer */
  void* context;
} tilekiln_kernel_description;

typedef struct tilekiln_registry tilekiln_registry;

/* An empty registry. Adding and removing is for one thread at a time, while no other asks; any number of threads may ask at once. */
TILEKILN_API tilekiln_status tilekiln_registry_create(tilekiln_registry** registry);
/* Null is allowed. */
TILEKILN_API void tilekiln_registry_destroy(tilekiln_registry* registry);
/* Adds a copy; *kernel is its number, 0 for the first. Of kernels that are alike the one added first goes first. */
TILEKILN_API tilekiln_status tilekiln_registry_add(tilekiln_registry* registry, const tilekiln_kernel_description* description,
                                                   int64_t* kernel);
/* Takes a kernel away; the numbers of others stay. */
TILEKILN_API tilekiln_status tilekiln_registry_remove(tilekiln_registry* registry, int64_t kernel);
/* The place of a kernel among those that are as good for a problem: of measurements. */
TILEKILN_API tilekiln_status tilekiln_registry_set_rank(tilekiln_registry* registry, int64_t kernel, int32_t rank);
TILEKILN_API tilekiln_status tilekiln_registry_set_priority(tilekiln_registry* registry, int64_t kernel, int32_t priority);
/* The number of kernels that it holds; 0 of null. */
TILEKILN_API int64_t tilekiln_registry_count(const tilekiln_registry* registry);

/* The best kernel of a family for a problem. origin: of the kernel; null: any. NO_KERNEL where none answers: *kernel is -1,
 * tilekiln_last_error names the problem and up to 5 of the nearest kernels of the family with the first reason of each, which tilekiln_last_refusals has as
 * tilekiln_registry_check does. */
TILEKILN_API tilekiln_status tilekiln_choose(const tilekiln_registry* registry, const char* family, const tilekiln_pair* problem,
                                             int32_t count, const char* origin, int64_t* kernel);
/* OK where a kernel answers a problem; else NO_KERNEL, and tilekiln_last_refusals has the first reason why not:
 * TILEKILN_REFUSED_AXIS (axis, have, want; have is null where it does not know the field), TILEKILN_REFUSED_NEEDS (have: the sizes) or
 * TILEKILN_REFUSED_RULE (rule: the pad, the limit or accepts; axis: the size, have: what it takes, want: the problem's); instance is the kernel, text the sentence. */
TILEKILN_API tilekiln_status tilekiln_registry_check(const tilekiln_registry* registry, int64_t kernel, const char* family,
                                                     const tilekiln_pair* problem, int32_t count);

TILEKILN_END_C

#endif
