// SPDX-License-Identifier: MIT
/* The functions of an operator over a call that reader.h has read: run it, answer a question about it, or have PyTorch record it. */
#ifndef TILEKILN_BINDING_OPERATOR_CALLS_H
#define TILEKILN_BINDING_OPERATOR_CALLS_H

#include "reader.h"

static PyObject* call_find(OperatorCall* call) {
  const tilekiln_operator* table = call->operator_->table;
  int64_t instances[TILEKILN_MAX_STAGES];
  const tilekiln_status status = table->find(call->args, instances);
  return status == TILEKILN_OK ? stage_numbers(instances, table->stage_count)
                               : library_error(call->operator_->library, status);
}

/* Text about a call, as the operator's `why` or the library's `describe` writes it. */
static tilekiln_status write_text(OperatorCall* call, char* text, size_t capacity, size_t* length) {
  const Operator* self = call->operator_;
  if (self->doing == DO_WHY) return self->table->why(call->args, text, capacity, length);
  return self->library->describe(self->table->name, call->args, text, capacity, length);
}

static PyObject* call_text(OperatorCall* call) {
  size_t length = 0;
  PyObject* result = NULL;
  tilekiln_status status = write_text(call, NULL, 0, &length);
  char* text = status == TILEKILN_OK ? PyMem_Malloc(length + 1) : NULL;
  if (text) status = write_text(call, text, length + 1, &length);
  if (status != TILEKILN_OK)
    library_error(call->operator_->library, status);
  else
    result = text ? PyUnicode_DecodeUTF8(text, (Py_ssize_t)length, "strict") : PyErr_NoMemory();
  PyMem_Free(text);
  return result;
}

static PyObject* call_number(OperatorCall* call) {
  const Operator* self = call->operator_;
  uint64_t number = 0;
  const tilekiln_status status = self->table->numbers[self->number].ask(call->args, &number);
  return status == TILEKILN_OK ? PyLong_FromUnsignedLongLong(number) : library_error(self->library, status);
}

/* Is every tensor of a placed call one whose numbers are in memory? Those of subclasses, such as fake ones, need not be. */
static int has_memory(const OperatorCall* call) {
  const tilekiln_operator* table = call->operator_->table;
  for (int i = 0; i < table->array_count; ++i)
    if (call->present >> i & 1 && is_torch(call->given[i]) && Py_TYPE(call->given[i]) != torch.tensor) return 0;
  return 1;
}

/* Refuses what the call would refuse if it were not recorded. Tensors without memory, as of torch.func, are not looked at; whether
 * there is a kernel is asked of every library, later. */
static int check_recorded(OperatorCall* call) {
  const Operator* self = call->operator_;
  int64_t instances[TILEKILN_MAX_STAGES];
  uint64_t written;
  if (!has_memory(call)) return 0;
  if (read_arrays(call) < 0) {
    PyErr_Clear();
    return 0;
  }
  if (describe_results(call) < 0 || find_written(call, &written) < 0) return -1;
  if (self->table->find(call->args, instances) != TILEKILN_INVALID_ARGUMENT) return 0;
  library_error(self->library, TILEKILN_INVALID_ARGUMENT);
  return -1;
}

/* An instance by its name, since numbers are of one library; without one the argument is left out. */
static int name_instance(const OperatorCall* call, PyObject* keywords) {
  const tilekiln_operator* table = call->operator_->table;
  for (int i = table->array_count; i < table->argument_count; ++i) {
    if (table->arguments[i].kind != TILEKILN_INSTANCE || !(call->present >> i & 1)) continue;
    const Library* const library = call->operator_->library;
    const int64_t number = *(const int64_t*)(call->args + table->arguments[i].offset);
    if (number < 0) return PyDict_DelItemString(keywords, table->arguments[i].name);
    const char* const text = library->instance_name(number);
    if (!text)
      return refuse("instance", "was %lld, must be from 0 to %lld, or -1 (the dispatcher chooses)", (long long)number,
                    (long long)library->instance_count() - 1);
    PyObject* name = PyUnicode_FromString(text);
    const int bad = !name || PyDict_SetItemString(keywords, table->arguments[i].name, name) < 0;
    Py_XDECREF(name);
    return bad ? -1 : 0;
  }
  return 0;
}

/* The call as PyTorch's operator, which traces, dispatch modes and fake tensors see. */
__attribute__((noinline, cold)) static PyObject* run_recorded(const Operator* self, PyObject* const* values,
                                                              Py_ssize_t positional, PyObject* names) {
  const int by_position = self->table->positional;
  OperatorCall call;
  PyObject *arrays = PyTuple_New(by_position), *keywords = PyDict_New(), *result = NULL;
  int bad = call_place(self, &call, values, positional, names) < 0 || !arrays || !keywords || check_recorded(&call) < 0;
  for (int i = 0; !bad && i < by_position; ++i)
    PyTuple_SetItem(arrays, i, Py_NewRef(call.present >> i & 1 ? call.given[i] : Py_None));
  for (Py_ssize_t i = 0; !bad && names && i < PyTuple_Size(names); ++i) {
    PyObject* const name = PyTuple_GetItem(names, i);
    int array = 0;
    for (int j = 0; j < by_position; ++j)
      array |= PyUnicode_CompareWithASCIIString(name, self->table->arguments[j].name) == 0;
    if (!array) bad = PyDict_SetItem(keywords, name, values[positional + i]) < 0;
  }
  if (!bad && name_instance(&call, keywords) == 0)
    result = PyObject_CallMethod(facade, "recorded", "sOO", self->name, arrays, keywords);
  call_end(&call);
  Py_XDECREF(arrays);
  Py_XDECREF(keywords);
  return result;
}

static PyObject* operator_run(Operator* self, PyObject* const* values, Py_ssize_t positional, PyObject* names) {
  const Py_ssize_t count = positional + (names ? PyTuple_Size(names) : 0);
  const int recorded = torch_records(values, positional, count);
  if (recorded) return recorded < 0 ? NULL : run_recorded(self, values, positional, names);
  OperatorCall call;
  PyObject* result = call_begin(self, &call, values, positional, names) == 0 ? call_run(&call, NULL, NULL) : NULL;
  call_end(&call);
  if (!result && torch_transforms(values, count)) return run_recorded(self, values, positional, names);
  return result;
}

static PyObject* operator_ask(Operator* self, PyObject* const* values, Py_ssize_t positional, PyObject* names) {
  OperatorCall call;
  PyObject* result = NULL;
  if (call_begin(self, &call, values, positional, names) == 0)
    result = self->doing == DO_FIND     ? call_find(&call)
             : self->doing == DO_NUMBER ? call_number(&call)
                                        : call_text(&call);
  call_end(&call);
  return result;
}

#endif
