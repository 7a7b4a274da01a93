// SPDX-License-Identifier: MIT
// Caches beyond 4 GB, in memory that exists only where it is touched: pages far apart, and pages that lie across the 2 GB
// and the 4 GB boundary, must give the bits of the same pages in a small pool. Batch 1 and 4; every family that has pages;
// both layouts and lookups of batch prefill.
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <algorithm>
#include <random>
#include <vector>

#include "check.h"
#include "tensor.h"
#include "tilekiln/tilekiln.h"

namespace {

constexpr int64_t Hk = 3, Hq = 6, D = 128, boundary_2 = INT64_C(1) << 31, boundary_4 = INT64_C(1) << 32;
std::mt19937 random_bits(3);

// bf16 of about [-2, 2].
uint16_t noise() { return static_cast<uint16_t>((random_bits() & 0x80ff) | 0x3f00); }

// Address space of more than 4.5 GB.
class Sparse {
 public:
  explicit Sparse(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    void* const mapped =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) abort();
    data = static_cast<uint16_t*>(mapped);
  }
  ~Sparse() { munmap(data, bytes_); }
  Sparse(const Sparse&) = delete;
  uint16_t* data;

 private:
  size_t bytes_;
};

std::vector<int64_t> pool_shape(int64_t pages, int64_t page, bool vectorized, bool keys) {
  if (!vectorized) return {pages, page, Hk, D};
  return keys ? std::vector<int64_t>{pages, Hk, D / 8, page, 8} : std::vector<int64_t>{pages, Hk, page / 8, D, 8};
}

// Pools of the same keys, a sparse and a packed one, page_size tokens a page.
struct Pools {
  int64_t page, elements, pages, used;
  Sparse k, v;
  std::vector<uint16_t> small_k, small_v;
  std::vector<int32_t> far, near;  // page numbers in each, in the order of the keys

  Pools(int64_t page_size, int64_t count)
      : page(page_size),
        elements(page_size * Hk * D),
        pages((INT64_C(9) << 29) / (2 * elements) + 1),
        used(count),
        k(pages * elements * 2),
        v(pages * elements * 2) {
    // Places at and around the boundaries, the last one, and others anywhere.
    for (int64_t at : {boundary_2 / (2 * elements), boundary_4 / (2 * elements)}) {
      for (int64_t i : {at - 1, at, at + 1}) far.push_back(static_cast<int32_t>(i));
    }
    far.push_back(static_cast<int32_t>(pages - 1));
    while (static_cast<int64_t>(far.size()) < used) {
      const auto any = static_cast<int32_t>(random_bits() % static_cast<uint64_t>(pages));
      if (std::find(far.begin(), far.end(), any) == far.end()) far.push_back(any);
    }
    std::shuffle(far.begin(), far.end(), random_bits);
    small_k.resize(static_cast<size_t>(used * elements));
    small_v.resize(small_k.size());
    for (int64_t i = 0; i < used; ++i) {
      near.push_back(static_cast<int32_t>(i));
      for (int64_t e = 0; e < elements; ++e) {
        k.data[far[size_t(i)] * elements + e] = small_k[size_t(i * elements + e)] = noise();
        v.data[far[size_t(i)] * elements + e] = small_v[size_t(i * elements + e)] = noise();
      }
    }
  }
};

// Runs `call` over the sparse pool and the packed one; the outputs must have the same bits and not be all zero.
template <class Call>
void both(Pools& pools, int64_t out_elements, bool vectorized, Call&& call) {
  std::vector<uint16_t> out[2];
  for (int small = 0; small < 2; ++small) {
    out[small].assign(static_cast<size_t>(out_elements), 0x7fff);
    const int64_t pages = small ? pools.used : pools.pages;
    const tilekiln_tensor k = tensor(small ? pools.small_k.data() : pools.k.data, TILEKILN_BF16,
                                     pool_shape(pages, pools.page, vectorized, true));
    const tilekiln_tensor v = tensor(small ? pools.small_v.data() : pools.v.data, TILEKILN_BF16,
                                     pool_shape(pages, pools.page, vectorized, false));
    if (!CHECK(call(k, v, small ? pools.near : pools.far, out[small].data()) == TILEKILN_OK))
      fprintf(stderr, "%s\n", tilekiln_last_error());
  }
  CHECK(out[0] == out[1]);
  CHECK(std::count_if(out[0].begin(), out[0].end(),
                      [](uint16_t x) { return (x & 0x7fff) != 0 && (x & 0x7f80) != 0x7f80; }) > out_elements / 2);
}

void paged(int64_t page, int batch, int64_t rows) {
  const int64_t blocks = 12;
  Pools pools(page, batch * blocks);
  std::vector<uint16_t> q_data(static_cast<size_t>(batch * rows * Hq * D));
  for (auto& x : q_data) x = noise();
  std::vector<int32_t> lengths;
  for (int b = 0; b < batch; ++b) lengths.push_back(static_cast<int32_t>(blocks * page - b));
  const tilekiln_tensor q = tensor(q_data.data(), TILEKILN_BF16, {batch, rows, Hq, D}),
                        length = tensor(lengths.data(), TILEKILN_INT32, {batch});
  for (int splits : {1, 3}) {
    both(pools, batch * rows * Hq * D, false,
         [&](const tilekiln_tensor& k, const tilekiln_tensor& v, const std::vector<int32_t>& pages, uint16_t* data) {
           const tilekiln_tensor out = tensor(data, TILEKILN_BF16, {batch, rows, Hq, D}),
                                 table = tensor(pages.data(), TILEKILN_INT32, {batch, blocks});
           auto args = tilekiln_fmha_fwd_splitkv_defaults();
           args.q = &q, args.k = &k, args.v = &v, args.out = &out, args.block_table = &table, args.seqlen_k = &length;
           args.num_splits = splits;
           return tilekiln_fmha_fwd_splitkv(&args);
         });
  }
  both(pools, batch * rows * Hq * D, false,
       [&](const tilekiln_tensor& k, const tilekiln_tensor& v, const std::vector<int32_t>& pages, uint16_t* data) {
         const tilekiln_tensor out = tensor(data, TILEKILN_BF16, {batch, rows, Hq, D}),
                               table = tensor(pages.data(), TILEKILN_INT32, {batch, blocks});
         auto args = tilekiln_fmha_fwd_pagedkv_defaults();
         args.q = &q, args.k = &k, args.v = &v, args.out = &out, args.block_table = &table, args.seqlen_k = &length;
         args.causal = 1;
         return tilekiln_fmha_fwd_pagedkv(&args);
       });
}

