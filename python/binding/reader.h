// SPDX-License-Identifier: MIT
/* One reader for every operator: Python arguments as the struct that the operator's table (tilekiln/operator.h) describes, and status
 * codes as exceptions. It names no operator. The library checks the values; only what C cannot see is checked here. */
#ifndef TILEKILN_BINDING_READER_H
#define TILEKILN_BINDING_READER_H

#include "library.h"
#include "results.h"
#include "says.h"
#include "scalars.h"
#include "stream.h"
#include "torch_tensors.h"
#include "work_stream.h"

enum { MAX_ARGUMENTS = 64, MAX_ARRAYS = 32, MAX_POINTERS = 4, MAX_ARGS = 640 };

/* The work of an operator's function: a run of the call, or a question about it. */
typedef enum { DO_RUN, DO_FIND, DO_WHY, DO_DESCRIBE, DO_NUMBER } Doing;

/* One function of one operator: what its PyCFunction is bound to. */
typedef struct {
  PyObject ob_base;
  Library* library; /* a strong reference */
  const tilekiln_operator* table;
  Doing doing;
  int number;             /* DO_NUMBER: which */
  uint16_t stream_offset; /* of the stream among its arguments; 0: it takes none */
  char name[96];
  PyMethodDef method;
  PyObject* interned[MAX_ARGUMENTS];
} Operator;

/* One call. Only what `present` marks of given and tensor has a value. */
typedef struct {
  const Operator* operator_;
  uint64_t present; /* bit i: argument i is given */
  uint32_t asked;   /* bit r: result r is returned */
  uint32_t unclear; /* bit r: result r is to be made, or its dtype is chosen although it is given */
  PyObject* given[MAX_ARGUMENTS];
  Stream* stream;
  CallStream in;
  uint16_t stream_offset;
  int pointer_count, held_count, form, exchanged;
  float pointer[MAX_POINTERS];
  PyObject* made[MAX_RESULTS]; /* strong references */
  Results results;
  PyObject* held[MAX_ARRAYS]; /* capsules, of arguments and results: strong references */
  tilekiln_tensor tensor[MAX_ARRAYS];
  char args[MAX_ARGS] __attribute__((aligned(16)));
} OperatorCall;

static void* field_of(OperatorCall* call, const tilekiln_argument* argument) { return call->args + argument->offset; }
static inline int is_given(const OperatorCall* call, uint8_t index) {
  return index != TILEKILN_NOWHERE && call->present >> index & 1;
}

/* ---- collecting ------------------------------------------------------------------------------------------------------ */

static int unknown_argument(const Operator* self, PyObject* name) {
  const int count = self->table->argument_count;
  PyObject* known = PyTuple_New(count);
  for (int i = 0; known && i < count; ++i) PyTuple_SetItem(known, i, Py_NewRef(self->interned[i]));
  PyObject* text =
      known && facade ? PyObject_CallMethod(facade, "unknown_argument", "sOO", self->name, name, known) : NULL;
  if (text) PyErr_SetObject(PyExc_TypeError, text);
  Py_XDECREF(known);
  Py_XDECREF(text);
  return -1;
}

/* The index of a keyword, or -1. Callers mostly name arguments in our order, so the search starts where the last one ended. */
static inline int keyword_index(const Operator* self, PyObject* name, int start) {
  const int count = self->table->argument_count;
  for (int i = 0, at = start; i < count; ++i) {
    if (self->interned[at] == name) return at;
    if (++at == count) at = 0;
  }
  for (int i = 0; i < count; ++i)
    if (PyUnicode_Compare(self->interned[i], name) == 0) return i;
  return -1;
}

