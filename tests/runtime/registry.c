/* SPDX-License-Identifier: MIT */
/* A C program over the registries of the C ABI: kernels that it describes, choices among them, reasons as data, bad input. Compiled as
 * C99 and, through registry.cpp, as C++. */
#include "tilekiln/registry.h"

#include "check.h"

static tilekiln_kernel_description kernel(const tilekiln_pair* signature, int32_t count, const tilekiln_pair* fit) {
  static const char* const holds[] = {"hdim"};
  tilekiln_kernel_description made;
  memset(&made, 0, sizeof(made));
  made.size = sizeof(made);
  made.family = "own";
  made.signature = signature;
  made.signature_count = count;
  made.holds = holds;
  made.hold_count = 1;
  made.fit = fit;
  made.fit_count = fit != NULL;
  return made;
}

static int32_t never(void* context, int64_t number) {
  *(int64_t*)context = number;
  return 0;
}

static int64_t chosen(const tilekiln_registry* registry, const tilekiln_pair* problem, int32_t count) {
  int64_t number = -2;
  const tilekiln_status status = tilekiln_choose(registry, "own", problem, count, NULL, &number);
  CHECK((status == TILEKILN_OK) == (number >= 0));
  return number;
}

static void choices(void) {
  const tilekiln_pair small[] = {{"dtype", "bf16"}, {"hdim", "64"}, {"softcap", "no"}};
  const tilekiln_pair large[] = {{"dtype", "bf16"}, {"hdim", "128"}, {"softcap", ""}};
  const tilekiln_pair narrow[] = {{"seqlen_q", "16"}}, tall[] = {{"seqlen_q", "64"}};
  tilekiln_pair problem[] = {{"hdim", "60"}, {"dtype", "bf16"}, {"seqlen_q", "100"}, {"softcap", "no"}};
  tilekiln_kernel_description of = kernel(small, 3, narrow);
  tilekiln_registry* registry = NULL;
  int64_t number = -1, asked = -1;
  CHECK(tilekiln_registry_create(&registry) == TILEKILN_OK);
  CHECK(chosen(registry, problem, 4) == -1);
  CHECK(tilekiln_registry_add(registry, &of, &number) == TILEKILN_OK && number == 0);
  of.fit = tall;
  CHECK(tilekiln_registry_add(registry, &of, &number) == TILEKILN_OK && number == 1);
  of = kernel(large, 3, tall);
  CHECK(tilekiln_registry_add(registry, &of, NULL) == TILEKILN_OK);
  CHECK(tilekiln_registry_count(registry) == 3);
  CHECK(chosen(registry, problem, 4) == 0); /* 112 rows cost no more than a quarter above 100, 128 do */
  problem[2].value = "128";
  CHECK(chosen(registry, problem, 4) == 1); /* the taller of two that fit alike */
  problem[3].value = "yes";
  CHECK(chosen(registry, problem, 4) == 2); /* any value */
  problem[3].value = "no";
  CHECK(tilekiln_registry_set_priority(registry, 0, 1) == TILEKILN_OK && chosen(registry, problem, 4) == 0);
  CHECK(tilekiln_registry_set_priority(registry, 0, 0) == TILEKILN_OK && chosen(registry, problem, 4) == 1);
  CHECK(tilekiln_registry_remove(registry, 1) == TILEKILN_OK && tilekiln_registry_count(registry) == 2);
  CHECK(chosen(registry, problem, 4) == 0);
  /* An alike kernel goes behind, until its rank is lower; one of an origin where that is asked for. */
  of = kernel(small, 3, narrow);
  of.origin = "mine";
  CHECK(tilekiln_registry_add(registry, &of, &number) == TILEKILN_OK && number == 3);
  CHECK(chosen(registry, problem, 4) == 0);
  CHECK(tilekiln_choose(registry, "own", problem, 4, "mine", &number) == TILEKILN_OK && number == 3);
  CHECK(tilekiln_choose(registry, "own", problem, 4, "nobody", &number) == TILEKILN_NO_KERNEL && number == -1);
  CHECK(tilekiln_registry_set_rank(registry, 3, -1) == TILEKILN_OK && chosen(registry, problem, 4) == 3);
  CHECK(tilekiln_registry_remove(registry, 3) == TILEKILN_OK);
  /* Made for some sizes, and one that refuses by itself. */
  of.best = "seqlen_q>=1 seqlen_q<=8";
  of.needs = "seqlen_q<=8 or seqlen_q>=100";
  CHECK(tilekiln_registry_add(registry, &of, &number) == TILEKILN_OK && number == 4);
  CHECK(chosen(registry, problem, 4) == 0);
  problem[2].value = "8";
  CHECK(chosen(registry, problem, 4) == 4);
  of.accepts = never;
  of.context = &asked;
  of.priority = 9;
  CHECK(tilekiln_registry_add(registry, &of, &number) == TILEKILN_OK && number == 5);
  CHECK(chosen(registry, problem, 4) == 4 && asked == 5);
  CHECK(tilekiln_registry_check(registry, 5, "own", problem, 4) == TILEKILN_NO_KERNEL);
  CHECK(strcmp(tilekiln_last_error(), "kernel 5: it does not accept the problem") == 0);
  tilekiln_registry_destroy(registry);
}

