/* SPDX-License-Identifier: MIT */
/* tilekiln._binding: the one place where Python meets the C ABI. It knows no receipt, no axis and no operator: a library says what its
 * operators take (tilekiln/operator.h), reader.h reads it. The library checks the values; only what C cannot see is checked here. */
#include "arrays.h"
#include "backward_workspace.h"
#include "chooser.h"
#include "export.h"
#include "functions.h"
#include "launcher.h"
#include "library.h"
#include "openmp.h"
#include "scalars.h"
#include "stream.h"

#include <stddef.h>
#include <structmember.h>

/* A library and a function for all that its operators can do. */
static PyObject* library_make(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  PyObject* self = library_new(type, arguments, keywords);
  if (self && add_operators((Library*)self) < 0) Py_CLEAR(self);
  return self;
}

/* ---- the module ----------------------------------------------------------------------------------------------------- */

#define METHOD(name, function, flags, text) {name, (PyCFunction)(void (*)(void))function, flags, text}
static PyMethodDef library_methods[] = {
    METHOD("bwd_workspace_plan", library_workspace_plan, METH_VARARGS | METH_KEYWORDS,
           "The C ABI's tilekiln_bwd_workspace_plan; tilekiln.plan_backward_workspace is for people."),
    METHOD("manifest_text", library_manifest_text, METH_NOARGS,
           "manifest_text()\n--\n\nThe manifest inside the library: JSON."),
    METHOD("instance_name", library_instance_name, METH_O,
           "instance_name(instance)\n--\n\nThe canonical name of an instance of the plan."),
    METHOD("take_tuned", library_take_tuned, METH_O,
           "take_tuned(choices)\n--\n\nWhat calls take from now on: (call, instance, num_splits, num_threads) each; "
           "Library.tune has "
           "the words for it."),
    METHOD("instance_usable", library_instance_usable, METH_O,
           "instance_usable(instance)\n--\n\nTrue when this machine can run the instance and TILEKILN_ISA allows it."),
    {NULL, NULL, 0, NULL}};
