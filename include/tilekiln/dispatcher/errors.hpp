// SPDX-License-Identifier: MIT
// Errors of the dispatcher.
#pragma once
#include <algorithm>
#include <stdexcept>
#include <string>
#include <string_view>
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

// The number of characters of the longest part that two words share, and so on to its left and right.
inline size_t shared(std::string_view a, std::string_view b) {
  size_t at = 0, of = 0, most = 0;
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < b.size(); ++j) {
      size_t length = 0;
      while (i + length < a.size() && j + length < b.size() && a[i + length] == b[j + length]) ++length;
      if (length > most) at = i, of = j, most = length;
    }
  if (most == 0) return 0;
  return most + shared(a.substr(0, at), b.substr(0, of)) + shared(a.substr(at + most), b.substr(of + most));
}

// The known word that is nearest to one that is not, by Python's rule (difflib, of lower case): at least half of both is shared, or it has
// the word as a part; "" when none is near.
inline std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  const auto lower = [](std::string text) {
    for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return text;
  };
  const auto folded = [&](const std::string& text) {
    std::string made = lower(text);
    std::replace(made.begin(), made.end(), '-', '_');
    return made;
  };
  const std::string wanted = folded(word);
  std::string best, best_folded, part;
  double most = 0.5;
  for (const std::string& other : known) {
    const std::string one = folded(other);
    const size_t both = one.size() + wanted.size();
    const double ratio = both == 0 ? 1 : 2.0 * static_cast<double>(shared(one, wanted)) / static_cast<double>(both);
    if (ratio > most || (ratio == most && one >= best_folded)) most = ratio, best = other, best_folded = one;
    if (part.empty() && word.size() >= 3 && one.find(lower(word)) != std::string::npos) part = other;
  }
  return best.empty() ? part : best;
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
