// SPDX-License-Identifier: MIT
// The dispatcher: from a problem to a kernel, a plan, a run.
#pragma once
#include "tilekiln/dispatcher/library.hpp"
#include "tilekiln/dispatcher/registry.hpp"
#include "tilekiln/dispatcher/tables.hpp"

namespace tilekiln::dispatcher {

// A plan: the kernels that run for a problem, a stage each; or why there is none.
struct Plan {
  struct Stage {
    std::string family;
    std::string id;
    Registry::Pointer instance;
  };
  std::vector<Stage> stages;
  std::string main;    // the family that a library is given an instance of
  std::string reason;  // why there are no stages
  Settings settings;   // what its call is told that leaves it open, as measured with the main stage

  bool is_valid() const { return !stages.empty(); }
  // The stage whose launch runs the whole call; null where each stage launches alone.
  const Stage* whole() const {
    for (const Stage& stage : stages)
      if (stage.family == main && stage.instance->launches_whole_call()) return &stage;
    return nullptr;
  }
};

enum class Strategy { first_fit, heuristic };

// Asking is safe from any number of threads; setting is not, while others ask.
class Dispatcher {
 public:
  // The ids to try for a problem, in this order. One that is not registered or does not answer is passed over; when none is left, the
  // first fit is taken.
  using Heuristic = std::function<std::vector<std::string>(const Problem&)>;

  // target: what problems are for that name none; "": any.
  explicit Dispatcher(Registry& registry = Registry::instance(), std::string target = "")
      : registry_(registry), target_(std::move(target)) {}

  // Sets the stages of an operator. add_library sets those of its library.
  Dispatcher& add_operator(const std::string& name, Stages stages) {
    operators_[name] = std::move(stages);
    return *this;
  }
  // Registers the kernels of a library, those alone that this machine can run, and its operators. What its receipt pins is measured
  // here too, where set_measured has said nothing else of a problem.
  Dispatcher& add_library(const Library::Pointer& library, Priority priority = Priority::normal) {
    for (const auto& [name, stages] : library->operators()) add_operator(name, stages);
    for (const auto& [family, values] : library->always()) always_[Value(family).meaning()] = values;
    registry_.add_all(library->instances(true), priority);
    libraries_.push_back(library);
    measured_.insert(library->pinned().begin(), library->pinned().end());
    return *this;
  }

  Registry& registry() const { return registry_; }
  Strategy strategy() const { return heuristic_ ? Strategy::heuristic : Strategy::first_fit; }
  // Null goes back to first fit.
  void set_heuristic(Heuristic heuristic) { heuristic_ = std::move(heuristic); }
  // Measured: by Problem::to_string, what answers, from the fastest on: ids, or ids with settings. Asked before the heuristic.
  // Settings are a plan's, and those of its calls that leave them open.
  void set_measured(MeasuredTable measured) { measured_ = std::move(measured); }
  Timing& timing() { return timing_; }
  void set_benchmarking(bool on) { timing_.on = on; }

  // The kernel for the stage that the problem asks for; null where none answers.
  Registry::Pointer select(const Problem& problem) const {
    const std::shared_ptr<const Index> index = registry_.index();
    const Entry* const entry = choose(*index, of_family(problem, problem.family()), nullptr, measured(problem));
    return entry == nullptr ? nullptr : entry->instance;
  }

