/* SPDX-License-Identifier: MIT */
/* The choice among the kernels of a registry, by what they answer, so that a choice among ten thousand looks at a handful. One text for the
 * C ABI (tilekiln/registry.h), the C++ dispatcher and the Python binding; C99, without a library.
 *
 * The score of a kernel, lower first: what its capacity wastes (head dims beyond the problem's), its priority in the registry, the declared
 * fit (made for these sizes; the tile whose rows cover the problem with the least waste, fit.h), the speed of its target, its rank, its
 * place. It is the order of the libraries' own choice (kernels/runtime/dispatch.h), with priority, which only registries have.
 *
 * Kernels whose signatures say the same fields are of one shape. Fields that must be equal are hashed; of those alike in them, the least
 * capacity comes first. */
#ifndef TILEKILN_CHOICE_CHOOSER_H
#define TILEKILN_CHOICE_CHOOSER_H

#include <stdlib.h>

#include "tilekiln/choice/fit.h"
#include "tilekiln/choice/mismatch.h"

typedef struct tilekiln_key_shape {
  int64_t family;
  uint16_t* equal; /* then `holds`, both by number */
  uint16_t* holds;
  uint64_t* known; /* a bit a field; a known field in neither is of any value */
  int32_t equal_count, hold_count;
} tilekiln_key_shape;

/* A kernel in its shape, with the hash of what must be equal and the sum of its capacities. */
typedef struct tilekiln_candidate {
  uint64_t hash;
  int64_t held;
  int32_t shape, kernel;
} tilekiln_candidate;

/* Candidates of one shape and hash. */
typedef struct tilekiln_slot {
  uint64_t hash;
  int32_t shape, begin, end;
} tilekiln_slot;

/* Begun as {terms}; kernels are numbered as they are added, in the order by which ties are broken. Immutable once `tilekiln_chooser_finish`
 * was called: any number of threads may ask. */
typedef struct tilekiln_chooser {
  tilekiln_terms terms;
  tilekiln_kernel* kernels;
  tilekiln_key_shape* shapes;
  tilekiln_candidate* candidates;
  tilekiln_slot* slots;
  int32_t count, capacity, shape_count, slot_count, bit_words;
} tilekiln_chooser;

/* Whether a kernel with `asks` answers: 1 or 0; below 0 ends the choice, which returns it. */
typedef int (*tilekiln_asks)(void* context, int32_t kernel);

static inline void* tilekiln_copied(char** at, const void* from, size_t bytes) {
  void* const to = *at;
  if (bytes != 0) memcpy(to, from, bytes);
  *at += (bytes + 7) / 8 * 8;
  return to;
}

/* Adds a copy; 0 without memory. */
static inline int tilekiln_chooser_add(tilekiln_chooser* chooser, const tilekiln_kernel* kernel) {
  if (chooser->count == chooser->capacity) {
    const int32_t capacity = chooser->capacity == 0 ? 64 : 2 * chooser->capacity;
    void* const grown = realloc(chooser->kernels, (size_t)capacity * sizeof(tilekiln_kernel));
    if (grown == NULL) return 0;
    chooser->kernels = (tilekiln_kernel*)grown;
    chooser->capacity = capacity;
  }
  const size_t said = sizeof(tilekiln_said), condition = sizeof(tilekiln_condition);
  const size_t signature = said * (size_t)kernel->signature_count, algorithm = said * (size_t)kernel->algorithm_count;
  const size_t fit = said * (size_t)kernel->fit_count, holds = sizeof(uint16_t) * (size_t)kernel->hold_count;
  const size_t needs = condition * (size_t)kernel->need_count, best = condition * (size_t)kernel->best_count;
  char* at = (char*)malloc(signature + algorithm + fit + holds + needs + best + 8);
  if (at == NULL) return 0;
  tilekiln_kernel* const added = &chooser->kernels[chooser->count++];
  *added = *kernel;
  added->signature =
      (const tilekiln_said*)tilekiln_copied(&at, kernel->signature, signature); /* the first: what is freed */
  added->algorithm = (const tilekiln_said*)tilekiln_copied(&at, kernel->algorithm, algorithm);
  added->fit = (const tilekiln_said*)tilekiln_copied(&at, kernel->fit, fit);
  added->needs = (const tilekiln_condition*)tilekiln_copied(&at, kernel->needs, needs);
  added->best = (const tilekiln_condition*)tilekiln_copied(&at, kernel->best, best);
  added->holds = (const uint16_t*)tilekiln_copied(&at, kernel->holds, holds);
  return 1;
}

