// SPDX-License-Identifier: MIT
// Arguments of reshape_and_cache as the plain data of its engine.
#include <algorithm>
#include <utility>

#include "kernels/generated/operators/reshape_and_cache_entries.h"
#include "kernels/runtime/array.h"
#include "kernels/runtime/entry.h"
#include "kernels/runtime/launch.h"
#include "kernels/tensor/reshape_and_cache/engine.h"

namespace tilekiln::op::reshape_and_cache {

namespace {

tensor::CacheSide side(const Array& from, const Array& to, const Array& scale, int64_t columns) {
  tensor::CacheSide made = {};
  made.from = from.data, made.to = to.data;
  if (scale.given()) made.scale = reinterpret_cast<const float*>(scale.data);
  made.from_token = from.stride[0], made.from_head = from.stride[1];
  made.page = to.stride[0], made.place = to.stride[1], made.head = to.stride[2];
  made.columns = static_cast<int>(columns);
  return made;
}

}  // namespace

tilekiln_status scales(const Args& args, Call& call) {
  if (call.in.k.dtype != call.in.knew.dtype) return TILEKILN_OK;
  for (const auto& [name, given] : {std::pair{"k_scale", args.k_scale}, {"v_scale", args.v_scale}})
    if (given != nullptr) return fail_argument(name, "was given, must be null: the cache has the dtype of knew");
  return TILEKILN_OK;
}

void fill(const Args&, Call& call) {
  const Arrays& in = call.in;
  tensor::CacheWrite& to = call.to.problem;
  to.keys = side(in.knew, in.k, in.k_scale, call.D), to.values = side(in.vnew, in.v, in.v_scale, call.Dv);
  to.slots = in.slot_mapping.data, to.slot_step = in.slot_mapping.stride[0];
  to.slot_bytes = static_cast<int>(dtype_bytes(in.slot_mapping.dtype));
  to.tokens = call.P == 0 ? 0 : call.T, to.pages = call.P, to.page_size = call.Ps;
  to.heads = static_cast<int>(call.Hk);
  to.dtype = static_cast<int>(call.signature.dtype), to.cache = static_cast<int>(call.signature.cache);
}

tilekiln_status launch(StageCall<tensor::CacheWrite>& call) {
  const tensor::CacheWrite& to = call.problem;
  if (__builtin_expect(!call.backend->takes_units, 0)) return launch_kernel(call, call.choice, to);
  const int64_t row = int64_t{to.heads} * (int64_t{to.keys.columns} + to.values.columns);
  const int64_t many = std::max<int64_t>(1, 16384 / (row + 1));
  const auto run = static_cast<const tensor::CacheWriteEngine*>(call.choice.engine)->rows[to.dtype];
  const double work = 4.0 * static_cast<double>(row) * static_cast<double>(to.tokens);
  return launch_stage(call, call.choice, to, (to.tokens + many - 1) / many, work, 0, [&](int64_t unit, void*) {
    run(to, unit * many, std::min<int64_t>(to.tokens, (unit + 1) * many));
  });
}

}  // namespace tilekiln::op::reshape_and_cache
