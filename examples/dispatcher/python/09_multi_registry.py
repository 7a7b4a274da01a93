"""Several registries: one for prefill, one for decoding, each with its own kernels, chosen by the problem."""

from dispatch_example import attention, over, verdict
from tilekiln.dispatcher import Dispatcher, Registry

kernels = over("flash").registry.filter(lambda one: one.key.family == "fmha_fwd_splitkv")
prefill, decode = Registry("prefill"), Registry("decode")
prefill.add_all(one for one in kernels if one.key.algorithm["pipeline"] == "qlanes")
decode.add_all(one for one in kernels if one.key.algorithm["pipeline"] == "dlanes")
of = {registry.name: Dispatcher(registry) for registry in (prefill, decode)}
verdict("registries", len(prefill) > 0 and len(decode) > 0 and len(prefill) + len(decode) == len(kernels), "apart")
for seqlen_q in (1, 512):
    problem = attention(seqlen_q=seqlen_q, seqlen_k=512).api_family("fwd_splitkv").lse().build()
    name = "decode" if seqlen_q <= 8 else "prefill"
    pipeline = of[name].select(problem).key.algorithm["pipeline"]
    verdict(f"{seqlen_q} queries from {name}", pipeline == ("dlanes" if name == "decode" else "qlanes"), pipeline)
