// SPDX-License-Identifier: MIT
/* Kernels of PyTorch's dispatcher over libraries of Tilekiln, without Python: operators `tilekiln_native::*`, and for attention that
 * autograd records the pair of operators that PyTorch has for backends to override.
 *
 * They do what is plain: tensors of the CPU, attention's of CUDA devices too, that nothing wraps and, but for attention, autograd does
 * not watch; a call of a look that Python has served before. To anything else they answer undefined tensors, and what calls them then takes the way through Python, which
 * has every error's words. Whole operators, those of compiled code, ask Python themselves: it answers, or says why not. Boxed functions
 * of the stable ABI own what lies on the stack. */
#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "recorded.h"

namespace tilekiln::torch {
namespace {

enum { kTwins = 256, kOperators = 384 }; /* the rest are whole operators */
/* Those that are there are never moved or freed: calls read them while another is defined. */
std::array<std::unique_ptr<Operator>, kOperators> operators;
int twin_count, whole_count;

/* ---- what lies on the stack -------------------------------------------------------------------------------------------- */

StableIValue inside(const Argument& argument, StableIValue value) {
  return argument.optional ? *reinterpret_cast<StableIValue*>(value) : value;
}

bool is_there(const Argument& argument, StableIValue value) { return !argument.optional || value; }

__attribute__((noinline)) void drop(const Operator& operator_, StableIValue* stack) {
  for (size_t i = 0; i < operator_.arguments.size(); ++i) {
    const Argument& argument = operator_.arguments[i];
    if (!is_there(argument, stack[i])) continue;
    const StableIValue value = inside(argument, stack[i]);
    if (argument.kind == 'T' || argument.kind == 'R') shim.aoti_torch_delete_tensor_object(tensor_of(value));
    if (argument.kind == 's') shim.torch_delete_string(reinterpret_cast<StringHandle>(value));
    if (argument.optional) drop_optional(stack[i]);
  }
}

/* ---- does autograd watch? --------------------------------------------------------------------------------------------------- */

/* Would autograd record the call? */
bool is_recorded(const Operator& operator_, const StableIValue* stack) {
  if (!shim.aoti_torch_grad_mode_is_enabled()) return false;
  for (size_t i = 0; i < operator_.arguments.size(); ++i) {
    const Argument& argument = operator_.arguments[i];
    if ((argument.kind == 'T' || argument.kind == 'R') && is_there(argument, stack[i]) &&
        is_watched(tensor_of(inside(argument, stack[i]))))
      return true;
  }
  return false;
}

/* ---- a call of any operator --------------------------------------------------------------------------------------------- */

bool take(Call& call, const Argument& argument, int i, StableIValue value) {
  switch (argument.kind) {
    case 'T': return call.take(i, tensor_of(value), argument.contiguous);
    case 'R': return call.take_random(i, tensor_of(value));
    case 'f': return call.take_float(i, read<double>(value));
    case 'b': return call.take_flag(i, read<bool>(value));
    case 'i': return call.take_integer(i, argument.part, read<int64_t>(value));
    case 's': {
      const char* word = nullptr;
      return !shim.torch_string_c_str(reinterpret_cast<StringHandle>(value), &word) && call.take_word(i, word);
    }
    default: return false;
  }
}

/* Does it say what is so anyway? */
bool is_default(const Argument& argument, StableIValue value) {
  if (!argument.has_default) return false;
  if (argument.kind != 's') return value == argument.default_bits;
  const char* word = nullptr;
  return !shim.torch_string_c_str(reinterpret_cast<StringHandle>(value), &word) && argument.default_word == word;
}

/* A number that is more than none, or a flag: libraries differ in such features. */
bool is_set(const Argument& argument, StableIValue value) {
  switch (argument.kind) {
    case 'f': return read<double>(value) != 0;
    case 'b': return read<bool>(value);
    case 'i': return read<int64_t>(value) > 0;
    default: return argument.kind == 'R';
  }
}

/* The results of a plain call; false: Python does it. */
bool answer(const Operator& operator_, int number, const StableIValue* stack, StableIValue* results) {
  Look look;
  look.operator_ = number;
  tilekiln_tensor tensor;
  int array = 0;
  for (size_t i = 0; i < operator_.arguments.size(); ++i) {
    const Argument& argument = operator_.arguments[i];
    if (argument.kind != 'T') {
      if (is_there(argument, stack[i]) && is_set(argument, inside(argument, stack[i]))) look.given |= int64_t(1) << i;
      continue;
    }
    if (is_there(argument, stack[i])) {
      look.given |= int64_t(1) << i;
      const bool first = array == operator_.looks[0], other = array == operator_.looks[1];
      if (first || other) {
        if (!view(tensor_of(inside(argument, stack[i])), tensor)) return false;
        const int64_t last = tensor.ndim ? tensor.shape[tensor.ndim - 1] : 0;
        if (first) look.dtype = tensor.dtype, look.ndim = tensor.ndim, look.last = last;
        if (other) look.other_last = last;
      }
    }
    ++array;
  }
  const Entry* const entry = served.find(look);
  if (!entry) {
    missed = look;
    return false;
  }
  const Bound& bound = entry->bound;
  Call call(bound);
  for (size_t i = 0; i < operator_.arguments.size(); ++i) {
    const Argument& argument = operator_.arguments[i];
    if (!is_there(argument, stack[i])) continue;
    const StableIValue value = inside(argument, stack[i]);
    if (!is_default(argument, value) && !take(call, argument, bound.arguments[i], value)) return false;
  }
  for (size_t i = 0; i < operator_.arguments.size(); ++i) /* what only Python makes */
    if (operator_.arguments[i].kind == 'b' && !operator_.arguments[i].optional && read<bool>(stack[i]))
      for (const Made& one : operator_.results)
        if (one.name.empty() && one.asked_by == operator_.arguments[i].name) return false;
  if (!call.run()) return false;
  for (size_t r = 0; r < operator_.results.size(); ++r) {
    AtenTensorHandle made = bound.results[r] < 0 ? nullptr : call.release(bound.results[r]);
    if (!made) {
      tilekiln_tensor none = call.tensor[call.table->first];
      none.ndim = 1;
      none.shape[0] = 0;
      none.stride[0] = 1;
      if (operator_.results[r].absent) none.dtype = operator_.results[r].absent;
      made = make(none);
    }
    results[r] = reinterpret_cast<StableIValue>(made);
  }
  return true;
}

void leave(uint64_t count, StableIValue* stack) {
  for (uint64_t r = 0; r < count; ++r) stack[r] = undefined();
}

__attribute__((noinline)) void call(int number, StableIValue* stack, uint64_t results) {
  const Operator& operator_ = *operators[size_t(number)];
  StableIValue made[kMaxResults];
  missed = Look{};
  const bool answered = !is_recorded(operator_, stack) && answer(operator_, number, stack, made);
  drop(operator_, stack);
  if (answered)
    std::memcpy(stack, made, sizeof(made[0]) * results);
  else
    leave(results, stack);
}

template <int number>
void kernel(StableIValue* stack, uint64_t, uint64_t results) {
  call(number, stack, results);
}
template <int number>
void elsewhere(StableIValue* stack, uint64_t, uint64_t results) {
  drop(*operators[number], stack);
  missed = Look{};
  leave(results, stack);
}

/* ---- calls of compiled code: below autograd, and nothing is left to the caller ---------------------------------------------- */

/* Python's part of a whole operator: `values` are numbers' bits, words and tensors (its own from then on), null where `there` is not set;
 * results become `made`. Nonzero: it has refused (tilekiln_torch_refuse). */
using Python = int (*)(int number, const uint64_t* values, const bool* there, uint64_t* made);
Python python;

/* The text and kind of this thread's last refusal: RuntimeError, ValueError and LookupError, which PyTorch makes of these. */
enum { kRuntimeError, kValueError, kLookupError };
struct Refusal {
  int kind = kRuntimeError;
  std::string text;
};
thread_local Refusal refusal;

bool answer_in_python(const Operator& operator_, int number, const StableIValue* stack, StableIValue* results) {
  uint64_t values[kMaxArguments] = {}, made[kMaxResults] = {};
  bool there[kMaxArguments] = {};
  refusal = {kRuntimeError, "tilekiln: there is no Python to choose a kernel"};
  if (!python) return false;
  for (size_t i = 0; i < operator_.arguments.size(); ++i) {
    const Argument& argument = operator_.arguments[i];
    if (!(there[i] = is_there(argument, stack[i]))) continue;
    values[i] = inside(argument, stack[i]);
    if (argument.kind == 'T' || argument.kind == 'R') {
      AtenTensorHandle its = nullptr;
      shim.aoti_torch_new_tensor_handle(tensor_of(values[i]), &its);
      values[i] = reinterpret_cast<uint64_t>(its);
    } else if (argument.kind == 's') {
      const char* word = nullptr;
      shim.torch_string_c_str(reinterpret_cast<StringHandle>(values[i]), &word);
      values[i] = reinterpret_cast<uint64_t>(word);
    }
  }
  if (python(number, values, there, made)) return false;
  for (size_t r = 0; r < operator_.results.size(); ++r) results[r] = made[r];
  return true;
}

__attribute__((noinline)) void call_wholly(int number, StableIValue* stack, uint64_t results) {
  const Operator& operator_ = *operators[size_t(number)];
  StableIValue made[kMaxResults];
  missed = Look{};
  const bool answered = answer(operator_, number, stack, made) || answer_in_python(operator_, number, stack, made);
  drop(operator_, stack);
  if (answered) {
    std::memcpy(stack, made, sizeof(made[0]) * results);
    return;
  }
  leave(results, stack);
  if (refusal.kind == kValueError) throw std::invalid_argument(refusal.text);
  if (refusal.kind == kLookupError) throw std::out_of_range(refusal.text);
  throw std::runtime_error(refusal.text);
}

template <int number>
void whole(StableIValue* stack, uint64_t, uint64_t results) {
  call_wholly(number, stack, results);
}

struct Kernels { Boxed kernel, elsewhere; };

template <int... number>
constexpr std::array<Kernels, sizeof...(number)> all_kernels(std::integer_sequence<int, number...>) {
  return {Kernels{kernel<number>, elsewhere<number>}...};
}
constexpr std::array<Kernels, kTwins> kernels = all_kernels(std::make_integer_sequence<int, kTwins>{});

template <int... number>
constexpr std::array<Boxed, sizeof...(number)> all_whole(std::integer_sequence<int, number...>) {
  return {whole<kTwins + number>...};
}
constexpr auto whole_kernels = all_whole(std::make_integer_sequence<int, kOperators - kTwins>{});

/* ---- what Python tells ------------------------------------------------------------------------------------------------------ */

bool implement(const char* space, const char* key, const char* name, Boxed kernel) {
  TorchLibraryHandle library = nullptr; /* for the life of the process */
  return !shim.aoti_torch_library_init_impl(space, key, __FILE__, __LINE__, &library) &&
         !shim.torch_library_impl(library, name, kernel, kConventions);
}

/* Keys of the dispatcher at which something stands before kernels. Python lets AutogradCPU fall through to what is below it. */
constexpr const char* const kWatching[] = {"Python",
                                           "Functionalize",
                                           "FuncTorchDynamicLayerFrontMode",
                                           "FuncTorchBatched",
                                           "Negative",
                                           "FuncTorchDynamicLayerBackMode",
                                           "Conjugate",
                                           "ZeroTensor",
                                           "PreDispatch",
                                           "Tracer",
                                           "CompositeExplicitAutograd"};

bool implement_all(const char* name, const Kernels& kernels) {
  bool good = implement("tilekiln_native", "CPU", name, kernels.kernel) &&
              implement("tilekiln_native", "Autograd", name, kernels.elsewhere);
  for (const char* key : kWatching) good = good && implement("tilekiln_native", key, name, kernels.elsewhere);
  return good;
}

bool implement_attention(const char* key, const char* autocast) {
  constexpr const char* const recorded = "_scaled_dot_product_fused_attention_overrideable";
  return implement("tilekiln_native", autocast, "sdpa", sdpa_elsewhere) &&
         implement("aten", key, recorded, recorded_forward<false>) &&
         implement("aten", autocast, recorded, recorded_forward<true>) &&
         implement("aten", key, "_scaled_dot_product_fused_attention_overrideable_backward", recorded_backward);
}

int32_t dtype_named(const std::string& name) {
  static const std::pair<const char*, int32_t> names[] = {
      {"fp32", TILEKILN_FP32},     {"fp16", TILEKILN_FP16},   {"bf16", TILEKILN_BF16},     {"fp8", TILEKILN_FP8},
      {"bf8", TILEKILN_BF8},       {"int8", TILEKILN_INT8},   {"int16", TILEKILN_INT16},   {"int32", TILEKILN_INT32},
      {"int64", TILEKILN_INT64},   {"uint8", TILEKILN_UINT8}, {"uint16", TILEKILN_UINT16}, {"uint32", TILEKILN_UINT32},
      {"uint64", TILEKILN_UINT64}, {"fp64", TILEKILN_FP64},   {"bool", TILEKILN_BOOL}};
  for (const auto& [one, dtype] : names)
    if (name == one) return dtype;
  return 0;
}

void* library_at(const char* path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL); }

const tilekiln_operator* table_of(void* library, const std::string& name) {
  const auto list = reinterpret_cast<decltype(&tilekiln_operators)>(dlsym(library, "tilekiln_operators"));
  int32_t count = 0;
  const tilekiln_operator* const* const tables = list ? list(&count) : nullptr;
  for (int32_t i = 0; i < count; ++i)
    if (name == tables[i]->name) return tables[i];
  return nullptr;
}

/* said: of attention, its settings. */
bool put(Served& where, const Operator& operator_, const Look& look, const char* path, const Settings* said = nullptr) {
  void* const library = library_at(path);
  const tilekiln_operator* const table = library ? table_of(library, operator_.name) : nullptr;
  auto entry = std::make_unique<Entry>();
  entry->look = look;
  entry->last_error =
      library ? reinterpret_cast<decltype(&tilekiln_last_error)>(dlsym(library, "tilekiln_last_error")) : nullptr;
  if (!table || !entry->last_error || !bind(operator_, table, entry->bound)) return false;
  entry->bound.wrap = reinterpret_cast<decltype(&tilekiln_stream_wrap)>(dlsym(library, "tilekiln_stream_wrap"));
  entry->bound.destroy =
      reinterpret_cast<decltype(&tilekiln_stream_destroy)>(dlsym(library, "tilekiln_stream_destroy"));
  for (int one = 0; one < kPlaces; ++one) entry->places[one] = index_of(*table, kPlaceNames[one]);
  if (said)
    for (const Argument& one : *said) entry->settings.emplace_back(&one, index_of(*table, one.name));
  where.put(entry.release());
  return true;
}

}  // namespace
}  // namespace tilekiln::torch

