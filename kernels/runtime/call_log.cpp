// SPDX-License-Identifier: MIT
#include "kernels/runtime/call_log.h"
#include "kernels/runtime/choose.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "kernels/runtime/arguments.h"
#include "kernels/runtime/array.h"
#include "kernels/runtime/backend.h"
#include "kernels/runtime/dump.h"
#include "kernels/runtime/environment.h"
#include "kernels/runtime/log.h"
#include "kernels/runtime/names.h"
#include "kernels/runtime/status.h"
#include "tilekiln/tilekiln.h"

namespace tilekiln {
namespace {

double seconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void add_array(Text& text, const tilekiln_tensor& tensor) {
  char buffer[64];
  text.add("%s[", dtype_name(tensor.dtype, buffer));
  const int ndim = tensor.ndim < 0 ? 0 : tensor.ndim > TILEKILN_MAX_NDIM ? TILEKILN_MAX_NDIM : tensor.ndim;
  for (int i = 0; i < ndim; ++i) text.add("%s%lld", i == 0 ? "" : ",", static_cast<long long>(tensor.shape[i]));
  text.add("]");
  if (tensor.device_type != TILEKILN_CPU) {
    text.add("@%s", device_text({tensor.device_type, tensor.device_id}, buffer, sizeof(buffer)));
  }
}

// "q=bf16[2,128,8,64], causal=1": all that is not as it is without a word.
void add_arguments(Text& text, const tilekiln_operator& table, const void* args) {
  const char* separator = "";
  for (int i = 0; i < table.argument_count; ++i) {
    const tilekiln_argument& argument = table.arguments[i];
    if (!is_given(table, argument, args)) continue;
    text.add("%s%s=", separator, argument.name);
    separator = ", ";
    if (is_array(argument)) {
      add_array(text, *array_of(argument, args));
    } else {
      add_value(text, argument, args);
    }
  }
}

// The first line of a sentence; all of it where refusals are told.
void add_error(Text& text) {
  const char* said = error_text();
  const bool whole = environment().log == LogLevel::refusals;
  text.add("%.*s", static_cast<int>(whole ? strlen(said) : strcspn(said, "\n")), said);
}

tilekiln_status run_told(const LoggedCall& call, const tilekiln_operator* table) {
  if (environment().log == LogLevel::off) return call.run(call.entry, call.args);
  const Chosen chosen;
  const double start = seconds();
  const tilekiln_status status = call.run(call.entry, call.args);
  const double took = seconds() - start;
  if (status != TILEKILN_OK && is_quiet()) return status;

  char buffer[8192];
  Text text(buffer, sizeof(buffer));
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  add_log_head(text, now, thread_number());
  text.add("%s(", call.name);
  if (table != nullptr) add_arguments(text, *table, call.args);
  text.add(")");
  if (status == TILEKILN_OK) {
    text.add("%s %.1f us", table != nullptr && stream_of(*table, call.args) != nullptr ? " queued in" : "", 1e6 * took);
  } else {
    text.add(" failed: ");
    add_error(text);
  }
  for (int i = 0; i < chosen.count(); ++i) {
    text.add("%s", i == 0 ? " by " : " + ");
    add_name(text, chosen.table(), chosen[i]);
  }
  write_log_line(buffer);
  return status;
}

// The record of a call that another operator may take over is told of when it is known to stay.
tilekiln_status run_dumped(const LoggedCall& call, const tilekiln_operator& table) {
  Dumped record;
  dump_call(table, call.args, record);
  if (!is_quiet()) say(record);
  const tilekiln_status status = run_told(call, &table);
  if (is_quiet()) status == TILEKILN_OK ? say(record) : withdraw(record);
  return status;
}

}  // namespace

tilekiln_status run_logged(const LoggedCall& call) {
  const tilekiln_operator* const table = operator_of(call.name, call.args);
  if (table != nullptr && *environment().dump != 0) return run_dumped(call, *table);
  return run_told(call, table);
}

}  // namespace tilekiln
