// Errors of the dispatcher.
#pragma once
#include <stdexcept>
#include <string>
#include <vector>

namespace tilekiln::dispatcher {

// No kernel of the registry answers a problem: the problem, and why.
struct NoKernelFound : std::runtime_error { using std::runtime_error::runtime_error; };

// A kernel was asked for by its id, and does not answer the problem.
struct UnsupportedProblem : std::runtime_error { using std::runtime_error::runtime_error; };

// A file that cannot be read as what it should be; the text begins with file:line.
struct FileError : std::runtime_error { using std::runtime_error::runtime_error; };

// A library refused a call; the text is the library's own.
struct CallError : std::runtime_error { using std::runtime_error::runtime_error; };

// The known word that is nearest to one that is not; "" when none is near.
inline std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  std::string best;
  size_t least = word.size() / 2 + 1;
  for (const std::string& other : known) {
    std::vector<size_t> row(other.size() + 1);
    for (size_t j = 0; j <= other.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j <= other.size(); ++j) {
        const size_t replaced = diagonal + (word[i - 1] != other[j - 1]);
        diagonal = row[j];
        row[j] = std::min(replaced, std::min(row[j], row[j - 1]) + 1);
      }
    }
    if (row.back() < least) least = row.back(), best = other;
  }
  return best;
}

// "kind: there is no 'word'; did you mean 'near'?", or the whole list where none is near.
inline std::string no_such(const std::string& kind, const std::string& word, const std::vector<std::string>& known) {
  const std::string near = nearest(word, known);
  std::string text = kind + ": there is no '" + word + "'";
  if (!near.empty()) return text + "; did you mean '" + near + "'?";
  text += "; there are: ";
  for (size_t i = 0; i < known.size(); ++i) text += (i == 0 ? "" : ", ") + known[i];
  return text;
}

}  // namespace tilekiln::dispatcher