using namespace tilekiln::torch;

extern "C" {

/* The schema of tilekiln_native::sdpa, which must be defined before tilekiln_torch_start. */
__attribute__((visibility("default"))) const char* tilekiln_torch_sdpa() { return kSdpa; }

/* Null when kernels may be registered, else what is missing of PyTorch. */
__attribute__((visibility("default"))) const char* tilekiln_torch_start() {
  if (const char* missing = resolve()) return missing;
  number_dtypes();
  number_settings("slayout.0=bhsd");
  number_settings("slayout.0=bhsd,bcausal.0=1,smask_origin.0=top_left");
  bool good = implement_all("sdpa", {sdpa, sdpa_elsewhere}) && implement_attention("CPU", "AutocastCPU");
  if (good && shim.current_stream)
    good = implement("tilekiln_native", "CUDA", "sdpa", sdpa) && implement_attention("CUDA", "AutocastCUDA");
  return good ? nullptr : "a place for the kernels";
}

/* Registers tilekiln_native::<spelled>, whose schema is there, as a form of operator `name`. arguments: argument_of's, in the
 * order of the schema, with a comma between them; results: "name:dtype when absent:asked by". looks: the
 * arrays that steer the choice of a library. whole: compiled code calls it. Returns its number, or -1. */
__attribute__((visibility("default"))) int tilekiln_torch_define(const char* name, const char* spelled,
                                                                 const char* arguments, const char* results, int look,
                                                                 int other_look, int whole) {
  if (whole ? kTwins + whole_count == kOperators : twin_count == kTwins) return -1;
  auto made = std::make_unique<Operator>();
  made->name = name;
  made->looks[0] = look;
  made->looks[1] = other_look;
  for (const std::string& text : split(arguments, ',')) made->arguments.push_back(argument_of(text));
  for (const std::string& text : split(results, ',')) {
    const std::vector<std::string> parts = split(text, ':');
    made->results.push_back({parts[0], dtype_named(parts[1]), parts[2]});
  }
  if (made->arguments.size() > kMaxArguments || made->results.size() > kMaxResults) return -1;
  const int number = whole ? kTwins + whole_count++ : twin_count++;
  operators[size_t(number)] = std::move(made);
  const bool good = whole ? implement("tilekiln_native", "CPU", spelled, whole_kernels[size_t(number - kTwins)])
                          : implement_all(spelled, kernels[size_t(number)]);
  return good ? number : -1;
}

/* Gives what answers for whole operators in Python. */
__attribute__((visibility("default"))) void tilekiln_torch_ask(Python answer) { python = answer; }

/* Python's refusal of the call that it is asked: 1 ValueError, 2 LookupError, 0 any other. */
__attribute__((visibility("default"))) void tilekiln_torch_refuse(int kind, const char* text) {
  refusal = {kind, text};
}

/* From now on this thread's attention computes nothing and only says, by tilekiln_torch_missed, whether a library is known; 0: no longer. */
__attribute__((visibility("default"))) void tilekiln_torch_asks(int yes) { asks = yes; }

/* The number by which attention takes settings (number_settings), or -1. */
__attribute__((visibility("default"))) int tilekiln_torch_settings(const char* words) { return number_settings(words); }

/* The operator of the call of this thread that was last left to Python for want of a library: its number, kForward ... kTraining, or -1. */
__attribute__((visibility("default"))) int tilekiln_torch_missed() { return int(missed.operator_); }

/* Teaches that this operator of this library serves that look from now on (attention that is recorded: backward by the other). 0 when it
 * cannot. */
__attribute__((visibility("default"))) int tilekiln_torch_teach(const char* name, const char* path,
                                                                const char* backward) {
  const Look look = missed;
  missed = Look{};
  if (look.operator_ == -1) return 0;
  Operator attention;
  attention.name = name;
  if (look.operator_ >= 0) return put(served, *operators[size_t(look.operator_)], look, path);
  const Settings* const said = settings[size_t(look.given >> 1)].get();
  if (look.operator_ == kTraining) {
    Look back = look;
    back.operator_ = kBackward;
    Operator gradient;
    gradient.name = "fmha_bwd";
    if (!put(served_backward, gradient, back, backward, said)) return 0;
  }
  return put(served, attention, look, path, said);
}

/* Forgets which libraries serve which looks: Python is asked anew. */
__attribute__((visibility("default"))) void tilekiln_torch_forget() { served.forget(); }

/* Is it known whether autograd watches a tensor? */
__attribute__((visibility("default"))) int tilekiln_torch_knows_gradients() { return shim.requires_grad != nullptr; }
}