/* Puts each argument in its place; they are borrowed. None is absent. */
static inline int collect(const Operator* self, OperatorCall* call, PyObject* const* values, Py_ssize_t positional,
                          PyObject* names) {
  const tilekiln_operator* table = self->table;
  uint64_t present = 0;
  if (positional > table->positional) {
    PyErr_Format(PyExc_TypeError, "%s() takes %s by position and everything else by name; %zd were given by position",
                 self->name, table->positional_text, positional);
    return -1;
  }
  for (Py_ssize_t i = 0; i < positional; ++i) {
    call->given[i] = values[i];
    present |= (uint64_t)(values[i] != Py_None) << i;
  }
  const Py_ssize_t named = names ? PyTuple_Size(names) : 0;
  for (Py_ssize_t i = 0, at = table->positional; i < named; ++i) {
    PyObject* name = PyTuple_GetItem(names, i);
    const int index = keyword_index(self, name, (int)at);
    if (index < 0) return unknown_argument(self, name);
    if (index < positional) {
      PyErr_Format(PyExc_TypeError, "%s() got %s by position and by name", self->name, table->arguments[index].name);
      return -1;
    }
    call->given[index] = values[positional + i];
    present |= (uint64_t)(values[positional + i] != Py_None) << index;
    at = index + 1 == table->argument_count ? 0 : index + 1;
  }
  const uint64_t needed = ((uint64_t)1 << table->positional) - 1;
  const uint64_t missing = needed & ~(present | table->optional);
  if (missing) {
    PyErr_Format(PyExc_TypeError, "%s() needs the argument %s", self->name,
                 table->arguments[__builtin_ctzll(missing)].name);
    return -1;
  }
  call->present = present;
  return 0;
}

/* ---- scalars --------------------------------------------------------------------------------------------------------- */

static inline int read_scalar(OperatorCall* call, const tilekiln_argument* argument, PyObject* value) {
  void* place = field_of(call, argument);
  switch (argument->kind) {
    case TILEKILN_POINTER: {
      float* pointer = &call->pointer[call->pointer_count++];
      *(const float**)place = pointer;
      return read_float(value, argument->name, pointer);
    }
    case TILEKILN_FLOAT: return read_float(value, argument->name, place);
    case TILEKILN_FLAG: return read_flag(value, argument->name, place);
    case TILEKILN_INT: return read_int32(value, argument->name, argument->least, place);
    case TILEKILN_WORD: return read_word(value, argument->name, argument->words, place);
    case TILEKILN_DIMS: return read_dims(value, argument->name, place);
    case TILEKILN_PAIR_INT:
    case TILEKILN_PAIR_ULONG: return read_pair_of(argument, value, place);
    case TILEKILN_STREAM: call->stream_offset = argument->offset; return read_stream(value, &call->stream);
    case TILEKILN_INSTANCE: return read_instance(call->operator_->library, value, place);
    default: return 0; /* what asks for a result or chooses its dtype is read with it */
  }
}

/* ---- results: which are asked for ------------------------------------------------------------------------------------ */

/* Reads which results the call returns. An array argument may be True, which asks for a new one, or False. */
static inline int read_asks(OperatorCall* call) {
  const tilekiln_operator* table = call->operator_->table;
  uint32_t needing = 0; /* bit r: result r is asked for, and needs another argument or another result */
  for (int r = 0; r < table->result_count; ++r) {
    const tilekiln_result* result = &table->results[r];
    const char* name = table->arguments[result->argument].name;
    int32_t asked = result->asked_by == TILEKILN_NOWHERE;
    if (is_given(call, result->argument) && PyBool_Check(call->given[result->argument])) {
      PyObject* flag = call->given[result->argument];
      if (result->asked_by != result->argument)
        return refuse(name, "was %R, must be an array, or None for a new one", flag);
      asked = flag == Py_True;
      call->present &= ~((uint64_t)1 << result->argument);
    } else if (result->asked_by == result->argument) {
      asked = is_given(call, result->argument);
    } else if (is_given(call, result->asked_by)) {
      const tilekiln_argument* by = &table->arguments[result->asked_by];
      if (read_flag(call->given[result->asked_by], by->name, &asked) < 0) return -1;
      if (!asked && result->unless != TILEKILN_NOWHERE && is_given(call, result->argument))
        return refuse(name, "was given with %s=False, must be None", by->name);
    } else if (result->unless != TILEKILN_NOWHERE)
      asked = is_given(call, result->unless);
    call->asked |= (uint32_t)asked << r;
    const int given = is_given(call, result->argument);
    call->unclear |= (uint32_t)(given ? is_given(call, result->chosen_by) : asked) << r;
    needing |= (uint32_t)(asked && result->needs != TILEKILN_NOWHERE) << r;
  }
  for (; needing; needing &= needing - 1) {
    const tilekiln_result* result = &table->results[__builtin_ctz(needing)];
    int there = is_given(call, result->needs);
    for (int other = 0; other < table->result_count; ++other)
      there |= table->results[other].argument == result->needs && (call->asked >> other & 1);
    if (there || is_given(call, result->argument)) continue; /* the library speaks of an array that is given */
    const char* const by = table->arguments[result->asked_by].name;
    const char* const needs = table->arguments[result->needs].name;
    if (result->needs == result->unless) return refuse(needs, "was None, must be given with %s", by);
    return refuse(by, "was True without %s, must be False", needs);
  }
  return 0;
}

