// From a checked call over a KV cache to the rows of its kernels: what the stages have in common. Included once, by the file of a pipeline,
// which is compiled with -DTILEKILN_TARGET=<the target's name> and -DTILEKILN_KERNELS=<K(name) for every kernel there is>; a library
// holds those that its rows need, the others are null here.
#pragma once
#include <string.h>

#include <initializer_list>

#include "kernels/attention/cuda/operands.h"
#include "kernels/attention/fmha_kv.h"
#include "kernels/backends/cuda/kernel.h"

#define TILEKILN_JOIN(a, b, c, d) a##b##c##d
#define TILEKILN_ENGINE(target, pipeline) TILEKILN_JOIN(tilekiln_, target, _fmha_fwd_splitkv_, pipeline)

#define K(name) extern "C" __attribute__((weak, visibility("hidden"))) const tilekiln::cuda::Kernel name;
TILEKILN_KERNELS
#undef K

namespace tilekiln::cuda {
namespace {

// The first kernel whose name begins so and that `fits`; null: the library has none.
template <class Fits>
const Kernel* find_kernel(const char* name, Fits&& fits) {
#define K(name) &name,
  static const Kernel* const kernels[] = {TILEKILN_KERNELS};
#undef K
  for (const Kernel* kernel : kernels) {
    if (kernel != nullptr && strncmp(kernel->name, name, strlen(name)) == 0 && fits(*kernel)) return kernel;
  }
  return nullptr;
}

[[maybe_unused]] tilekiln_status fail_kernel(const char* what) {
  return fail(TILEKILN_INTERNAL, "the library has a row over a KV cache for cuda without its kernel, %s", what);
}

// What accesses of `multiple` elements cannot follow.
[[maybe_unused]] tilekiln_status check_steps(const char* name, const void* data, int multiple,
                                             std::initializer_list<i64> steps) {
  if (reinterpret_cast<uintptr_t>(data) % (static_cast<uintptr_t>(multiple) * 2) != 0)
    return fail_argument(name, "data was at %p, must be aligned to %d bytes on cuda", data, 2 * multiple);
  for (const i64 step : steps) {
    if (step % multiple == 0) continue;
    return fail_argument(name, "a stride was %lld elements, must be a multiple of %d on cuda: pass a copy", step,
                         multiple);
  }
  return TILEKILN_OK;
}

[[maybe_unused]] tilekiln_status check_hdim(const char* name, int hdim) {
  if (hdim % 8 == 0) return TILEKILN_OK;
  return fail_argument(name, "had a head dim of %d, must have a multiple of 8 on cuda", hdim);
}

// The fields of a row that say where sequences are (kernels/attention/cuda/places.h).
template <class Row>
void fill_places(const fmha::KvDevicePlaces& at, const fmha::KvPages& pages, Row* row) {
  row->seqstart_q = at.seqstart_q;
  row->seqlen_q = at.seqlen_q;
  row->cu_seqlens_q = at.cu_seqlens_q;
  row->seqlen_k = at.seqlen_k;
  row->cu_seqlens_k = at.cu_seqlens_k;
  row->first_key = at.first_key;
  row->row_k = at.row_k;
  row->table = at.table;
  row->table_at = at.table_at;
  row->table_start = at.table_start;
  row->last_page_len = at.last_page_len;
  row->table_row = at.table_row;
  row->entries = at.entries;
  row->cache_rows = at.rows_k;
  row->pages = at.pages;
  row->more = at.more;
  row->room_k = at.room_k;
  row->total_q = at.total_q;
  row->first_is_start = at.first_is_start ? 1 : 0;
  const bool power = (pages.page_size & (pages.page_size - 1)) == 0;
  row->page_size = pages.page_size;
  row->page_shift = power && pages.page_size > 0 ? __builtin_ctz(static_cast<unsigned>(pages.page_size)) : -1;
}

}  // namespace
}  // namespace tilekiln::cuda
