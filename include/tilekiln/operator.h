/* SPDX-License-Identifier: MIT */
/* operator.h - what a library says of its operators, so that a binding can call them all and name none. Include tilekiln.h. */
#ifndef TILEKILN_OPERATOR_H
#define TILEKILN_OPERATOR_H

#include "tilekiln/base.h"

TILEKILN_BEGIN_C

enum { TILEKILN_MAX_FORMS = 4, TILEKILN_MAX_POSITIONAL = 8, TILEKILN_MAX_STAGES = 3, TILEKILN_MAX_CHOICES = 6, TILEKILN_NOWHERE = 255 };

/* Kinds of arguments. Arrays come first in the list of an operator, those given by position before the others. */
typedef enum tilekiln_kind {
  TILEKILN_ARRAY,      /* const tilekiln_tensor*, read */
  TILEKILN_RESULT,     /* const tilekiln_tensor*, written; a binding makes one that is not given */
  TILEKILN_WRITTEN,    /* const tilekiln_tensor*, written when given */
  TILEKILN_POINTER,    /* const float*; null when it is not given */
  TILEKILN_FLOAT,      /* float */
  TILEKILN_FLAG,       /* int32_t, 0 or 1 */
  TILEKILN_INT,        /* int32_t */
  TILEKILN_WORD,       /* int32_t, an index into words */
  TILEKILN_PAIR_INT,   /* two int32_t */
  TILEKILN_PAIR_ULONG, /* two uint64_t */
  TILEKILN_STREAM,     /* tilekiln_stream* */
  TILEKILN_INSTANCE,   /* int64_t */
  TILEKILN_ASK,        /* no field: whether a result is made and returned */
  TILEKILN_CHOOSE,     /* no field: which of words is the dtype of a new result */
  TILEKILN_DIMS,       /* tilekiln_dims */
  TILEKILN_DTYPE_WORD, /* int32_t, the dtype that one of words names */
  TILEKILN_LONG        /* int64_t */
} tilekiln_kind;

typedef struct tilekiln_argument {
  const char* name;
  const char* const* words; /* WORD, CHOOSE, DTYPE_WORD: ended by null; pairs: what the two are, as one text */
  uint16_t offset;          /* of the field in the struct of arguments */
  uint8_t kind;             /* tilekiln_kind */
  uint8_t written_with;     /* ARRAY: the argument that makes it be written; TILEKILN_NOWHERE: none */
  int32_t least;            /* INT, LONG, PAIR_INT */
} tilekiln_argument;

/* The place of a length among the arguments: array << 4 | dimension. */
typedef uint16_t tilekiln_place;

/* The dtypes that a result may have where dtype_of has the dtype `when`. 0: none. */
typedef struct tilekiln_choice {
  int32_t when;
  int32_t dtypes[TILEKILN_MAX_CHOICES]; /* the first unless chosen_by says */
} tilekiln_choice;

typedef struct tilekiln_result {
  uint8_t argument;  /* these are indices of arguments, or TILEKILN_NOWHERE */
  uint8_t asked_by;  /* itself: True in place of the array asks for it. TILEKILN_NOWHERE: it is always made */
  uint8_t unless;    /* asked_by is not given: it is asked for when this one is */
  uint8_t chosen_by;
  uint8_t dtype_of;
  uint8_t needs;
  int32_t dtype;  /* 0: that of dtype_of */
  tilekiln_choice choices[TILEKILN_MAX_CHOICES + 1]; /* ended by one without `when` */
  uint8_t ndim[TILEKILN_MAX_FORMS];
  tilekiln_place shape[TILEKILN_MAX_FORMS][2][TILEKILN_MAX_NDIM]; /* by form and whether dimensions are exchanged */
  /* Not null: says the shape instead, of arguments that have all other arrays; their lengths may still be wrong. */
  tilekiln_status (*shape_of)(const void* args, tilekiln_shape* shape);
} tilekiln_result;

