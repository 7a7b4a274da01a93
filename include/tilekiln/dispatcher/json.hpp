// SPDX-License-Identifier: MIT
// JSON as registries and manifests are written in it, with the line of everything that is read, so that an error can name it.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "tilekiln/choice/words.hpp"
#include "tilekiln/dispatcher/errors.hpp"

namespace tilekiln::dispatcher {

// One value of a document.
class Json {
 public:
  enum class Kind : uint8_t { null, boolean, number, string, array, object };

  Kind kind = Kind::null;
  bool yes = false;
  int64_t number = 0;
  const char* no_number = nullptr;  // of a number that is no whole one, or too large: its name
  std::string string;
  std::vector<Json> items;         // of an array, or the values of an object's members
  std::vector<std::string> names;  // of the members
  int line = 1;
  const std::string* file = nullptr;  // of the document: it must outlive its values

  [[noreturn]] void fail(const std::string& what) const {
    throw FileError((file == nullptr ? std::string("<text>") : *file) + ":" + std::to_string(line) + ": " + what);
  }
  bool has(std::string_view name) const { return find(name) != nullptr; }
  // A member. Throws FileError where there is none.
  const Json& operator[](std::string_view name) const {
    if (const Json* found = find(name)) return *found;
    fail("'" + std::string(name) + "' is missing here");
  }
  const Json* find(std::string_view name) const {
    must_be(Kind::object);
    const auto at = std::find(names.begin(), names.end(), name);
    return at == names.end() ? nullptr : &items[static_cast<size_t>(at - names.begin())];
  }
  // Name and value of each member of an object.
  std::vector<std::pair<const std::string&, const Json&>> members() const {
    must_be(Kind::object);
    std::vector<std::pair<const std::string&, const Json&>> all;
    for (size_t i = 0; i < names.size(); ++i) all.emplace_back(names[i], items[i]);
    return all;
  }
  const std::string& text() const {
    must_be(Kind::string);
    return string;
  }
  int64_t integer() const {
    if (kind != Kind::number || no_number != nullptr) fail("was " + kind_name() + ", must be a number");
    return number;
  }
  const std::vector<Json>& list() const {
    must_be(Kind::array);
    return items;
  }
  // A value of a field.
  Value value() const {
    switch (kind) {
      case Kind::null: return Value();
      case Kind::boolean: return Value(yes);
      case Kind::number:
        if (no_number == nullptr) return Value(number);
        break;
      case Kind::string: return Value(string);
      default: break;
    }
    fail("was " + kind_name() + ", must be a value: true, false, a whole number or a string");
  }
  std::string kind_name() const { return no_number != nullptr ? no_number : named(kind); }

 private:
  static const char* named(Kind kind) {
    static const char* const kinds[] = {"null", "true or false", "a number", "a string", "an array", "an object"};
    return kinds[static_cast<int>(kind)];
  }
  void must_be(Kind wanted) const {
    if (kind != wanted) fail("was " + kind_name() + ", must be " + named(wanted));
  }
};

// Reads one document. `file` is for errors and must outlive the result.
class JsonReader {
 public:
  static Json read(std::string_view text, const std::string& file) {
    JsonReader reader(text, file);
    Json all = reader.value(0);
    reader.blank();
    if (reader.at_ != text.size()) reader.fail("there is more after the end of the document");
    return all;
  }
  // Throws FileError for a file that cannot be read.
  static std::string contents(const std::string& path) {
    std::ifstream stream(path, std::ios::binary);
    if (!stream) throw FileError(path + ":1: cannot be read");
    std::ostringstream text;
    text << stream.rdbuf();
    return text.str();
  }

