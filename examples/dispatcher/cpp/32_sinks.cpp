// Sink columns: the first keys are seen by every row of a window, however far it is.
#include "example.hpp"

using namespace example;

int main(int count, char** words) {
  const Session session(options(count, words, "Runs windows with 0, 1 and 4 sink columns."));
  const Arrays arrays(1, 96, 96);
  for (const int64_t sinks : {0, 1, 4}) {
    ProblemBuilder builder = fp32(1, 96, 96).mask_type("window_generic").window(8, 0);
    if (sinks > 0) builder.sink_size(sinks);
    const Problem problem = builder.build();
    tilekiln_fmha_fwd_args args = arrays.forward();
    args.window_left = 8, args.window_right = 0, args.sink_size = static_cast<int32_t>(sinks);
    Asked asked{8, 0};
    asked.sinks = sinks;
    const bool ran = session.run("fmha_fwd", args, &problem);
    std::printf("%lld sink columns: %s\n", static_cast<long long>(sinks),
                ran ? verdict(arrays.out, attention(arrays.q, arrays.k, arrays.v, asked).out).c_str() : "planned");
  }
  return 0;
}
