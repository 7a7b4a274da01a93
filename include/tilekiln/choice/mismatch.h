/* SPDX-License-Identifier: MIT */
/* Whether a kernel of a registry answers a problem, and the reason where it does not, as data and as its sentence. One text for the C ABI
 * (tilekiln/registry.h), the C++ dispatcher and the Python binding; C99, without a library.
 *
 * Fields and values are numbers of the caller's, who has their names. */
#ifndef TILEKILN_CHOICE_MISMATCH_H
#define TILEKILN_CHOICE_MISMATCH_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Values: numbers are themselves, words are from TILEKILN_YES on. The first three are off: the feature is not there. */
#define TILEKILN_NOTHING INT64_MIN
#define TILEKILN_NO (INT64_MIN + 1)
#define TILEKILN_NONE (INT64_MIN + 2)
#define TILEKILN_YES ((int64_t)1 << 61)

static inline int tilekiln_is_off(int64_t value) { return value <= TILEKILN_NONE; }
static inline int tilekiln_is_number(int64_t value) { return value > TILEKILN_NONE && value < TILEKILN_YES; }
static inline int64_t tilekiln_number_of(int64_t value) { return tilekiln_is_number(value) ? value : 0; }

typedef struct tilekiln_said {
  int64_t value;
  uint16_t field;
} tilekiln_said;

/* A size between two, both included. `last`: of its clause; a rule holds where all conditions of one clause do, or where it has none. */
typedef struct tilekiln_condition {
  int64_t least, most;
  uint16_t field, last;
} tilekiln_condition;

/* Fields that the choice itself asks for (kernels/dispatcher.yaml). */
typedef struct tilekiln_pad { uint16_t pad, size, tile, varies; } tilekiln_pad;
typedef struct tilekiln_limit {
  uint16_t limit, size, log2;
  const char* of;
} tilekiln_limit;
typedef struct tilekiln_terms {
  const int64_t* usual; /* by field: what every kernel takes whose signature does not name it */
  uint16_t usual_count;
  const tilekiln_pad* pads;
  const tilekiln_limit* limits;
  const uint16_t* variable; /* with one of them keys have different lengths */
  uint16_t pad_count, limit_count, variable_count;
  uint16_t target, seqlen_q, seqlen_k, max_seqlen_q, max_seqlen_k;
} tilekiln_terms;

typedef struct tilekiln_kernel {
  int64_t family, target, origin; /* target: TILEKILN_NOTHING is any */
  const tilekiln_said* signature;
  const tilekiln_said* algorithm; /* pads, limits and tiles; the rest is not looked at */
  const tilekiln_said* fit;       /* the tile that covers a size */
  const uint16_t* holds;          /* fields that hold problems up to their value */
  const tilekiln_condition *needs, *best;
  int32_t signature_count, algorithm_count, fit_count, hold_count, need_count, best_count;
  int32_t priority, rank, order; /* higher; lower; higher goes first */
  int32_t asks;                  /* 1: what it answers its owner says, besides */
} tilekiln_kernel;

/* A problem. features: fields that a kernel must know to answer. */
typedef struct tilekiln_asked {
  int64_t family;
  const int64_t* values; /* by field */
  const uint16_t* features;
  int32_t count, feature_count;
} tilekiln_asked;

static inline int64_t tilekiln_value(const tilekiln_asked* asked, uint16_t field) {
  return field < asked->count ? asked->values[field] : TILEKILN_NOTHING;
}
static inline int64_t tilekiln_meaning(const tilekiln_terms* terms, uint16_t field, int64_t value) {
  const int usual = field < terms->usual_count && value == terms->usual[field];
  return usual || tilekiln_is_off(value) ? TILEKILN_NOTHING : value;
}
/* The value of a kernel's field; TILEKILN_NOTHING where it has none. */
static inline int64_t tilekiln_said_of(const tilekiln_said* said, int32_t count, uint16_t field) {
  for (int32_t i = 0; i < count; ++i)
    if (said[i].field == field) return said[i].value;
  return TILEKILN_NOTHING;
}
static inline int tilekiln_holds(const tilekiln_kernel* kernel, uint16_t field) {
  for (int32_t i = 0; i < kernel->hold_count; ++i)
    if (kernel->holds[i] == field) return 1;
  return 0;
}
static inline int tilekiln_rule_holds(const tilekiln_condition* rule, int32_t count, const tilekiln_asked* asked) {
  int met = 1;
  for (int32_t i = 0; i < count; ++i) {
    const int64_t size = tilekiln_number_of(tilekiln_value(asked, rule[i].field));
    met = met && rule[i].least <= size && size <= rule[i].most;
    if (!rule[i].last) continue;
    if (met) return 1;
    met = 1;
  }
  return count == 0;
}
/* A size as rules mean it: max_seqlen is the length itself where no most is given. */
static inline int64_t tilekiln_size_of(const tilekiln_terms* terms, const tilekiln_asked* asked, uint16_t field) {
  const int64_t size = tilekiln_number_of(tilekiln_value(asked, field));
  if (field == terms->max_seqlen_q && size <= 0) return tilekiln_number_of(tilekiln_value(asked, terms->seqlen_q));
  if (field == terms->max_seqlen_k && size <= 0) return tilekiln_number_of(tilekiln_value(asked, terms->seqlen_k));
  return size;
}