/* ---- arrays ---------------------------------------------------------------------------------------------------------- */

static inline int read_array(OperatorCall* call, int i, int written, PyObject** held) {
  const tilekiln_argument* argument = &call->operator_->table->arguments[i];
  *(const tilekiln_tensor**)field_of(call, argument) = &call->tensor[i];
  return view_array(call->given[i], &call->tensor[i], written, argument->name, &call->in, held);
}

static inline int is_written(const OperatorCall* call, int i) {
  const tilekiln_argument* argument = &call->operator_->table->arguments[i];
  return argument->kind != TILEKILN_ARRAY || is_given(call, argument->written_with);
}

/* Makes views of the arrays. Last of all: other arguments may run Python code, which may change an array. */
static inline int read_arrays(OperatorCall* call) {
  const tilekiln_operator* table = call->operator_->table;
  const uint64_t arrays = call->present & (((uint64_t)1 << table->array_count) - 1);
  uint64_t exported = 0;
  call->in =
      (CallStream){is_given(call, table->first) ? call->given[table->first] : NULL, stream_number(call->stream), 0};
  for (uint64_t left = arrays; left; left &= left - 1) {
    const int i = __builtin_ctzll(left);
    PyObject* held;
    const int bad = read_array(call, i, is_written(call, i), &held);
    if (held) {
      call->held[call->held_count++] = held;
      exported |= (uint64_t)1 << i;
    }
    if (bad < 0) return -1;
  }
  /* An exporter is Python code and may have changed another array: views of live objects are taken once more. */
  for (uint64_t left = exported ? arrays & ~exported : 0; left; left &= left - 1) {
    const int i = __builtin_ctzll(left);
    PyObject* none;
    if (read_array(call, i, is_written(call, i), &none) < 0) return -1;
  }
  return 0;
}

/* ---- results: what they are ------------------------------------------------------------------------------------------ */

/* Can results be shaped after the arrays given by position? Sets the form of the call. */
static inline int find_form(OperatorCall* call) {
  const tilekiln_operator* table = call->operator_->table;
  const tilekiln_tensor* first = &call->tensor[table->first];
  if (!is_given(call, table->first)) return 0;
  const int32_t* dtype = table->dtypes;
  while (*dtype && *dtype != first->dtype) ++dtype;
  if (!*dtype) return 0;
  for (int f = 0; f < table->form_count; ++f) {
    const tilekiln_form* form = &table->forms[f];
    int fits = (call->present & table->any_given) == form->given;
    for (int i = 0; fits && i < table->positional; ++i)
      fits = !(call->present >> i & 1) || form->ndim[i] == 0 || call->tensor[i].ndim == form->ndim[i];
    if (!fits) continue;
    call->form = f;
    return 1;
  }
  return 0;
}

/* The dtypes that a result may have when the array that it follows is of dtype `like`; null: that dtype alone. */
static inline const int32_t* result_choices(const tilekiln_result* result, int32_t like) {
  for (const tilekiln_choice* choice = result->choices; choice->when; ++choice)
    if (choice->when == like) return choice->dtypes;
  return NULL;
}

