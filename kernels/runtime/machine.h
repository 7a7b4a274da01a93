// SPDX-License-Identifier: MIT
// The targets of a library that a device has and may run.
#pragma once
#include "kernels/runtime/query.h"
#include "kernels/runtime/status.h"
#include "kernels/runtime/table.h"

namespace tilekiln {

// The best target allowed: the word of an environment variable.
struct Limit {
  const char* isa = "";  // TILEKILN_ISA: limits the CPU; "" for any
  const char* target =
      "";  // TILEKILN_TARGET: limits the devices of the target's backend, and is the stronger of the two
  Limit() = default;
  Limit(const char* of_isa, const char* of_target = "") : isa(of_isa), target(of_target) {}
};

// One device as the targets of one table see it. Immutable after construction.
class Machine {
 public:
  struct Use {
    const Target* target = nullptr;
    // Answers on the device: it can be one of the target; it is; it is and the limit allows it.
    bool same_device = false, supported = false, usable = false;
    const char* refused =
        nullptr;  // the reason why the system does not let this process use it; null: nobody has asked, or it does
  };

  Machine(const Table& table, const Limit& limit, Device device = {});

  // Copy of this machine, after the system has been asked for every usable target that needs it.
  Machine asked() const;

  // OK, or that TILEKILN_ISA (TILEKILN_TARGET) names nothing that the library holds and this machine has.
  [[nodiscard]] tilekiln_status status() const;
  bool known() const { return limit_known_; }
  const Use& use(const Row& row) const { return use_[row.target]; }
  const Use& use(const Target& target) const { return use_[target.index]; }
  // The best usable target; null when there is none.
  const Target* best() const { return best_; }
  Device device() const { return device_; }
  // The variable that limits the choice, and its word; the word is "" where nothing limits it.
  const char* limit_name() const { return by_name_ ? "TILEKILN_TARGET" : "TILEKILN_ISA"; }
  const char* limit_word() const { return limit_; }
  // A target's name in the words of that variable: TILEKILN_TARGET names targets, TILEKILN_ISA their ISAs.
  const char* word(const Target& target) const { return by_name_ || *target.isa == 0 ? target.name : target.isa; }

 private:
  const Table& table_;
  const Device device_;
  const char* limit_ = "";
  bool by_name_ = false;  // limit_ is the name of a target, not an ISA
  bool limit_known_ = true;
  const Target* best_ = nullptr;
  Use use_[256];  // by Row::target
};

}  // namespace tilekiln
