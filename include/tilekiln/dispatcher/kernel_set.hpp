// SPDX-License-Identifier: MIT
// Kernel sets: the kernels that a program declares, for a build to make and for a registry to hold.
//
//   TILEKILN_KERNEL_SET(decode,
//     .about("Our decoder's kernels")
//     .add(Signature("fwd").dtype("bf16").hdim(128).mask("causal").lse(any), Algorithm().tile_m0(64))
//     .add(Signature("fwd_splitkv").dtype("bf16").hdim(128).paged_kv(any)))
//
// `scons kernel_set=FILE.cpp` compiles the file, runs what declares its sets, and builds a library of each. The same as YAML, which it
// writes on the way (KernelSet::to_yaml), is built by `scons kernel_set=FILE.yaml`.
#pragma once
#include "tilekiln/dispatcher/declared.hpp"
#include "tilekiln/dispatcher/library.hpp"

namespace tilekiln::dispatcher {

class KernelSet {
 public:
  struct Declaration {
    Signature signature;
    Algorithm algorithm;
    std::string target;  // "any" is whatever a build is for
    std::string place;   // file:line
  };

  // file and line: where it is declared, for errors.
  explicit KernelSet(std::string name = "", std::string file = "", int line = 0)
      : name_(std::move(name)), file_(std::move(file)), line_(line) {}

  KernelSet& about(std::string sentence) {
    about_ = std::move(sentence);
    return *this;
  }
  // target: cpu-avx512, ck-gfx942 (or gfx942), ...; "*" or "any": what the build is for.
  KernelSet& add(Signature signature, Algorithm algorithm = {}, std::string_view target = "any") {
    const std::string of = target == "*" || target.empty() ? "any" : ck::target(target);
    declarations_.push_back({std::move(signature), std::move(algorithm), of, place()});
    return *this;
  }
  KernelSet& merge(const KernelSet& other) {
    declarations_.insert(declarations_.end(), other.declarations_.begin(), other.declarations_.end());
    return *this;
  }
  KernelSet& tag(std::string name) {
    name_ = std::move(name);
    return *this;
  }

  const std::string& tag() const { return name_; }
  const std::vector<Declaration>& declarations() const { return declarations_; }
  size_t size() const { return declarations_.size(); }
  // Tells whether a declaration stands for several kernels.
  bool needs_expansion() const {
    for (const Declaration& one : declarations_) {
      if (one.target == "any" || !one.algorithm.values().has("pipeline")) return true;
      for (const auto& [axis, value] : one.signature.values())
        if (value == any) return true;
    }
    return false;
  }

  // The set as a build reads it. Throws std::invalid_argument, file:line, for a word that is wrong.
  std::string to_yaml() const;
  // The kernels of a library that it declares. Throws std::invalid_argument, file:line, for a declaration that none meets.
  std::vector<std::shared_ptr<const Instance>> of(const Library::Pointer& library) const;
  // Every declaration as a kernel without code, to plan for a machine that is elsewhere: `any` answers whatever is asked.
  std::vector<std::shared_ptr<const Instance>> listing() const;
  // Throws std::invalid_argument, file:line, for the words that are wrong, all at once.
  void check() const {
    std::string faults;
    for (const Declaration& one : declarations_)
      for (const std::string& fault :
           {one.signature.fault(), one.algorithm.fault(), detail::fault_of([&] { in_axes(one); })})
        if (!fault.empty()) faults += (faults.empty() ? "" : "\n") + one.place + ": " + fault;
    if (!faults.empty()) throw std::invalid_argument(faults);
  }