/* The dtype of a result as its argument chooses it; -1 with an error. Apart, so that calls without one do not pay for it. */
__attribute__((noinline, cold)) static int32_t chosen_dtype(OperatorCall* call, const tilekiln_result* result) {
  const tilekiln_operator* table = call->operator_->table;
  const int32_t like = call->tensor[result->dtype_of].dtype;
  const int32_t* const choices = result_choices(result, like);
  const char* const name = table->arguments[result->argument].name;
  const char* const of = table->arguments[result->dtype_of].name;
  const tilekiln_argument* chooser = &table->arguments[result->chosen_by];
  PyObject* const said = call->given[result->chosen_by];
  if (!choices) {
    const char* when[TILEKILN_MAX_CHOICES + 1];
    int count = 0;
    for (; result->choices[count].when; ++count) when[count] = dtype_name(result->choices[count].when);
    return count == 1 ? refuse(chooser->name, "was %R, must be absent unless %s is %s: %s has the dtype of %s", said,
                               of, when[0], name, of)
                      : refuse(chooser->name, "was %R, must be absent when %s is %s: %s has its dtype", said, of,
                               dtype_name(like), name);
  }
  int32_t word = 0;
  if (read_word(said, chooser->name, chooser->words, &word) < 0) return -1;
  int32_t dtype = 0;
  for (int i = 0; i < TILEKILN_MAX_CHOICES && choices[i]; ++i)
    if (strcmp(dtype_name(choices[i]), chooser->words[word]) == 0) dtype = choices[i];
  if (!dtype) {
    char names[TILEKILN_MAX_CHOICES * 9] = "";
    for (int i = 0; i < TILEKILN_MAX_CHOICES && choices[i]; ++i) {
      if (i) strcat(names, i + 1 < TILEKILN_MAX_CHOICES && choices[i + 1] ? ", " : " or ");
      strcat(names, dtype_name(choices[i]));
    }
    return refuse(chooser->name, "was %R, must be %s when %s is %s", said, names, of, dtype_name(like));
  }
  if (is_given(call, result->argument) && call->tensor[result->argument].dtype != dtype)
    return refuse(chooser->name, "was %R, must be the dtype of %s, or absent", said, name);
  return dtype;
}

/* The dtype of a result that is made, or chosen although it is given; -1 with an error. */
static inline int32_t result_dtype(OperatorCall* call, const tilekiln_result* result) {
  if (result->dtype) return result->dtype;
  if (is_given(call, result->chosen_by)) return chosen_dtype(call, result);
  const int32_t like = call->tensor[result->dtype_of].dtype;
  const int32_t* const choices = result_choices(result, like);
  return choices ? choices[0] : like;
}

/* The length at a place; -1 where the array is not given or has too few dimensions. */
static inline int64_t length_at(const OperatorCall* call, tilekiln_place place) {
  const int array = place >> 4, index = place & 15;
  return (call->present >> array & 1) && index < call->tensor[array].ndim ? call->tensor[array].shape[index] : -1;
}

/* Asks the library for the shape of a result; 0: it refuses the call. */
static int made_shape(const OperatorCall* call, const tilekiln_result* result, tilekiln_tensor* tensor) {
  tilekiln_shape shape;
  if (result->shape_of(call->args, &shape) != TILEKILN_OK) return 0;
  tensor->ndim = shape.ndim;
  memcpy(tensor->shape, shape.length, sizeof(tensor->shape));
  return 1;
}

/* Describes what the caller did not give. Rows that a call leaves untouched read as zero. */
static inline int describe_results(OperatorCall* call) {
  const tilekiln_operator* table = call->operator_->table;
  const int can = find_form(call);
  if (table->exchange) call->exchanged = *(int32_t*)(call->args + table->exchange) == 1;
  if (!call->unclear) return 0;
  call->results.like = call->given[table->first & (MAX_ARGUMENTS - 1)]; /* the mask is for the compiler */
  call->results.zero = (can && table->zero_forms >> call->form & 1) || (call->present & table->zero_given);
  for (uint32_t left = call->unclear; left; left &= left - 1) {
    const int r = __builtin_ctz(left);
    const tilekiln_result* result = &table->results[r];
    const int given = is_given(call, result->argument);
    if (!is_given(call, result->dtype_of) && !result->dtype) continue; /* the library misses that array */
    const int32_t dtype = result_dtype(call, result);
    if (dtype < 0) return -1;
    if (given) continue;
    const tilekiln_argument* argument = &table->arguments[result->argument];
    tilekiln_tensor* tensor = &call->tensor[result->argument];
    *(const tilekiln_tensor**)field_of(call, argument) = tensor;
    int shaped = can;
    const int ndim = can || table->form_count == 1  ? result->ndim[call->form]
                     : is_given(call, table->first) ? call->tensor[table->first].ndim
                                                    : 1;
    tensor->dtype = dtype;
    tensor->ndim = ndim;
    const tilekiln_place* const places = result->shape[call->form][call->exchanged];
    for (int d = 0; can && d < ndim; ++d) {
      const int64_t length = length_at(call, places[d]);
      tensor->shape[d] = length;
      shaped &= length >= 0;
    }
    if (can && result->shape_of) shaped = made_shape(call, result, tensor);
    if (shaped)
      add_result(&call->results, argument->name, &call->tensor[table->first], tensor, &call->made[r]);
    else { /* the library refuses an array that it checks before this one, which is empty */
      memset(tensor->shape, 0, sizeof(tensor->shape));
      tensor->data = NULL;
      tensor->ndim = tensor->ndim < 1 ? 1 : tensor->ndim;
      const int like = is_given(call, table->first);
      tensor->device_type = like ? call->tensor[table->first].device_type : TILEKILN_CPU;
      tensor->device_id = like ? call->tensor[table->first].device_id : 0;
    }
  }
  return 0;
}

