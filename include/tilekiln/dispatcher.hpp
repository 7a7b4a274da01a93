// SPDX-License-Identifier: MIT
// The dispatcher in C++: problems, keys, kernels, registries, plans. Header-only C++17 over the C ABI; link with -ldl.
//
//   using namespace tilekiln::dispatcher;
//   Registry registry("mine");
//   Dispatcher dispatcher(registry);
//   dispatcher.add_library(Library::open("libtilekiln_flash.so"));
//   const Problem problem = ProblemBuilder().data_type("bf16").dims(64, 64, 1, 128, 128).nheads(8, 8).lse(true).build();
//   dispatcher.run(problem, Call("fmha_fwd", args));
#pragma once
#include "tilekiln/dispatcher/builder.hpp"
#include "tilekiln/dispatcher/convolutions.hpp"
#include "tilekiln/dispatcher/dispatch.hpp"
#include "tilekiln/dispatcher/kernel_set.hpp"
#include "tilekiln/dispatcher/registry_json.hpp"
#include "tilekiln/dispatcher/tuned.hpp"
