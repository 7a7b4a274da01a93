// SPDX-License-Identifier: MIT
// Errors that only the stream can see: scales that earlier work of the stream writes. They surface at synchronise or destroy, once,
// with their text, nothing is written, and the stream goes on. Needs a library with fp8 and per-tensor scales.
#include <math.h>
#include <stdint.h>

#include <limits>
#include <vector>

#include "check.h"
#include "tilekiln/tilekiln.h"

namespace {

constexpr int S = 8, D = 128;
float scales[3] = {1, 1, 1};

tilekiln_tensor tensor(void* data, int32_t dtype, int ndim) {
  tilekiln_tensor t = {};
  t.data = data;
  t.dtype = dtype;
  t.ndim = ndim;
  t.device_type = TILEKILN_CPU;
  const int64_t shape[] = {1, S, 1, D}, stride[] = {S * D, D, D, 1};
  for (int i = 0; i < ndim; ++i) t.shape[i] = shape[i], t.stride[i] = stride[i];
  return t;
}

}  // namespace

int main() {
  std::vector<uint8_t> one(S * D, 0x38);  // 1 in e4m3
  std::vector<uint16_t> result(S * D, 7);
  const tilekiln_tensor in = tensor(one.data(), TILEKILN_FP8, 4), out = tensor(result.data(), TILEKILN_BF16, 4);
  tilekiln_tensor descale[3];
  for (int i = 0; i < 3; ++i) descale[i] = tensor(&scales[i], TILEKILN_FP32, 0);
  tilekiln_stream* stream = nullptr;
  CHECK(tilekiln_stream_create(&stream) == TILEKILN_OK);
  tilekiln_fmha_fwd_args args = tilekiln_fmha_fwd_defaults();
  args.q = args.k = args.v = &in;
  args.out = &out;
  args.q_descale = &descale[0], args.k_descale = &descale[1], args.v_descale = &descale[2];
  args.stream = stream;
  const auto set = [&](float (*value)()) {
    return tilekiln_stream_launch_host(
        stream, [](void* give) { scales[1] = reinterpret_cast<float (*)()>(give)(); }, reinterpret_cast<void*>(value));
  };
  float (*const good)() = [] { return 1.0f; };
  float (*const bad)() = [] { return std::numeric_limits<float>::quiet_NaN(); };
  float (*const worse)() = [] { return std::numeric_limits<float>::infinity(); };

  // A scale that is wrong now and right when the stream comes to it.
  scales[1] = bad();
  CHECK(set(good) == TILEKILN_OK);
  if (!CHECK(tilekiln_fmha_fwd(&args) == TILEKILN_OK)) fprintf(stderr, "%s\n", tilekiln_last_error());
  CHECK(tilekiln_stream_synchronize(stream) == TILEKILN_OK);
  CHECK(result[0] == 0x3f80 && result[S * D - 1] == 0x3f80);  // 1 in bf16: the mean of ones

  // Right now, wrong then. The first error is the one that is told, once.
  for (uint16_t& x : result) x = 7;
  CHECK(set(bad) == TILEKILN_OK);
  CHECK(tilekiln_fmha_fwd(&args) == TILEKILN_OK);
  CHECK(set(worse) == TILEKILN_OK);
  CHECK(tilekiln_fmha_fwd(&args) == TILEKILN_OK);
  CHECK(tilekiln_stream_synchronize(stream) == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(tilekiln_last_error(), "k_descale: was nan, must be finite");
  CHECK(result[0] == 7 && result[S * D - 1] == 7);
  CHECK(tilekiln_stream_synchronize(stream) == TILEKILN_OK);

  CHECK(set(good) == TILEKILN_OK);
  CHECK(tilekiln_fmha_fwd(&args) == TILEKILN_OK);
  CHECK(tilekiln_stream_synchronize(stream) == TILEKILN_OK);
  CHECK(result[0] == 0x3f80);

  CHECK(set(worse) == TILEKILN_OK);
  CHECK(tilekiln_fmha_fwd(&args) == TILEKILN_OK);
  CHECK(tilekiln_stream_destroy(stream) == TILEKILN_INVALID_ARGUMENT);
  CHECK_TEXT(tilekiln_last_error(), "k_descale: was inf, must be finite");
  return check_result();
}
