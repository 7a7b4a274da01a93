// Registries as JSON: {"metadata": {...}, "statistics": {...}, "kernels": [one a line]}, and back.
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
inline void add_values(std::string& to, const Values& values) {
  std::map<std::string, Value> sorted;
  for (const auto& [field, value] : values) sorted.emplace(field.name(), value);
  const char* before = "{";
  for (const auto& [name, value] : sorted) {
    to += before;
    before = ",";
    add_quoted(to, name);
    to += ':';
    add_value(to, value);
  }
  to += sorted.empty() ? "{}" : "}";
}

inline std::string choice_json(const Choice& choice) {
  std::string to = "{\"holds\":[";
  std::vector<std::string> names;
  for (const Field field : choice.holds) names.push_back(field.name());
  std::sort(names.begin(), names.end());
  for (size_t i = 0; i < names.size(); ++i) {
    if (i != 0) to += ',';
    add_quoted(to, names[i]);
  }
  to += "],\"fit\":{";
  std::map<std::string, std::string> fits;
  for (const Choice::Fit& fit : choice.fit) fits.emplace(fit.size.name(), fit.of);
  const char* before = "";
  for (const auto& [size, of] : fits) {
    to += before;
    before = ",";
    add_quoted(to, size);
    to += ':';
    add_quoted(to, of);
  }
  to += "},\"needs\":";
  add_quoted(to, choice.needs.text());
  to += ",\"best\":";
  add_quoted(to, choice.best.text());
  to += ",\"order\":" + std::to_string(choice.order) + "}";
  return to;
}

inline void add_counts(std::string& to, const char* name, const std::map<std::string, size_t>& counts) {
  to += '"';
  to += name;
  to += "\":{";
  const char* before = "";
  for (const auto& [word, count] : counts) {
    to += before;
    before = ",";
    add_quoted(to, word);
    to += ':' + std::to_string(count);
  }
  to += '}';
}

inline Values read_values(const Json& from) {
  Values values;
  if (from.kind != Json::Kind::object) from.fail("was " + from.kind_name() + ", must be an object");
  for (const auto& [name, value] : from.members) values.set(name, value.value());
  return values;
}

inline Choice read_choice(const Json& from, const Values& algorithm, int rank) {
  Choice choice;
  for (const Json& name : from["holds"].list()) choice.holds.emplace_back(name.text());
  for (const auto& [size, of] : from["fit"].members) {
    const int64_t tile = algorithm[of.text()].number();
    if (tile <= 0) of.fail("fit: was " + of.text() + ", must be a number of the algorithm");
    choice.fit.push_back({Field(size), of.text(), tile});
  }
  choice.needs = SizeRule(from["needs"].text());
  choice.best = SizeRule(from["best"].text());
  choice.rank = rank;
  choice.order = static_cast<int>(from["order"].integer());
  return choice;
}

}  // namespace detail

inline std::string Registry::to_json(bool statistics, bool timestamp) const {
  const std::vector<Entry> all = entries();
  std::string to = "{\"metadata\":{\"registry_name\":";
  add_quoted(to, name_);
  to += ",\"total_kernels\":" + std::to_string(all.size()) + ",\"export_version\":\"1.0.0\"";
  if (timestamp) {
    const std::time_t now = std::time(nullptr);
    char text[32];
    std::tm parts{};
    gmtime_r(&now, &parts);
    std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
    to += std::string(",\"timestamp\":\"") + text + '"';
  }
  to += "},\n";
  if (statistics) {
    std::map<std::string, size_t> family, dtype, pipeline, target;
    for (const Entry& entry : all) {
      const Key& key = entry.instance->key();
      ++family[key.family];
      ++dtype[key.signature[field::dtype].text()];
      ++pipeline[key.algorithm["pipeline"].text()];
      ++target[key.target];
    }
    to += "\"statistics\":{";
    detail::add_counts(to, "by_family", family);
    to += ',';
    detail::add_counts(to, "by_dtype", dtype);
    to += ',';
    detail::add_counts(to, "by_pipeline", pipeline);
    to += ',';
    detail::add_counts(to, "by_gfx_arch", target);
    to += "},\n";
  }
  to += "\"kernels\":[";
  std::map<const Choice*, std::string> choices;
  const char* before = "\n";
  for (const Entry& entry : all) {
    const Key& key = entry.instance->key();
    to += before;
    before = ",\n";
    to += "{\"name\":";
    add_quoted(to, entry.instance->name());
    to += ",\"identifier\":";
    add_quoted(to, entry.id);
    to += ",\"family\":";
    add_quoted(to, key.family);
    to += ",\"dtype\":";
    add_quoted(to, key.signature[field::dtype].text());
    to += ",\"pipeline\":";
    add_quoted(to, key.algorithm["pipeline"].text());
    to += ",\"gfx_arch\":";
    add_quoted(to, key.target);
    to += ",\"receipt\":";
    add_quoted(to, key.receipt);
    to += ",\"priority\":\"";
    to += detail::name_of(entry.priority);
    to += "\",\"rank\":" + std::to_string(entry.rank) + ",\"signature\":";
    detail::add_values(to, key.signature);
    to += ",\"algorithm\":";
    detail::add_values(to, key.algorithm);
    to += ",\"choice\":";
    std::string& choice = choices[&entry.instance->choice()];
    if (choice.empty()) choice = detail::choice_json(entry.instance->choice());
    to += choice + "}";
  }
  to += all.empty() ? "]}\n" : "\n]}\n";
  return to;
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
  struct Read {
    Registry::Pointer instance;
    Priority priority;
  };
  std::vector<Read> read;
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
        choice = detail::read_choice(one["choice"], key.algorithm, rank);
      } catch (const std::invalid_argument& error) {
        one["choice"].fail(error.what());
      }
      instance = std::make_shared<FunctionInstance>(std::move(key), nullptr, std::move(choice), one["name"].text());
    }
    read.push_back({std::move(instance), priority});
  }
  size_t added = 0;
  for (const Read& one : read) added += registry.add(one.instance, one.priority);
  return added;
}

inline size_t from_file(Registry& registry, const std::string& path,
                        const std::vector<Library::Pointer>& libraries = {}) {
  return from_json(registry, JsonReader::contents(path), path, libraries);
}

}  // namespace tilekiln::dispatcher
