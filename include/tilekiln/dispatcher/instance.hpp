// SPDX-License-Identifier: MIT
// A kernel as the dispatcher sees it. People may implement it: a kernel of their own, or of another library, takes part in
// the choice beside those of Tilekiln's libraries.
#pragma once
#include <functional>
#include <memory>

#include "tilekiln/choice/match.hpp"
#include "tilekiln/dispatcher/call.hpp"
#include "tilekiln/dispatcher/timing.hpp"

namespace tilekiln::dispatcher {

class Instance {
 public:
  virtual ~Instance() = default;
  Instance() = default;
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  // Members that may not change while the instance is registered: key, name and choice.
  virtual const Key& key() const = 0;
  virtual std::string name() const { return key().id(); }
  virtual const Choice& choice() const {
    static const Choice plain;
    return plain;
  }

  // "" or why not. Asked only of problems that the signature of the key answers.
  virtual std::string refusal(const Problem& problem) const { return mismatch(key(), choice(), problem); }
  bool supports(const Problem& problem) const { return refusal(problem).empty(); }
  // Tells whether refusal is the one above, which the choice then need not call.
  virtual bool answers_by_key() const { return false; }

  // Runs it, in the order of the call's stream. Throws what it has to say.
  virtual void launch(const Call& call) const = 0;
  // Tells whether one launch runs all stages of the call, as that of a library does, this one being its main stage.
  virtual bool launches_whole_call() const { return false; }
  // Stages of one plan are of one origin: the library, or whatever launches alone ("").
  virtual std::string origin() const { return ""; }
  // Runs it as often as timing says. Sets of buffers are the caller's: run(call) of each.
  virtual Times time(const std::vector<Call>& calls, Timing timing) const {
    timing.rotating = static_cast<int>(calls.size());
    return measure(timing, [&](int set) { launch(calls[static_cast<size_t>(set)]); });
  }
};

// An instance made of a key and functions.
class FunctionInstance final : public Instance {
 public:
  using Launch = std::function<void(const Call&)>;
  using Accepts = std::function<bool(const Problem&)>;
  // Instance without launch, as in a listing for a machine that is elsewhere: a launch throws std::runtime_error. accepts: what it asks
  // of a problem besides its key.
  explicit FunctionInstance(Key key, Launch launch = nullptr, Choice choice = {}, std::string name = "",
                            Accepts accepts = nullptr)
      : key_(std::move(key)),
        launch_(std::move(launch)),
        choice_(std::move(choice)),
        name_(name.empty() ? key_.id() : std::move(name)),
        accepts_(std::move(accepts)) {}

  const Key& key() const override { return key_; }
  std::string name() const override { return name_; }
  const Choice& choice() const override { return choice_; }
  std::string refusal(const Problem& problem) const override {
    const std::string reason = Instance::refusal(problem);
    return reason.empty() && accepts_ && !accepts_(problem) ? "it does not accept the problem" : reason;
  }
  bool answers_by_key() const override { return accepts_ == nullptr; }
  void launch(const Call& call) const override {
    if (!launch_)
      throw std::runtime_error(name_ + ": has no code here, it is a listing; load the library that holds it");
    launch_(call);
  }

 private:
  const Key key_;
  const Launch launch_;
  const Choice choice_;
  const std::string name_;
  const Accepts accepts_;
};

}  // namespace tilekiln::dispatcher
