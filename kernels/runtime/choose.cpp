// SPDX-License-Identifier: MIT
#include "kernels/runtime/choose.h"

#include "kernels/runtime/environment.h"
#include "kernels/runtime/explain.h"
#include "kernels/runtime/library.h"
#include "kernels/runtime/log.h"

namespace tilekiln {
namespace {

thread_local bool describing = false, quiet = false;

tilekiln_status take_callers(const Dispatcher& dispatcher, int64_t instance, const Query& query, Choice* choice) {
  const int64_t count = dispatcher.table().instance_count;
  if (instance >= count) {
    return fail_argument("instance", "was %lld, must be from 0 to %lld, or -1 (the dispatcher chooses)",
                         static_cast<long long>(instance), static_cast<long long>(count - 1));
  }
  const Choice wanted = dispatcher.at(instance);
  if (wanted.row == nullptr) {
    char name[name_capacity];
    Text text(name, sizeof(name));
    add_name(text, dispatcher.table(), instance);
    return fail_argument("instance", "was %lld, %s, must be one of %s", static_cast<long long>(instance), name,
                         dispatcher.family().name);
  }
  TILEKILN_TRY(dispatcher.sound());
  if (!dispatcher.fits(query, wanted)) {
    Text text(error_buffer(), error_capacity);
    error_refusals().add(TILEKILN_REFUSED_ARGUMENT).axis = "instance";
    text.add("instance: was %lld, must be one that fits the problem: ", static_cast<long long>(instance));
    explain_unfit(text, dispatcher, query, wanted);
    return TILEKILN_INVALID_ARGUMENT;
  }
  *choice = wanted;
  if (__builtin_expect(environment().tells_choices, 0)) Chosen::note(dispatcher.table(), instance);
  return TILEKILN_OK;
}

bool fits(const Dispatcher& dispatcher, int64_t instance, const Query& query) {
  if (instance >= dispatcher.table().instance_count || dispatcher.sound() != TILEKILN_OK) return false;
  const Choice wanted = dispatcher.at(instance);
  return wanted.row != nullptr && dispatcher.fits(query, wanted);
}

// A choice, found or not, as the environment asks: a paragraph in the log, a word in the line of its call.
void tell(const Dispatcher& dispatcher, const Query& query, const Choice& choice) {
  const Environment& asked = environment();
  if (asked.verbose_dispatch || asked.log == LogLevel::refusals) report(dispatcher, query, choice);
  if (choice.row != nullptr) Chosen::note(dispatcher.table(), choice.instance);
}

// One line a stage: the family, the axes of its signature, the sizes that steer its choice.
tilekiln_status describe_stages(Text& text, const Stage* stages, int count) {
  for (int i = 0; i < count; ++i) {
    const Dispatcher* dispatcher = nullptr;
    TILEKILN_TRY(find_dispatcher(stages[i].family, stages[i].query->device, &dispatcher));
    describe(text, *dispatcher, *stages[i].query);
    const Family& family = dispatcher->family();
    for (uint32_t j = 0; j < family.size_count; ++j)
      text.add(" %s=%lld", family.sizes[j], static_cast<long long>(stages[i].query->sizes[j]));
    text.add("\n");
  }
  return TILEKILN_OK;
}

}  // namespace

Describing::Describing() { describing = true; }
Describing::~Describing() { describing = false; }
bool is_describing() { return describing; }

Quiet::Quiet() { quiet = true; }
Quiet::~Quiet() { quiet = false; }
bool is_quiet() { return quiet; }

const Dispatcher& permitted(const Dispatcher& dispatcher, int64_t instance, const Query& query) {
  if (!dispatcher.asks() || all_permitted()) return dispatcher;
  const Row* row = nullptr;
  if (instance < 0) {
    row = dispatcher.find(query).row;
  } else {
    row = dispatcher.at(instance % preference).row;
    if (row == nullptr || !dispatcher.fits(query, dispatcher.at(instance % preference)))
      return instance < preference ? dispatcher : permitted(dispatcher, -1, query);
  }
  const Target* const target = row == nullptr ? nullptr : dispatcher.target(*row);
  return target == nullptr || target->refusal == nullptr ? dispatcher : permitted(dispatcher, *target);
}

tilekiln_status choose(const Dispatcher& found, int64_t instance, const Query& query, Choice* choice) {
  const Dispatcher& dispatcher = __builtin_expect(found.asks(), 0) ? permitted(found, instance, query) : found;
  if (__builtin_expect(instance >= 0, 0)) {
    if (instance < preference) return take_callers(dispatcher, instance, query, choice);
    if (fits(dispatcher, instance - preference, query))
      return take_callers(dispatcher, instance - preference, query, choice);
  }
  TILEKILN_TRY(dispatcher.status());
  *choice = dispatcher.find(query);
  if (__builtin_expect(choice->row == nullptr && quiet, 0)) return TILEKILN_NO_KERNEL;
  if (__builtin_expect(environment().tells_choices, 0)) tell(dispatcher, query, *choice);
  if (__builtin_expect(choice->row != nullptr, 1)) return TILEKILN_OK;
  Text text(error_buffer(), error_capacity);
  explain_missing(text, error_refusals(), dispatcher, query);
  return TILEKILN_NO_KERNEL;
}

tilekiln_status choose_stages(const Stage* stages, int count, Choice* const* choices) {
  for (int i = 0; i < count; ++i) {
    const Dispatcher* dispatcher = nullptr;
    TILEKILN_TRY(find_dispatcher(stages[i].family, stages[i].query->device, &dispatcher));
    TILEKILN_TRY(choose(*dispatcher, stages[i].instance, *stages[i].query, choices[i]));
  }
  return TILEKILN_OK;
}

tilekiln_status explain_stages(Text& text, const Stage* stages, int count) {
  if (describing) return describe_stages(text, stages, count);
  for (int i = 0; i < count; ++i) {
    const Dispatcher* dispatcher = nullptr;
    Choice choice;
    tilekiln_status status = find_dispatcher(stages[i].family, stages[i].query->device, &dispatcher);
    if (status == TILEKILN_OK) {
      dispatcher = &permitted(*dispatcher, stages[i].instance, *stages[i].query);
      status = choose(*dispatcher, stages[i].instance, *stages[i].query, &choice);
    }
    if (status != TILEKILN_OK && status != TILEKILN_NO_KERNEL) return status;
    if (text.length() != 0) text.add("\n");
    if (status == TILEKILN_OK) {
      explain_choice(text, *dispatcher, *stages[i].query, choice);
    } else {
      text.add("%s", error_text());
    }
  }
  return TILEKILN_OK;
}

}  // namespace tilekiln
