// SPDX-License-Identifier: MIT
// Arguments of transpose as the plain data of its engine.
#include "kernels/generated/operators/transpose_entries.h"
#include "kernels/tensor/move.h"

namespace tilekiln::op::transpose {

void fill(const Args&, Call& call) {
  constexpr int from[] = {1, 0};
  tensor::put_move(call.in.x, call.in.y, from, call.to.problem);
}

tilekiln_status launch(StageCall<tensor::Move>& call) { return tensor::launch_move(call); }

}  // namespace tilekiln::op::transpose
