// The arguments of fmha_fwd_splitkv and fmha_fwd_pagedkv.
#include "kv_check.h"
#include "tilekiln/runtime/splits.h"

namespace tilekiln::fmha {
namespace {

template <class Args>
class LinearCheck : KvCheck<Args> {
 public:
  using KvCheck<Args>::KvCheck;
  using KvCheck<Args>::arrays_, KvCheck<Args>::args_, KvCheck<Args>::call_, KvCheck<Args>::group_;

  tilekiln_status run() {
    TILEKILN_TRY(this->scalars());
    TILEKILN_TRY(this->flag("is_gappy", args_.is_gappy));
    if constexpr (requires { args_.num_splits; }) {
      if (args_.num_splits < 0 || args_.num_splits > max_splits) {
        return fail_argument("num_splits", "was %d, must be from 1 to %d, or 0 (chosen from the sizes)",
                             args_.num_splits, max_splits);
      }
      call_.num_splits = args_.num_splits;
    }
    constexpr bool always_paged = !requires { args_.num_splits; };
    TILEKILN_TRY(this->read_arrays());
    if (always_paged && !arrays_.block_table.given()) return fail_argument("block_table", "was null, must be given");
    TILEKILN_TRY(this->linear_cache(arrays_.block_table.given()));
    if (always_paged && this->cache_.page_size % 16 != 0) {
      return fail_argument("k", "page size was %lld, must be a multiple of 16",
                           static_cast<long long>(this->cache_.page_size));
    }
    this->features();
    TILEKILN_TRY(check_keys(arrays_, this->cache_, group_, args_.is_gappy != 0, this->sq_, &call_));
    TILEKILN_TRY(this->lse());
    TILEKILN_TRY(this->score_biases());
    TILEKILN_TRY(this->sink());
    TILEKILN_TRY(this->scales());
    TILEKILN_TRY(this->overlaps({&arrays_.out, &arrays_.lse}));
    TILEKILN_TRY(this->where_to_run());
    this->set_query();
    return TILEKILN_OK;
  }
};

template <class Args>
tilekiln_status check_size(const Args& args, const char* name) {
  // Only the size may be read before it is known to be right.
  if (args.size == sizeof(args)) return TILEKILN_OK;
  return fail_argument("args", "size was %zu, must be %zu, sizeof(%s_args) of ABI %d: start from %s_defaults()",
                       args.size, sizeof(args), name, TILEKILN_ABI_VERSION, name);
}

}  // namespace

tilekiln_status check_splitkv(const tilekiln_fmha_fwd_splitkv_args& args, KvCall* call) {
  TILEKILN_TRY(check_size(args, "tilekiln_fmha_fwd_splitkv"));
  call->family = KvFamily::splitkv;
  TILEKILN_TRY(LinearCheck<tilekiln_fmha_fwd_splitkv_args>(args, call).run());
  set_splitkv_signature(call);
  return TILEKILN_OK;
}

tilekiln_status check_pagedkv(const tilekiln_fmha_fwd_pagedkv_args& args, KvCall* call) {
  TILEKILN_TRY(check_size(args, "tilekiln_fmha_fwd_pagedkv"));
  call->family = KvFamily::pagedkv;
  TILEKILN_TRY(LinearCheck<tilekiln_fmha_fwd_pagedkv_args>(args, call).run());
  set_pagedkv_signature(call);
  return TILEKILN_OK;
}

}  // namespace tilekiln::fmha
