// SPDX-License-Identifier: MIT
// Registries and listings as JSON. A registry: {"metadata": {...}, "statistics": {...}, "kernels": [one a line]}, and back.
#pragma once
#include <cstdio>
#include <ctime>

#include "tilekiln/dispatcher/library.hpp"
#include "tilekiln/dispatcher/registry.hpp"

namespace tilekiln::dispatcher {

namespace detail {

inline const char* name_of(Priority priority) {
  return priority == Priority::low ? "low" : priority == Priority::high ? "high" : "normal";
}

// Members in the order of their names.
inline std::string values_json(const Values& values) {
  std::map<std::string, Value> sorted;
  for (const auto& [field, value] : values) sorted.emplace(field.name(), value);
  return members_json(sorted, json_of);
}

inline std::string choice_json(const Choice& choice) {
  std::set<std::string> holds;
  for (const Field field : choice.holds) holds.insert(field.name());
  std::map<std::string, std::string> fits;
  for (const Choice::Fit& fit : choice.fit) fits.emplace(fit.size.name(), fit.of);
  return "{\"holds\":" + listed_json(holds, "[]", quoted_json) + ",\"fit\":" + members_json(fits, quoted_json) +
         ",\"needs\":" + quoted_json(choice.needs.text()) + ",\"best\":" + quoted_json(choice.best.text()) +
         ",\"order\":" + std::to_string(choice.order) + "}";
}

inline std::string statistics_json(const std::vector<Entry>& all) {
  std::map<std::string, size_t> counts[4];
  for (const Entry& entry : all) {
    const Key& key = entry.instance->key();
    const std::string words[] = {key.family, key.signature[field::dtype].text(), key.algorithm["pipeline"].text(),
                                 key.target};
    for (size_t i = 0; i < 4; ++i) ++counts[i][words[i]];
  }
  const char* const names[] = {"by_family", "by_dtype", "by_pipeline", "by_gfx_arch"};
  size_t at = 0;
  return listed_json(counts, "{}", [&](const auto& of) {
    return quoted_json(names[at++]) + ':' + members_json(of, [](size_t count) { return std::to_string(count); });
  });
}

}  // namespace detail

inline std::string Registry::to_json(bool statistics, bool timestamp) const {
  const std::vector<Entry> all = entries();
  std::string to = "{\"metadata\":{\"registry_name\":" + quoted_json(name_) +
                   ",\"total_kernels\":" + std::to_string(all.size()) + ",\"export_version\":\"1.0.0\"";
  if (timestamp) {
    const std::time_t now = std::time(nullptr);
    char text[32];
    std::tm parts{};
    gmtime_r(&now, &parts);
    std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
    to += std::string(",\"timestamp\":\"") + text + '"';
  }
  to += "},\n";
  if (statistics) to += "\"statistics\":" + detail::statistics_json(all) + ",\n";
  to += "\"kernels\":[";
  std::map<const Choice*, std::string> choices;
  const char* before = "\n";
  for (const Entry& entry : all) {
    const Key& key = entry.instance->key();
    const std::pair<const char*, std::string> words[] = {{"name", entry.instance->name()},
                                                         {"identifier", entry.id},
                                                         {"family", key.family},
                                                         {"dtype", key.signature[field::dtype].text()},
                                                         {"pipeline", key.algorithm["pipeline"].text()},
                                                         {"gfx_arch", key.target},
                                                         {"receipt", key.receipt},
                                                         {"priority", detail::name_of(entry.priority)}};
    std::string& choice = choices[&entry.instance->choice()];
    if (choice.empty()) choice = detail::choice_json(entry.instance->choice());
    to += std::exchange(before, ",\n") + members_json(words, quoted_json);
    to.back() = ',';
    to += "\"rank\":" + std::to_string(entry.rank) + ",\"signature\":" + detail::values_json(key.signature) +
          ",\"algorithm\":" + detail::values_json(key.algorithm) + ",\"choice\":" + choice + "}";
  }
  return to += all.empty() ? "]}\n" : "\n]}\n";
}

inline bool Registry::to_file(const std::string& path, bool statistics, bool timestamp) const {
  const std::string text = to_json(statistics, timestamp), unfinished = path + ".part";
  std::FILE* const file = std::fopen(unfinished.c_str(), "wb");
  if (file == nullptr) return false;
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (std::fclose(file) == 0 && written && std::rename(unfinished.c_str(), path.c_str()) == 0) return true;
  std::remove(unfinished.c_str());
  return false;
}

// Adds the kernels of an exported registry, each as a listing without code; those whose receipt is that of a library given here, and
// whose name it holds, are the library's. How many were added. Throws FileError, file:line, and then nothing was added. file: for errors.
inline size_t from_json(Registry& registry, std::string_view text, const std::string& file,
                        const std::vector<Library::Pointer>& libraries = {}) {
  std::map<std::pair<std::string, std::string>, Registry::Pointer> held;
  for (const Library::Pointer& library : libraries)
    for (const Registry::Pointer& one : library->instances()) held[{library->receipt(), one->name()}] = one;
  const Json all = JsonReader::read(text, file);
  const std::vector<Json>& kernels = all["kernels"].list();
  const Json& total = all["metadata"]["total_kernels"];
  if (total.integer() != static_cast<int64_t>(kernels.size()))
    total.fail("total_kernels: was " + std::to_string(total.integer()) + ", must be " + std::to_string(kernels.size()) +
               ", the kernels that follow");
  std::vector<std::pair<Registry::Pointer, Priority>> read;
  for (const Json& one : kernels) {
    Key key;
    key.family = one["family"].text();
    key.target = one["gfx_arch"].text();
    key.receipt = one["receipt"].text();
    key.signature = detail::read_values(one["signature"]);
    key.algorithm = detail::read_values(one["algorithm"]);
    const std::pair<const char*, std::string> said[] = {{"dtype", key.signature[field::dtype].text()},
                                                        {"pipeline", key.algorithm["pipeline"].text()}};
    for (const auto& [name, must] : said)
      if (one[name].text() != must)
        one[name].fail(std::string(name) + ": was " + one[name].text() + ", must be " + must + ", as in the key");
    const std::string& word = one["priority"].text();
    if (word != "low" && word != "normal" && word != "high")
      one["priority"].fail("priority: was " + word + ", must be low, normal or high");
    const Priority priority = word == "low" ? Priority::low : word == "high" ? Priority::high : Priority::normal;
    if (const Json& id = one["identifier"]; id.text() != key.id())
      id.fail("identifier: was " + id.text() + ", must be " + key.id() + ", that of its fields");
    const auto found = held.find({key.receipt, one["name"].text()});
    Registry::Pointer instance;
    if (found != held.end() && found->second->key() == key) {
      instance = found->second;
    } else {
      const int rank = static_cast<int>(one["rank"].integer());
      Choice choice;
      try {
        const Json& told = one["choice"];
        choice = detail::read_choice(told, told, key.algorithm, rank, static_cast<int>(told["order"].integer()));
      } catch (const std::invalid_argument& error) {
        one["choice"].fail(error.what());
      }
      instance = std::make_shared<FunctionInstance>(std::move(key), nullptr, std::move(choice), one["name"].text());
    }
    read.emplace_back(std::move(instance), priority);
  }
  size_t added = 0;
  for (const auto& [instance, priority] : read) added += registry.add(instance, priority);
  return added;
}

inline size_t from_file(Registry& registry, const std::string& path,
                        const std::vector<Library::Pointer>& libraries = {}) {
  return from_json(registry, JsonReader::contents(path), path, libraries);
}

// Listings of `codegen list RECEIPT --format json`, of targets that are elsewhere or planned: kernels to plan with, without code.
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
    key.signature = detail::read_values(one["signature"]);
    for (const auto& [axis, value] : one["algorithm"].members()) {
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
