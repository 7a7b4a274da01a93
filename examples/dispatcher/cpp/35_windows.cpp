// Windows: keys to the left and to the right of a row's own place; -1 is without end.
#include "example.hpp"

using namespace example;

int main(int count, char** words) {
  const Session session(options(count, words, "Runs windows, 64 queries over 96 keys."));
  const Arrays arrays(1, 64, 96);
  for (const auto& [left, right] : {std::pair<int64_t, int64_t>{-1, -1}, {-1, 0}, {16, 0}, {0, 16}, {16, -1}, {8, 8}}) {
    ProblemBuilder builder = fp32(1, 64, 96);
    if (left >= 0 || right >= 0) builder.mask_type("window_generic").window(left, right);
    const Problem problem = builder.build();
    tilekiln_fmha_fwd_args args = arrays.forward();
    args.window_left = static_cast<int32_t>(left), args.window_right = static_cast<int32_t>(right);
    const bool ran = session.run("fmha_fwd", args, &problem);
    const Expected expected = attention(arrays.q, arrays.k, arrays.v, {left, right});
    long seen = 0;
    for (const double weight : expected.weights) seen += weight > 0;
    std::printf("left %2lld, right %2lld: %5ld of %ld pairs, %s\n", static_cast<long long>(left),
                static_cast<long long>(right), seen / 4, 64L * 96,
                ran ? verdict(arrays.out, expected.out).c_str() : "planned");
  }
  return 0;
}