 private:
  static constexpr int deepest = 200;
  JsonReader(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw FileError(file_ + ":" + std::to_string(line_) + ": " + what);
  }
  void blank() {
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\n') ++line_;
      if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
    }
  }
  char peek() {
    blank();
    if (at_ == text_.size()) fail("the document ends too early");
    return text_[at_];
  }
  void take(char c) {
    if (peek() != c) fail(std::string("was '") + text_[at_] + "', must be '" + c + "'");
    ++at_;
  }
  Json value(int depth) {
    if (depth > deepest) fail("arrays and objects go deeper than " + std::to_string(deepest));
    const char first = peek();
    Json result;
    result.line = line_;
    result.file = &file_;
    if (first == '{') {
      object(result, depth);
    } else if (first == '[') {
      array(result, depth);
    } else if (first == '"') {
      result.kind = Json::Kind::string;
      result.string = quoted();
    } else if (word("true") || word("false")) {
      result.kind = Json::Kind::boolean;
      result.yes = first == 't';
    } else if (!word("null")) {
      number(result);
    }
    return result;
  }
  bool word(std::string_view wanted) {
    if (text_.substr(at_, wanted.size()) != wanted) return false;
    at_ += wanted.size();
    return true;
  }
  static constexpr int64_t most_number = int64_t(1) << 61;  // of a Value
  void number(Json& result) {
    const size_t end = std::min(text_.find_first_not_of("0123456789+-.eE", at_), text_.size());
    const std::string digits(text_.substr(at_, end - at_));
    char* rest = nullptr;
    result.kind = Json::Kind::number;
    std::strtod(digits.c_str(), &rest);
    if (digits.empty() || *rest != 0) fail(std::string("was '") + text_[at_] + "', must be a value");
    result.number = std::strtoll(digits.c_str(), &rest, 10);  // the nearest that there is of what is too large
    if (*rest != 0)
      result.no_number = "a number with a dot";
    else if (result.number <= -most_number || result.number >= most_number)
      result.no_number = "a number beyond 2^61";
    at_ = end;
  }
  void array(Json& result, int depth) {
    result.kind = Json::Kind::array;
    take('[');
    if (peek() != ']') {
      for (result.items.push_back(value(depth + 1)); peek() == ','; result.items.push_back(value(depth + 1))) ++at_;
    }
    take(']');
  }
  void object(Json& result, int depth) {
    result.kind = Json::Kind::object;
    take('{');
    if (peek() != '}') {
      for (bool more = true; more; more = peek() == ',' && ++at_) {
        peek();
        result.names.push_back(quoted());
        take(':');
        result.items.push_back(value(depth + 1));
      }
    }
    take('}');
  }
  std::string quoted() {
    take('"');
    std::string result;
    for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (static_cast<unsigned char>(text_[at_]) < 0x20) fail("a control character in a string");
      if (text_[at_] != '\\') {
        result += text_[at_];
        continue;
      }
      static const std::string_view codes = "\"\\/bfnrt", meant = "\"\\/\b\f\n\r\t";
      if (++at_ == text_.size()) break;
      if (text_[at_] == 'u') {
        escape(result);
      } else {
        const size_t which = codes.find(text_[at_]);
        if (which == std::string_view::npos) fail(std::string("there is no escape \\") + text_[at_]);
        result += meant[which];
      }
    }
    if (at_ >= text_.size()) fail("a string has no end");
    ++at_;
    return result;
  }
  void escape(std::string& result) {
    uint32_t code = hex4();
    if (code >= 0xd800 && code < 0xdc00 && text_.substr(at_ + 1, 2) == "\\u") {
      at_ += 2;
      code = 0x10000 + ((code - 0xd800) << 10) + (hex4() - 0xdc00);
    }
    if (code < 0x80) {
      result += static_cast<char>(code);
      return;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const int first[] = {0, 0xc0, 0xe0, 0xf0};
    result += static_cast<char>(first[more] | code >> 6 * more);
    for (int i = more - 1; i >= 0; --i) result += static_cast<char>(0x80 | (code >> 6 * i & 0x3f));
  }
  uint32_t hex4() {
    const std::string digits(text_.substr(at_ + 1, 4));
    if (digits.size() < 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos)
      fail("\\u has four hexadecimal digits");
    at_ += 4;
    return static_cast<uint32_t>(std::strtoul(digits.c_str(), nullptr, 16));
  }

  std::string_view text_;
  const std::string& file_;
  size_t at_ = 0;
  int line_ = 1;
};

// A string with its quotes; bytes from 0x80 on are taken for UTF-8 as they are.
inline std::string quoted_json(std::string_view text) {
  static const std::string_view codes = "\"\\bfnrt", meant = "\"\\\b\f\n\r\t", digits = "0123456789abcdef";
  std::string to = "\"";
  for (const char c : text) {
    const size_t which = meant.find(c);
    if (which != std::string_view::npos) {
      (to += '\\') += codes[which];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      ((to += "\\u00") += digits[static_cast<size_t>(c >> 4)]) += digits[static_cast<size_t>(c & 15)];
    } else {
      to += c;
    }
  }
  return to += '"';
}

inline std::string json_of(Value value) {
  if (value.empty()) return "null";
  if (value.is_bool()) return value.yes() ? "true" : "false";
  return value.is_number() ? value.text() : quoted_json(value.text());
}

// Texts that `say` writes of each, with commas between two brackets.
template <class All, class Say>
std::string listed_json(const All& all, const char* brackets, const Say& say) {
  std::string to(1, brackets[0]);
  for (const auto& one : all) (to += to.size() == 1 ? "" : ",") += say(one);
  return to += brackets[1];
}
// Members by name.
template <class All, class Say>
std::string members_json(const All& all, const Say& say) {
  return listed_json(all, "{}",
                     [&](const auto& member) { return quoted_json(member.first) + ':' + say(member.second); });
}

}  // namespace tilekiln::dispatcher
