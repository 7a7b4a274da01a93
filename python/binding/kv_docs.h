/* What help() says of the KV-cache families. Argument names, order and defaults are those of kv.h. */
#ifndef TILEKILN_BINDING_KV_DOCS_H
#define TILEKILN_BINDING_KV_DOCS_H

#define KV_MASK_TEXT \
  "softmax_scale=None, causal=False, window=(-1, -1), mask_origin='bottom_right', sink_size=0, softcap=0.0, "
#define KV_RUN_TEXT "stream=None, num_threads=0, instance=-1"

#define SPLITKV_SIGNATURE                                                                                             \
  "($self, q, k, v, *, out=None, lse=None, bias=None, alibi_slopes=None, sink=None, q_descale=None, k_descale=None, " \
  "v_descale=None, out_scale=None, seqstart_q=None, seqstart_k=None, seqlen_q=None, seqlen_k=None, "                  \
  "cu_seqlens_q=None, cu_seqlens_k=None, block_table=None, cache_batch_idx=None, cache_leftpad=None, " KV_MASK_TEXT   \
  "is_gappy=False, num_splits=0, layout='bshd', " KV_RUN_TEXT ", return_lse=False)\n--\n\n"
#define PAGEDKV_SIGNATURE                                                                                           \
  "($self, q, k, v, *, out=None, bias=None, alibi_slopes=None, sink=None, q_descale=None, k_descale=None, "         \
  "v_descale=None, out_scale=None, seqstart_q=None, seqstart_k=None, seqlen_q=None, seqlen_k=None, "                \
  "cu_seqlens_q=None, cu_seqlens_k=None, block_table=None, cache_batch_idx=None, cache_leftpad=None, " KV_MASK_TEXT \
  "is_gappy=False, layout='bshd', " KV_RUN_TEXT ")\n--\n\n"
#define APPENDKV_SIGNATURE                                                                                             \
  "($self, q, k, v, knew, vnew, *, out=None, lse=None, bias=None, alibi_slopes=None, sink=None, q_descale=None, "      \
  "k_descale=None, v_descale=None, out_scale=None, seqlen_k=None, rotary_cos=None, rotary_sin=None, "                  \
  "block_table=None, cache_batch_idx=None, cache_leftpad=None, " KV_MASK_TEXT                                          \
  "rotary_interleaved=True, num_splits=0, layout='bshd', " KV_RUN_TEXT ", return_lse=False, attend=None)\n--\n\n"
#define PREFILL_SIGNATURE                                                                                              \
  "($self, q, k, v, *, out=None, lse=None, randval=None, bias=None, alibi_slopes=None, sink=None, q_descale=None, "    \
  "k_descale=None, v_descale=None, kv_block_descale=None, cu_seqlens_q=None, kv_indptr=None, kv_page_indices=None, "   \
  "kv_last_page_lens=None, block_table=None, seqlen_k=None, " KV_MASK_TEXT "dropout_p=0.0, rng=(0, 0), " KV_RUN_TEXT   \
  ", return_lse=False)\n--\n\n"

static const char fmha_fwd_splitkv_doc[] =
    "fmha_fwd_splitkv" SPLITKV_SIGNATURE
    "Attention over a KV cache, the keys of each sequence cut into parts that run side by side: decode.\n\n"
    "q, out, lse, return_lse, bias, alibi_slopes, sink, softmax_scale, causal, window, mask_origin, sink_size, "
    "softcap, seqstart_q,\n"
    "    seqlen_q, cu_seqlens_q, seqstart_k, layout, stream, num_threads: as in fmha_fwd. Masks and biases count\n"
    "    keys from the first that is attended to; the last dimension of bias is at least the longest sequence of "
    "keys.\n"
    "k, v: the cache, dtype of q (fp32, fp16, bf16 or fp8): (batch_cache, seqlen_cache, nhead_k, hdim), group mode "
    "(total_k,\n"
    "    nhead_k, hdim); or with block_table a pool of pages (pages, page_size, nhead_k, hdim). layout='bhsd': heads "
    "before tokens.\n"
    "block_table: int32 (batch, max_blocks): the page of the keys [i page_size, (i + 1) page_size) of a sequence.\n"
    "seqlen_k, or cu_seqlens_k: the keys in the cache of each sequence; absent, the cache is full.\n"
    "cache_batch_idx: int32 (batch), batch mode: the row of the cache, or of block_table, of each sequence of q.\n"
    "cache_leftpad: int32 (batch), batch mode: the first key of each sequence that is attended to.\n"
    "is_gappy: group mode with block_table: seqlen_k are the lengths and seqstart_k (batch) the first keys.\n"
    "num_splits: 1 to 128; 0: chosen from the sizes and the threads. Results differ by rounding only.\n"
    "q_descale, k_descale, v_descale, out_scale: fp32 of one element, for fp8, whose out is fp8 too; None is 1.\n"
    "instance: of fmha_fwd_splitkv; the other stage is always chosen.\n\n"
    "Returns out, or (out, lse) with return_lse. Raises as fmha_fwd does.";
static const char fmha_fwd_splitkv_find_doc[] =
    "fmha_fwd_splitkv_find" SPLITKV_SIGNATURE
    "The instances that fmha_fwd_splitkv would use: (split, combine). Checks the arguments alike and runs nothing.";
static const char fmha_fwd_splitkv_why_doc[] =
    "fmha_fwd_splitkv_why" SPLITKV_SIGNATURE "Why fmha_fwd_splitkv would use the instances it would use; see why.";
