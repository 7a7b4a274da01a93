// SPDX-License-Identifier: MIT
// A plan: the kernels that run for a problem, a stage each; or why there is none.
#pragma once
#include "tilekiln/dispatcher/registry.hpp"

namespace tilekiln::dispatcher {

struct Plan {
  struct Stage {
    std::string family;
    std::string id;
    Registry::Pointer instance;
  };
  std::vector<Stage> stages;
  std::string main;    // the family that a library is given an instance of
  std::string reason;  // why there are no stages
  Settings settings;   // what its call is told that leaves it open, as measured with the main stage

  bool is_valid() const { return !stages.empty(); }
  // The stage whose launch runs the whole call; null where each stage launches alone.
  const Stage* whole() const {
    for (const Stage& stage : stages)
      if (stage.family == main && stage.instance->launches_whole_call()) return &stage;
    return nullptr;
  }
};

}  // namespace tilekiln::dispatcher
