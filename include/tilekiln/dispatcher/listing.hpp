// SPDX-License-Identifier: MIT
// Listings of `codegen list RECEIPT --format json`, of targets that are elsewhere or planned: kernels to plan with, without code.
#pragma once
#include "tilekiln/dispatcher/json.hpp"
#include "tilekiln/dispatcher/registry.hpp"

namespace tilekiln::dispatcher {

struct Listing {
  std::string receipt;
  int64_t number = -1;  // CK's of the receipt; -1: it has none
  std::vector<std::shared_ptr<const Instance>> instances;
};

// Reads a listing. Head dims hold those up to theirs, every other axis is as it is said. file: for errors, file:line (FileError).
inline Listing read_listing(std::string_view text, const std::string& file) {
  const Json all = JsonReader::read(text, file);
  Listing result;
  result.receipt = all["receipt"].text();
  if (all["number"].kind == Json::Kind::number) result.number = all["number"].integer();
  Choice choice;
  choice.holds = {field::hdim_q, field::hdim_v};
  for (const Json& one : all["instances"].list()) {
    Key key;
    key.family = one["family"].text();
    key.receipt = result.receipt;
    for (const auto& [axis, value] : one["signature"].members) key.signature.set(axis, value.value());
    for (const auto& [axis, value] : one["algorithm"].members) {
      if (axis == "target") {
        key.target = value.text();
      } else {
        key.algorithm.set(axis, value.value());
      }
    }
    result.instances.push_back(std::make_shared<FunctionInstance>(std::move(key), nullptr, choice, one["name"].text()));
  }
  return result;
}

inline Listing read_listing_file(const std::string& path) { return read_listing(JsonReader::contents(path), path); }

}  // namespace tilekiln::dispatcher