static const char fmha_fwd_splitkv_num_splits_doc[] =
    "fmha_fwd_splitkv_num_splits" SPLITKV_SIGNATURE
    "The number of splits that fmha_fwd_splitkv would use for the same arguments. Runs nothing.";

static const char fmha_fwd_pagedkv_doc[] =
    "fmha_fwd_pagedkv" PAGEDKV_SIGNATURE
    "Attention over a pool of pages in one stage: prefill against a cache. Arguments as in fmha_fwd_splitkv; "
    "block_table is\n"
    "required, page_size is a multiple of 16, and there is no lse.\n\n"
    "out, bias, alibi_slopes, sink, q_descale, k_descale, v_descale, out_scale, seqstart_q, seqstart_k, seqlen_q, "
    "seqlen_k,\n"
    "cu_seqlens_q, cu_seqlens_k, cache_batch_idx, cache_leftpad, softmax_scale, causal, window, mask_origin, "
    "sink_size, softcap,\n"
    "is_gappy, layout, stream, num_threads, instance: see there. Returns out.";
static const char fmha_fwd_pagedkv_find_doc[] =
    "fmha_fwd_pagedkv_find" PAGEDKV_SIGNATURE
    "The instance that fmha_fwd_pagedkv would use. Checks the arguments alike and runs nothing.";
static const char fmha_fwd_pagedkv_why_doc[] =
    "fmha_fwd_pagedkv_why" PAGEDKV_SIGNATURE "Why fmha_fwd_pagedkv would use the instance it would use; see why.";

static const char fmha_fwd_appendkv_doc[] =
    "fmha_fwd_appendkv" APPENDKV_SIGNATURE
    "Write new keys and values into a cache in place, rotate them and q, then attend as fmha_fwd_splitkv does. Batch "
    "mode only.\n\n"
    "q: (batch, seqlen_q, nhead_q, hdim_q), rotated in place when there is a rotation, or None.\n"
    "k, v: the cache, written. knew (batch, seqlen_new, nhead_k, hdim_q), vnew alike with hdim_v, dtype of k.\n"
    "seqlen_k: int32 (batch), required: the lengths before the append; new key j lands at seqlen_k + j.\n"
    "rotary_cos, rotary_sin: (positions, rotary_dim / 2), dtype of q or fp32, both or none. New keys are rotated for "
    "their\n"
    "    position, query i for seqlen_k + i with a mask (causal or window), else for seqlen_k.\n"
    "rotary_interleaved: pairs (2i, 2i + 1), else (i, i + rotary_dim / 2).\n"
    "block_table, cache_batch_idx: as in fmha_fwd_splitkv; nothing may be written for two sequences.\n"
    "attend: False: no attention, the result is None. Default: whether q is given.\n"
    "out, lse, return_lse, bias, alibi_slopes, sink, q_descale, k_descale, v_descale, out_scale, cache_leftpad, "
    "softmax_scale,\n"
    "    causal, window, mask_origin, sink_size, softcap, num_splits, layout, stream, num_threads: as in "
    "fmha_fwd_splitkv.\n"
    "instance: of fmha_fwd_appendkv; the other stages are always chosen.";
static const char fmha_fwd_appendkv_find_doc[] =
    "fmha_fwd_appendkv_find" APPENDKV_SIGNATURE
    "The instances that fmha_fwd_appendkv would use: (append, split, combine), -1 for a stage that is not needed.";
static const char fmha_fwd_appendkv_why_doc[] =
    "fmha_fwd_appendkv_why" APPENDKV_SIGNATURE "Why fmha_fwd_appendkv would use the instances it would use; see why.";

static const char fmha_batch_prefill_doc[] =
    "fmha_batch_prefill" PREFILL_SIGNATURE
    "Attention in group mode over a pool of pages as serving engines keep it.\n\n"
    "q, out: (total_q, nhead_q, hdim), fp16, bf16 or fp8 (out then bf16). cu_seqlens_q: int32 (batch + 1), required.\n"
    "k, v: dtype of q, or fp8 under a bf16 q. Linear (pages, page_size, nhead_k, hdim), or (tokens, nhead_k, hdim) for "
    "pages of\n"
    "    one key; vectorized with vec = 16 bytes of elements: k (pages, nhead_k, hdim / vec, page_size, vec), v "
    "(pages, nhead_k,\n"
    "    page_size / vec, hdim, vec). page_size is a power of two.\n"
    "kv_indptr: int32 (batch + 1), kv_page_indices: int32, kv_last_page_lens: int32 (batch), as sglang keeps them; or "
    "block_table\n"
    "    and seqlen_k, as vllm does.\n"
    "q_descale, k_descale, v_descale: fp32 of one element, for fp8. kv_block_descale: fp32 (pages, nhead_k, 2), of k "
    "and v,\n"
    "    page_size a multiple of 128.\n"
    "bias: dtype of out, (1|nhead_q, total_q, keys) or (total_q, keys), keys at least the longest sequence; randval "
    "alike.\n"
    "lse, return_lse, alibi_slopes, sink, softmax_scale, causal, window, mask_origin, sink_size, softcap, dropout_p, "
    "rng, stream,\n"
    "    num_threads, instance: as in fmha_fwd.\n\n"
    "Returns out, or (out, lse) with return_lse. Raises as fmha_fwd does.";
static const char fmha_batch_prefill_find_doc[] =
    "fmha_batch_prefill_find" PREFILL_SIGNATURE
    "The instance that fmha_batch_prefill would use. Checks the arguments alike and runs nothing.";
static const char fmha_batch_prefill_why_doc[] =
    "fmha_batch_prefill_why" PREFILL_SIGNATURE "Why fmha_batch_prefill would use the instance it would use; see why.";

#endif