  // All stages or none, never an exception: `reason` says why there are none.
  Plan plan(const Problem& problem) const {
    Plan result;
    const auto known = operators_.find(problem.operator_name().text());
    Stages alone;
    if (known == operators_.end()) alone.families = {alone.main = problem.family().text()};
    const Stages& stages = known == operators_.end() ? alone : known->second;
    const std::shared_ptr<const Index> index = registry_.index();
    result.main = stages.main;
    const Problem asked = of_family(problem, Value(stages.main));
    const std::vector<Measured>* const known_best = measured(problem);
    const Entry* const main = stage(*index, asked, stages.main, stages, nullptr, known_best);
    if (known_best != nullptr && main != nullptr)
      for (const Measured& one : *known_best)
        if (one.id == main->id && result.settings.empty()) result.settings = one.settings;
    if (main == nullptr) return refused(result, *index, asked, stages);
    const std::string origin = main->instance->origin();
    Fields answered;
    for (const std::string& family : stages.families) {
      const auto optional = stages.optional.find(family);
      const bool found = optional != stages.optional.end() && optional->second == "found";
      if (optional != stages.optional.end() && !found && asked[Field(optional->second)].off()) continue;
      const Entry* const entry = family == stages.main ? main : stage(*index, problem, family, stages, &origin);
      if (entry == nullptr && found) continue;
      if (entry == nullptr) {
        result.stages.clear();
        return refused(result, *index, of_family(problem, Value(family)), stages);
      }
      for (const auto& [field, value] : entry->instance->key().signature) answered.set(field.number());
      result.stages.push_back({family, entry->id, entry->instance});
    }
    if ((asked.asked() & ~answered).none()) return result;
    for (const auto& [name, value] : asked.named())
      if (asked.asked()[Field(name).number()] && !answered[Field(name).number()] && result.reason.empty())
        result.reason = "no stage of " + problem.operator_name().text() + " knows " + name + "=" + value.text();
    result.stages.clear();
    return result;
  }

  // Runs a call whose problem it is told, through the plan. Throws NoKernelFound.
  Times run(const Problem& problem, const Call& call) const { return run(problem, std::vector<Call>{call}); }
  // Several sets of buffers, taken in turn when times are taken.
  Times run(const Problem& problem, const std::vector<Call>& calls) const {
    const Plan planned = plan(problem);
    if (!planned.is_valid()) throw NoKernelFound(planned.reason);
    if (planned.settings.empty()) return run_plan(planned, calls);
    std::vector<Call> told;
    for (const Call& call : calls) told.push_back(call.told(planned.settings));
    return run_plan(planned, told);
  }
  // Runs a call whose problem is read from its arrays, by the first library added that has the operator.
  Times run(const Call& call) const { return run(from_call(call), call); }
  // Runs this kernel. Throws NoKernelFound for an id that is not registered, UnsupportedProblem where it does not answer.
  Times run_explicit(const std::string& id, const Problem& problem, const Call& call) const {
    const Registry::Pointer instance = registry_.lookup(id);
    if (instance == nullptr) throw NoKernelFound("id: was " + id + ", must be one of registry " + registry_.name());
    Problem asked = of_family(problem, instance->key().family);
    if (const auto known = operators_.find(problem.operator_name().text()); known != operators_.end())
      forgive_others(asked, *registry_.index(), known->second);
    const std::string reason = instance->refusal(asked);
    if (!reason.empty()) throw UnsupportedProblem(instance->name() + ": " + reason);
    return instance->time({call}, timing_);
  }
  Problem from_call(const Call& call) const {
    for (const Library::Pointer& library : libraries_)
      if (library->operators().count(call.operator_name()) != 0) return library->problem(call);
    throw NoKernelFound("operator: was " + call.operator_name() + ", must be one of a library that was added");
  }

  // Text for people: the problem, what was chosen for each stage, and why each other kernel of its family was not, `most` of them.
  std::string why(const Problem& problem, size_t most = 20) const {
    const Plan planned = plan(problem);
    std::string text = problem.to_string();
    if (!planned.is_valid()) return text + "\n  " + planned.reason;
    for (const Plan::Stage& stage : planned.stages) text += "\n  chosen: " + stage.instance->name();
    for (const auto& [name, value] : planned.settings) text += "\n  measured: " + name + "=" + std::to_string(value);
    text += refusals(*registry_.index(), of_family(problem, Value(planned.main)), most);
    return text + without_effect(planned);
  }