static PyGetSetDef library_properties[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {"path", (getter)library_path, NULL, "Where the library was loaded from.", NULL},
    {"version", (getter)library_version, NULL, "The Tilekiln version it was built from.", NULL},
    {"receipt", (getter)library_receipt, NULL, "The name of its receipt.", NULL},
    {"isa", (getter)library_isa, NULL,
     "The best ISA in use, such as 'avx512bf16'; '' when it holds none that this machine has.", NULL},
    {"unusable", (getter)library_unusable, NULL,
     "Why isa is '': what TILEKILN_ISA must be, or what this machine has not; '' when it can be used.", NULL},
    {"refused", (getter)library_refused, NULL,
     "The ISA that the system refuses to this process, which it asks now, and why, as 'amx: ...'; '' when there is "
     "none.",
     NULL},
    {"bf16_arithmetic", (getter)library_bf16_arithmetic, NULL,
     "How bf16 is multiplied in this process, as a sentence: in pairs, or as fp32; '' where there is one way alone.",
     NULL},
    {"num_threads", (getter)library_num_threads, NULL, "The number of threads a call uses unless told otherwise.",
     NULL},
    {"instance_count", (getter)library_instance_count, NULL, "The number of instances.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyMemberDef library_members[] = {{"__dictoffset__", T_PYSSIZET, offsetof(Library, dict), READONLY, NULL},
                                        {NULL, 0, 0, 0, NULL}};
static PyType_Slot library_slots[] = {
    {Py_tp_doc, "The C ABI of one library: a function for all that its operators can do."},
    {Py_tp_new, library_make},
    {Py_tp_dealloc, library_dealloc},
    {Py_tp_traverse, library_traverse},
    {Py_tp_clear, library_clear},
    {Py_tp_getattro, library_attribute},
    {Py_tp_methods, library_methods},
    {Py_tp_getset, library_properties},
    {Py_tp_members, library_members},
    {0, NULL}};
static PyType_Spec library_spec = {"tilekiln._binding.Library", sizeof(Library), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, library_slots};

static PyMethodDef module_methods[] = {
    METHOD("export", export_array, METH_FASTCALL,
           "export(array, versioned)\n--\n\nA DLPack capsule of a NumPy array, of any dtype that kernels use."),
    METHOD("described", export_described, METH_VARARGS,
           "described(shape, code, bits, device_type, device_id)\n--\n\nA DLPack capsule of a dense array that is "
           "nowhere, "
           "for questions about a call."),
    METHOD(
        "terms", chooser_terms, METH_VARARGS,
        "terms(unasked, usual, variable, pads, limits)\n--\n\nThe tables of kernels/dispatcher.yaml, told once, before "
        "all else of the dispatcher."),
    METHOD(
        "mismatch", chooser_mismatch, METH_VARARGS,
        "mismatch(kernel, values, needs)\n--\n\nThe first reason why a kernel does not answer a problem; '' where it "
        "does (tilekiln/choice/mismatch.h)."),
    METHOD(
        "differences", chooser_differences, METH_VARARGS,
        "differences(kernel, values)\n--\n\nIn how many fields of its signature a kernel does not answer a problem."),
    METHOD("rule_holds", chooser_rule_holds, METH_VARARGS,
           "rule_holds(clauses, values)\n--\n\nWhether the sizes of a problem meet a rule."),
    METHOD("key_digits", key_digits, METH_O,
           "key_digits(text)\n--\n\nThe digits in the id of a dispatcher's key (tilekiln/choice/key_hash.h)."),
    METHOD("processor", processor, METH_O,
           "processor(path)\n--\n\nThe kind of processor that a file in the form of /proc/cpuinfo is of."),
    METHOD("machine_key", machine_key, METH_NOARGS,
           "machine_key()\n--\n\nThis machine as tables of measured choices name it (tilekiln/machine.h)."),
    METHOD("openmp_sleep_soon", openmp_sleep_soon, METH_NOARGS,
           "openmp_sleep_soon()\n--\n\nLets PyTorch's OpenMP threads wait for microseconds only, unless somebody says "
           "how long they do (TILEKILN_TORCH_WAIT)."),
    {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                        "_binding",
                                        "The C ABI of Tilekiln libraries for Python.",
                                        -1,
                                        module_methods,
                                        NULL,
                                        NULL,
                                        NULL,
                                        NULL};

static PyMethodDef drain_at_exit = {"drain", streams_drain, METH_NOARGS, "Wait for every stream."};

/* Streams end before the interpreter does. */
static int register_exit(void) {
  PyObject* atexit = PyImport_ImportModule("atexit");
  PyObject* drain = atexit ? PyCFunction_New(&drain_at_exit, NULL) : NULL;
  PyObject* registered = drain ? PyObject_CallMethod(atexit, "register", "O", drain) : NULL;
  const int full = registered && Py_AtExit(streams_wait) < 0;
  if (full) PyErr_SetString(PyExc_RuntimeError, "Python takes no exit function more (Py_AtExit), and streams need one");
  const int good = registered && !full;
  Py_XDECREF(registered);
  Py_XDECREF(drain);
  Py_XDECREF(atexit);
  return good ? 0 : -1;
}

PyMODINIT_FUNC PyInit__binding(void) {
  import_array();
  PyObject* module = PyModule_Create(&definition);
  if (!module) return NULL;
#ifdef Py_GIL_DISABLED
  PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
  pthread_atfork(share, shared_end, shared_end); /* else another thread's lock would be locked in a child for ever */
  exchange_name = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
  spoken.lock = lock_new();
  StreamType = (PyTypeObject*)PyType_FromSpec(&stream_spec);
  LibraryType = (PyTypeObject*)PyType_FromSpec(&library_spec);
  PyObject* launcher_type = PyType_FromSpec(&launcher_spec);
  OperatorType = (PyTypeObject*)PyType_FromSpec(&operator_spec);
  PyObject* chooser_type = PyType_FromSpec(&chooser_spec);
  facade = PyImport_ImportModule("tilekiln._core.frameworks");
  const int good = refusal_types() == 0 && exchange_name && spoken.lock && StreamType && LibraryType && OperatorType &&
                   launcher_type && chooser_type && facade &&
                   PyModule_AddObjectRef(module, "ArgumentError", ArgumentError) == 0 &&
                   PyModule_AddObjectRef(module, "NoKernelError", NoKernelError) == 0 &&
                   PyModule_AddObjectRef(module, "Refusal", (PyObject*)RefusalType) == 0 &&
                   PyModule_AddObjectRef(module, "Stream", (PyObject*)StreamType) == 0 &&
                   PyModule_AddObjectRef(module, "Library", (PyObject*)LibraryType) == 0 &&
                   PyModule_AddObjectRef(module, "BackwardLauncher", launcher_type) == 0 &&
                   PyModule_AddObjectRef(module, "Chooser", chooser_type) == 0 &&
                   PyModule_AddIntConstant(module, "ABI_VERSION", TILEKILN_ABI_VERSION) == 0 &&
                   PyModule_AddStringConstant(module, "__version__", TILEKILN_VERSION) == 0 && register_exit() == 0;
  Py_XDECREF(launcher_type);
  Py_XDECREF(chooser_type);
  if (good) return module;
  Py_DECREF(module);
  return NULL;
}
