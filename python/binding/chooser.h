// SPDX-License-Identifier: MIT
/* Chooser: the choice among a registry's kernels (tilekiln/choice/chooser.h) by Python's fields and values.
 *
 * A kernel is a tuple (family, target, origin, signature, algorithm, rules, priority, rank, asks); rules: (holds, fit, needs, best, order) as
 * Choice.rules has them. The values of kernels and problems are dicts of int, str or None. What kernels say gets a number for as long as
 * the process; a problem's words that no kernel says are numbered for one question alone. */
#ifndef TILEKILN_BINDING_CHOOSER_H
#define TILEKILN_BINDING_CHOOSER_H

#include "arrays.h"
#include "tilekiln/choice/chooser.h"

#define TILEKILN_LOCAL_WORDS (TILEKILN_YES + ((int64_t)1 << 40))

static struct {
  PyObject *fields, *words;           /* dicts: str -> number */
  PyObject *field_names, *word_names; /* lists; words from yes on */
  long unasked;                       /* fields below ask for no feature */
  int64_t* usual;
  tilekiln_terms terms;
  PyObject* lock; /* held by whoever reads or writes the rest */
} spoken;

/* Whether chooser_terms was called; else an exception. */
static int is_told(void) {
  if (!spoken.terms.usual) PyErr_SetString(PyExc_RuntimeError, "terms() must be called first");
  return spoken.terms.usual != NULL;
}

/* The number of a field; -1 with an exception. */
static long field_number(PyObject* name) {
  PyObject* found = PyDict_GetItemWithError(spoken.fields, name);
  if (found) return PyLong_AsLong(found);
  if (PyErr_Occurred()) return -1;
  const long made = (long)PyList_Size(spoken.field_names);
  if (made > UINT16_MAX) return PyErr_SetString(PyExc_OverflowError, "too many fields of kernels"), -1;
  PyObject* number = PyLong_FromLong(made);
  const int good =
      number && PyDict_SetItem(spoken.fields, name, number) == 0 && PyList_Append(spoken.field_names, name) == 0;
  Py_XDECREF(number);
  return good ? made : -1;
}

/* The number of a word that is told; 0 where no kernel says it, below 0 with an exception. */
static int word_told(PyObject* word, int64_t* number) {
  PyObject* found = PyDict_GetItemWithError(spoken.words, word);
  if (found) *number = PyLong_AsLongLong(found);
  return found ? 1 : PyErr_Occurred() ? -1 : 0;
}

/* The same, made where there is none; 0 with an exception. */
static int word_number(PyObject* word, int64_t* number) {
  const int told = word_told(word, number);
  if (told != 0) return told > 0;
  *number = TILEKILN_YES + (int64_t)PyList_Size(spoken.word_names);
  PyObject* made = PyLong_FromLongLong(*number);
  const int good = made && PyDict_SetItem(spoken.words, word, made) == 0 && PyList_Append(spoken.word_names, word) == 0;
  Py_XDECREF(made);
  return good;
}

/* An integer, cut to those that values can have. */
static int64_t number_within(PyObject* value) {
  int overflow = 0;
  const int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (overflow > 0 || (!overflow && number >= TILEKILN_YES)) return TILEKILN_YES - 1;
  return overflow < 0 || number <= TILEKILN_NONE ? TILEKILN_NONE + 1 : number;
}

/* The value that a kernel has; 0 with an exception. */
static int kernel_value(PyObject* value, int64_t* number) {
  *number = TILEKILN_NOTHING;
  if (value == Py_None) return 1;
  if (PyUnicode_Check(value)) return word_number(value, number);
  if (!PyLong_Check(value))
    return PyErr_Format(PyExc_TypeError, "value: was %R, must be an int, a str or None", value), 0;
  *number = number_within(value);
  return 1;
}

/* ---- a problem --------------------------------------------------------------------------------------------------- */

typedef struct {
  tilekiln_asked all;
  PyObject **words, **fields;      /* those that no kernel says, borrowed */
  int32_t word_count, known_count; /* of the fields, those that kernels say */
} Asked;

static const char* name_of(PyObject* name) {
  const char* text = name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
  return text ? text : "";
}
static const char* asked_field(const void* context, uint16_t field) {
  const Asked* asked = context;
  if (field >= asked->known_count) return name_of(asked->fields[field - asked->known_count]);
  return name_of(PyList_GetItem(spoken.field_names, field));
}
static const char* asked_word(const void* context, int64_t value) {
  const Asked* asked = context;
  if (value == TILEKILN_NOTHING) return "";
  if (value < TILEKILN_YES) return value == TILEKILN_NO ? "no" : "none";
  if (value >= TILEKILN_LOCAL_WORDS) return name_of(asked->words[value - TILEKILN_LOCAL_WORDS]);
  return name_of(PyList_GetItem(spoken.word_names, (Py_ssize_t)(value - TILEKILN_YES)));
}