static inline void tilekiln_chooser_clear(tilekiln_chooser* chooser) {
  for (int32_t i = 0; i < chooser->count; ++i) free((void*)chooser->kernels[i].signature);
  for (int32_t i = 0; i < chooser->shape_count; ++i) free(chooser->shapes[i].known);
  free(chooser->kernels);
  free(chooser->shapes);
  free(chooser->candidates);
  free(chooser->slots);
  memset(chooser, 0, sizeof(*chooser));
}

static inline uint64_t tilekiln_mixed(uint64_t hash, int64_t value) {
  hash = (hash ^ (uint64_t)value) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 32;
}
static inline int tilekiln_by_number(const void* a, const void* b) {
  return (int)*(const uint16_t*)a - (int)*(const uint16_t*)b;
}
static inline int tilekiln_by_slot(const void* left, const void* right) {
  const tilekiln_candidate *const a = (const tilekiln_candidate*)left, *const b = (const tilekiln_candidate*)right;
  if (a->shape != b->shape) return a->shape < b->shape ? -1 : 1;
  if (a->hash != b->hash) return a->hash < b->hash ? -1 : 1;
  if (a->held != b->held) return a->held < b->held ? -1 : 1;
  return a->kernel < b->kernel ? -1 : 1;
}
static inline tilekiln_slot* tilekiln_slot_of(const tilekiln_chooser* chooser, int32_t shape, uint64_t hash) {
  size_t at = (size_t)tilekiln_mixed(hash, shape) & (size_t)(chooser->slot_count - 1);
  for (;; at = (at + 1) & (size_t)(chooser->slot_count - 1)) {
    tilekiln_slot* const slot = &chooser->slots[at];
    if (slot->end == 0 || (slot->shape == shape && slot->hash == hash)) return slot;
  }
}

/* The number of a kernel's shape, made where there is none; -1 without memory. */
static inline int32_t tilekiln_key_shape_of(tilekiln_chooser* chooser, const tilekiln_kernel* kernel,
                                            int32_t* capacity) {
  const size_t words = (size_t)chooser->bit_words, fields = (size_t)kernel->signature_count;
  uint64_t* const known = (uint64_t*)calloc(words * 8 + 2 * fields + 8, 1);
  if (known == NULL) return -1;
  tilekiln_key_shape made = {kernel->family, (uint16_t*)(known + words), NULL, known, 0, 0};
  for (int32_t i = 0; i < kernel->signature_count; ++i) {
    const tilekiln_said said = kernel->signature[i];
    known[said.field / 64] |= (uint64_t)1 << said.field % 64;
    if (said.value != TILEKILN_NOTHING && !tilekiln_holds(kernel, said.field))
      made.equal[made.equal_count++] = said.field;
  }
  made.holds = made.equal + made.equal_count;
  for (int32_t i = 0; i < kernel->signature_count; ++i) {
    const tilekiln_said said = kernel->signature[i];
    if (said.value != TILEKILN_NOTHING && tilekiln_holds(kernel, said.field))
      made.holds[made.hold_count++] = said.field;
  }
  qsort(made.equal, (size_t)made.equal_count, sizeof(uint16_t), tilekiln_by_number);
  qsort(made.holds, (size_t)made.hold_count, sizeof(uint16_t), tilekiln_by_number);
  for (int32_t i = chooser->shape_count; i-- > 0;) {
    const tilekiln_key_shape* const one = &chooser->shapes[i];
    if (one->family != made.family || one->equal_count != made.equal_count || one->hold_count != made.hold_count)
      continue;
    if (memcmp(one->known, known, words * 8 + 2 * (size_t)(made.equal_count + made.hold_count)) != 0) continue;
    free(known);
    return i;
  }
  if (chooser->shape_count == *capacity) {
    *capacity = *capacity == 0 ? 16 : 2 * *capacity;
    void* const grown = realloc(chooser->shapes, (size_t)*capacity * sizeof(tilekiln_key_shape));
    if (grown == NULL) {
      free(known);
      return -1;
    }
    chooser->shapes = (tilekiln_key_shape*)grown;
  }
  chooser->shapes[chooser->shape_count] = made;
  return chooser->shape_count++;
}

