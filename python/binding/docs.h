/* What help() says of the operators. Argument names, order and defaults are those of binding.c. */
#ifndef TILEKILN_BINDING_DOCS_H
#define TILEKILN_BINDING_DOCS_H

#define SIGNATURE                                                                                                      \
  "($self, q, k, v, *, out=None, lse=None, bias=None, alibi_slopes=None, sink=None, q_descale=None, k_descale=None, "  \
  "v_descale=None, block_scale_seqstart_q=None, block_scale_seqstart_k=None, seqstart_q=None, seqstart_k=None, "       \
  "seqlen_q=None, seqlen_k=None, cu_seqlens_q=None, cu_seqlens_k=None, randval=None, softmax_scale=None, "             \
  "causal=False, window=(-1, -1), mask_origin='bottom_right', sink_size=0, softcap=0.0, dropout_p=0.0, rng=(0, 0), "   \
  "layout='bshd', stream=None, num_threads=0, instance=-1, min_seqlen_q=0, return_lse=False, out_dtype=None)\n--\n\n"

static const char fmha_fwd_doc[] =
    "fmha_fwd" SIGNATURE
    "Attention forward: out = softmax(softmax_scale q k^T [soft-capped | + bias], masked) v, per query head h with key "
    "head\n"
    "h // (nhead_q // nhead_k).\n\n"
    "Arrays are NumPy arrays, torch tensors or anything with __dlpack__, on the CPU. They are used where they lie, "
    "with their\n"
    "strides, and never copied; the last dimension of q, k, v, out, bias, lse and randval is contiguous. Every "
    "argument is checked\n"
    "before anything is written.\n\n"
    "q, k, v: fp32, fp16, bf16 or fp8 (e4m3), all alike. Batch mode: q (batch, seqlen_q, nhead_q, hdim_q), k (batch, "
    "seqlen_k,\n"
    "    nhead_k, hdim_q), v (batch, seqlen_k, nhead_k, hdim_v). Group mode, when q has 3 dimensions: (total, nhead, "
    "hdim), with\n"
    "    seqstart or cu_seqlens for both sides. layout='bhsd': heads before sequence, (batch, nhead, seqlen, hdim) or "
    "(nhead,\n"
    "    total, hdim); of out too.\n"
    "out: where to write, shape of q with hdim_v last, dtype of q (fp8: bf16 or fp32). None: a new array of q's "
    "framework. It may\n"
    "    not overlap any other array; nor may lse and randval.\n"
    "out_dtype: for fp8 and a new out: 'bf16' (default) or 'fp32'.\n"
    "lse, return_lse: fp32 (batch, nhead_q, seqlen_q), group (nhead_q, total_q): natural logarithm of the sum of "
    "exponentials, -inf\n"
    "    for a row that sees no key (its out is 0). Computed when one of the two is given.\n"
    "softmax_scale: None is 1 / sqrt(hdim_q).\n"
    "causal, window, mask_origin: row i sees keys [i + shift - left, i + shift + right], -1 is unbounded, causal means "
    "right = 0;\n"
    "    shift is seqlen_k - seqlen_q for 'bottom_right' and 0 for 'top_left'.\n"
    "sink_size: the first keys that stay visible whatever left says. sink: fp32 (nhead_q), one more logit per head, "
    "without value.\n"
    "bias: dtype of out, (1|batch, 1|nhead_q, seqlen_q, seqlen_k), group (1|nhead_q, total_q, max_seqlen_k), added "
    "after the scale.\n"
    "alibi_slopes: fp32 (nhead_q) or (batch, nhead_q): adds -slope |i + shift - j|. Not with bias.\n"
    "softcap: s' = softcap tanh(s / softcap), 0 is off. Not with bias or alibi_slopes.\n"
    "dropout_p, rng: probabilities are dropped with p in [0, 1) by Philox-4x32-7 with (seed, offset), and kept ones "
    "scaled by\n"
    "    1 / (1 - p). randval: uint8, receives the random bytes, (batch, nhead_q, seqlen_q, seqlen_k), group (nhead_q, "
    "total_q,\n"
    "    max_seqlen_k).\n"
    "seqstart_q, seqstart_k: int32 (batch + 1), group mode: the physical start of each sequence. seqlen_q, seqlen_k: "
    "int32 (batch),\n"
    "    or cu_seqlens_q, cu_seqlens_k: int32 (batch + 1), cumulative: logical lengths. Group mode with cu_seqlens "
    "alone has no\n"
    "    padding. Rows past a logical length, and sequences with seqlen_q <= min_seqlen_q (0 is off), are "
    "left untouched\n"
    "    in every output; in new arrays they are 0.\n"
    "q_descale, k_descale, v_descale: fp32, for fp8: of one element each, or per block of 128 rows: (batch, nhead, "
    "blocks), group\n"
    "    (nhead, total blocks) with block_scale_seqstart_q, block_scale_seqstart_k (int32, batch + 1).\n"
    "stream: a tilekiln.Stream; None runs now, in the caller. num_threads: 0 is TILEKILN_NUM_THREADS, else "
    "OMP_NUM_THREADS, else the\n"
    "    cores of this process. instance: number or name of the kernel to use; -1 lets the library choose.\n\n"
    "Returns out, or (out, lse) with return_lse. Raises ArgumentError for a wrong argument, by name, and NoKernelError "
    "when this\n"
    "library has no instance for the problem, with the nearest ones and the command that builds it.";