/* The memory of a problem, which the caller frees; null with an exception. forgiven: a set of features that need not be known, or null. */
static void* asked_from_locked(PyObject* values, PyObject* forgiven, Asked* asked) {
  const size_t said = (size_t)PyDict_Size(values), count = (size_t)PyList_Size(spoken.field_names);
  char* const memory =
      PyMem_Malloc((count + said + 1) * sizeof(int64_t) + (said + 1) * (2 * sizeof(PyObject*) + sizeof(uint16_t)));
  if (!memory) return PyErr_NoMemory();
  int64_t* const by_field = (int64_t*)memory;
  asked->words = (PyObject**)(by_field + count + said + 1);
  asked->fields = asked->words + said + 1;
  uint16_t* const features = (uint16_t*)(asked->fields + said + 1);
  asked->word_count = 0;
  asked->known_count = (int32_t)count;
  asked->all = (tilekiln_asked){TILEKILN_NOTHING, by_field, features, (int32_t)count, 0};
  for (size_t i = 0; i < count; ++i) by_field[i] = TILEKILN_NOTHING;
  PyObject *name, *value;
  for (Py_ssize_t at = 0; PyDict_Next(values, &at, &name, &value);) {
    if (value == Py_None) continue;
    PyObject* found = PyDict_GetItemWithError(spoken.fields, name);
    long field = found ? PyLong_AsLong(found) : -1;
    if (!found && PyErr_Occurred()) break;
    if (!PyUnicode_Check(value)) {
      if (field >= 0 && PyLong_Check(value)) by_field[field] = number_within(value);
      continue;
    }
    int64_t number;
    const int told = word_told(value, &number);
    if (told < 0) break;
    if (told == 0) {
      asked->words[asked->word_count] = value;
      number = TILEKILN_LOCAL_WORDS + asked->word_count++;
    }
    if (field >= 0) by_field[field] = number;
    if (tilekiln_is_off(number) || (field >= 0 && field < spoken.unasked)) continue;
    if (field >= 0 && field < spoken.terms.usual_count && spoken.usual[field] == number) continue;
    const int gone = forgiven ? PySet_Contains(forgiven, name) : 0;
    if (gone < 0) break;
    if (gone) continue;
    if (field < 0) {
      if (asked->all.count > UINT16_MAX) continue; /* of more unknown features one is enough */
      field = asked->all.count++;
      asked->fields[field - asked->known_count] = name;
      by_field[field] = number;
    }
    features[asked->all.feature_count++] = (uint16_t)field;
  }
  PyObject* family = PyErr_Occurred() ? NULL : PyDict_GetItemString(values, "family");
  if (family && PyUnicode_Check(family)) {
    const int told = word_told(family, &asked->all.family);
    if (told == 0) asked->all.family = TILEKILN_NO; /* of no kernel */
  }
  if (!PyErr_Occurred()) return memory;
  PyMem_Free(memory);
  return NULL;
}

/* With the lock of the values, too, which another thread may change. */
static void* asked_from(PyObject* values, PyObject* forgiven, Asked* asked) {
  void* memory;
  BEGIN_LOCKED(values)
  memory = asked_from_locked(values, forgiven, asked);
  END_LOCKED
  return memory;
}

/* ---- a kernel ----------------------------------------------------------------------------------------------------- */

/* The conditions of clauses [[(field, sign, bound)]]; their number, -1 with an exception. */
static int32_t conditions_from(PyObject* clauses, tilekiln_condition* to, Py_ssize_t capacity) {
  int32_t count = 0;
  for (Py_ssize_t i = 0; i < PyList_Size(clauses); ++i) {
    PyObject* clause = PyList_GetItem(clauses, i);
    const Py_ssize_t length = clause ? PyList_Size(clause) : -1;
    for (Py_ssize_t j = 0; j < length && count < capacity; ++j) {
      PyObject *field, *bound;
      const char* sign;
      if (!PyArg_ParseTuple(PyList_GetItem(clause, j), "UsO!", &field, &sign, &PyLong_Type, &bound)) return -1;
      const long number = field_number(field);
      if (number < 0) return -1;
      const int64_t at = number_within(bound);
      to[count].least = sign[0] == '<' ? INT64_MIN : at;
      to[count].most = sign[0] == '>' ? INT64_MAX : at;
      to[count].field = (uint16_t)number;
      to[count++].last = j == length - 1;
    }
  }
  return PyErr_Occurred() ? -1 : count;
}