/* Makes the index of all that was added. field_count: above every number of a field. 0 without memory. */
static inline int tilekiln_chooser_finish(tilekiln_chooser* chooser, int32_t field_count) {
  int32_t capacity = 0;
  chooser->bit_words = (field_count + 63) / 64;
  chooser->slot_count = 16;
  while (chooser->slot_count < 2 * chooser->count) chooser->slot_count *= 2;
  chooser->slots = (tilekiln_slot*)calloc((size_t)chooser->slot_count, sizeof(tilekiln_slot));
  chooser->candidates = (tilekiln_candidate*)calloc((size_t)chooser->count + 1, sizeof(tilekiln_candidate));
  if (chooser->slots == NULL || chooser->candidates == NULL) return 0;
  for (int32_t i = 0; i < chooser->count; ++i) {
    const tilekiln_kernel* const kernel = &chooser->kernels[i];
    const int32_t at = tilekiln_key_shape_of(chooser, kernel, &capacity);
    if (at < 0) return 0;
    tilekiln_candidate* const made = &chooser->candidates[i];
    made->shape = at;
    made->kernel = i;
    for (int32_t j = 0; j < chooser->shapes[at].equal_count; ++j) {
      const uint16_t field = chooser->shapes[at].equal[j];
      const int64_t value = tilekiln_said_of(kernel->signature, kernel->signature_count, field);
      made->hash = tilekiln_mixed(made->hash, tilekiln_meaning(&chooser->terms, field, value));
    }
    for (int32_t j = 0; j < kernel->signature_count; ++j)
      if (tilekiln_holds(kernel, kernel->signature[j].field))
        made->held += tilekiln_number_of(kernel->signature[j].value);
  }
  qsort(chooser->candidates, (size_t)chooser->count, sizeof(tilekiln_candidate), tilekiln_by_slot);
  for (int32_t i = 0; i < chooser->count; ++i) {
    const tilekiln_candidate* const one = &chooser->candidates[i];
    tilekiln_slot* const slot = tilekiln_slot_of(chooser, one->shape, one->hash);
    if (slot->end == 0) slot->begin = i;
    slot->hash = one->hash;
    slot->shape = one->shape;
    slot->end = i + 1;
  }
  return 1;
}

/* ---- the choice ---------------------------------------------------------------------------------------------------- */

typedef struct tilekiln_score {
  int64_t waste;
  int32_t priority, preference, order, rank, kernel;
  tilekiln_fit fit;
} tilekiln_score;

