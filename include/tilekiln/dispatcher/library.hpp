// SPDX-License-Identifier: MIT
// A kernel library, through the C ABI and its manifest: its operators, and an instance for each of its kernels.
#pragma once
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include "tilekiln/dispatcher/instance.hpp"
#include "tilekiln/dispatcher/json.hpp"
#include "tilekiln/machine.h"

namespace tilekiln::dispatcher {

// A kernel that was the fastest: its id, and with which settings.
struct Measured {
  Measured(std::string of, Settings with = {}) : id(std::move(of)), settings(std::move(with)) {}
  Measured(const char* of) : id(of) {}
  bool operator==(const Measured& other) const { return id == other.id && settings == other.settings; }

  std::string id;
  Settings settings;
};

// Problem::to_string -> kernels that were measured for it, from the fastest on.
using MeasuredTable = std::map<std::string, std::vector<Measured>>;

// The kind of processor, and how many cores this process may use: as tables name machines.
inline std::string machine_key() {
  char text[320];
  tilekiln_machine(text, sizeof(text));
  return text;
}

// Keeps the problems of a table's list of which all measured shapes have one winner, with that winner.
inline MeasuredTable read_measured(const Json& problems) {
  MeasuredTable found;
  for (const Json& one : problems.list()) {
    Settings settings;
    for (const auto& [name, value] : one["settings"].members()) settings[name] = value.integer();
    const Measured winner(one["id"].text(), std::move(settings));
    std::vector<Measured>& listed = found[one["problem"].text()];
    if (std::find(listed.begin(), listed.end(), winner) == listed.end()) listed.push_back(winner);
  }
  for (auto at = found.begin(); at != found.end();)
    at = at->second.size() == 1 && !at->second[0].id.empty() ? std::next(at) : found.erase(at);
  return found;
}

namespace detail {

inline Values read_values(const Json& from) {
  Values values;
  for (const auto& [name, value] : from.members()) values.set(name, value.value());
  return values;
}

// of: what it holds and fits; rules: what it needs and where it is the best.
inline Choice read_choice(const Json& of, const Json& rules, const Values& algorithm, int rank, int order) {
  Choice choice;
  for (const Json& name : of["holds"].list()) choice.holds.emplace_back(name.text());
  for (const auto& [size, number] : of["fit"].members()) {
    const int64_t tile = algorithm[number.text()].number();
    if (tile <= 0) number.fail("fit: was " + number.text() + ", must be a number of the algorithm");
    choice.fit.push_back({Field(size), number.text(), tile});
  }
  choice.needs = SizeRule(rules["needs"].text());
  choice.best = SizeRule(rules["best"].text());
  choice.rank = rank, choice.order = order;
  return choice;
}

}  // namespace detail

// The stages of an operator, in the order they run.
struct Stages {
  std::vector<std::string> families;
  std::string main;
  // A stage that a call may do without, and the field of a problem that asks for it; "found": whenever there is a kernel.
  std::map<std::string, std::string> optional;
};

class Library : public std::enable_shared_from_this<Library> {
 public:
  using Pointer = std::shared_ptr<const Library>;

