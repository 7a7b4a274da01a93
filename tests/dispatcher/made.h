// SPDX-License-Identifier: MIT
// Kernels made by hand for the dispatcher's tests.
#pragma once
#include "check.h"
#include "tilekiln/dispatcher.hpp"

// The text of the Error that a statement throws; "" when it throws none.
template <class Error, class Statement>
std::string thrown(const Statement& statement) {
  try {
    statement();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

namespace made {

using namespace tilekiln::dispatcher;

inline Choice holding_head_dims() {
  Choice choice;
  choice.holds = {"hdim_q", "hdim_v"};
  return choice;
}

inline Key attention_key(const char* family, int hdim_q, int hdim_v, int tile, const char* target = "cpu-generic") {
  Key key;
  key.family = family;
  key.target = target;
  key.signature.set("dtype", "bf16");
  key.signature.set("hdim_q", hdim_q);
  key.signature.set("hdim_v", hdim_v);
  key.signature.set("mode", "batch");
  key.signature.set("mask", "none");
  key.algorithm.set("pipeline", "qr");
  key.algorithm.set("tile_m0", tile);
  return key;
}

// Kernel with the fit of its tile, as families declare it.
inline Registry::Pointer kernel(const Key& key, const char* name = "", Choice choice = holding_head_dims()) {
  const int64_t tile = key.algorithm["tile_m0"].number();
  if (tile > 0) choice.fit.push_back({"seqlen_q", "tile_m0", tile});
  return std::make_shared<FunctionInstance>(key, nullptr, choice, name);
}

inline ProblemBuilder attention(int hdim_q = 64, int hdim_v = 64, int seqlen_q = 128) {
  return ProblemBuilder().data_type("bf16").dims(hdim_q, hdim_v, 2, seqlen_q, 256).nheads(8, 4);
}

}  // namespace made