/* ---- a call ---------------------------------------------------------------------------------------------------------- */

/* Puts arguments in their places and reads those that are no arrays. */
static inline int call_place(const Operator* self, OperatorCall* call, PyObject* const* values, Py_ssize_t positional,
                             PyObject* names) {
  const tilekiln_operator* table = self->table;
  call->operator_ = self;
  call->asked = call->unclear = 0;
  call->stream = NULL;
  call->pointer_count = call->held_count = call->form = call->exchanged = 0;
  for (int r = 0; r < table->result_count; ++r) call->made[r] = NULL;
  call->results.count = 0;
  call->results.bytes = 0;
  if (collect(self, call, values, positional, names) < 0) return -1;
  memcpy(call->args, table->defaults, table->args_size);
  for (uint64_t left = call->present >> table->array_count << table->array_count; left; left &= left - 1) {
    const int i = __builtin_ctzll(left);
    if (read_scalar(call, &table->arguments[i], call->given[i]) < 0) return -1;
  }
  return read_asks(call);
}

static inline int call_begin(const Operator* self, OperatorCall* call, PyObject* const* values, Py_ssize_t positional,
                             PyObject* names) {
  if (call_place(self, call, values, positional, names) < 0 || read_arrays(call) < 0) return -1;
  return describe_results(call);
}

static void call_end(OperatorCall* call) {
  for (int i = 0; i < call->held_count; ++i) Py_DECREF(call->held[i]);
  for (int r = 0; r < call->operator_->table->result_count; ++r) Py_XDECREF(call->made[r]);
}

/* Everything a stream must keep: the arrays given and made, and the capsules. */
static int hold_arrays(OperatorCall* call) {
  const tilekiln_operator* table = call->operator_->table;
  for (int i = 0; i < table->array_count; ++i)
    if (call->present >> i & 1 && stream_hold(call->stream, call->given[i]) < 0) return -1;
  for (int i = 0; i < call->held_count; ++i)
    if (stream_hold(call->stream, call->held[i]) < 0) return -1;
  for (int r = 0; r < table->result_count; ++r)
    if (call->made[r] && stream_hold(call->stream, call->made[r]) < 0) return -1;
  return 0;
}

/* Letting go of the GIL and taking it back costs some 50 ns, more than a tiny call may cost; a call of 2^18 multiplications takes
 * about 10 us. */
static inline int is_long(const OperatorCall* call) {
  const int64_t most = 1 << 18;
  int64_t work = 1;
  const tilekiln_place* place = call->operator_->table->forms[call->form].work[call->exchanged];
  for (; *place != 0xffff; ++place) {
    const int64_t length = length_at(call, *place);
    if (length <= 1) continue;
    if (length > most || (work *= length) > most) return 1;
  }
  return 0;
}