static const char fmha_fwd_find_doc[] =
    "fmha_fwd_find" SIGNATURE
    "The number of the instance that fmha_fwd would use for the same arguments. Checks them alike and runs nothing.";

static const char why_doc[] = "why" SIGNATURE
                              "Why fmha_fwd would use the instance it would use, or why there is none: the problem, "
                              "the choice and what was refused, or the\n"
                              "nearest instances, the axes that differ, the rule that forbids the problem and the "
                              "command that builds it. Runs nothing.";

#define BACKWARD_SIGNATURE                                                                                             \
  "($self, dout, q, k, v, out, lse, *, dq=None, dk=None, dv=None, dbias=None, d_sink=None, delta=None, bias=None, "    \
  "alibi_slopes=None, sink=None, seqstart_q=None, seqstart_k=None, seqlen_q=None, seqlen_k=None, cu_seqlens_q=None, "  \
  "cu_seqlens_k=None, randval=None, workspace=None, softmax_scale=None, causal=False, window=(-1, -1), "               \
  "mask_origin='bottom_right', sink_size=0, softcap=0.0, dropout_p=0.0, rng=(0, 0), layout='bshd', stream=None, "      \
  "num_threads=0, instance=-1, deterministic=False, workers=0)\n--\n\n"

static const char fmha_bwd_doc[] =
    "fmha_bwd" BACKWARD_SIGNATURE
    "Attention backward: the gradients of sum(dout out) of fmha_fwd. With P = exp(S - lse), dropped as the forward "
    "did,\n"
    "delta = rowsum(dout out) and dS = P (dout v^T - delta):\n\n"
    "    dv = P^T dout    dq = softmax_scale dS k    dk = softmax_scale dS^T q    dbias = dS\n"
    "    d_sink[h] = -sum over the rows of head h of exp(sink[h] - lse) delta\n\n"
    "Arrays, their shapes, layouts and lengths are those of fmha_fwd, and so are all arguments not named here; give "
    "the\n"
    "same values as there, rng too. Every argument is checked before anything is written.\n\n"
    "dout: gradient of out: its shape, dtype of q (fp32, fp16 or bf16). out, lse: as the forward wrote them.\n"
    "dq, dk, dv: where to write, shapes of q, k and v, dtype of q. None: new arrays of q's framework. They are "
    "written, not\n"
    "    added to; dk and dv are sums over the query heads of a group. They may not overlap any other array.\n"
    "dbias: with bias: an array, or True for a new one; dtype of q, (batch, nhead_q, seqlen_q, seqlen_k), group "
    "(nhead_q,\n"
    "    total_q, max_seqlen_k). Its shape is the full one even when the bias is broadcast over batch or heads: sum "
    "over\n"
    "    those. Hidden pairs get 0. d_sink: with sink: fp32 (nhead_q), or True.\n"
    "delta: fp32, shape of lse: receives delta. randval: receives the random bytes again.\n"
    "Rows past a logical length, and columns of dbias past seqlen_k, are left untouched; in new arrays they are 0.\n"
    "deterministic: the same bits every time and over any number of threads. workers: logical workers of its "
    "schedule,\n"
    "    part of the problem: other numbers sum in another order. 0: chosen from the sizes.\n"
    "workspace: uint8 (bytes), contiguous, aligned to 16, of at least fmha_bwd_workspace_size bytes. None: the call "
    "makes\n"
    "    its own.\n"
    "instance: of fmha_bwd_dq_dk_dv; the other stages are always chosen.\n\n"
    "Returns (dq, dk, dv), then dbias and d_sink when they were asked for. Raises as fmha_fwd does.";

static const char fmha_bwd_find_doc[] = "fmha_bwd_find" BACKWARD_SIGNATURE
                                        "The instances that fmha_bwd would use for the same arguments: (dot_do_o, "
                                        "dq_dk_dv, convert_dq), -1 for a stage that\n"
                                        "is not needed. Checks them alike and runs nothing.";

static const char fmha_bwd_why_doc[] = "fmha_bwd_why" BACKWARD_SIGNATURE
                                       "Why fmha_bwd would use the instances it would use, or why there is none, stage "
                                       "by stage; see why. Runs nothing.";

static const char fmha_bwd_workspace_size_doc[] =
    "fmha_bwd_workspace_size" BACKWARD_SIGNATURE
    "The bytes of workspace that fmha_bwd needs for the same arguments. Checks them alike and runs nothing.";

static const char launcher_prepare_doc[] =
    "prepare($self, workspace, seqstart_q=None, seqstart_k=None, stream=None)\n--\n\n"
    "Write the host segment to the workspace and zero what the next run adds to. Each run needs its own.\n\n"
    "workspace: uint8 (bytes), contiguous, aligned to 16, at least workspace_size. seqstart_q, seqstart_k: int32 "
    "(batch + "
    "1),\n"
    "    contiguous, in group mode: the physical starts.\n"
    "stream: a tilekiln.Stream: returns at once; the starts are read when the stream has come to it, so earlier work "
    "of the\n"
    "    stream may write them, and what is wrong with them is raised by synchronize().";

static const char launcher_run_doc[] = "run" BACKWARD_SIGNATURE
                                       "Library.fmha_bwd with a workspace that prepare has written. The arguments are "
                                       "of the launcher's problem; in group mode\n"
                                       "seqstart_q and seqstart_k as prepared.";

#endif
