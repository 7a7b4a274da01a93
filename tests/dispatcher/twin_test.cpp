// Choices of the C++ dispatcher as text, for Python's to be held to: twin_test REGISTRY.json PROBLEMS.txt, a problem a line; or the nearest of
// KNOWN to each line of a file: twin_test nearest WORDS.txt KNOWN...
#include <cstdio>
#include <fstream>
#include <sstream>

#include "tilekiln/dispatcher.hpp"

using namespace tilekiln::dispatcher;

int main(int count, char** words) {
  if (std::string(words[1]) == "nearest") {
    std::ifstream lines(words[2]);
    const std::vector<std::string> known(words + 3, words + count);
    for (std::string line; std::getline(lines, line);) std::printf("%s\n", nearest(line, known).c_str());
    return 0;
  }
  Registry registry("twins");
  from_file(registry, words[1], {});
  Dispatcher dispatcher(registry);
  dispatcher.add_operator("fmha_fwd_splitkv",
                          {{"fmha_fwd_splitkv", "fmha_fwd_splitkv_combine"}, "fmha_fwd_splitkv", {}});
  dispatcher.add_operator(
      "fmha_bwd", {{"fmha_bwd_dot_do_o", "fmha_bwd_dq_dk_dv"}, "fmha_bwd_dq_dk_dv", {{"fmha_bwd_dot_do_o", "found"}}});
  std::ifstream lines(words[2]);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream said(line);
    std::string word;
    said >> word;
    Problem problem(word);
    while (said >> word) problem.set(Field(word.substr(0, word.find('='))), Value(word.substr(word.find('=') + 1)));
    const Registry::Pointer chosen = dispatcher.select(problem);
    std::printf("%s\n%s\n", chosen == nullptr ? "-" : chosen->key().id().c_str(), dispatcher.why(problem, 4).c_str());
    std::printf("%s %lld\n", problem.canonical_key().c_str(), static_cast<long long>(problem.num_ops()));
  }
  std::printf("%s", registry.to_json().c_str());
  return 0;
}
