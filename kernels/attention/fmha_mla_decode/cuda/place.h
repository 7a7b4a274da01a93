// SPDX-License-Identifier: MIT
// The place of a CTA in a call of latent attention: its rows, its keys, and where their results go.
#pragma once

#include "kernels/attention/fmha_mla_decode/cuda/params.h"
#include "kernels/backends/cuda/ptx.h"

namespace tilekiln::cuda::mla {

constexpr float kNone = -kInfinity;

// Row r is query r / nhead, head r % nhead of sequence `batch`; keys [begin, end) are those that any of kRows sees.
template <int kRows> struct Place {
  const Params& p;
  int batch, first_row, rows, keys, begin, end;

  explicit __device__ __forceinline__ Place(const Params& p) : p(p), batch(blockIdx.z) {
    rows = p.seqlen_q * p.nhead, first_row = blockIdx.x * kRows;
    keys = p.seqlen_k == nullptr ? p.room : min(max(__ldg(p.seqlen_k + batch), 0), p.room);
    const int each = (keys - 1) / p.splits + 1, per = (each + kKeys - 1) / kKeys * kKeys;
    begin = int(min((long long)blockIdx.y * per, (long long)keys));
    end = min(begin + per, limit(min(first_row + kRows, rows) - 1));
  }
  // The end of the keys that a row sees.
  __device__ __forceinline__ int limit(int row) const {
    return p.causal ? min(keys, row / p.nhead + keys - p.seqlen_q + 1) : keys;
  }
  __device__ __forceinline__ int tiles() const { return max(end - begin + kKeys - 1, 0) / kKeys; }
  __device__ __forceinline__ const uint16_t* q(int row) const {
    const int query = row / p.nhead, head = row - query * p.nhead;
    return static_cast<const uint16_t*>(p.q) + batch * p.q_batch + query * p.q_row + head * p.q_head;
  }
  // The number of a row's part.
  __device__ __forceinline__ long long part(int row) const {
    return ((long long)batch * p.splits + blockIdx.y) * rows + row;
  }
  // Offset of a key in the cache; -1: it has none, or its page is out of the pool.
  __device__ __forceinline__ long long place_of(int key) const {
    if (key >= end) return -1;
    if (p.table == nullptr) return batch * p.cache_page + key * p.cache_row;
    const int number = key / p.page_size, page = __ldg(p.table + batch * p.table_row + number);
    return unsigned(page) < unsigned(p.pages) ? page * p.cache_page + (key - number * p.page_size) * p.cache_row : -1;
  }

  // Place of a row's result: one of both.
  struct Out {
    float* part;
    uint16_t* out;
    int most;  // columns; none of a row that there is not

    // Two neighbours, from an even column on.
    __device__ __forceinline__ void store_part(int column, float one, float other) const {
      store_if(column < most, part + column, one, other);
    }
    __device__ __forceinline__ void store_out(int column, float one, float other) const {
      const uint32_t both = pack(one, other);
      store_if(column < most, out + column, both);
      store_if(column + 1 < most, out + column + 1, both >> 16);
    }
    __device__ __forceinline__ void store(int column, float one, float other) const {
      if (part != nullptr)
        store_part(column, one, other);
      else
        store_out(column, one, other);
    }
  };
  __device__ __forceinline__ Out out(int row) const {
    const int most = row < rows ? p.hdim_v : 0, query = row / p.nhead, head = row - query * p.nhead;
    if (p.part_out != nullptr) return {p.part_out + part(row) * p.part_row, nullptr, most};
    return {nullptr, static_cast<uint16_t*>(p.out) + batch * p.out_batch + query * p.out_row + head * p.out_head, most};
  }
  // LSE of a row, of its exponents' maximum and sum.
  __device__ __forceinline__ void store_lse(int row, float most, float total) const {
    if (row >= rows) return;
    const float lse = total == 0 ? kNone : (most + log2_approx(total)) * kLn2;
    if (p.part_lse != nullptr)
      p.part_lse[part(row)] = lse;
    else if (p.lse != nullptr)
      p.lse[batch * p.lse_batch + row % p.nhead * p.lse_head + row / p.nhead] = lse;
  }
};

}  // namespace tilekiln::cuda::mla