/* The first reason of a kernel, which has one. */
static tilekiln_refusal reason(const tilekiln_registry* registry, const char* family, const tilekiln_pair* problem,
                               int32_t count) {
  int32_t told = 0;
  CHECK(tilekiln_registry_check(registry, 0, family, problem, count) == TILEKILN_NO_KERNEL);
  const tilekiln_refusal* const all = tilekiln_last_refusals(&told);
  CHECK(told == 1 && all[0].instance == 0 && strcmp(all[0].text, tilekiln_last_error()) == 0);
  return all[0];
}

static void reasons(void) {
  const tilekiln_pair signature[] = {{"mask", "none"}, {"dtype", "bf16"}, {"hdim_q", "64"}};
  const tilekiln_pair algorithm[] = {{"pad_s", "no"}, {"tile_m0", "64"}, {"max_seq_len_q", "200"}};
  const char* const holds[] = {"hdim_q"};
  tilekiln_pair problem[] = {{"dtype", "bf16"}, {"hdim_q", "64"}, {"seqlen_q", "128"}, {"target", ""}, {"bias", ""}};
  tilekiln_kernel_description of = kernel(signature, 3, NULL);
  tilekiln_registry* registry = NULL;
  int32_t told = 0;
  int64_t number;
  of.algorithm = algorithm;
  of.algorithm_count = 3;
  of.holds = holds;
  of.target = "cpu-avx2";
  of.needs = "seqlen_q>=3";
  CHECK(tilekiln_registry_create(&registry) == TILEKILN_OK);
  CHECK(tilekiln_registry_add(registry, &of, NULL) == TILEKILN_OK);
  CHECK(tilekiln_registry_check(registry, 0, "own", problem, 5) == TILEKILN_OK);
  tilekiln_refusal why = reason(registry, "other", problem, 5);
  CHECK(why.reason == TILEKILN_REFUSED_AXIS && strcmp(why.axis, "family") == 0 && strcmp(why.have, "own") == 0);
  problem[3].value = "cpu-neon";
  why = reason(registry, "own", problem, 5);
  CHECK(strcmp(why.axis, "target") == 0 && strcmp(why.have, "cpu-avx2") == 0 && strcmp(why.want, "cpu-neon") == 0);
  problem[3].value = "";
  problem[0].value = "fp16";
  problem[1].value = "80";
  why = reason(registry, "own", problem, 5); /* by name, whatever the order of the key's fields */
  CHECK(strcmp(why.axis, "dtype") == 0 && strcmp(why.have, "bf16") == 0 && strcmp(why.want, "fp16") == 0);
  CHECK(strcmp(why.text, "kernel 0: it has dtype=bf16") == 0);
  problem[0].value = "bf16";
  why = reason(registry, "own", problem, 5);
  CHECK(strcmp(why.text, "kernel 0: its hdim_q, 64, is too small") == 0 && strcmp(why.want, "80") == 0);
  problem[1].value = "64";
  problem[4].value = "alibi";
  why = reason(registry, "own", problem, 5);
  CHECK(why.have == NULL && strcmp(why.axis, "bias") == 0 && strcmp(why.want, "alibi") == 0);
  problem[4].value = "";
  problem[2].value = "2";
  why = reason(registry, "own", problem, 5);
  CHECK(why.reason == TILEKILN_REFUSED_NEEDS && strcmp(why.have, "seqlen_q>=3") == 0);
  problem[2].value = "100";
  why = reason(registry, "own", problem, 5);
  CHECK(why.reason == TILEKILN_REFUSED_RULE && strcmp(why.rule, "pad_s") == 0 && strcmp(why.have, "64") == 0);
  CHECK(strcmp(why.axis, "max_seqlen_q") == 0 && strcmp(why.want, "100") == 0);
  problem[2].value = "256";
  why = reason(registry, "own", problem, 5);
  CHECK(strcmp(why.rule, "max_seq_len_q") == 0 && strcmp(why.have, "200") == 0 && strcmp(why.want, "256") == 0);
  CHECK(tilekiln_choose(registry, "own", problem, 5, NULL, &number) == TILEKILN_NO_KERNEL);
  CHECK(strcmp(tilekiln_last_error(),
               "no kernel of the registry answers own dtype=bf16 hdim_q=64 seqlen_q=256\n"
               "  refused: kernel 0: it takes at most 200 queries (max_seq_len_q)") == 0);
  CHECK(tilekiln_last_refusals(&told) != NULL && told == 1);
  tilekiln_registry_destroy(registry);
}

