// A heuristic of your own: lanes along the head dim for few queries, along queries for many.
#include "example.hpp"

using namespace example;

int main(int count, char** words) {
  Session session(options(count, words, "Chooses by the number of queries."));
  const auto choose = [&](const char* who) {
    std::printf("%s:", who);
    for (const int seqlen_q : {1, 8, 16, 64}) {
      const Problem problem = fp32(1, seqlen_q, 512).api_family("fwd_splitkv").build();
      std::printf(" %d %s", seqlen_q,
                  session.dispatcher.plan(problem).stages[0].instance->key().algorithm["pipeline"].text().c_str());
    }
    std::printf("\n");
  };
  choose("first fit");
  std::map<std::string, std::vector<std::string>> by_pipeline;
  for (const Entry& entry : session.registry.entries())
    if (entry.instance->key().family == "fmha_fwd_splitkv")
      by_pipeline[entry.instance->key().algorithm["pipeline"].text()].push_back(entry.id);
  session.dispatcher.set_heuristic([&](const Problem& problem) {
    return problem.number("seqlen_q") <= 16 ? by_pipeline["dlanes"] : by_pipeline["qlanes"];
  });
  choose("heuristic");
  // An id that the heuristic names and that answers nothing is passed over.
  session.dispatcher.set_heuristic([](const Problem&) { return std::vector<std::string>{"no such kernel"}; });
  choose("no such kernel");
  return 0;
}