static inline tilekiln_score tilekiln_score_of(const tilekiln_kernel* kernel, int32_t number, int64_t waste,
                                               const tilekiln_asked* asked) {
  tilekiln_score score = {waste, kernel->priority, 0, kernel->order, kernel->rank, number, {1, 1}};
  score.preference =
      tilekiln_preference(kernel->best_count != 0, tilekiln_rule_holds(kernel->best, kernel->best_count, asked));
  for (int32_t i = 0; i < kernel->fit_count; ++i)
    tilekiln_fit_add(&score.fit, tilekiln_number_of(tilekiln_value(asked, kernel->fit[i].field)), kernel->fit[i].value);
  return score;
}
static inline int tilekiln_goes_first(const tilekiln_score* a, const tilekiln_score* b) {
  if (a->waste != b->waste) return a->waste < b->waste;
  if (a->priority != b->priority) return a->priority > b->priority;
  if (a->preference != b->preference) return a->preference < b->preference;
  if (a->preference == 0 && a->order != b->order) return a->order > b->order; /* both say that they are best */
  const int fits = tilekiln_fit_compare(&a->fit, &b->fit);
  if (fits != 0) return fits < 0;
  if (a->order != b->order) return a->order > b->order;
  return a->rank != b->rank ? a->rank < b->rank : a->kernel < b->kernel;
}

/* Whether a kernel that knows the features answers; below 0 as tilekiln_asks. */
static inline int tilekiln_kernel_answers(const tilekiln_chooser* chooser, int32_t number, const tilekiln_asked* asked,
                                          tilekiln_asks asks, void* context) {
  const tilekiln_kernel* const kernel = &chooser->kernels[number];
  if (tilekiln_other_target(&chooser->terms, kernel, asked)) return 0;
  for (int32_t i = 0; i < kernel->signature_count; ++i)
    if (!tilekiln_field_answers(&chooser->terms, kernel, &kernel->signature[i], asked)) return 0;
  if (!tilekiln_rule_holds(kernel->needs, kernel->need_count, asked)) return 0;
  if (kernel->asks) return asks(context, number);
  return tilekiln_unfit(&chooser->terms, kernel, asked).reason == TILEKILN_ANSWERS;
}

/* The number of the best kernel that answers; -1 where none does; below that what `asks` said. origin: of the kernel; TILEKILN_NOTHING: any. */
static inline int32_t tilekiln_chooser_choose(const tilekiln_chooser* chooser, const tilekiln_asked* asked,
                                              int64_t origin, tilekiln_asks asks, void* context) {
  tilekiln_score best = {0, 0, 0, 0, 0, -1, {1, 1}};
  for (int32_t i = 0; i < chooser->shape_count; ++i) {
    const tilekiln_key_shape* const shape = &chooser->shapes[i];
    if (shape->family != asked->family) continue;
    int knows = 1;
    for (int32_t j = 0; j < asked->feature_count && knows; ++j) {
      const uint16_t field = asked->features[j];
      knows = field / 64 < chooser->bit_words && (shape->known[field / 64] >> field % 64 & 1);
    }
    if (!knows) continue;
    uint64_t hash = 0;
    int64_t wants = 0;
    for (int32_t j = 0; j < shape->equal_count; ++j)
      hash = tilekiln_mixed(hash,
                            tilekiln_meaning(&chooser->terms, shape->equal[j], tilekiln_value(asked, shape->equal[j])));
    for (int32_t j = 0; j < shape->hold_count; ++j) wants += tilekiln_number_of(tilekiln_value(asked, shape->holds[j]));
    const tilekiln_slot slot = *tilekiln_slot_of(chooser, i, hash);
    for (int32_t at = slot.begin; at < slot.end; ++at) {
      const tilekiln_candidate* const one = &chooser->candidates[at];
      const tilekiln_kernel* const kernel = &chooser->kernels[one->kernel];
      if (best.kernel >= 0 && one->held - wants > best.waste) break;
      if (origin != TILEKILN_NOTHING && kernel->origin != origin) continue;
      const tilekiln_score score = tilekiln_score_of(kernel, one->kernel, one->held - wants, asked);
      if (best.kernel >= 0 && !tilekiln_goes_first(&score, &best)) continue;
      const int answered = tilekiln_kernel_answers(chooser, one->kernel, asked, asks, context);
      if (answered < 0) return answered;
      if (answered) best = score;
    }
  }
  return best.kernel;
}

#endif