/* The results that were asked for: none, one, or a tuple of several. */
static PyObject* results_of(OperatorCall* call) {
  const tilekiln_operator* table = call->operator_->table;
  PyObject *one[MAX_RESULTS], *like = call->given[table->first], *tuple;
  int count = 0;
  for (int r = 0; r < table->result_count; ++r) {
    if (!(call->asked >> r & 1)) continue;
    one[count] = call->made[r] ? adopt(like, call->made[r]) : Py_NewRef(call->given[table->results[r].argument]);
    if (!one[count]) goto bad;
    ++count;
  }
  if (count == 0) Py_RETURN_NONE;
  if (count == 1) return one[0];
  if (!(tuple = PyTuple_New(count))) goto bad;
  for (int i = 0; i < count; ++i) PyTuple_SetItem(tuple, i, one[i]);
  return tuple;
bad:
  while (count > 0) Py_DECREF(one[--count]);
  return NULL;
}

/* Runs a call in place of its operator's own function. */
typedef tilekiln_status (*RunWith)(const Library* library, void* context, const void* args);

/* Bit i: argument i is a tensor of PyTorch's that the caller gave and the call writes to. Refuses one that autograd would have to
 * record. */
static inline int find_written(const OperatorCall* call, uint64_t* written) {
  const tilekiln_operator* table = call->operator_->table;
  *written = 0;
  for (uint64_t left = call->present & (((uint64_t)1 << table->array_count) - 1); left; left &= left - 1) {
    const int i = __builtin_ctzll(left);
    if (!is_written(call, i) || PyArray_CheckExact(call->given[i])) continue;
    if (!torch_tensor() && meet_torch() < 0) return -1;
    if (!is_torch(call->given[i])) continue;
    if (check_written_tensor(call->given[i], table->arguments[i].name) < 0) return -1;
    *written |= (uint64_t)1 << i;
  }
  return 0;
}

__attribute__((noinline)) static int count_written_of(const OperatorCall* call, uint64_t written) {
  PyObject* arrays[MAX_ARRAYS];
  int count = 0;
  for (; written; written &= written - 1) arrays[count++] = call->given[__builtin_ctzll(written)];
  return count_written(arrays, count);
}

/* As call_run, where a stream's lock is held. */
static inline PyObject* call_run_locked(OperatorCall* call, RunWith with, void* context) {
  const Operator* self = call->operator_;
  Library* library = self->library;
  tilekiln_status status;
  uint64_t written;
  if (find_written(call, &written) < 0) return NULL;
  if (results_are_large(&call->results)) {
    int64_t instances[TILEKILN_MAX_STAGES];
    status = self->table->find(call->args, instances);
    if (status != TILEKILN_OK) return library_error(library, status);
  }
  if (make_results(&call->results, &call->in, call->held, &call->held_count) < 0) return NULL;
  if (call->stream) {
    tilekiln_stream* native = stream_native(call->stream, library);
    if (!native || hold_arrays(call) < 0) return NULL;
    *(tilekiln_stream**)(call->args + call->stream_offset) = native;
  }
  tilekiln_stream* work = NULL;
  int bad = 0, first = self->table->first;
  if (!call->stream && self->stream_offset && is_given(call, first)) {
    work = work_stream(library, &call->in, &call->tensor[first], &bad);
    if (bad) return NULL;
    if (work) *(tilekiln_stream**)(call->args + self->stream_offset) = work;
  }
  PyThreadState* state = call->stream || work || !is_long(call) ? NULL : PyEval_SaveThread();
  status = with ? with(library, context, call->args) : self->table->run(call->args);
  if (state) PyEval_RestoreThread(state);
  if (work && call->in.waits && status == TILEKILN_OK) {
    Py_BEGIN_ALLOW_THREADS status = library->stream_synchronize(work);
    Py_END_ALLOW_THREADS
  }
  if (work) library->stream_destroy(work);
  if (written && status == TILEKILN_OK && count_written_of(call, written) < 0) return NULL;
  return status == TILEKILN_OK ? results_of(call) : library_error(library, status);
}

/* Runs a call that has begun; `with` null: by its operator. */
static inline PyObject* call_run(OperatorCall* call, RunWith with, void* context) {
  if (!call->stream) return call_run_locked(call, with, context);
  PyObject* result;
  BEGIN_LOCKED(call->stream->work->lock)
  result = call_run_locked(call, with, context);
  END_LOCKED
  return result;
}

#endif