/* One way that a call may be shaped. */
typedef struct tilekiln_form {
  uint64_t given;                                  /* bit i: argument i makes it this form */
  uint8_t ndim[TILEKILN_MAX_POSITIONAL];           /* of the arrays by position; 0: any */
  tilekiln_place work[2][TILEKILN_MAX_POSITIONAL]; /* lengths whose product says how long a call is; ended by 0xffff */
} tilekiln_form;

/* A number that a library knows of a call, such as the bytes of its workspace. */
typedef struct tilekiln_number {
  const char *name, *doc;
  tilekiln_status (*ask)(const void* args, uint64_t* number);
} tilekiln_number;

struct tilekiln_staging_allocator;

/* The functions of launchers. `create` makes one, of one problem; its workspace is prepared apart from its runs. */
typedef struct tilekiln_launchers {
  const tilekiln_argument* problem; /* what it must know before there is any data: INT, LONG, FLAG, WORD, DTYPE_WORD and PAIR_INT */
  const void* defaults;             /* the struct of the problem, all absent */
  uint32_t problem_size;
  uint8_t problem_count;
  tilekiln_status (*create)(const void* problem, void** launcher);
  tilekiln_status (*destroy)(void* launcher);
  tilekiln_status (*workspace_size)(const void* launcher, uint64_t* bytes);
  tilekiln_status (*find)(const void* launcher, int64_t* instances);
  tilekiln_status (*prepare)(void* launcher, const tilekiln_tensor* workspace, const tilekiln_tensor* seqstart_q,
                             const tilekiln_tensor* seqstart_k);
  tilekiln_status (*prepare_async)(void* launcher, const tilekiln_tensor* workspace, const tilekiln_tensor* seqstart_q,
                                   const tilekiln_tensor* seqstart_k, tilekiln_stream* stream,
                                   const struct tilekiln_staging_allocator* allocator);
  tilekiln_status (*run)(void* launcher, const void* args);
} tilekiln_launchers;

typedef struct tilekiln_operator {
  size_t layout; /* TILEKILN_OPERATOR_LAYOUT of the library: another one is not read */
  const char *name, *doc;
  const tilekiln_argument* arguments;
  const tilekiln_result* results;
  const tilekiln_form* forms;
  const tilekiln_number* numbers;
  const char* positional_text; /* "q, k and v" */
  const int32_t* dtypes;       /* of the array at `first`; ended by 0 */
  const void* defaults;        /* the struct of arguments, all absent */
  const tilekiln_launchers* launchers; /* null: it has none */
  uint32_t args_size;
  uint16_t exchange; /* offset of the int32_t that exchanges dimensions when it is 1; 0: none */
  uint8_t argument_count, array_count, positional, optional, result_count, form_count, number_count, stage_count;
  uint8_t first;      /* the array by position whose dimensions and dtype say what the others must be */
  uint8_t zero_forms; /* bit f: a call of this form may leave rows of its results as they are: new ones are zeroed */
  uint64_t zero_given; /* bit i: a call with argument i may */
  uint64_t any_given;  /* of all forms together */
  tilekiln_status (*run)(const void* args);
  tilekiln_status (*find)(const void* args, int64_t* instances);
  tilekiln_status (*why)(const void* args, char* text, size_t capacity, size_t* length);
} tilekiln_operator;

/* Raised whenever a struct or an enum of this file changes, were it only the order of two fields, and whenever packed weights hold
   other numbers: 4, launchers. */
#define TILEKILN_OPERATOR_REVISION 4
/* The sizes of all structs of a table and the revision in one number. */
#define TILEKILN_OPERATOR_LAYOUT \
  (sizeof(tilekiln_operator) | sizeof(tilekiln_form) << 12 | sizeof(tilekiln_argument) << 24 | \
   sizeof(tilekiln_number) << 32 | sizeof(tilekiln_result) << 40 | (size_t)TILEKILN_OPERATOR_REVISION << 52)

/* The operators of this library, *count of them. */
TILEKILN_API const tilekiln_operator* const* tilekiln_operators(int32_t* count);

TILEKILN_END_C
#endif
