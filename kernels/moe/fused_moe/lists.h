// SPDX-License-Identifier: MIT
// The rows of each expert, sorted by the ids of a call. Rows are numbered expert after expert, within an expert by token and slot;
// those of a token are summed in that order.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/moe/fused_moe/experts.h"

namespace tilekiln::moe {

// Parts of the memory of a call, one after the other, each aligned to 64 bytes.
class Parts {
 public:
  explicit Parts(char* memory) : at_(memory) {}
  template <class T> T* take(i64 count) {
    T* const part = reinterpret_cast<T*>(at_ + bytes_);
    bytes_ += (count * static_cast<i64>(sizeof(T)) + 63) / 64 * 64;
    return part;
  }
  [[nodiscard]] i64 bytes() const { return bytes_; }

 private:
  char* at_;
  i64 bytes_ = 0;
};

struct Lists {
  Lists(Parts& parts, const Experts& call)
      : firsts(parts.take<int>(call.experts + 1)),
        tiles(parts.take<int>(call.experts + 1)),
        next(parts.take<int>(call.experts)),
        here(parts.take<int>(call.all_experts)),
        tokens(parts.take<int>(i64{call.tokens} * call.topk)),
        places(parts.take<int>(i64{call.tokens} * call.topk)) {}

  // Fills all lists; a tile is `tile_rows` rows of an expert.
  void sort(const Experts& call, int tile_rows) const {
    int local = 0;
    for (int e = 0; e < call.all_experts; ++e) here[e] = call.expert_mask[e] != 0 ? local++ : -1;
    std::fill_n(firsts, call.experts + 1, 0);
    const i64 counted = call.local_tokens != nullptr ? *call.local_tokens : call.tokens;
    const auto expert_of = [&](i64 token, int slot) {
      if (token >= counted) return -1;
      int id = call.topk_ids[token * call.ids_row + slot];
      if (call.expert_mask != nullptr) id = id >= 0 && id < call.all_experts ? here[id] : -1;
      return id < call.experts ? id : -1;
    };
    for (i64 t = 0; t < call.tokens; ++t) {
      for (int s = 0; s < call.topk; ++s) {
        if (const int e = expert_of(t, s); e >= 0) ++firsts[e + 1];
      }
    }
    tiles[0] = 0;
    for (int e = 0; e < call.experts; ++e) {
      tiles[e + 1] = tiles[e] + (firsts[e + 1] + tile_rows - 1) / tile_rows;
      next[e] = firsts[e];
      firsts[e + 1] += firsts[e];
    }
    int* place = places;
    for (i64 t = 0; t < call.tokens; ++t) {
      for (int s = 0; s < call.topk; ++s) {
        const int e = expert_of(t, s);
        *place = e < 0 ? -1 : next[e]++;
        if (e >= 0) tokens[*place] = static_cast<int>(t);
        ++place;
      }
    }
  }
  [[nodiscard]] int rows(const Experts& call) const { return firsts[call.experts]; }
  [[nodiscard]] int expert_of_row(const Experts& call, int row) const { return last_before(firsts, call.experts, row); }
  [[nodiscard]] int expert_of_tile(const Experts& call, int tile) const {
    return last_before(tiles, call.experts, tile);
  }

  // The rows of a token and the weights of the router, by expert. Returns how many.
  int of_token(const Experts& call, i64 token, int* rows, float* factors) const {
    int count = 0;
    for (int s = 0; s < call.topk; ++s) {
      const int row = places[token * call.topk + s];
      if (row < 0) continue;
      int i = count++;
      for (; i > 0 && rows[i - 1] > row; --i) rows[i] = rows[i - 1], factors[i] = factors[i - 1];
      rows[i] = row, factors[i] = call.topk_weights[token * call.weights_row + s];
    }
    return count;
  }

  int *firsts, *tiles;  // of each expert, and the end
  int *next, *here;     // used by sort alone
  int* tokens;          // of each row
  int* places;          // the row of each token's slot, -1: none

 private:
  static int last_before(const int* starts, int count, int number) {
    return static_cast<int>(std::upper_bound(starts, starts + count + 1, number) - starts) - 1;
  }
};

}  // namespace tilekiln::moe
