// The dispatcher over real libraries, flash and gemm_default: what it chooses is what the library itself does, call for call, and what runs
// through it is the same to the bit.
#include "../../examples/dispatcher/cpp/example.hpp"
#include "made.h"

using namespace made;

namespace {

// An array of numbers between -1 and 1 (of another size, where they are read as fp16).
example::Array array(int32_t dtype, const std::vector<int64_t>& shape) {
  static unsigned seed = 0;
  return example::Array(shape, ++seed, dtype);
}

int found = 0, missing = 0;

// The instance of split-KV that answers a call of few queries (`instead` of fmha_fwd's declaration), which a dispatcher is asked for by its
// own name; -1 where the forward's answers.
int64_t instead(const Library& library, const Call& call) {
  if (call.operator_name() != "fmha_fwd") return -1;
  const auto& args = call.as<tilekiln_fmha_fwd_args>("fmha_fwd");
  if (args.q->shape[1] > 4 || args.dropout_p > 0) return -1;
  tilekiln_fmha_fwd_splitkv_args split = tilekiln_fmha_fwd_splitkv_defaults();
  split.q = args.q, split.k = args.k, split.v = args.v, split.out = args.out, split.lse = args.lse;
  split.alibi_slopes = args.alibi_slopes, split.softcap = args.softcap, split.causal = args.causal;
  std::vector<int64_t> instances;
  const std::string none = thrown<NoKernelFound>([&] { instances = library.find(Call("fmha_fwd_splitkv", split)); });
  return none.empty() ? instances[0] : -1;
}

int few = 0;

// The library's choice for a call and the dispatcher's.
void agree(const Dispatcher& dispatcher, const Library& library, const Call& call) {
  std::vector<int64_t> instances;
  const std::string none = thrown<NoKernelFound>([&] { instances = library.find(call); });
  const Problem problem = dispatcher.from_call(call);
  const Plan plan = dispatcher.plan(problem);
  CHECK(plan.is_valid() == none.empty());
  if (!none.empty() || !plan.is_valid()) {
    if (plan.is_valid() != none.empty())
      std::fprintf(stderr, "%s\n%s\n%s\n", problem.to_string().c_str(), none.c_str(), plan.reason.c_str());
    ++missing;
    return;
  }
  ++found;
  std::set<int64_t> theirs, ours;
  for (const int64_t number : instances)
    if (number >= 0) theirs.insert(number);
  if (const int64_t other = instead(library, call); other >= 0) {
    CHECK(theirs == std::set<int64_t>{other});
    ++few;
    return;
  }
  for (const Plan::Stage& stage : plan.stages) {
    const int64_t number = static_cast<const LibraryInstance&>(*stage.instance).number();
    if (stage.family != "fmha_bwd_convert_dq" || theirs.count(number) != 0) ours.insert(number);
  }
  if (!CHECK(theirs == ours)) std::fprintf(stderr, "%s\n", problem.to_string().c_str());
}

const int32_t dtypes[] = {TILEKILN_FP16, TILEKILN_BF16, TILEKILN_FP32};

void attention_calls(const Dispatcher& dispatcher, const Library& library, std::mt19937& random) {
  const auto pick = [&](auto... values) {
    const int64_t all[] = {static_cast<int64_t>(values)...};
    return all[random() % sizeof...(values)];
  };
  for (int i = 0; i < 300; ++i) {
    const int32_t dtype = dtypes[pick(0, 1, 1)];
    const int64_t hdim_q = pick(16, 40, 64, 100, 128, 192, 256), hdim_v = pick(0, 1) ? hdim_q : pick(64, 128);
    const int64_t seqlen_q = pick(1, 8, 9, 64, 130), seqlen_k = pick(64, 200);
    const example::Array q = array(dtype, {1, seqlen_q, 4, hdim_q}), k = array(dtype, {1, seqlen_k, 2, hdim_q}),
                         v = array(dtype, {1, seqlen_k, 2, hdim_v}), out = array(dtype, {1, seqlen_q, 4, hdim_v}),
                         lse = array(TILEKILN_FP32, {1, 4, seqlen_q}), slopes = array(TILEKILN_FP32, {4});
    const auto fill = [&](auto& args) {
      args.q = q.tensor(), args.k = k.tensor(), args.v = v.tensor(), args.out = out.tensor();
      if (random() % 2) args.causal = 1;
      if (random() % 4 == 0) args.alibi_slopes = slopes.tensor();
      if (random() % 4 == 0) args.softcap = 3;
      if (random() % 2) args.lse = lse.tensor();
    };
    tilekiln_fmha_fwd_args forward = tilekiln_fmha_fwd_defaults();
    fill(forward);
    if (random() % 4 == 0) forward.dropout_p = 0.5f;
    agree(dispatcher, library, Call("fmha_fwd", forward));
    tilekiln_fmha_fwd_splitkv_args split = tilekiln_fmha_fwd_splitkv_defaults();
    fill(split);
    agree(dispatcher, library, Call("fmha_fwd_splitkv", split));
    tilekiln_fmha_bwd_args backward = tilekiln_fmha_bwd_defaults();
    fill(backward);
    backward.lse = lse.tensor();
    const example::Array dq = array(dtype, {1, seqlen_q, 4, hdim_q}), dk = array(dtype, {1, seqlen_k, 2, hdim_q}),
                         dv = array(dtype, {1, seqlen_k, 2, hdim_v}), dout = array(dtype, {1, seqlen_q, 4, hdim_v});
    backward.dout = dout.tensor(), backward.dq = dq.tensor(), backward.dk = dk.tensor(), backward.dv = dv.tensor();
    backward.deterministic = random() % 2;
    agree(dispatcher, library, Call("fmha_bwd", backward));
    // One new key into a cache, alone or with attention over it.
    const example::Array knew = array(dtype, {1, 1, 2, hdim_q}), vnew = array(dtype, {1, 1, 2, hdim_v});
    int32_t cached = static_cast<int32_t>(seqlen_k) - 1;
    tilekiln_tensor lengths = {};
    lengths.data = &cached, lengths.dtype = TILEKILN_INT32, lengths.device_type = TILEKILN_CPU;
    lengths.ndim = 1, lengths.shape[0] = lengths.stride[0] = 1;
    tilekiln_fmha_fwd_appendkv_args append = tilekiln_fmha_fwd_appendkv_defaults();
    append.k = k.tensor(), append.v = v.tensor(), append.knew = knew.tensor(), append.vnew = vnew.tensor();
    append.seqlen_k = &lengths;
    const bool attend = random() % 2;
    if (attend) append.q = q.tensor(), append.out = out.tensor(), append.causal = random() % 2;
    const Call appending("fmha_fwd_appendkv", append);
    agree(dispatcher, library, appending);
    CHECK(dispatcher.from_call(appending)["attend"].yes() == attend);
  }
  CHECK(found > 300 && missing > 50 && few > 20);
}

void the_same_bits(Dispatcher& dispatcher, const Library& library, std::mt19937& random) {
  const example::Array q = array(TILEKILN_BF16, {1, 70, 4, 60}), k = array(TILEKILN_BF16, {1, 90, 2, 60}),
                       v = array(TILEKILN_BF16, {1, 90, 2, 60}), direct = array(TILEKILN_BF16, {1, 70, 4, 60}),
                       ours = array(TILEKILN_BF16, {1, 70, 4, 60});
  tilekiln_fmha_fwd_args args = tilekiln_fmha_fwd_defaults();
  args.q = q.tensor(), args.k = k.tensor(), args.v = v.tensor(), args.out = direct.tensor(), args.causal = 1;
  library.run(Call("fmha_fwd", args), -1);
  args.out = ours.tensor();
  CHECK(direct.raw() != ours.raw());
  const Problem problem =
      ProblemBuilder().data_type("bf16").dims(60, 60, 1, 70, 90).nheads(4, 2).mask_type("bottom_right").build();
  dispatcher.timing().set(1, 3);
  const Times times = dispatcher.run(problem, Call("fmha_fwd", args));
  CHECK(times.runs == 3 && times.min > 0 && times.min <= times.median && times.median <= times.max);
  CHECK(direct.raw() == ours.raw());
  // The problem that was built is the one that the call is.
  const Call call("fmha_fwd", args);
  CHECK(dispatcher.from_call(call).canonical_key() == Problem(problem).set("mask_origin", Value()).canonical_key());
  CHECK_HOLDS(library.why(call).c_str(), dispatcher.select(problem)->name().c_str());
  const example::Array wrong = array(TILEKILN_BF16, {1, 70, 4, 61});
  args.q = wrong.tensor();
  CHECK_HOLDS(thrown<CallError>([&] { dispatcher.run(Call("fmha_fwd", args)); }).c_str(), "k: hdim was 60, must be 61");
  CHECK_HOLDS(thrown<std::invalid_argument>([&] { library.run(Call("fmha_fwt", args), -1); }).c_str(),
              "did you mean 'fmha_fwd'?");
  CHECK_HOLDS(thrown<FileError>([] { Library::open("/no/such/lib.so"); }).c_str(), "/no/such/lib.so:1: ");
}

void products(const Dispatcher& dispatcher, const Library& library, std::mt19937& random) {
  for (int i = 0; i < 60; ++i) {
    const int32_t dtype = dtypes[random() % 3], to = random() % 2 ? dtype : dtypes[random() % 3];
    const example::Array a = array(dtype, {5, 7}), b = array(dtype, {7, 9}), out = array(to, {5, 9}),
                         bias = array(to, {9});
    tilekiln_gemm_args args = tilekiln_gemm_defaults();
    args.a = a.tensor(), args.b = b.tensor(), args.out = out.tensor();
    if (random() % 2) args.bias = bias.tensor();
    args.activation = static_cast<int32_t>(random() % 7);
    const Call call("gemm", args);
    try {
      library.find(call);
    } catch (const CallError&) {
      continue;
    } catch (const NoKernelFound&) {
    }
    agree(dispatcher, library, call);
    CHECK(dispatcher.from_call(call).number("m") == 5 && dispatcher.from_call(call).number("k") == 7);
  }
}

void there_and_back(const Registry& registry, const Library::Pointer& library) {
  const std::string json = registry.to_json();
  Registry back(registry.name());
  CHECK(from_json(back, json, "kernels.json", {library}) == registry.size());
  CHECK(back.to_json() == json);
  const Problem problem = ProblemBuilder().data_type("bf16").dims(60, 60, 1, 70, 90).nheads(4, 2).build();
  const Entry* const entry = back.index()->select(problem);
  // An entry read back from JSON is linked to the library's kernel of that id: it can be launched.
  CHECK(entry != nullptr && entry->instance->launches_whole_call());
}

}  // namespace

int main(int, char** paths) {
  std::mt19937 random(1);
  const Library::Pointer flash = Library::open(paths[1]), gemm = Library::open(paths[2]);
  Registry attention("attention"), matrix("products");
  Dispatcher dispatcher(attention), other(matrix);
  dispatcher.add_library(flash);
  other.add_library(gemm);
  attention_calls(dispatcher, *flash, random);
  the_same_bits(dispatcher, *flash, random);
  products(other, *gemm, random);
  there_and_back(attention, flash);
  attention.to_file(paths[3]);  // for Python, which reads and writes the same
  return check_result();
}
