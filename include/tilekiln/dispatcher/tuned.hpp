// SPDX-License-Identifier: MIT
// Tables of `tilekiln tune`, for Dispatcher::set_measured and for the plain calls of a library.
#pragma once
#include "tilekiln/dispatcher/library.hpp"

namespace tilekiln::dispatcher {
namespace detail {

// The problems of a library on this machine: a list, or null where the file has none. path must outlive it.
inline Json problems_of(const std::string& path, const Library& library) {
  const Json all = JsonReader::read(JsonReader::contents(path), path);
  if (all["format"].text() != "tilekiln tune 3")
    all["format"].fail("must be tilekiln tune 3, which names kinds of processors: measure again by tilekiln tune");
  for (const Json& table : all["tables"].list())
    if (table["library"].text() == library.hash() && table["machine"].text() == machine_key()) return table["problems"];
  return Json();
}

}  // namespace detail

// Empty where the file has nothing of this library on this machine. Throws FileError for what is no table.
inline MeasuredTable read_tuned(const std::string& path, const Library& library) {
  const Json problems = detail::problems_of(path, library);
  return problems.kind == Json::Kind::null ? MeasuredTable() : read_measured(problems);
}

// Tunes a library: from now on its calls that leave instance, num_splits and num_threads open take what the file has for them, those
// without a dispatcher too. Returns how many are known. Throws FileError for what is no table.
inline size_t tune(const Library& library, const std::string& path) {
  const Json problems = detail::problems_of(path, library);
  std::vector<tilekiln_tuned> choices;
  std::map<std::string, int64_t> numbers;
  if (!problems.items.empty())
    for (const auto& instance : library.instances())
      numbers[instance->name()] = static_cast<const LibraryInstance&>(*instance).number();
  for (const Json& one : problems.items) {
    const auto found = numbers.find(one["instance"].text());
    if (found == numbers.end()) one["instance"].fail("is no instance of library " + library.receipt());
    const auto setting = [&](const char* name) {
      const Json* const value = one["settings"].find(name);
      return value == nullptr ? 0 : static_cast<int32_t>(value->integer());
    };
    choices.push_back(
        {std::stoull(one["call"].text(), nullptr, 16), found->second, setting("num_splits"), setting("num_threads")});
  }
  library.tune(choices);
  return choices.size();
}

}  // namespace tilekiln::dispatcher
