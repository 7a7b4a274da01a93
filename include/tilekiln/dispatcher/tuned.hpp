// Tables of `tilekiln tune`: what was the fastest for the problems of a library on a machine, for Dispatcher::set_measured.
#pragma once
#include <sched.h>

#include "tilekiln/dispatcher/library.hpp"

namespace tilekiln::dispatcher {

// The processor, and how many cores this process may use: as tables name machines.
inline std::string machine_key() {
  std::string name = "unknown processor", line;
  std::ifstream file("/proc/cpuinfo");
  while (std::getline(file, line)) {
    if (line.compare(0, 10, "model name") != 0) continue;
    name = line.substr(std::min(line.size(), line.find(':') + 1));
    name = name.substr(std::min(name.size(), name.find_first_not_of(' ')));
    name.erase(name.find_last_not_of(' ') + 1);
    break;
  }
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof(cores), &cores);
  return name + ", " + std::to_string(CPU_COUNT(&cores)) + " cores";
}

// By Problem::to_string the id of the winner, of each problem of which all measured shapes have one. Empty where the file has nothing
// of this library on this machine. Throws FileError for what is no table.
inline std::map<std::string, std::vector<std::string>> read_tuned(const std::string& path, const Library& library) {
  const Json all = JsonReader::read(JsonReader::contents(path), path);
  if (all["format"].text() != "tilekiln tune 1") all["format"].fail("is no table of tilekiln tune");
  std::map<std::string, std::set<std::string>> found;
  for (const Json& table : all["tables"].list()) {
    if (table["library"].text() != library.hash() || table["machine"].text() != machine_key()) continue;
    for (const Json& one : table["problems"].list()) found[one["problem"].text()].insert(one["id"].text());
  }
  std::map<std::string, std::vector<std::string>> measured;
  for (const auto& [problem, ids] : found)
    if (ids.size() == 1 && !ids.begin()->empty()) measured[problem] = {*ids.begin()};
  return measured;
}

}  // namespace tilekiln::dispatcher