/* ---- why a kernel does not answer, as data ------------------------------------------------------------------------- */

typedef enum tilekiln_mismatch_reason {
  TILEKILN_ANSWERS = 0,
  TILEKILN_OTHER_FAMILY,  /* have: its own */
  TILEKILN_OTHER_TARGET,  /* have: its own */
  TILEKILN_OTHER_VALUE,   /* field, have, want */
  TILEKILN_TOO_SMALL,     /* field, have, want */
  TILEKILN_UNKNOWN_FIELD, /* field, want */
  TILEKILN_NEEDS_SIZES,   /* the kernel's `needs` */
  TILEKILN_VARYING_KEYS,  /* rule: the pad that it has not */
  TILEKILN_NO_MULTIPLE,   /* rule: the pad; field: the size; tile; have: its rows; want: the problem's */
  TILEKILN_TOO_LARGE /* rule: the limit; field: the size; have: the most; want: the problem's; of: what it counts */
} tilekiln_mismatch_reason;
typedef struct tilekiln_mismatch {
  tilekiln_mismatch_reason reason;
  uint16_t field, rule, tile;
  int64_t have, want;
  const char* of;
} tilekiln_mismatch;

/* Names of the caller's numbers. */
typedef struct tilekiln_names {
  const char* (*field)(const void* context, uint16_t field);
  const char* (*word)(const void* context, int64_t value);
  const void* context;
} tilekiln_names;

/* The first size that an algorithm does not take. */
static inline tilekiln_mismatch tilekiln_unfit(const tilekiln_terms* terms, const tilekiln_kernel* kernel,
                                               const tilekiln_asked* asked) {
  const tilekiln_said* const said = kernel->algorithm;
  const int32_t count = kernel->algorithm_count;
  tilekiln_mismatch found = {TILEKILN_ANSWERS, 0, 0, 0, 0, 0, NULL};
  for (int i = 0; i < terms->pad_count && count > 0; ++i) {
    const tilekiln_pad* const rule = &terms->pads[i];
    const int64_t pad = tilekiln_said_of(said, count, rule->pad);
    if (pad == TILEKILN_NOTHING || !tilekiln_is_off(pad)) continue;
    found.rule = rule->pad;
    found.tile = rule->tile;
    found.field = rule->size;
    for (int j = 0; j < terms->variable_count && rule->varies; ++j) {
      if (tilekiln_is_off(tilekiln_value(asked, terms->variable[j]))) continue;
      found.reason = TILEKILN_VARYING_KEYS;
      return found;
    }
    found.have = tilekiln_number_of(tilekiln_said_of(said, count, rule->tile));
    found.want = tilekiln_size_of(terms, asked, rule->size);
    if (found.have <= 0 || found.want % found.have == 0) continue;
    found.reason = TILEKILN_NO_MULTIPLE;
    return found;
  }
  for (int i = 0; i < terms->limit_count && count > 0; ++i) {
    const tilekiln_limit* const limit = &terms->limits[i];
    const int64_t most = tilekiln_number_of(tilekiln_said_of(said, count, limit->limit));
    found.rule = limit->limit;
    found.field = limit->size;
    found.have = limit->log2 ? (int64_t)1 << (most > 0 && most < 61 ? most : 61) : most;
    found.want = tilekiln_size_of(terms, asked, limit->size);
    found.of = limit->of;
    if (most <= 0 || found.want <= found.have) continue;
    found.reason = TILEKILN_TOO_LARGE;
    return found;
  }
  return found;
}

/* Whether a field of a kernel answers what a problem has of it. A problem that says nothing means what is usual. */
static inline int tilekiln_field_answers(const tilekiln_terms* terms, const tilekiln_kernel* kernel,
                                         const tilekiln_said* said, const tilekiln_asked* asked) {
  const int64_t want = tilekiln_value(asked, said->field);
  if (said->value == TILEKILN_NOTHING) return 1;
  if (tilekiln_holds(kernel, said->field)) return tilekiln_number_of(want) <= tilekiln_number_of(said->value);
  return tilekiln_meaning(terms, said->field, said->value) == tilekiln_meaning(terms, said->field, want);
}

/* The number of fields in which a kernel does not answer. */
static inline int tilekiln_differences(const tilekiln_terms* terms, const tilekiln_kernel* kernel,
                                       const tilekiln_asked* asked) {
  int count = 0;
  for (int32_t i = 0; i < kernel->signature_count; ++i)
    count += !tilekiln_field_answers(terms, kernel, &kernel->signature[i], asked);
  return count;
}
static inline int tilekiln_other_target(const tilekiln_terms* terms, const tilekiln_kernel* kernel,
                                        const tilekiln_asked* asked) {
  const int64_t target = tilekiln_value(asked, terms->target);
  return target != TILEKILN_NOTHING && kernel->target != TILEKILN_NOTHING && target != kernel->target;
}

