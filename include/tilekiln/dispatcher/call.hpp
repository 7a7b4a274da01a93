// SPDX-License-Identifier: MIT
// A call: an operator of the C ABI with its struct of arguments. It owns nothing: arrays and struct stay the caller's.
#pragma once
#include <map>

#include "tilekiln/dispatcher/errors.hpp"
#include "tilekiln/tilekiln.h"

namespace tilekiln::dispatcher {

// Values for a call besides its instance, by the names of arguments: num_splits, num_threads.
using Settings = std::map<std::string, int64_t>;

class Call {
 public:
  // args: the struct of the operator, such as tilekiln_fmha_fwd_args; it must outlive the call.
  template <class Args>
  Call(std::string operator_name, const Args& args)
      : operator_name_(std::move(operator_name)), args_(&args), bytes_(args.size) {}
  template <class Args>
  Call(std::string operator_name, const Args&& args) = delete;  // it would be gone before the call

  const std::string& operator_name() const { return operator_name_; }
  const void* args() const { return args_; }
  size_t bytes() const { return bytes_; }
  // Measured values for arguments that the struct leaves at 0.
  const Settings& settings() const { return settings_; }
  Call told(Settings settings) const {
    Call other = *this;
    other.settings_ = std::move(settings);
    return other;
  }
  // The struct of an operator. Throws std::invalid_argument where the call is of another.
  template <class Args>
  const Args& as(const std::string& operator_name) const {
    if (operator_name != operator_name_ || bytes_ != sizeof(Args))
      throw std::invalid_argument("call: was of " + operator_name_ + ", must be of " + operator_name);
    return *static_cast<const Args*>(args_);
  }

 private:
  std::string operator_name_;
  const void* args_;
  size_t bytes_;
  Settings settings_;
};

}  // namespace tilekiln::dispatcher
