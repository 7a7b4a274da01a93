// SPDX-License-Identifier: MIT
/* Attention of arrays of four dimensions: forward, and what PyTorch's own autograd records and calls backward. */
#ifndef TILEKILN_TORCH_ATTENTION_H
#define TILEKILN_TORCH_ATTENTION_H

#include <stdexcept>

#include "served.h"

namespace tilekiln::torch {

enum { kForward = -2, kTraining = -4, kBackward = -5 }; /* operators of a Look */

/* Heads inside tokens, as projections make them, of arrays (batch, heads, seqlen, hdim)? */
inline bool tokens_outside(const tilekiln_tensor& like) { return like.stride[1] < like.stride[2]; }

/* A result of these lengths, its heads inside tokens or not; returns its bytes. */
inline int64_t lay(tilekiln_tensor& result, const tilekiln_tensor& like, int64_t hdim, bool inside) {
  result = like;
  result.shape[3] = hdim;
  const int64_t bytes = lay_densely(result);
  if (inside) {
    result.stride[1] = hdim;
    result.stride[2] = hdim * like.shape[1];
  }
  return bytes;
}

inline bool are_beside(const tilekiln_tensor& one, const tilekiln_tensor& other) {
  return one.device_type == other.device_type && one.device_id == other.device_id;
}

struct Attention {
  tilekiln_tensor q, k, v, bias;
  bool is_biased = false;
  bool read(AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value, AtenTensorHandle added) {
    if (!view(query, q) || !view(key, k) || !view(value, v)) return false;
    if ((is_biased = added != nullptr) && !(view(added, bias) && bias.ndim == 4 && are_beside(bias, q))) return false;
    return q.ndim == 4 && k.ndim == 4 && v.ndim == 4 && k.dtype == q.dtype && v.dtype == q.dtype && are_beside(k, q) &&
           are_beside(v, q);
  }
  /* As PyTorch's operator has it, of arrays by heads. The library's checks are of arrays of either layout. */
  bool has_heads(bool grouped) const {
    return k.shape[1] > 0 && (q.shape[1] == k.shape[1] || grouped) && k.shape[1] == v.shape[1] &&
           q.shape[0] == k.shape[0];
  }
  Look look(int64_t operator_, int settings) const {
    return {operator_, settings << 1 | is_biased, q.dtype, 4, q.shape[3], v.shape[3], q.device_type};
  }
};

/* The arguments that all of them have. */
inline bool settle(Call& call, const Entry& entry, const double* scale) {
  for (const auto& [said, at] : entry.settings)
    if (!call.take_setting(at, *said)) return false;
  return !scale || call.take_float(entry.places[kScale], *scale);
}

inline bool place(Call& call, int i, const tilekiln_tensor& tensor) {
  if (i < 0 || i >= kMaxArrays) return false;
  call.tensor[i] = tensor;
  call.set(i);
  return true;
}

/* A result that this side lays out; out of memory is false. */
inline bool place_result(Call& call, int r, const tilekiln_tensor& result) {
  const int i = call.table->results[r].argument;
  call.tensor[i] = result;
  if (!(call.made[r] = make(call.tensor[i]))) return false;
  *static_cast<const tilekiln_tensor**>(call.field(i)) = &call.tensor[i];
  return true;
}

/* (out, lse or null), or out null: Python does it. */
inline void attend(const Attention& given, int64_t operator_, int settings, const double* scale, AtenTensorHandle* out,
                   AtenTensorHandle* lse) {
  *out = nullptr;
  const Look look = given.look(operator_, settings);
  const Entry* const entry = served.find(look);
  if (!entry) {
    missed = look;
    return;
  }
  Call call(entry->bound);
  tilekiln_tensor result;
  const int64_t bytes = lay(result, given.q, given.v.shape[3],
                            keeps_order(settings) && tokens_outside(given.q) && given.q.shape[3] == given.v.shape[3]);
  if (bytes < 0 || bytes > int64_t(1) << 28) return;
  const int* const at = entry->places;
  if (!place(call, at[kQ], given.q) || !place(call, at[kK], given.k) || !place(call, at[kV], given.v) ||
      (given.is_biased && !place(call, at[kBias], given.bias)) || !settle(call, *entry, scale) ||
      !call.take_flag(at[kReturnLse], lse != nullptr) || !place_result(call, 0, result) || !call.run())
    return;
  *out = call.release(0);
  if (lse) *lse = call.release(1);
}

/* A dense copy, in place of what is no array of the kernels: gradients come as anything, broadcast ones too. Null: there is no memory. */
inline AtenTensorHandle dense_copy(AtenTensorHandle from, tilekiln_tensor& to) {
  if (lay_densely(to) < 0) return nullptr;
  const AtenTensorHandle made = make(to);
  if (made && shim.aoti_torch_copy_(made, from, 0)) {
    shim.aoti_torch_delete_tensor_object(made);
    return nullptr;
  }
  return made;
}

/* The gradients of q, k and v. Throws with the library's words. */
inline void differentiate(const Attention& given, AtenTensorHandle dout, AtenTensorHandle out, AtenTensorHandle lse,
                          int settings, const double* scale, AtenTensorHandle* gradients) {
  const Entry* const entry = served_backward.find(given.look(kBackward, settings));
  if (!entry) throw std::runtime_error("tilekiln: attention's backward was called without its forward");
  Call call(entry->bound);
  tilekiln_tensor d, o, l;
  AtenTensorHandle copy = nullptr;
  bool good = view(dout, d) && d.ndim == 4 && view(out, o) && view(lse, l);
  if (good && d.stride[3] != 1 && d.shape[3] > 1) good = (copy = dense_copy(dout, d)) != nullptr;
  const int* const at = entry->places;
  good = good && place(call, at[kDout], d) && place(call, at[kQ], given.q) && place(call, at[kK], given.k) &&
         place(call, at[kV], given.v) && place(call, at[kOut], o) && place(call, at[kLse], l) &&
         (!given.is_biased || place(call, at[kBias], given.bias)) && settle(call, *entry, scale);
  const tilekiln_tensor* const inputs[] = {&given.q, &given.k, &given.v};
  const bool inside = keeps_order(settings) && tokens_outside(given.q) && given.q.shape[3] == given.v.shape[3];
  for (int i = 0; good && i < 3; ++i) {
    tilekiln_tensor result;
    lay(result, *inputs[i], inputs[i]->shape[3], inside && tokens_outside(*inputs[i]));
    good = place_result(call, i, result);
  }
  good = good && call.run();
  if (copy) shim.aoti_torch_delete_tensor_object(copy);
  if (!good) throw std::runtime_error(std::string("tilekiln: ") + entry->last_error());
  for (int i = 0; i < 3; ++i) gradients[i] = call.release(i);
}

}  // namespace tilekiln::torch

#endif