static Py_ssize_t conditions_of(PyObject* clauses) {
  Py_ssize_t count = 0;
  for (Py_ssize_t i = 0; i < PyList_Size(clauses); ++i) count += PyList_Size(PyList_GetItem(clauses, i));
  return count;
}

/* Adds a field of a kernel; 0 with an exception. */
static int say(tilekiln_said* to, int32_t* count, PyObject* name, PyObject* value) {
  const long field = field_number(name);
  if (field < 0 || !kernel_value(value, &to[*count].value)) return 0;
  to[(*count)++].field = (uint16_t)field;
  return 1;
}

/* Adds a field that an algorithm may have, by its number. */
static int say_if(tilekiln_said* to, int32_t* count, PyObject* algorithm, uint16_t field) {
  PyObject* name = PyList_GetItem(spoken.field_names, field);
  PyObject* value = name ? PyDict_GetItemWithError(algorithm, name) : NULL;
  return value ? say(to, count, name, value) : !PyErr_Occurred();
}

/* The memory of a kernel, which the caller frees; null with an exception. */
static void* kernel_from(PyObject* tuple, tilekiln_kernel* kernel) {
  if (!is_told()) return NULL;
  PyObject *family, *target, *origin, *signature, *algorithm, *holds, *fit, *needs, *best;
  int priority, rank, order, asks;
  if (!PyArg_ParseTuple(tuple, "UUUO!O!(O!O!O!O!i)iip", &family, &target, &origin, &PyDict_Type, &signature,
                        &PyDict_Type, &algorithm, &PyTuple_Type, &holds, &PyTuple_Type, &fit, &PyList_Type, &needs,
                        &PyList_Type, &best, &order, &priority, &rank, &asks))
    return NULL;
  const Py_ssize_t signed_for = PyDict_Size(signature),
                   asked_for = 2 * spoken.terms.pad_count + spoken.terms.limit_count;
  const Py_ssize_t fits = PyTuple_Size(fit), held = PyTuple_Size(holds), needed = conditions_of(needs),
                   preferred = conditions_of(best);
  if (PyErr_Occurred()) return NULL;
  const Py_ssize_t saids = signed_for + asked_for + fits + 1, conditions = needed + preferred;
  char* const memory = PyMem_Malloc((size_t)saids * sizeof(tilekiln_said) +
                                    (size_t)conditions * sizeof(tilekiln_condition) + (size_t)held * sizeof(uint16_t));
  if (!memory) return PyErr_NoMemory();
  tilekiln_said *const said = (tilekiln_said*)memory, *const with = said + signed_for, *const of = with + asked_for;
  tilekiln_condition *const need = (tilekiln_condition*)(said + saids), *const prefer = need + needed;
  uint16_t* const hold = (uint16_t*)(need + conditions);
  *kernel = (tilekiln_kernel){0};
  kernel->target = TILEKILN_NOTHING;
  int good = word_number(family, &kernel->family) && word_number(origin, &kernel->origin);
  if (good && PyUnicode_GetLength(target) > 0) good = word_number(target, &kernel->target);
  PyObject *name, *value;
  for (Py_ssize_t at = 0; good && PyDict_Next(signature, &at, &name, &value);)
    good = say(said, &kernel->signature_count, name, value);
  for (int i = 0; good && i < spoken.terms.pad_count; ++i) {
    const int32_t before = kernel->algorithm_count;
    good = say_if(with, &kernel->algorithm_count, algorithm, spoken.terms.pads[i].pad) &&
           (kernel->algorithm_count == before ||
            say_if(with, &kernel->algorithm_count, algorithm, spoken.terms.pads[i].tile));
  }
  for (int i = 0; good && i < spoken.terms.limit_count; ++i)
    good = say_if(with, &kernel->algorithm_count, algorithm, spoken.terms.limits[i].limit);
  for (Py_ssize_t i = 0; good && i < fits; ++i) {
    PyObject *size, *by, *tile;
    good = PyArg_ParseTuple(PyTuple_GetItem(fit, i), "UOO!", &size, &by, &PyLong_Type, &tile) &&
           say(of, &kernel->fit_count, size, tile);
    if (good && of[i].value < 1)
      good = !PyErr_Format(ArgumentError, "tile: was %lld, must be 1 or more", (long long)of[i].value) && 0;
  }
  for (Py_ssize_t i = 0; good && i < held; ++i) {
    const long field = field_number(PyTuple_GetItem(holds, i));
    good = field >= 0;
    hold[i] = (uint16_t)field;
  }
  kernel->need_count = good ? conditions_from(needs, need, needed) : -1;
  kernel->best_count = kernel->need_count >= 0 ? conditions_from(best, prefer, preferred) : -1;
  kernel->signature = said, kernel->algorithm = with, kernel->fit = of;
  kernel->holds = hold, kernel->hold_count = (int32_t)held;
  kernel->needs = need, kernel->best = prefer;
  kernel->priority = priority, kernel->rank = rank, kernel->order = order, kernel->asks = asks;
  if (kernel->best_count >= 0) return memory;
  PyMem_Free(memory);
  return NULL;
}