 private:
  std::string place() const {
    return file_ + ":" + std::to_string(line_) + ": kernel set " + name_ + ", kernel " +
           std::to_string(declarations_.size() + 1);
  }
  static bool meets(const Declaration& declared, const Key& key);
  // An algorithm in the words of the family's axes; those that no axis has stay CK's. Throws std::invalid_argument for two values of
  // one axis.
  static std::vector<std::pair<std::string, Value>> in_axes(const Declaration& declared) {
    std::vector<std::pair<std::string, Value>> values;
    std::string pads;
    const auto put = [&values](const std::string& axis, Value value) {
      for (const auto& [name, had] : values) {
        if (name != axis) continue;
        if (had == value) return;
        detail::refuse(axis, had.text() + " and " + value.text(),
                       "one of them: two words of the algorithm name this axis");
      }
      values.emplace_back(axis, value);
    };
    for (const auto& [word, value] : declared.algorithm.values()) {
      if (value.empty()) continue;
      const std::string axis = ck::axis(declared.signature.family_name(), word.name());
      if (word.name().compare(0, 4, "pad_") == 0) {
        if (pads.empty()) pads = "p";
        if (value.yes()) pads += word.name().substr(4);
      } else if (axis == "occupancy") {
        put(axis, value == Value(-1) ? Value("auto") : value);
      } else {
        put(axis.empty() ? word.name() : axis, value);
      }
    }
    if (!pads.empty()) put("pads", pads == "p" ? "npad" : pads);
    return values;
  }

  std::string name_, about_, file_;
  int line_;
  std::vector<Declaration> declarations_;
};

// The sets of a program, in the order of their first declaration.
class KernelSets {
 public:
  // A set of the same name is replaced. Always true, so that a constant can be made of it.
  static bool declare(KernelSet set) {
    const std::lock_guard lock(mutex());
    for (KernelSet& one : all()) {
      if (one.tag() != set.tag()) continue;
      one = std::move(set);
      return true;
    }
    all().push_back(std::move(set));
    return true;
  }
  // An empty set where there is none of that name.
  static KernelSet get(const std::string& name) {
    const std::lock_guard lock(mutex());
    for (const KernelSet& one : all())
      if (one.tag() == name) return one;
    return KernelSet(name);
  }
  static std::vector<std::string> names() {
    const std::lock_guard lock(mutex());
    std::vector<std::string> found;
    for (const KernelSet& one : all()) found.push_back(one.tag());
    return found;
  }

