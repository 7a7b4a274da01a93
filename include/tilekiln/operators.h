/* operators.h - Made by `python -m codegen operators --write`: every operator of the tree. */
#ifndef TILEKILN_OPERATORS_H
#define TILEKILN_OPERATORS_H

#include "tilekiln/operators/batched_gemm.h"
#include "tilekiln/operators/batched_transpose.h"
#include "tilekiln/operators/copy.h"
#include "tilekiln/operators/flatmm.h"
#include "tilekiln/operators/flatmm_quant.h"
#include "tilekiln/operators/fmha_batch_prefill.h"
#include "tilekiln/operators/fmha_bwd.h"
#include "tilekiln/operators/fmha_fwd.h"
#include "tilekiln/operators/fmha_fwd_appendkv.h"
#include "tilekiln/operators/fmha_fwd_pagedkv.h"
#include "tilekiln/operators/fmha_fwd_splitkv.h"
#include "tilekiln/operators/gemm.h"
#include "tilekiln/operators/gemm_multi_d.h"
#include "tilekiln/operators/grouped_gemm.h"
#include "tilekiln/operators/img2col.h"
#include "tilekiln/operators/layernorm2d.h"
#include "tilekiln/operators/layernorm2d_rdquant.h"
#include "tilekiln/operators/moe_smoothquant.h"
#include "tilekiln/operators/permute.h"
#include "tilekiln/operators/reduce.h"
#include "tilekiln/operators/rmsnorm2d.h"
#include "tilekiln/operators/rmsnorm2d_rdquant.h"
#include "tilekiln/operators/smoothquant.h"
#include "tilekiln/operators/softmax.h"
#include "tilekiln/operators/transpose.h"

#endif