/* The first reason why a kernel does not answer: family, target, fields of its signature by name, features that it does not know by name,
 * sizes. The target is the registry's to filter, unless the problem names one. */
static inline tilekiln_mismatch tilekiln_mismatch_of(const tilekiln_terms* terms, const tilekiln_kernel* kernel,
                                                     const tilekiln_asked* asked, const tilekiln_names* names) {
  tilekiln_mismatch found = {TILEKILN_ANSWERS, 0, 0, 0, kernel->family, asked->family, NULL};
  const char* first = NULL;
  if (kernel->family != asked->family) {
    found.reason = TILEKILN_OTHER_FAMILY;
    return found;
  }
  if (tilekiln_other_target(terms, kernel, asked)) {
    found.reason = TILEKILN_OTHER_TARGET;
    found.field = terms->target;
    found.have = kernel->target;
    found.want = tilekiln_value(asked, terms->target);
    return found;
  }
  for (int32_t i = 0; i < kernel->signature_count; ++i) {
    const tilekiln_said* const said = &kernel->signature[i];
    const char* const name = names->field(names->context, said->field);
    if ((first != NULL && strcmp(first, name) < 0) || tilekiln_field_answers(terms, kernel, said, asked)) continue;
    first = name;
    found.reason = tilekiln_holds(kernel, said->field) ? TILEKILN_TOO_SMALL : TILEKILN_OTHER_VALUE;
    found.field = said->field;
    found.have = said->value;
    found.want = tilekiln_value(asked, said->field);
  }
  if (first != NULL) return found;
  for (int32_t i = 0; i < asked->feature_count; ++i) {
    const uint16_t field = asked->features[i];
    const char* const name = names->field(names->context, field);
    int known = first != NULL && strcmp(first, name) < 0;
    for (int32_t j = 0; j < kernel->signature_count; ++j) known |= kernel->signature[j].field == field;
    if (known) continue;
    first = name;
    found.reason = TILEKILN_UNKNOWN_FIELD;
    found.field = field;
    found.want = tilekiln_value(asked, field);
  }
  if (first != NULL) return found;
  if (tilekiln_rule_holds(kernel->needs, kernel->need_count, asked)) return tilekiln_unfit(terms, kernel, asked);
  found.reason = TILEKILN_NEEDS_SIZES;
  return found;
}

/* The sentence of a reason, "" of none, cut to capacity; its length, as snprintf has it. `needs`: the text of the kernel's rule. */
static inline int tilekiln_mismatch_text(const tilekiln_mismatch* why, const tilekiln_names* names, const char* needs,
                                         char* text, size_t capacity) {
  const int of_size = why->reason >= TILEKILN_VARYING_KEYS;
  char numbers[2][24];
  const char* said[2];
  for (int i = 0; i < 2; ++i) {
    const int64_t value = i == 0 ? why->have : why->want;
    snprintf(numbers[i], sizeof(numbers[i]), "%lld", (long long)value);
    said[i] = of_size || tilekiln_is_number(value) ? numbers[i] : names->word(names->context, value);
  }
  const char *const have = said[0], *const want = said[1];
  const char* const field = why->reason > TILEKILN_OTHER_TARGET ? names->field(names->context, why->field) : "";
  const char* const rule = of_size ? names->field(names->context, why->rule) : "";
  const char* const tile = of_size ? names->field(names->context, why->tile) : "";
  switch (why->reason) {
    case TILEKILN_ANSWERS: break;
    case TILEKILN_OTHER_FAMILY: return snprintf(text, capacity, "it is of %s", have);
    case TILEKILN_OTHER_TARGET: return snprintf(text, capacity, "it is for %s", have);
    case TILEKILN_OTHER_VALUE: return snprintf(text, capacity, "it has %s=%s", field, have);
    case TILEKILN_TOO_SMALL: return snprintf(text, capacity, "its %s, %s, is too small", field, have);
    case TILEKILN_UNKNOWN_FIELD: return snprintf(text, capacity, "it knows no %s, and the problem has %s", field, want);
    case TILEKILN_NEEDS_SIZES: return snprintf(text, capacity, "it needs %s", needs);
    case TILEKILN_VARYING_KEYS: return snprintf(text, capacity, "it pads no seqlen_k, which varies here");
    case TILEKILN_NO_MULTIPLE:
      return snprintf(text, capacity, "it has %s=no and %s=%s is no multiple of %s=%s", rule, field, want, tile, have);
    case TILEKILN_TOO_LARGE: return snprintf(text, capacity, "it takes at most %s %s (%s)", have, why->of, rule);
  }
  return snprintf(text, capacity, "%s", "");
}

#endif
