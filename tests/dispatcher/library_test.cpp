// SPDX-License-Identifier: MIT
// The dispatcher over real libraries, flash and gemm_default: what runs through it is what the library does, to the bit. Their kernels and the
// problems of calls are held to Python's (test_dispatcher.py), whose choice is the library's own call for call (test_dispatch_libraries.py).
#include <fstream>

#include "../../examples/dispatcher/cpp/example.hpp"

namespace library_test {

example::Array array(int32_t dtype, const std::vector<int64_t>& shape) {
  static unsigned seed = 0;
  return example::Array(shape, ++seed, dtype);
}

// The problems of some calls, a line each.
void problems_of_calls(const Dispatcher& dispatcher, const Dispatcher& products, const char* path) {
  const example::Array q = array(TILEKILN_BF16, {1, 9, 4, 60}), k = array(TILEKILN_BF16, {1, 90, 2, 60}),
                       v = array(TILEKILN_BF16, {1, 90, 2, 40}), out = array(TILEKILN_BF16, {1, 9, 4, 40}),
                       lse = array(TILEKILN_FP32, {1, 4, 9}), slopes = array(TILEKILN_FP32, {4}),
                       a = array(TILEKILN_FP32, {5, 7}), b = array(TILEKILN_FP32, {7, 9}),
                       made = array(TILEKILN_FP32, {5, 9}), bias = array(TILEKILN_FP32, {9}),
                       lengths = example::Array::indices({80});
  const auto fill = [&](auto args) {
    args.q = q.tensor(), args.k = k.tensor(), args.v = v.tensor(), args.out = out.tensor(), args.lse = lse.tensor();
    args.causal = 1, args.alibi_slopes = slopes.tensor(), args.softcap = 3;
    return args;
  };
  tilekiln_fmha_fwd_args forward = fill(tilekiln_fmha_fwd_defaults());
  forward.dropout_p = 0.5f;
  const tilekiln_fmha_fwd_splitkv_args split = fill(tilekiln_fmha_fwd_splitkv_defaults());
  tilekiln_fmha_bwd_args backward = fill(tilekiln_fmha_bwd_defaults());
  const example::Array dout = array(TILEKILN_BF16, {1, 9, 4, 40}), dq = array(TILEKILN_BF16, {1, 9, 4, 60}),
                       dk = array(TILEKILN_BF16, {1, 90, 2, 60}), dv = array(TILEKILN_BF16, {1, 90, 2, 40});
  backward.dout = dout.tensor(), backward.dq = dq.tensor(), backward.dk = dk.tensor(), backward.dv = dv.tensor();
  backward.deterministic = 1;
  tilekiln_fmha_fwd_appendkv_args append = tilekiln_fmha_fwd_appendkv_defaults();
  const example::Array knew = array(TILEKILN_BF16, {1, 9, 2, 60}), vnew = array(TILEKILN_BF16, {1, 9, 2, 40});
  append.k = k.tensor(), append.v = v.tensor(), append.knew = knew.tensor(), append.vnew = vnew.tensor();
  append.seqlen_k = lengths.tensor();
  tilekiln_fmha_fwd_appendkv_args attend = append;
  attend.q = q.tensor(), attend.out = out.tensor(), attend.causal = 1;
  tilekiln_gemm_args product = tilekiln_gemm_defaults();
  product.a = a.tensor(), product.b = b.tensor(), product.out = made.tensor(), product.bias = bias.tensor();
  product.activation = 1;
  std::ofstream to(path);
  for (const Call& call :
       {Call("fmha_fwd", forward), Call("fmha_fwd_splitkv", split), Call("fmha_bwd", backward),
        Call("fmha_fwd_appendkv", append), Call("fmha_fwd_appendkv", attend), Call("gemm", product)}) {
    const Dispatcher& of = call.operator_name() == "gemm" ? products : dispatcher;
    to << of.from_call(call).to_string() << "\n" << of.plan(of.from_call(call)).is_valid() << "\n";
  }
}

void the_same_bits(Dispatcher& dispatcher, const Library& library) {
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
  const Registry::Pointer chosen = dispatcher.select(problem);
  CHECK_HOLDS(library.why(call).c_str(), chosen->name().c_str());
  CHECK(library.find(call) == std::vector<int64_t>{static_cast<const LibraryInstance&>(*chosen).number()});
  const example::Array wrong = array(TILEKILN_BF16, {1, 70, 4, 61});
  args.q = wrong.tensor();
  CHECK_HOLDS(thrown<CallError>([&] { dispatcher.run(Call("fmha_fwd", args)); }).c_str(), "k: hdim was 60, must be 61");
  CHECK_HOLDS(thrown<std::invalid_argument>([&] { library.run(Call("fmha_fwt", args), -1); }).c_str(),
              "did you mean 'fmha_fwd'?");
  CHECK_HOLDS(thrown<FileError>([] { Library::open("/no/such/lib.so"); }).c_str(), "/no/such/lib.so:1: ");
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

int run(char** paths) {
  const Library::Pointer flash = Library::open(paths[1]), gemm = Library::open(paths[2]);
  Registry attention("attention"), matrix("products");
  Dispatcher dispatcher(attention), other(matrix);
  dispatcher.add_library(flash);
  other.add_library(gemm);
  problems_of_calls(dispatcher, other, paths[5]);
  the_same_bits(dispatcher, *flash);
  there_and_back(attention, flash);
  attention.to_file(paths[3]);
  matrix.to_file(paths[4]);
  return check_result();
}
}  // namespace library_test