 private:
  Times run_plan(const Plan& planned, const std::vector<Call>& calls) const {
    Timing timing = timing_;
    timing.rotating = static_cast<int>(calls.size());
    if (const Plan::Stage* const whole = planned.whole()) return whole->instance->time(calls, timing);
    return measure(timing, [&](int set) {
      for (const Plan::Stage& stage : planned.stages) stage.instance->launch(calls[static_cast<size_t>(set)]);
    });
  }
  // Null: nothing.
  const std::vector<Measured>* measured(const Problem& problem) const {
    if (measured_.empty()) return nullptr;
    const auto found = measured_.find(problem.to_string());
    return found == measured_.end() ? nullptr : &found->second;
  }
  // The problem as a stage of a family has it.
  Problem of_family(const Problem& problem, Value family) const {
    Problem asked = problem;
    asked.set(field::family, family);
    if (!target_.empty() && asked[field::target].empty()) asked.set(field::target, target_);
    if (!always_.empty())
      if (const auto always = always_.find(family.meaning()); always != always_.end())
        for (const auto& [field, value] : always->second) asked.set(field, value);
    return asked;
  }

  const Entry* choose(const Index& index, const Problem& problem, const std::string* origin,
                      const std::vector<Measured>* measured = nullptr) const {
    if (measured != nullptr)
      for (const Measured& one : *measured)
        if (const Entry* const entry = first_of(index, {one.id}, problem, origin)) return entry;
    if (heuristic_)
      if (const Entry* const entry = first_of(index, heuristic_(problem), problem, origin)) return entry;
    return index.select(problem, origin);
  }
  static const Entry* first_of(const Index& index, const std::vector<std::string>& ids, const Problem& problem,
                               const std::string* origin) {
    for (const std::string& id : ids)
      for (const Entry& entry : index.entries())
        if (entry.id == id && (origin == nullptr || entry.instance->origin() == *origin) &&
            entry.instance->supports(problem))
          return &entry;
    return nullptr;
  }
  // A stage need not know what the others of its call know.
  static void forgive_others(Problem& asked, const Index& index, const Stages& stages) {
    Fields others;
    for (const std::string& family : stages.families) others |= index.known(Value(family));
    asked.forgive(others & ~index.known(asked.family()));
  }
  const Entry* stage(const Index& index, const Problem& problem, const std::string& family, const Stages& stages,
                     const std::string* origin, const std::vector<Measured>* measured = nullptr) const {
    Problem asked = of_family(problem, Value(family));
    forgive_others(asked, index, stages);
    return choose(index, asked, origin, measured);
  }
  Plan& refused(Plan& result, const Index& index, Problem asked, const Stages& stages) const {
    forgive_others(asked, index, stages);
    result.reason = "no kernel of " + asked.family().text() + " in registry " + registry_.name() + " for " +
                    asked.to_string() + refusals(index, asked, 5);
    return result;
  }
  static std::string refusals(const Index& index, const Problem& asked, size_t most) {
    std::string text;
    // Sorted by how little they differ.
    std::vector<std::pair<int, const Entry*>> others;
    for (const Entry& entry : index.entries()) {
      if (Value(entry.instance->key().family) != asked.family() || entry.instance->supports(asked)) continue;
      others.emplace_back(differences(entry.instance->key(), entry.instance->choice(), asked), &entry);
    }
    std::stable_sort(others.begin(), others.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t i = 0; i < others.size() && i < most; ++i) {
      const Instance& one = *others[i].second->instance;
      text += "\n  refused: " + one.name() + ": " + one.refusal(asked);
    }
    return others.size() <= most ? text : text + "\n  and " + std::to_string(others.size() - most) + " others";
  }
  // Fields that have an effect on GPUs alone.
  static std::string without_effect(const Plan& planned) {
    std::string text;
    for (const Plan::Stage& stage : planned.stages) {
      const Key& key = stage.instance->key();
      if (key.target.compare(0, 4, "cpu-") != 0) continue;
      for (const auto& [field, value] : key.algorithm) {
        const std::string& name = field.name();
        for (const std::string_view begins : tables::idle_on_cpu)
          if (name.compare(0, begins.size(), begins) == 0)
            text += "\n  " + name + "=" + value.text() + " has no effect on " + key.target;
      }
    }
    return text;
  }

  Registry& registry_;
  const std::string target_;
  std::map<std::string, Stages> operators_;
  std::unordered_map<int64_t, Values> always_;  // by the family
  std::vector<Library::Pointer> libraries_;
  Heuristic heuristic_;
  MeasuredTable measured_;
  Timing timing_;
};

}  // namespace tilekiln::dispatcher
