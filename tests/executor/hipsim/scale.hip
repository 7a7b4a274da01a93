// SPDX-License-Identifier: MIT
// out[i] = factor * in[i] for i below count.
#define GLOBAL __attribute__((address_space(1)))
struct Arguments {
  const float* in;
  float* out;
  float factor;
  int count;
};
extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(64, 64))) void scale(Arguments a) {
  const int i = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
  if (i < a.count) ((GLOBAL float*)a.out)[i] = a.factor * ((const GLOBAL float*)a.in)[i];
}