/* ---- functions for Python ------------------------------------------------------------------------------------------- */

/* terms(unasked, usual, variable, pads, limits): the tables of kernels/dispatcher.yaml, once, before all else. */
static PyObject* chooser_terms_locked(PyObject* unused, PyObject* arguments) {
  (void)unused;
  PyObject *unasked, *usual, *variable, *pads, *limits;
  if (!PyArg_ParseTuple(arguments, "O!O!O!O!O!:terms", &PyList_Type, &unasked, &PyDict_Type, &usual, &PyTuple_Type,
                        &variable, &PyTuple_Type, &pads, &PyTuple_Type, &limits))
    return NULL;
  if (spoken.terms.usual) Py_RETURN_NONE;
  spoken.words = Py_BuildValue("{sLsLsL}", "no", TILEKILN_NO, "none", TILEKILN_NONE, "yes", TILEKILN_YES);
  spoken.word_names = Py_BuildValue("[s]", "yes");
  spoken.field_names = PyList_New(0);
  spoken.fields = PyDict_New();
  int good = spoken.words && spoken.word_names && spoken.field_names && spoken.fields;
  for (Py_ssize_t i = 0; good && i < PyList_Size(unasked); ++i) good = field_number(PyList_GetItem(unasked, i)) >= 0;
  spoken.unasked = (long)PyList_Size(unasked);
  PyObject *name, *value;
  for (Py_ssize_t at = 0; good && PyDict_Next(usual, &at, &name, &value);) good = field_number(name) >= 0;
  const size_t count = (size_t)PyList_Size(spoken.field_names);
  spoken.usual = PyMem_Calloc(count + 1, sizeof(int64_t));
  tilekiln_pad* pad = PyMem_Calloc((size_t)PyTuple_Size(pads) + 1, sizeof(*pad));
  tilekiln_limit* limit = PyMem_Calloc((size_t)PyTuple_Size(limits) + 1, sizeof(*limit));
  uint16_t* varies = PyMem_Calloc((size_t)PyTuple_Size(variable) + 1, sizeof(*varies));
  if (!spoken.usual || !pad || !limit || !varies) return PyErr_NoMemory();
  for (size_t i = 0; i < count; ++i) spoken.usual[i] = TILEKILN_NOTHING;
  for (Py_ssize_t at = 0; good && PyDict_Next(usual, &at, &name, &value);)
    good = kernel_value(value, &spoken.usual[field_number(name)]);
  tilekiln_terms* const terms = &spoken.terms;
  *terms =
      (tilekiln_terms){.usual = NULL, .usual_count = (uint16_t)count, .pads = pad, .limits = limit, .variable = varies};
  for (; good && terms->variable_count < PyTuple_Size(variable); ++terms->variable_count)
    varies[terms->variable_count] = (uint16_t)field_number(PyTuple_GetItem(variable, terms->variable_count));
  PyObject *size, *tile;
  for (int flag; good && terms->pad_count < PyTuple_Size(pads); ++terms->pad_count) {
    good = PyArg_ParseTuple(PyTuple_GetItem(pads, terms->pad_count), "UUUp", &name, &size, &tile, &flag);
    if (!good) break;
    pad[terms->pad_count] = (tilekiln_pad){(uint16_t)field_number(name), (uint16_t)field_number(size),
                                           (uint16_t)field_number(tile), (uint16_t)flag};
  }
  for (int flag; good && terms->limit_count < PyTuple_Size(limits); ++terms->limit_count) {
    const char* of; /* as long as the generated table, which nobody drops */
    good = PyArg_ParseTuple(PyTuple_GetItem(limits, terms->limit_count), "UUsp", &name, &size, &of, &flag);
    if (good)
      limit[terms->limit_count] =
          (tilekiln_limit){(uint16_t)field_number(name), (uint16_t)field_number(size), (uint16_t)flag, of};
  }
  const char* const own[] = {"target", "seqlen_q", "seqlen_k", "max_seqlen_q", "max_seqlen_k"};
  uint16_t* const numbers[] = {&terms->target, &terms->seqlen_q, &terms->seqlen_k, &terms->max_seqlen_q,
                               &terms->max_seqlen_k};
  for (int i = 0; good && i < 5; ++i) {
    PyObject* text = PyUnicode_FromString(own[i]);
    *numbers[i] = text ? (uint16_t)field_number(text) : 0;
    Py_XDECREF(text);
  }
  if (PyErr_Occurred()) return NULL;
  terms->usual = spoken.usual; /* from now on all is told */
  Py_INCREF(limits);
  Py_RETURN_NONE;
}