  // Opens libtilekiln_<receipt>.so. Throws FileError when it is none, or of another version. It stays open as long as anything
  // of it is used.
  static Pointer open(const std::string& path) {
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw FileError(path + ":1: " + dlerror());
    return std::shared_ptr<Library>(new Library(handle, path));
  }
  // The library that the program is linked with.
  static Pointer linked() {
    void* const handle = dlopen(nullptr, RTLD_NOW);
    return std::shared_ptr<Library>(new Library(handle, "this program"));
  }
  ~Library() { dlclose(handle_); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  const std::string& receipt() const { return receipt_; }
  // CK's number of the receipt; -1: it has none.
  int64_t number() const { return number_; }
  // Hash of its plan and sources: what was measured for one library says nothing of another.
  const std::string& hash() const { return hash_; }
  const std::string& path() const { return path_; }
  const std::map<std::string, Stages>& operators() const { return stages_; }
  // Family -> what its kernels have whether or not a call asks for it: a split always writes its LSE.
  const std::map<std::string, Values>& always() const { return always_; }
  // One for each kernel, in plan order; made at the first call. usable_only: those alone that this machine can run.
  std::vector<std::shared_ptr<const Instance>> instances(bool usable_only = false) const;

  // The operator's table. Throws std::invalid_argument where there is none.
  const tilekiln_operator& table(const std::string& operator_name) const {
    int32_t count = 0;
    const tilekiln_operator* const* const all = operators_(&count);
    std::vector<std::string> known;
    for (int32_t i = 0; i < count; ++i) {
      if (all[i]->layout != TILEKILN_OPERATOR_LAYOUT)
        throw std::invalid_argument(path_ + ": its operators are of another version; build it again");
      if (operator_name == all[i]->name) return *all[i];
      known.emplace_back(all[i]->name);
    }
    throw std::invalid_argument(no_such("operator of library " + receipt_, operator_name, known));
  }
  // Runs a call with this instance of its main stage, -1 for the library's own choice. Throws CallError.
  void run(const Call& call, int64_t instance) const {
    const tilekiln_operator& of = checked(call);
    std::vector<unsigned char> args(static_cast<const unsigned char*>(call.args()),
                                    static_cast<const unsigned char*>(call.args()) + call.bytes());
    if (instance >= 0) std::memcpy(args.data() + place_of_instance(of), &instance, sizeof(instance));
    for (int i = 0; i < of.argument_count; ++i) {
      const auto setting = call.settings().find(of.arguments[i].name);
      if (setting == call.settings().end() || of.arguments[i].kind != TILEKILN_INT) continue;
      int32_t number = 0;  // as the caller has it
      std::memcpy(&number, args.data() + of.arguments[i].offset, sizeof(number));
      if (number == 0) number = static_cast<int32_t>(setting->second);
      std::memcpy(args.data() + of.arguments[i].offset, &number, sizeof(number));
    }
    check(of.run(args.data()));
  }
  // Sets what later calls of the library take where they leave it open (tilekiln_tune). Throws CallError.
  void tune(const std::vector<tilekiln_tuned>& choices) const { check(tune_(choices.data(), choices.size())); }
  // The choices that its receipt pins for this machine; none with TILEKILN_TUNED=no.
  const MeasuredTable& pinned() const { return pinned_; }
  // The instance of each stage that the library itself would choose. -1: a stage that the call does not need.
  std::vector<int64_t> find(const Call& call) const {
    const tilekiln_operator& of = checked(call);
    std::vector<int64_t> found(of.stage_count, -1);
    check(of.find(call.args(), found.data()));
    return found;
  }
  // The problem of a call, from its real arrays. Throws CallError when the library refuses the arguments.
  Problem problem(const Call& call) const;
  // The library's own explanation of its choice.
  std::string why(const Call& call) const {
    const tilekiln_operator& of = checked(call);
    return text([&](char* to, size_t capacity, size_t* length) { return of.why(call.args(), to, capacity, length); });
  }

 private:
  Library(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {
    get(operators_, "tilekiln_operators");
    get(manifest_, "tilekiln_manifest");
    get(usable_, "tilekiln_instance_usable");
    get(last_error_, "tilekiln_last_error");
    get(describe_, "tilekiln_describe");
    get(tune_, "tilekiln_tune");
    size_t length = 0;
    const char* const text = manifest_(&length);
    source_ = path_ + " (manifest)";
    const Json all = JsonReader::read({text, length}, source_);
    receipt_ = all["receipt"]["name"].text();
    hash_ = all["plan_hash"].text().substr(0, 16) + "-" + all["source_hash"].text().substr(0, 16);
    if (all["receipt"]["number"].kind == Json::Kind::number) number_ = all["receipt"]["number"].integer();
    for (const auto& [name, of] : all["stages"].members()) {
      Stages& stages = stages_[name];
      for (const Json& family : of["stages"].list()) stages.families.push_back(family.text());
      stages.main = of["main"].text();
      for (const auto& [family, when] : of["optional"].members()) stages.optional[family] = when.text();
    }
    for (const auto& [name, of] : all["families"].members())
      if (!of["always"].names.empty()) always_[name] = detail::read_values(of["always"]);
    const char* const wanted = std::getenv("TILEKILN_TUNED");
    const Json* const tuned = wanted != nullptr && std::strcmp(wanted, "no") == 0 ? nullptr : all.find("tuned");
    if (tuned != nullptr)
      for (const Json& table : tuned->list())
        if (table["machine"].text() == machine_key()) pinned_ = read_measured(table["problems"]);
  }
  template <class Function>
  void get(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    if (function != nullptr) return;
    const std::string error = path_ + ":1: is no Tilekiln library of this version: it has no " + name;
    dlclose(handle_);
    throw FileError(error);
  }
  void check(tilekiln_status status) const {
    if (status == TILEKILN_OK) return;
    if (status == TILEKILN_NO_KERNEL) throw NoKernelFound(last_error_());
    throw CallError(last_error_());
  }
  const tilekiln_operator& checked(const Call& call) const {
    const tilekiln_operator& of = table(call.operator_name());
    if (call.bytes() == of.args_size) return of;
    throw std::invalid_argument("call: its struct has " + std::to_string(call.bytes()) + " bytes, must have " +
                                std::to_string(of.args_size) + ", those of tilekiln_" + of.name + "_args");
  }
  static size_t place_of_instance(const tilekiln_operator& of) {
    for (int i = 0; i < of.argument_count; ++i)
      if (of.arguments[i].kind == TILEKILN_INSTANCE) return of.arguments[i].offset;
    throw std::invalid_argument(std::string(of.name) + ": takes no instance");
  }
  template <class Ask>
  std::string text(const Ask& ask) const {
    size_t length = 0;
    check(ask(nullptr, 0, &length));
    std::string result(length + 1, '\0');
    check(ask(&result[0], result.size(), &length));
    result.resize(length);
    return result;
  }

  void* handle_;
  std::string path_, source_, receipt_, hash_;
  int64_t number_ = -1;
  const tilekiln_operator* const* (*operators_)(int32_t*) = nullptr;
  const char* (*manifest_)(size_t*) = nullptr;
  int32_t (*usable_)(int64_t) = nullptr;
  const char* (*last_error_)() = nullptr;
  tilekiln_status (*describe_)(const char*, const void*, char*, size_t, size_t*) = nullptr;
  tilekiln_status (*tune_)(const tilekiln_tuned*, size_t) = nullptr;
  std::map<std::string, Stages> stages_;
  std::map<std::string, Values> always_;
  MeasuredTable pinned_;
};

// A kernel of a library.
class LibraryInstance final : public Instance {
 public:
  LibraryInstance(Library::Pointer library, int64_t number, std::string name, Key key,
                  std::shared_ptr<const Choice> choice)
      : library_(std::move(library)),
        number_(number),
        name_(std::move(name)),
        key_(std::move(key)),
        choice_(std::move(choice)) {}

  const Key& key() const override { return key_; }
  std::string name() const override { return name_; }
  const Choice& choice() const override { return *choice_; }
  bool answers_by_key() const override { return true; }
  bool launches_whole_call() const override { return true; }
  std::string origin() const override { return library_->path(); }
  // The number in the library's plan.
  int64_t number() const { return number_; }
  const Library& library() const { return *library_; }
  void launch(const Call& call) const override { library_->run(call, number_); }

 private:
  const Library::Pointer library_;
  const int64_t number_;
  const std::string name_;
  const Key key_;
  const std::shared_ptr<const Choice> choice_;
};

namespace detail {

// A choice and an algorithm of one family's kernels, found by "target pipeline axis=value ...".
struct Way {
  std::shared_ptr<const Choice> choice;
  Values algorithm;
};

inline Way read_way(const Json& family, const Json& entry, int order) {
  Way way;
  way.algorithm.set("pipeline", entry["pipeline"].value());
  for (const Json& axis : family["algorithm"].list()) {
    const Json* const value = axis.text() == "target" || axis.text() == "pipeline" ? nullptr : entry.find(axis.text());
    if (value == nullptr) continue;
    const Json* const numbers = family["numbers"].find(axis.text());
    if (numbers == nullptr) {
      way.algorithm.set(axis.text(), value->value());
      continue;
    }
    std::istringstream parts(value->text());
    std::string part;
    for (const Json& number : numbers->list()) {
      std::getline(parts, part, 'x');
      way.algorithm.set(number.text(), Value(part));
    }
  }
  const int rank = static_cast<int>(entry["rank"].integer());
  way.choice = std::make_shared<Choice>(read_choice(family, entry, way.algorithm, rank, order));
  return way;
}

}  // namespace detail

inline std::vector<std::shared_ptr<const Instance>> Library::instances(bool usable_only) const {
  size_t length = 0;
  const char* const text = manifest_(&length);
  const Json all = JsonReader::read({text, length}, source_);
  std::map<std::string, int> orders;
  for (const Json& target : all["targets"].list())
    orders[target["name"].text()] = static_cast<int>(target["order"].integer());
  std::vector<std::string> columns;
  for (const Json& column : all["instances"]["columns"].list()) columns.push_back(column.text());
  const auto place = [&](const std::string& name) {
    return static_cast<size_t>(std::find(columns.begin(), columns.end(), name) - columns.begin());
  };
  struct Family {
    const Json* json = nullptr;
    std::vector<std::pair<Field, size_t>> signature;
    std::vector<size_t> algorithm;
    std::map<std::string, detail::Way> ways;
  };
  std::map<std::string, Family> families;
  for (const auto& [name, json] : all["families"].members()) {
    Family& family = families[name];
    family.json = &json;
    for (const Json& axis : json["signature"].list()) family.signature.emplace_back(axis.text(), place(axis.text()));
    for (const Json& axis : json["algorithm"].list()) family.algorithm.push_back(place(axis.text()));
    for (const Json& entry : json["algorithms"].list()) {
      std::string key;
      for (const Json& axis : json["algorithm"].list())
        key += (entry.has(axis.text()) ? entry[axis.text()].value().text() : "") + '\x1f';
      family.ways.emplace(key, detail::read_way(json, entry, orders[entry["target"].text()]));
    }
  }
  std::vector<std::shared_ptr<const Instance>> made;
  int64_t number = -1;
  for (const Json& row : all["instances"]["rows"].list()) {
    ++number;
    if (usable_only && usable_(number) == 0) continue;
    Family& family = families.at(row.list().at(1).text());
    Key key;
    key.family = row.items[1].text();
    key.receipt = receipt_;
    key.target = row.items.at(place("target")).text();
    for (const auto& [field, at] : family.signature) key.signature.set(field, row.items.at(at).value());
    std::string way;
    for (const size_t at : family.algorithm) way += row.items.at(at).value().text() + '\x1f';
    const detail::Way& how = family.ways.at(way);
    key.algorithm = how.algorithm;
    made.push_back(
        std::make_shared<LibraryInstance>(shared_from_this(), number, row.items[0].text(), std::move(key), how.choice));
  }
  return made;
}

inline Problem Library::problem(const Call& call) const {
  checked(call);
  const std::string lines = text([&](char* to, size_t capacity, size_t* length) {
    return describe_(call.operator_name().c_str(), call.args(), to, capacity, length);
  });
  Problem result{Value(call.operator_name())};
  result.set(field::family, stages_.at(call.operator_name()).main);
  std::istringstream all(lines);
  std::string line, family, word;
  // The last line names the call. The main stage last, so that what stages say differently is as it says it.
  std::vector<std::string> ordered;
  while (std::getline(all, line)) {
    if (line.compare(0, 5, "call ") == 0) continue;
    const bool main = line.substr(0, line.find(' ')) == stages_.at(call.operator_name()).main;
    ordered.insert(main ? ordered.end() : ordered.begin(), line);
  }
  for (const std::string& one : ordered) {
    std::istringstream words(one);
    words >> family;
    // The library names only the stages that the call needs.
    const Stages& stages = stages_.at(call.operator_name());
    const auto optional = stages.optional.find(family);
    if (optional != stages.optional.end() && optional->second != "found") result.set(Field(optional->second), true);
    while (words >> word) {
      const size_t at = word.find('=');
      if (at == std::string::npos) continue;
      const Field field(word.substr(0, at));
      // A value that every kernel of a stage has says nothing of the call: another stage tells whether it asks for it.
      const auto always = always_.find(family);
      if (always != always_.end() && always->second.has(field) && ordered.size() > 1) continue;
      result.set(field, Value(word.substr(at + 1)));
    }
  }
  return result;
}

}  // namespace tilekiln::dispatcher