 private:
  static std::vector<KernelSet>& all() {
    static std::vector<KernelSet> sets;
    return sets;
  }
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
};

#define TILEKILN_JOINED_(a, b) a##b
#define TILEKILN_JOINED(a, b) TILEKILN_JOINED_(a, b)
// TILEKILN_KERNEL_SET(name, .add(signature, algorithm, target)...): declares a set before main runs.
#define TILEKILN_KERNEL_SET(name, ...)                                                             \
  [[maybe_unused]] static const bool TILEKILN_JOINED(tilekiln_kernel_set_, __COUNTER__) =          \
      ::tilekiln::dispatcher::KernelSets::declare(                                                 \
          ::tilekiln::dispatcher::KernelSet(#name, __FILE__, __LINE__) __VA_ARGS__)

inline std::string KernelSet::to_yaml() const {
  check();
  std::string to = "kernel_set: " + name_ +
                   "\nabout: " + quoted_json(about_.empty() ? "Kernels declared in " + file_ + "." : about_) +
                   (declarations_.empty() ? "\nkernels: []\n" : "\nkernels:\n");
  const auto add_values = [&to](const char* name, const std::vector<std::pair<std::string, Value>>& values) {
    if (values.empty()) return;
    to += std::string("    ") + name + ": {";
    for (size_t i = 0; i < values.size(); ++i)
      to += (i == 0 ? "" : ", ") + values[i].first + ": " + values[i].second.text();
    to += "}\n";
  };
  for (const Declaration& one : declarations_) {
    to += "  - family: " + one.signature.family_name() + "\n";
    std::vector<std::pair<std::string, Value>> values;
    for (const auto& [axis, value] : one.signature.values())
      if (!value.off() && value != axis.usual()) values.emplace_back(axis.name(), value);
    add_values("signature", values);
    add_values("algorithm", in_axes(one));
    if (one.target != "any") to += "    target: " + one.target + "\n";
    to += "    declared: " + quoted_json(one.place) + "\n";
  }
  return to;
}

inline bool KernelSet::meets(const Declaration& declared, const Key& key) {
  if (key.family != declared.signature.family_name()) return false;
  if (declared.target != "any" && declared.target != key.target) return false;
  const Values& asked = declared.signature.values();
  for (const auto& [axis, value] : asked)
    if (value != any && !value.off() && value != axis.usual() && key.signature[axis].empty()) return false;
  for (const auto& [axis, value] : key.signature) {
    const Value want = asked[axis];
    if (want == any || want == value) continue;
    const auto plain = [axis = axis](Value one) { return one.off() || one == axis.usual(); };
    if (!plain(want) || !plain(value)) return false;
  }
  // A word that says nothing of this target's kernels has no effect there.
  for (const auto& [axis, value] : in_axes(declared))
    if (const Value have = key.algorithm[axis]; !have.empty() && have != value) return false;
  return true;
}

inline std::vector<std::shared_ptr<const Instance>> KernelSet::of(const Library::Pointer& library) const {
  check();
  const auto all = library->instances(true);
  std::vector<char> taken(all.size());
  std::set<std::string> stages;
  for (const Declaration& one : declarations_) {
    // A declaration for a target that this library lacks is another library's, and counts as met.
    bool met = one.target != "any" && std::none_of(all.begin(), all.end(), [&](const auto& instance) {
                 return instance->key().target == one.target;
               });
    for (size_t i = 0; i < all.size(); ++i)
      if (meets(one, all[i]->key())) met = true, taken[i] = 1;
    if (!met)
      throw std::invalid_argument(one.place + ": library " + library->receipt() +
                                  " has no kernel of it; `scons kernel_set=" + file_ +
                                  "` builds those that the set declares");
    stages.insert(one.signature.family_name());
  }
  // Stages that run only for a main stage come with it.
  std::set<std::string> companions;
  for (const auto& [name, of] : library->operators())
    if (stages.count(of.main) != 0)
      for (const std::string& family : of.families)
        if (family != of.main) companions.insert(family);
  std::vector<std::shared_ptr<const Instance>> found;
  for (size_t i = 0; i < all.size(); ++i)
    if (taken[i] || companions.count(all[i]->key().family) != 0) found.push_back(all[i]);
  return found;
}

inline std::vector<std::shared_ptr<const Instance>> KernelSet::listing() const {
  check();
  std::vector<std::shared_ptr<const Instance>> made;
  for (const Declaration& one : declarations_) {
    Key key;
    key.family = one.signature.family_name();
    key.target = one.target == "any" ? "" : one.target;
    Choice choice;
    for (const auto& [axis, value] : one.signature.values()) {
      key.signature.set(axis, value == any ? Value() : value);
      if ((axis == field::hdim_q || axis == field::hdim_v) && value.is_number()) choice.holds.push_back(axis);
    }
    for (const auto& [word, value] : one.algorithm.values())
      if (!value.empty()) key.algorithm.set(word, value);
    choice.rank = static_cast<int>(key.algorithm["selection_rank"].number());
    if (const int64_t rows = key.algorithm["tile_m0"].number(); rows > 0)
      choice.fit.push_back({"seqlen_q", "tile_m0", rows});
    made.push_back(std::make_shared<FunctionInstance>(std::move(key), nullptr, std::move(choice)));
  }
  return made;
}

}  // namespace tilekiln::dispatcher

// Every set of a shared object as YAML documents, or what is wrong: what a build asks when it has compiled declarations.
extern "C" __attribute__((used, visibility("default"))) inline const char* tilekiln_kernel_sets(int* wrong) {
  static std::string text;
  std::string yaml, faults;
  for (const std::string& name : tilekiln::dispatcher::KernelSets::names()) {
    const std::string fault = tilekiln::dispatcher::detail::fault_of(
        [&] { yaml += "---\n" + tilekiln::dispatcher::KernelSets::get(name).to_yaml(); });
    faults += (faults.empty() || fault.empty() ? "" : "\n") + fault;
  }
  *wrong = !faults.empty();
  text = faults.empty() ? yaml : faults;
  return text.c_str();
}
