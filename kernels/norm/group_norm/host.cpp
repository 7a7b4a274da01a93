// SPDX-License-Identifier: MIT
// Arguments of group_norm as the plain data of its engine.
#include "kernels/norm/host.h"
#include "kernels/generated/operators/group_norm_entries.h"

namespace tilekiln::op::group_norm {

tilekiln_status of_groups(const Args& args, tilekiln_shape* shape) {
  *shape = {2, {args.x->shape[0], args.groups}};
  return TILEKILN_OK;
}

tilekiln_status divides(const Args& args, Call& call) {
  if (call.C % args.groups == 0) return TILEKILN_OK;
  return fail_argument("groups", "was %d, must divide %lld, the channels of x", args.groups,
                       static_cast<long long>(call.C));
}

void fill(const Args& args, Call& call) {
  const Arrays& in = call.in;
  norm::GroupNorm& to = call.to.problem;
  to.x = in.x.data, to.x_image = in.x.stride[0], to.x_row = in.x.stride[1];
  to.y = in.y.data, to.y_image = in.y.stride[0], to.y_row = in.y.stride[1];
  norm::put(in.gamma, to.gamma);
  norm::put(in.beta, to.beta);
  norm::put_rows(in.mean, to.mean, to.mean_image);
  norm::put_rows(in.inv_std, to.inverse, to.inverse_image);
  to.images = call.B, to.positions = call.S;
  to.channels = static_cast<int>(call.C);
  to.groups = args.groups;
  to.dtype = static_cast<int>(call.signature.dtype);
  to.channels_last = call.exchanged;
  to.silu = args.activation == 1;
  to.epsilon = args.epsilon;
}

tilekiln_status launch(StageCall<norm::GroupNorm>& call) {
  norm::GroupNorm& to = call.problem;
  const int64_t images = call.problem.images, groups = to.groups;
  to.together = 1;
  if (to.channels_last) {  // all of an image, which is contiguous, or its share of a thread in whole groups of 64 channels and more
    const int64_t shares = std::max<int64_t>(1, (call.threads + images - 1) / std::max<int64_t>(1, images));
    const int64_t least = (64 * groups + to.channels - 1) / to.channels;
    const int64_t together = std::max(least, (groups + shares - 1) / shares);
    to.together = static_cast<int>(std::min({together, groups, int64_t{norm::kGroupsTogether}}));
  }
  to.units = static_cast<int>((groups + to.together - 1) / to.together);
  to.rows = images * to.units;
  const double elements = static_cast<double>(to.positions) * to.channels;
  const int64_t each = std::max<int64_t>(1, to.positions * to.channels / to.units);
  return norm::launch_rows_by<norm::GroupNormEngine>(call, std::max<int64_t>(1, 16384 / each),
                                                     16.0 * elements * static_cast<double>(images));
}

}  // namespace tilekiln::op::group_norm
