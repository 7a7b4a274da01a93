// SPDX-License-Identifier: MIT
// Tables of the kernels that were measured to be the fastest for problems on a machine (`tilekiln tune`).
#pragma once
#include <algorithm>
#include <map>

#include "tilekiln/dispatcher/json.hpp"
#include "tilekiln/machine.h"

namespace tilekiln::dispatcher {

// Values for a call besides its instance, by the names of arguments: num_splits, num_threads.
using Settings = std::map<std::string, int64_t>;

// A kernel that was the fastest: its id, and with which settings.
struct Measured {
  Measured(std::string of, Settings with = {}) : id(std::move(of)), settings(std::move(with)) {}
  Measured(const char* of) : id(of) {}
  bool operator==(const Measured& other) const { return id == other.id && settings == other.settings; }

  std::string id;
  Settings settings;
};

// Problem::to_string -> kernels that were measured for it, from the fastest on.
using MeasuredTable = std::map<std::string, std::vector<Measured>>;

// The kind of processor, and how many cores this process may use: as tables name machines.
inline std::string machine_key() {
  char text[320];
  tilekiln_machine(text, sizeof(text));
  return text;
}

// Keeps the problems of a table's list of which all measured shapes have one winner, with that winner.
inline MeasuredTable read_measured(const Json& problems) {
  MeasuredTable found;
  for (const Json& one : problems.list()) {
    Settings settings;
    for (const auto& [name, value] : one["settings"].members) settings[name] = value.integer();
    const Measured winner(one["id"].text(), std::move(settings));
    std::vector<Measured>& listed = found[one["problem"].text()];
    if (std::find(listed.begin(), listed.end(), winner) == listed.end()) listed.push_back(winner);
  }
  for (auto at = found.begin(); at != found.end();)
    at = at->second.size() == 1 && !at->second[0].id.empty() ? std::next(at) : found.erase(at);
  return found;
}

}  // namespace tilekiln::dispatcher