void prefill(int64_t page, int batch, int64_t rows, bool vectorized, bool listed) {
  const int64_t blocks = page >= 1024 ? 3 : page == 1 ? 40 : 12;
  Pools pools(page, std::max<int64_t>(batch * blocks, 8));
  std::vector<uint16_t> q_data(static_cast<size_t>(batch * rows * Hq * D));
  for (auto& x : q_data) x = noise();
  std::vector<int32_t> cu, indptr, last, lengths;
  for (int b = 0; b <= batch; ++b) {
    cu.push_back(static_cast<int32_t>(b * rows));
    indptr.push_back(static_cast<int32_t>(b * blocks));
    last.push_back(static_cast<int32_t>(page == 1 ? 1 : page - 1));
    lengths.push_back(static_cast<int32_t>((blocks - 1) * page + last.back()));
  }
  const tilekiln_tensor q = tensor(q_data.data(), TILEKILN_BF16, {batch * rows, Hq, D}),
                        starts = tensor(cu.data(), TILEKILN_INT32, {batch + 1});
  const tilekiln_tensor ptr = tensor(indptr.data(), TILEKILN_INT32, {batch + 1}),
                        lasts = tensor(last.data(), TILEKILN_INT32, {batch});
  const tilekiln_tensor length = tensor(lengths.data(), TILEKILN_INT32, {batch});
  both(pools, batch * rows * Hq * D, vectorized,
       [&](const tilekiln_tensor& k, const tilekiln_tensor& v, const std::vector<int32_t>& pages, uint16_t* data) {
         const tilekiln_tensor out = tensor(data, TILEKILN_BF16, {batch * rows, Hq, D}),
                               list = tensor(pages.data(), TILEKILN_INT32, {batch * blocks});
         const tilekiln_tensor table = tensor(pages.data(), TILEKILN_INT32, {batch, blocks});
         auto args = tilekiln_fmha_batch_prefill_defaults();
         args.q = &q, args.k = &k, args.v = &v, args.out = &out, args.cu_seqlens_q = &starts;
         args.causal = 1;
         if (listed) {
           args.kv_indptr = &ptr, args.kv_page_indices = &list, args.kv_last_page_lens = &lasts;
         } else {
           args.block_table = &table, args.seqlen_k = &length;
         }
         return tilekiln_fmha_batch_prefill(&args);
       });
}

// New keys into pages that lie across the boundaries.
void append() {
  Pools pools(16, 8);
  std::vector<int32_t> lengths = {3};
  const int64_t fresh = 8 * 16 - 3;
  std::vector<uint16_t> knew(static_cast<size_t>(fresh * Hk * D)), vnew(knew.size());
  for (auto* data : {&knew, &vnew}) {
    for (auto& x : *data) x = noise();
  }
  const tilekiln_tensor k = tensor(pools.k.data, TILEKILN_BF16, {pools.pages, 16, Hk, D}),
                        v = tensor(pools.v.data, TILEKILN_BF16, {pools.pages, 16, Hk, D});
  const tilekiln_tensor kn = tensor(knew.data(), TILEKILN_BF16, {1, fresh, Hk, D}),
                        vn = tensor(vnew.data(), TILEKILN_BF16, {1, fresh, Hk, D});
  const tilekiln_tensor table = tensor(pools.far.data(), TILEKILN_INT32, {1, 8}),
                        length = tensor(lengths.data(), TILEKILN_INT32, {1});
  auto args = tilekiln_fmha_fwd_appendkv_defaults();
  args.k = &k, args.v = &v, args.knew = &kn, args.vnew = &vn, args.block_table = &table, args.seqlen_k = &length;
  CHECK(tilekiln_fmha_fwd_appendkv(&args) == TILEKILN_OK);
  bool same = true;
  for (int64_t j = 0; j < 8 * 16; ++j) {
    for (int64_t e = 0; e < Hk * D; ++e) {
      const int64_t at = pools.far[size_t(j / 16)] * pools.elements + j % 16 * Hk * D + e, old = j * Hk * D + e;
      same = same && pools.k.data[at] == (j < 3 ? pools.small_k[size_t(old)] : knew[size_t((j - 3) * Hk * D + e)]);
      same = same && pools.v.data[at] == (j < 3 ? pools.small_v[size_t(old)] : vnew[size_t((j - 3) * Hk * D + e)]);
    }
  }
  CHECK(same);
}

}  // namespace

int main() {
  for (int batch : {1, 4}) {
    for (int64_t rows : {1, 70}) {
      paged(16, batch, rows);
      paged(256, batch, rows);
      for (bool listed : {true, false}) {
        prefill(1, batch, rows, false, listed);
        for (int64_t page : {16, 1024}) {
          for (bool vectorized : {true, false}) prefill(page, batch, rows, vectorized, listed);
        }
      }
    }
  }
  append();
  return check_result();
}
