// SPDX-License-Identifier: MIT
// Arguments of elementwise as the plain data of its engine.
#include "kernels/tensor/elementwise/host.h"
#include "kernels/generated/operators/elementwise_entries.h"

namespace tilekiln::op::elementwise {

namespace {

constexpr int kMany = 0
#define OF_ONE(name, made)
#define OF_MANY(name, made) +1
#include "kernels/tensor/elementwise/operations.inc"
#undef OF_ONE
#undef OF_MANY
    ;

}  // namespace

tilekiln_status together(const Args& args, tilekiln_shape* shape) {
  const tilekiln_tensor* all[] = {args.x, args.x1, args.x2, args.x3};
  const char* names[] = {"x", "x1", "x2", "x3"};
  int count = 1;
  for (int i = 1; i < 4; ++i) {
    if (all[i] == nullptr) continue;
    if (args.operation >= kMany)
      return fail_argument(names[i], "was given, must be null: the operation is of one array");
    all[count] = all[i], names[count++] = names[i];
  }
  return tensor::broadcast(all, names, count, shape);
}

void fill(const Args& args, Call& call) {
  const Arrays& in = call.in;
  const Array* all[] = {&in.x, &in.x1, &in.x2, &in.x3};
  const auto end = std::remove_if(all, all + 4, [](const Array* one) { return !one->given(); });
  tensor::fill_elementwise(all, static_cast<int>(end - all), in.y, call.to.problem);
  call.to.problem.operation = args.operation;
  call.to.problem.dtype = static_cast<int>(call.signature.dtype);
}

tilekiln_status launch(StageCall<tensor::Elementwise>& call) { return tensor::launch_elementwise(call); }

}  // namespace tilekiln::op::elementwise
