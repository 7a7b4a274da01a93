// A registry as JSON in a file, and back: the same kernels, the same text, the same choice.
#include "example.hpp"

using namespace example;

int main(int count, char** words) {
  const Options given = options(count, words, "Writes a registry to a file (--to) and reads it.");
  const Session session(given);
  if (!session.registry.to_file(given.to)) return std::fprintf(stderr, "%s: cannot be written\n", given.to.c_str()), 1;
  Registry back("examples");
  from_file(back, given.to, {given.library});
  std::printf("as many kernels: %d, the same JSON: %d\n", back.size() == session.registry.size(),
              back.to_json() == session.registry.to_json());
  const Problem problem = fp32(1, 64, 64).build();
  std::printf("the same choice: %d\n",
              back.index()->select(problem)->id == session.registry.index()->select(problem)->id);
  std::string broken = back.to_json();
  broken.replace(broken.find("\"dtype\":\"bf16\""), 14, "\"dtype\":\"bf17\"");
  try {
    Registry other("broken");
    from_json(other, broken, "broken.json");
  } catch (const FileError& error) {
    const std::string said = error.what();
    std::printf("%s\n", (said.substr(0, 12) + "LINE" + said.substr(said.find(": "))).c_str());
  }
  std::printf("to no such folder: %d\n", session.registry.to_file("/no/such/folder/kernels.json"));
  return 0;
}
