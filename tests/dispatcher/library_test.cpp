// The dispatcher over real libraries, flash and gemm_default: what it chooses is what the library itself does, call for call, and what runs
// through it is the same to the bit.
#include <cstring>
#include <deque>
#include <random>

#include "made.h"

using namespace made;

namespace {

// An array of 16-bit numbers, or fp32.
class Array {
 public:
  Array(int32_t dtype, std::vector<int64_t> shape, std::mt19937& random) {
    tensor_ = {};
    tensor_.dtype = dtype;
    tensor_.ndim = static_cast<int32_t>(shape.size());
    tensor_.device_type = TILEKILN_CPU;
    int64_t count = 1;
    for (int i = tensor_.ndim - 1; i >= 0; --i) {
      tensor_.shape[i] = shape[static_cast<size_t>(i)];
      tensor_.stride[i] = count;
      count *= tensor_.shape[i];
    }
    const size_t size = dtype == TILEKILN_FP32 ? 4 : 2;
    data_.resize(static_cast<size_t>(count) * size + 16);
    // Between 1 and 2, whatever the type.
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      const uint32_t low = random() & 0x7f;
      const uint32_t bits = dtype == TILEKILN_FP32   ? 0x3f800000 | low << 16
                            : dtype == TILEKILN_BF16 ? 0x3f80 | low
                                                     : 0x3c00 | low << 3;
      std::memcpy(data_.data() + i * size, &bits, size);
    }
    tensor_.data = data_.data();
  }
  const tilekiln_tensor* tensor() const { return &tensor_; }
  const std::vector<unsigned char>& data() const { return data_; }

 private:
  tilekiln_tensor tensor_;
  std::vector<unsigned char> data_;
};

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
    const Array q(dtype, {1, seqlen_q, 4, hdim_q}, random), k(dtype, {1, seqlen_k, 2, hdim_q}, random),
        v(dtype, {1, seqlen_k, 2, hdim_v}, random), out(dtype, {1, seqlen_q, 4, hdim_v}, random),
        lse(TILEKILN_FP32, {1, 4, seqlen_q}, random), slopes(TILEKILN_FP32, {4}, random);
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
    const Array dq(dtype, {1, seqlen_q, 4, hdim_q}, random), dk(dtype, {1, seqlen_k, 2, hdim_q}, random),
        dv(dtype, {1, seqlen_k, 2, hdim_v}, random), dout(dtype, {1, seqlen_q, 4, hdim_v}, random);
    backward.dout = dout.tensor(), backward.dq = dq.tensor(), backward.dk = dk.tensor(), backward.dv = dv.tensor();
    backward.deterministic = random() % 2;
    agree(dispatcher, library, Call("fmha_bwd", backward));
    // One new key into a cache, alone or with attention over it.
    const Array knew(dtype, {1, 1, 2, hdim_q}, random), vnew(dtype, {1, 1, 2, hdim_v}, random);
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
  const Array q(TILEKILN_BF16, {1, 70, 4, 60}, random), k(TILEKILN_BF16, {1, 90, 2, 60}, random),
      v(TILEKILN_BF16, {1, 90, 2, 60}, random), direct(TILEKILN_BF16, {1, 70, 4, 60}, random),
      ours(TILEKILN_BF16, {1, 70, 4, 60}, random);
  tilekiln_fmha_fwd_args args = tilekiln_fmha_fwd_defaults();
  args.q = q.tensor(), args.k = k.tensor(), args.v = v.tensor(), args.out = direct.tensor(), args.causal = 1;
  library.run(Call("fmha_fwd", args), -1);
  args.out = ours.tensor();
  CHECK(direct.data() != ours.data());
  const Problem problem =
      ProblemBuilder().data_type("bf16").dims(60, 60, 1, 70, 90).nheads(4, 2).mask_type("bottom_right").build();
  dispatcher.timing().set(1, 3);
  const Times times = dispatcher.run(problem, Call("fmha_fwd", args));
  CHECK(times.runs == 3 && times.min > 0 && times.min <= times.median && times.median <= times.max);
  CHECK(direct.data() == ours.data());
  // The problem that was built is the one that the call is.
  const Call call("fmha_fwd", args);
  CHECK(dispatcher.from_call(call).canonical_key() == Problem(problem).set("mask_origin", Value()).canonical_key());
  CHECK_HOLDS(library.why(call).c_str(), dispatcher.select(problem)->name().c_str());
  const Array wrong(TILEKILN_BF16, {1, 70, 4, 61}, random);
  args.q = wrong.tensor();
  CHECK_HOLDS(thrown<CallError>([&] { dispatcher.run(Call("fmha_fwd", args)); }).c_str(), "k: hdim was 60, must be 61");
  CHECK_HOLDS(thrown<std::invalid_argument>([&] { library.run(Call("fmha_fwt", args), -1); }).c_str(),
              "did you mean 'fmha_fwd'?");
  CHECK_HOLDS(thrown<FileError>([] { Library::open("/no/such/lib.so"); }).c_str(), "/no/such/lib.so:1: ");
}

void products(const Dispatcher& dispatcher, const Library& library, std::mt19937& random) {
  for (int i = 0; i < 60; ++i) {
    const int32_t dtype = dtypes[random() % 3], to = random() % 2 ? dtype : dtypes[random() % 3];
    const Array a(dtype, {5, 7}, random), b(dtype, {7, 9}, random), out(to, {5, 9}, random), bias(to, {9}, random);
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
