// SPDX-License-Identifier: MIT
/* Boxed functions of attention: `tilekiln_native::sdpa`, and the pair of operators that PyTorch has for backends to override, which its
 * own autograd records. */
#ifndef TILEKILN_TORCH_RECORDED_H
#define TILEKILN_TORCH_RECORDED_H

#include "attention.h"
#include "stack.h"

namespace tilekiln::torch {

/* An optional tensor of a stack, or null; drop_bias gives it back. */
inline AtenTensorHandle bias_of(StableIValue given) {
  return given ? tensor_of(*reinterpret_cast<StableIValue*>(given)) : nullptr;
}
inline void drop_bias(StableIValue given) {
  if (!given) return;
  shim.aoti_torch_delete_tensor_object(bias_of(given));
  drop_optional(given);
}

/* The stack of sdpa: Python declares the operator by this text, so that neither reads another's. */
constexpr const char* kSdpa =
    "(Tensor q, Tensor k, Tensor v, bool causal, float? scale, bool grouped, Tensor? bias=None) -> Tensor";
inline void sdpa(StableIValue* stack, uint64_t, uint64_t) {
  const AtenTensorHandle tensors[] = {tensor_of(stack[0]), tensor_of(stack[1]), tensor_of(stack[2])};
  double scale = 0;
  if (stack[4]) scale = read<double>(*reinterpret_cast<StableIValue*>(stack[4]));
  missed = Look{};
  Attention given;
  AtenTensorHandle out = nullptr;
  const AtenTensorHandle bias = bias_of(stack[6]);
  bool watched = false;
  if (shim.aoti_torch_grad_mode_is_enabled()) {
    for (AtenTensorHandle one : tensors) watched = watched || is_watched(one);
    watched = watched || (bias && is_watched(bias));
  }
  if (!watched && given.read(tensors[0], tensors[1], tensors[2], bias) && given.has_heads(read<bool>(stack[5])))
    attend(given, kForward, read<bool>(stack[3]) ? kCausal : kFull, stack[4] ? &scale : nullptr, &out, nullptr);
  for (AtenTensorHandle one : tensors) shim.aoti_torch_delete_tensor_object(one);
  if (stack[4]) drop_optional(stack[4]);
  drop_bias(stack[6]);
  stack[0] = out ? reinterpret_cast<StableIValue>(out) : undefined();
}

inline void sdpa_elsewhere(StableIValue* stack, uint64_t, uint64_t) {
  for (int i = 0; i < 3; ++i) shim.aoti_torch_delete_tensor_object(tensor_of(stack[i]));
  if (stack[4]) drop_optional(stack[4]);
  drop_bias(stack[6]);
  missed = Look{};
  stack[0] = undefined();
}

/* Whether this thread's calls of what follows compute nothing and only say, by `missed`, whether a library is known for them. */
inline thread_local bool asks = false;

/* aten::_scaled_dot_product_fused_attention_overrideable(query, key, value, attn_bias?, dropout_p, is_causal, return_debug_mask, scale?)
 * -> (output, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, philox_seed, philox_offset, debug_attn_mask) */
template <bool cast>
void recorded_forward(StableIValue* stack, uint64_t, uint64_t) {
  const AtenTensorHandle tensors[] = {tensor_of(stack[0]), tensor_of(stack[1]), tensor_of(stack[2])};
  double scale = 0;
  if (stack[7]) scale = read<double>(*reinterpret_cast<StableIValue*>(stack[7]));
  const AtenTensorHandle bias = bias_of(stack[3]);
  const int number = cast ? -1 : settings_of(read<double>(stack[4]), read<bool>(stack[5]));
  Attention given;
  AtenTensorHandle out = nullptr, lse = nullptr;
  missed = Look{};
  /* There is no mask to return: what asks for one says that heads may be grouped. */
  if (number >= 0 && given.read(tensors[0], tensors[1], tensors[2], bias) &&
      (!keeps_order(number) || given.has_heads(read<bool>(stack[6])))) {
    const bool known = served_backward.find(given.look(kBackward, number)) != nullptr;
    const Look look = given.look(kTraining, number);
    if (!known || (asks && !served.find(look)))
      missed = look;
    else if (!asks)
      attend(given, kTraining, number, stack[7] ? &scale : nullptr, &out, &lse);
  }
  for (AtenTensorHandle one : tensors) shim.aoti_torch_delete_tensor_object(one);
  drop_bias(stack[3]);
  if (stack[7]) drop_optional(stack[7]);
  stack[0] = out ? reinterpret_cast<StableIValue>(out) : undefined();
  stack[1] = lse ? reinterpret_cast<StableIValue>(lse) : undefined();
  for (int i : {2, 3, 6, 7, 8}) stack[i] = undefined();
  stack[4] = stack[5] = 0;
}

/* ..._backward(grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p,
 * is_causal, philox_seed, philox_offset, scale?) -> the gradients of query, key, value, attn_bias */
inline void recorded_backward(StableIValue* stack, uint64_t, uint64_t) {
  double scale = 0;
  if (stack[16]) scale = read<double>(*reinterpret_cast<StableIValue*>(stack[16]));
  Attention given;
  AtenTensorHandle gradients[3] = {};
  std::string wrong;
  try {
    const int number = settings_of(read<double>(stack[12]), read<bool>(stack[13]));
    const AtenTensorHandle bias = is_defined(tensor_of(stack[4])) ? tensor_of(stack[4]) : nullptr;
    if (number < 0 || !given.read(tensor_of(stack[1]), tensor_of(stack[2]), tensor_of(stack[3]), bias))
      throw std::runtime_error("tilekiln: attention's backward got other arrays than its forward");
    differentiate(given, tensor_of(stack[0]), tensor_of(stack[6]), tensor_of(stack[7]), number,
                  stack[16] ? &scale : nullptr, gradients);
  } catch (const std::exception& error) {
    wrong = error.what();
  }
  for (int i : {0, 1, 2, 3, 4, 6, 7, 8, 9, 14, 15}) shim.aoti_torch_delete_tensor_object(tensor_of(stack[i]));
  shim.torch_delete_list(reinterpret_cast<StableListHandle>(stack[5]));
  if (stack[16]) drop_optional(stack[16]);
  if (!wrong.empty()) throw std::runtime_error(wrong);
  for (int i = 0; i < 3; ++i) stack[i] = reinterpret_cast<StableIValue>(gradients[i]);
  stack[3] = undefined();
}

}  // namespace tilekiln::torch

#endif
