// SPDX-License-Identifier: MIT
// Arguments of sample as the plain data of its engines.
#include "kernels/norm/host.h"
#include "kernels/generated/operators/sample_entries.h"

namespace tilekiln::op::sample {

namespace {
template <class To, class All> To of_rows(const Array& of, All all) {
  To to = {nullptr, all};
  norm::put(of, to.rows);
  return to;
}
norm::RealOfRows reals(const Array& of, float all) { return of_rows<norm::RealOfRows>(of, all); }
norm::WordOfRows words(const Array& of, uint64_t all) { return of_rows<norm::WordOfRows>(of, all); }
norm::TokensOfRows tokens(const Array& of) {
  if (!of.given()) return {};
  return {of.data, of.stride[0], of.shape[1], static_cast<int>(dtype_bytes(of.dtype))};
}
}  // namespace

// Parameters of rows, where the host may read them now.
tilekiln_status parameters(const Args& args, Call& call) {
  const Arrays& in = call.in;
  if (args.stream != nullptr || !call.to.backend->host_memory) return TILEKILN_OK;
  const auto check = [&](const Array& of, auto&& may_be, const char* must) -> tilekiln_status {
    for (int64_t i = 0; of.given() && i < call.M; ++i) {
      const float value = reinterpret_cast<const float*>(of.data)[i * of.stride[0]];
      if (!(may_be(value) && __builtin_isfinite(value)))
        return fail_argument(of.name, "was %g in row %lld, must be %s", static_cast<double>(value),
                             static_cast<long long>(i), must);
    }
    return TILEKILN_OK;
  };
  const auto any = [](float) { return true; };
  TILEKILN_TRY(check(in.temperatures, [](float v) { return v >= 0; }, "0 or a finite number above"));
  TILEKILN_TRY(check(in.top_ps, [](float v) { return v > 0 && v <= 1; }, "above 0 and at most 1"));
  TILEKILN_TRY(check(in.min_ps, [](float v) { return v >= 0 && v <= 1; }, "from 0 to 1"));
  TILEKILN_TRY(check(in.repetition_penalties, [](float v) { return v > 0; }, "a finite number above 0"));
  TILEKILN_TRY(check(in.presence_penalties, any, "finite"));
  TILEKILN_TRY(check(in.frequency_penalties, any, "finite"));
  for (int64_t i = 0; in.top_ks.given() && i < call.M; ++i) {
    const int value = reinterpret_cast<const int*>(in.top_ks.data)[i * in.top_ks.stride[0]];
    if (value < 0)
      return fail_argument("top_ks", "was %d in row %lld, must be 0 (all) or more", value, static_cast<long long>(i));
  }
  return TILEKILN_OK;
}

void fill(const Args& args, Call& call) {
  const Arrays& in = call.in;
  norm::Sample& to = call.to.problem;
  norm::put_rows(in.logits, to.logits, to.logits_row);
  norm::put(in.tokens, to.tokens);
  norm::put(in.logprobs, to.logprobs);
  to.rows = call.M;
  to.columns = static_cast<int>(call.N);
  to.dtype = static_cast<int>(call.signature.dtype);
  to.temperature = reals(in.temperatures, args.temperature);
  to.top_p = reals(in.top_ps, args.top_p);
  to.min_p = reals(in.min_ps, args.min_p);
  to.repetition = reals(in.repetition_penalties, args.repetition_penalty);
  to.presence = reals(in.presence_penalties, args.presence_penalty);
  to.frequency = reals(in.frequency_penalties, args.frequency_penalty);
  to.top_k = of_rows<norm::WholeOfRows>(in.top_ks, args.top_k);
  to.seed = words(in.seeds, args.rng_seed);
  to.offset = words(in.offsets, args.rng_offset);
  to.prompt = tokens(in.prompt), to.generated = tokens(in.generated);
  to.of_logits = args.logprob_of == 1;
}

tilekiln_status launch(StageCall<norm::Sample>& call) {
  const norm::Sample& to = call.problem;
  if (__builtin_expect(!call.backend->takes_units, 0)) return launch_kernel(call, call.choice, to);
  const auto rows = static_cast<const norm::SampleEngine*>(call.choice.engine)->rows[to.dtype];
  const double work = 64.0 * static_cast<double>(to.rows) * to.columns;
  return launch_stage(call, call.choice, to, to.rows, work, norm::sample_scratch(to.columns).all,
                      [&](int64_t row, void* scratch) { rows(to, row, row + 1, scratch); });
}

}  // namespace tilekiln::op::sample