static void refused(tilekiln_status status, const char* sentence) {
  CHECK(status == TILEKILN_INVALID_ARGUMENT);
  CHECK(strcmp(tilekiln_last_error(), sentence) == 0);
}

static void bad_input(void) {
  const tilekiln_pair signature[] = {{"dtype", "bf16"}}, unnamed[] = {{"", "bf16"}}, no_tile[] = {{"seqlen_q", "x"}};
  tilekiln_kernel_description of = kernel(signature, 1, NULL);
  tilekiln_registry* registry = NULL;
  int64_t number = 7;
  refused(tilekiln_registry_create(NULL), "registry: was null, must be where the registry is to be put");
  CHECK(tilekiln_registry_create(&registry) == TILEKILN_OK);
  refused(tilekiln_registry_add(NULL, &of, NULL), "registry: was null, must be of tilekiln_registry_create");
  of.size = 3;
  CHECK(tilekiln_registry_add(registry, &of, NULL) == TILEKILN_INVALID_ARGUMENT);
  CHECK(strncmp(tilekiln_last_error(), "description: size was 3, must be ", 33) == 0);
  of = kernel(signature, 1, NULL);
  of.family = "";
  refused(tilekiln_registry_add(registry, &of, NULL), "family: was not given, must be the name of one");
  of = kernel(NULL, 1, NULL);
  refused(tilekiln_registry_add(registry, &of, NULL), "signature: was null of 1, must be a list of as many");
  of = kernel(unnamed, 1, NULL);
  refused(tilekiln_registry_add(registry, &of, NULL), "signature: [0]: has no field, must name one");
  of = kernel(signature, 1, no_tile);
  refused(tilekiln_registry_add(registry, &of, NULL), "tile: was 0, must be 1 or more");
  of = kernel(signature, 1, NULL);
  of.best = "seqlen_q<8";
  refused(tilekiln_registry_add(registry, &of, NULL),
          "rule: was \"seqlen_q<8\", must be such as seqlen_q>=1 seqlen_q<=8");
  of.best = "seqlen_q<=8 or";
  refused(tilekiln_registry_add(registry, &of, NULL),
          "rule: was \"seqlen_q<=8 or\", must be such as seqlen_q>=1 seqlen_q<=8");
  CHECK(tilekiln_registry_count(registry) == 0); /* nothing was added */
  refused(tilekiln_registry_remove(registry, 0), "kernel: was 0, must be the number of one that the registry holds");
  refused(tilekiln_registry_set_rank(registry, -1, 0),
          "kernel: was -1, must be the number of one that the registry holds");
  refused(tilekiln_choose(registry, NULL, NULL, 0, NULL, &number), "family: was not given, must be the name of one");
  CHECK(number == -1);
  refused(tilekiln_choose(registry, "own", NULL, 2, NULL, &number),
          "problem: was null of 2, must be a list of as many");
  refused(tilekiln_choose(registry, "own", NULL, 0, NULL, NULL),
          "kernel: was null, must be where the number is to be put");
  CHECK(tilekiln_registry_count(NULL) == 0);
  tilekiln_registry_destroy(registry);
  tilekiln_registry_destroy(NULL);
}

int main(void) {
  choices();
  reasons();
  bad_input();
  return check_result();
}
