// The hopper engine of matrix products: a checked call becomes the row of one launch.
#include "kernels/gemm/gemm/cuda/launch.h"

namespace tilekiln::cuda::gemm {
namespace {

tilekiln_status encode_operand(const Operand& of, bool fp16, int device, TensorMap* map) {
  const i64 rows = of.along_lines ? of.steps : of.lines;
  RowArray array = {of.name, of.data, fp16 ? TILEKILN_FP16 : TILEKILN_BF16, {1, 1, 1, 1, 1}, {16, 16, 16, 16}};
  array.lengths[0] = static_cast<uint64_t>(of.along_lines ? of.lines : of.steps);
  array.lengths[1] = static_cast<uint64_t>(rows);
  array.lengths[2] = static_cast<uint64_t>(of.batches());
  if (rows > 1) array.strides[0] = static_cast<uint64_t>(of.between) * 2;
  if (of.batches() > 1) array.strides[1] = static_cast<uint64_t>(of.batch_bytes);
  return encode(array, of.rows, device, map);
}

// The map of an operand, or where to gather it.
tilekiln_status place(const Operand& of, bool fp16, int device, TensorMap* map, Gathered* from, int gather, Row* row) {
  if (of.as_built && can_copy(of)) return encode_operand(of, fp16, device, map);
  row->features |= gather;
  *from = gathered(of);
  return TILEKILN_OK;
}

tilekiln_status launch_hopper(const Site& site, const void* problem) {
  const auto& of = *static_cast<const Batch*>(problem);
  const Problem& p = of.first;
  if (p.m == 0 || p.n == 0 || of.count == 0) return TILEKILN_OK;
  const Kernel* const kernel = find_kernel(p);
  if (kernel == nullptr) return fail_kernel();
  const Build& build = build_of(*kernel);
  Row row = {};
  TILEKILN_TRY(fill_row(of, build, &row));
  if (p.k > 0) {
    const bool fp16 = p.dtype == Dtype::fp16;
    const Operand a = operand_a(of, build), b = operand_b(of, build);
    TILEKILN_TRY(place(a, fp16, site.device.id, &row.a, &row.from_a, kGatherA, &row));
    TILEKILN_TRY(place(b, fp16, site.device.id, &row.b, &row.from_b, kGatherB, &row));
    row.a_batches = a.batches() > 1 ? 1 : 0;
    row.b_batches = b.batches() > 1 ? 1 : 0;
  }
  const int workers = facts(site.device.id)->multiprocessors;
  const auto grid = static_cast<unsigned>(std::min(row.tiles, workers));
  return launch(site, {kernel,
                       "gemm_hopper",
                       {grid, 1, 1},
                       static_cast<unsigned>(build.threads),
                       static_cast<unsigned>(build.shared_bytes),
                       &row,
                       false});
}

}  // namespace
}  // namespace tilekiln::cuda::gemm

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        hopper) = {tilekiln::cuda::gemm::launch_hopper};
