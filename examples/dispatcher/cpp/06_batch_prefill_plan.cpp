// Batch prefill as serving engines keep their caches: layouts, page tables and page sizes.
#include "example.hpp"

using namespace example;

int main(int count, char** words) {
  const Session session(options(count, words, "Plans batch prefill over each kind of cache."));
  for (const char* layout : {"linear", "vectorized"})
    for (const char* lookup : {"sglang", "vllm"})
      for (const int page_size : {1, 16, 1024}) {
        const Problem problem = ProblemBuilder()
                                    .api_family("batch_prefill")
                                    .data_type("bf16")
                                    .dims(128, 128, 2, 128, 512)
                                    .nheads(8, 2)
                                    .group_mode(true)
                                    .max_seqlen(128, 512)
                                    .mask_type("causal")
                                    .lse(true)
                                    .kv_cache(layout, lookup, page_size)
                                    .build();
        const Plan plan = session.dispatcher.plan(problem);
        std::printf("%-10s %-6s %4d: %s\n", layout, lookup, page_size, plan.is_valid() ? "planned" : "no kernel");
      }
  return 0;
}