typedef struct {
  PyObject ob_base;
  tilekiln_chooser all;
} Chooser;

/* Chooser(kernels) */
static PyObject* chooser_new_locked(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  (void)keywords;
  PyObject* kernels;
  if (!is_told() || !PyArg_ParseTuple(arguments, "O!:Chooser", &PyList_Type, &kernels)) return NULL;
  allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  Chooser* self = (Chooser*)allocate(type, 0);
  if (!self) return NULL;
  self->all.terms = spoken.terms;
  for (Py_ssize_t i = 0; i < PyList_Size(kernels) && !PyErr_Occurred(); ++i) {
    tilekiln_kernel kernel;
    void* const memory = kernel_from(PyList_GetItem(kernels, i), &kernel);
    if (memory && !tilekiln_chooser_add(&self->all, &kernel)) PyErr_NoMemory();
    PyMem_Free(memory);
  }
  if (!PyErr_Occurred() && !tilekiln_chooser_finish(&self->all, (int32_t)PyList_Size(spoken.field_names)))
    PyErr_NoMemory();
  if (!PyErr_Occurred()) return (PyObject*)self;
  Py_DECREF(self);
  return NULL;
}

static void chooser_dealloc(Chooser* self) {
  PyTypeObject* type = Py_TYPE(self);
  tilekiln_chooser_clear(&self->all);
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(self);
  Py_DECREF(type);
}

static int chooser_asks(void* context, int32_t kernel) {
  PyObject* answer = PyObject_CallFunction((PyObject*)context, "i", (int)kernel);
  const int truth = answer ? PyObject_IsTrue(answer) : -1;
  Py_XDECREF(answer);
  return truth < 0 ? -2 : truth;
}

/* choose(values, forgiven, origin, asks) */
static PyObject* chooser_choose_locked(Chooser* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 4 || !PyDict_Check(arguments[0]))
    return PyErr_Format(PyExc_TypeError, "choose: takes values, forgiven, origin and asks");
  int64_t origin = TILEKILN_NOTHING;
  if (arguments[2] != Py_None && word_told(arguments[2], &origin) == 0) origin = TILEKILN_NO; /* of no kernel */
  PyObject* forgiven = PySet_Size(arguments[1]) > 0 ? arguments[1] : NULL;
  Asked asked;
  void* const memory = PyErr_Occurred() ? NULL : asked_from(arguments[0], forgiven, &asked);
  if (!memory) return NULL;
  const int32_t found = tilekiln_chooser_choose(&self->all, &asked.all, origin, chooser_asks, arguments[3]);
  PyMem_Free(memory);
  return found < -1 ? NULL : PyLong_FromLong(found);
}

/* mismatch(kernel, values, needs) */
static PyObject* chooser_mismatch_locked(PyObject* unused, PyObject* arguments) {
  (void)unused;
  PyObject *tuple, *values, *made = NULL;
  const char* needs;
  if (!PyArg_ParseTuple(arguments, "O!O!s:mismatch", &PyTuple_Type, &tuple, &PyDict_Type, &values, &needs)) return NULL;
  tilekiln_kernel kernel;
  Asked asked;
  void* const of = kernel_from(tuple, &kernel);
  void* const memory = of ? asked_from(values, NULL, &asked) : NULL;
  if (memory) {
    const tilekiln_names names = {asked_field, asked_word, &asked};
    const tilekiln_mismatch why = tilekiln_mismatch_of(&spoken.terms, &kernel, &asked.all, &names);
    const int length = tilekiln_mismatch_text(&why, &names, needs, NULL, 0);
    char* const text = PyMem_Malloc((size_t)length + 1);
    if (text) tilekiln_mismatch_text(&why, &names, needs, text, (size_t)length + 1);
    made = !text ? PyErr_NoMemory() : PyErr_Occurred() ? NULL : PyUnicode_FromStringAndSize(text, length);
    PyMem_Free(text);
  }
  PyMem_Free(memory);
  PyMem_Free(of);
  return made;
}

