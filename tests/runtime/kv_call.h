// SPDX-License-Identifier: MIT
// Shared parts of the tests of calls over a KV cache: how a call is run, numbers, and attention of one row by a loop.
#pragma once
#include <math.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "check.h"
#include "kv_plain_engine.h"
#include "tensor.h"
#include "tilekiln/tilekiln.h"
#ifndef TILEKILN_TEST_LIBRARY
#include "kernels/attention/kv/call.h"
#include "kernels/generated/operators/fmha_batch_prefill.h"
#include "kernels/generated/operators/fmha_fwd_appendkv.h"
#include "kernels/generated/operators/fmha_fwd_splitkv.h"
#endif

namespace {

#ifdef TILEKILN_TEST_LIBRARY
constexpr bool library = true;
tilekiln_status run(const tilekiln_fmha_fwd_splitkv_args& args) { return tilekiln_fmha_fwd_splitkv(&args); }
tilekiln_status run(const tilekiln_fmha_batch_prefill_args& args) { return tilekiln_fmha_batch_prefill(&args); }
tilekiln_status run(const tilekiln_fmha_fwd_appendkv_args& args) { return tilekiln_fmha_fwd_appendkv(&args); }
const char* told() { return tilekiln_last_error(); }
#else
using namespace tilekiln;
using namespace tilekiln::fmha;

constexpr bool library = false;
int number_of_calls = 0;
// Tiles of several heights, heads of a key head together or apart.
template <class Launch>
tilekiln_status choose(KvCall& call, Launch&& launch) {
  static const uint32_t tall[] = {16, 64}, flat[] = {4, 64};
  static constexpr SizeRule always = {"", nullptr, 0};
  static const Algorithm hows[] = {{"b16x64", 0, 0, tall, always, always}, {"b4x64", 0, 0, flat, always, always}};
  static const Row rows[] = {{0, 0, 0, 0}, {0, 0, 1, 0}};
  static const KvEngine engines[] = {plain::engine(16), plain::engine(4)};
  const int which = number_of_calls++ % 2;
  call.choice = call.combine = {&rows[which], &engines[which], 0, &hows[which]};
  call.shares_heads = number_of_calls % 3 == 0;
  return launch();
}
tilekiln_status run(const tilekiln_fmha_fwd_splitkv_args& args) {
  KvCall call;
  TILEKILN_TRY(op::fmha_fwd_splitkv::check(args, &call));
  return choose(call, [&] { return launch(call); });
}
tilekiln_status run(const tilekiln_fmha_batch_prefill_args& args) {
  KvCall call;
  TILEKILN_TRY(op::fmha_batch_prefill::check(args, &call));
  return choose(call, [&] { return launch(call); });
}
tilekiln_status run(const tilekiln_fmha_fwd_appendkv_args& args) {
  AppendCall call;
  TILEKILN_TRY(op::fmha_fwd_appendkv::check(args, &call));
  return choose(call.attention, [&] {
    call.choice = call.attention.choice;
    return launch(call);
  });
}
const char* told() { return error_text(); }
#endif

int ran = 0;
// Tells whether a call ran. A library need not hold an instance for every combination.
template <class Args>
bool runs(const Args& args, const char* what, int number) {
  const tilekiln_status status = run(args);
  if (library && status == TILEKILN_NO_KERNEL) return false;
  ++ran;
  if (CHECK(status == TILEKILN_OK)) return true;
  fprintf(stderr, "%s %d: %s\n", what, number, told());
  return false;
}

std::mt19937 random_bits(1);
int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_bits); }
bool coin() { return pick(0, 1) != 0; }

std::vector<float> noise(size_t count) {
  std::vector<float> values(count);
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random_bits);
  return values;
}

int64_t at(const tilekiln_tensor& t, int64_t a, int64_t b, int64_t c, int64_t d = 0) {
  return a * t.stride[0] + b * t.stride[1] + c * t.stride[2] + d * t.stride[3];
}

// Numbers as an array of fp32 or bf16; `values` are what it holds.
struct Data {
  std::vector<float> values;
  std::vector<uint16_t> halves;
  Data(std::vector<float> numbers, bool bf16) : values(std::move(numbers)) {
    if (!bf16) return;
    halves.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      plain::store(halves.data(), static_cast<int64_t>(i), true, values[i]);
      values[i] = plain::load(halves.data(), static_cast<int64_t>(i), true);
    }
  }
  tilekiln_tensor tensor_of(std::vector<int64_t> shape) const {
    return halves.empty() ? tensor(values.data(), TILEKILN_FP32, std::move(shape))
                          : tensor(halves.data(), TILEKILN_BF16, std::move(shape));
  }
  float now(size_t i) const {
    return halves.empty() ? values[i] : plain::load(halves.data(), static_cast<int64_t>(i), true);
  }
};

// Attention of one row and head over the keys [0, keys): `visible`, `score` (the whole logit) and `value` say
// everything.
struct Result {
  std::vector<double> out;
  double lse;
};
Result attend(int keys, int hdim_v, const std::function<bool(int)>& visible, const std::function<double(int)>& score,
              const std::function<double(int, int)>& value, const float* sink) {
  double max = sink != nullptr ? *sink : -INFINITY, total = 0;
  std::vector<double> scores(static_cast<size_t>(keys));
  for (int j = 0; j < keys; ++j) {
    if (visible(j)) max = fmax(max, scores[static_cast<size_t>(j)] = score(j));
  }
  Result result = {std::vector<double>(static_cast<size_t>(hdim_v), 0), -INFINITY};
  for (int j = 0; j < keys; ++j) {
    if (!visible(j)) continue;
    const double weight = exp(scores[static_cast<size_t>(j)] - max);
    total += weight;
    for (int d = 0; d < hdim_v; ++d) result.out[static_cast<size_t>(d)] += weight * value(j, d);
  }
  if (sink != nullptr) total += exp(*sink - max);
  if (total == 0) return result;
  for (double& x : result.out) x /= total;
  result.lse = max + log(total);
  return result;
}

}  // namespace