/* differences(kernel, values) */
static PyObject* chooser_differences_locked(PyObject* unused, PyObject* arguments) {
  (void)unused;
  PyObject *tuple, *values;
  if (!PyArg_ParseTuple(arguments, "O!O!:differences", &PyTuple_Type, &tuple, &PyDict_Type, &values)) return NULL;
  tilekiln_kernel kernel;
  Asked asked;
  void* const of = kernel_from(tuple, &kernel);
  void* const memory = of ? asked_from(values, NULL, &asked) : NULL;
  PyObject* made = memory ? PyLong_FromLong(tilekiln_differences(&spoken.terms, &kernel, &asked.all)) : NULL;
  PyMem_Free(memory);
  PyMem_Free(of);
  return made;
}

/* rule_holds(clauses, values) */
static PyObject* chooser_rule_holds_locked(PyObject* unused, PyObject* arguments) {
  (void)unused;
  PyObject *clauses, *values;
  if (!is_told() || !PyArg_ParseTuple(arguments, "O!O!:rule_holds", &PyList_Type, &clauses, &PyDict_Type, &values))
    return NULL;
  const Py_ssize_t capacity = conditions_of(clauses);
  tilekiln_condition* const rule = PyErr_Occurred() ? NULL : PyMem_Malloc((size_t)(capacity + 1) * sizeof(*rule));
  const int32_t count = rule ? conditions_from(clauses, rule, capacity) : -1;
  Asked asked;
  void* const memory = count >= 0 ? asked_from(values, NULL, &asked) : NULL;
  PyObject* made = memory ? PyBool_FromLong(tilekiln_rule_holds(rule, count, &asked.all)) : NULL;
  PyMem_Free(memory);
  PyMem_Free(rule);
  return made ? made : PyErr_Occurred() ? NULL : PyErr_NoMemory();
}

/* ---- the same with the lock of what is spoken --------------------------------------------------------------------- */

#define LOCKED(name, parameters, ...)  \
  static PyObject* name parameters {   \
    PyObject* made;                    \
    BEGIN_LOCKED(spoken.lock)          \
    made = name##_locked(__VA_ARGS__); \
    END_LOCKED                         \
    return made;                       \
  }
LOCKED(chooser_terms, (PyObject * module, PyObject* arguments), module, arguments)
LOCKED(chooser_mismatch, (PyObject * module, PyObject* arguments), module, arguments)
LOCKED(chooser_differences, (PyObject * module, PyObject* arguments), module, arguments)
LOCKED(chooser_rule_holds, (PyObject * module, PyObject* arguments), module, arguments)
LOCKED(chooser_new, (PyTypeObject * type, PyObject* arguments, PyObject* keywords), type, arguments, keywords)
LOCKED(chooser_choose, (Chooser * self, PyObject* const* arguments, Py_ssize_t count), self, arguments, count)
#undef LOCKED

static PyMethodDef chooser_methods[] = {{"choose", (PyCFunction)(void (*)(void))chooser_choose, METH_FASTCALL,
                                         "choose(values, forgiven, origin, asks)\n--\n\nThe number of the best kernel "
                                         "that answers a problem; -1 where none "
                                         "does.\n\nforgiven: a set of features that it need not know. origin: of the "
                                         "kernel; None: any. asks(number): whether "
                                         "a kernel with `asks` answers."},
                                        {NULL, NULL, 0, NULL}};
static PyType_Slot chooser_slots[] = {
    {Py_tp_doc, "Chooser(kernels)\n--\n\nThe choice among kernels, in the order by which ties are broken."},
    {Py_tp_new, chooser_new},
    {Py_tp_dealloc, chooser_dealloc},
    {Py_tp_methods, chooser_methods},
    {0, NULL}};
static PyType_Spec chooser_spec = {"tilekiln._binding.Chooser", sizeof(Chooser), 0, Py_TPFLAGS_DEFAULT, chooser_slots};

#endif
