// SPDX-License-Identifier: MIT
#include "kernels/runtime/backend.h"

#include <string.h>

#include <algorithm>
#include <vector>

namespace tilekiln {

namespace {

bool holds(const SizeRule& rule, const Query& query) {
  for (uint32_t i = 0; i < rule.clause_count; ++i) {
    const SizeClause& clause = rule.clauses[i];
    bool met = true;
    for (uint32_t j = 0; j < clause.count; ++j) {
      const SizeRange& range = clause.ranges[j];
      const int64_t size = query.sizes[range.size];
      met = met && range.least <= size && size <= range.most;
    }
    if (met) return true;
  }
  return rule.clause_count == 0;
}

}  // namespace

Dispatcher::Dispatcher(const Table& table, uint32_t family, const Machine& machine)
    : table_(table), family_(table.families[family]), machine_(machine) {
  read_axes();
  for (uint32_t i = 0; i < table.target_count; ++i) {
    const Target& target = table.targets[i];
    engines_[target.index] = {target.engines[family], target.algorithms[family]};
  }
  ask_engines();
  fine_ = machine_.known() && unanswered_ < 0;
  make_index();
}

void Dispatcher::ask_engines() {
  if (family_.answers == nullptr) return;
  for (uint32_t i = 0; i < family_.instance_count && unanswered_ < 0; ++i) {
    const Choice one = at(int64_t(family_.first_instance) + i);
    const Backend* const backend = target(*one.row)->backend;
    if (backend != nullptr && !backend->takes_units) continue;  // its engines are of another type
    if (one.engine != nullptr && !family_.answers(one.engine, one.row->codes)) unanswered_ = one.instance;
  }
}

tilekiln_status Dispatcher::sound() const {
  if (__builtin_expect(unanswered_ < 0, 1)) return TILEKILN_OK;
  Text text(error_buffer(), error_capacity);
  text.add("library %s lists ", table_.receipt);
  add_name(text, table_, unanswered_);
  text.add(", and the engine of %s for it has no such function (`entries` of its family.yaml)", family_.name);
  return TILEKILN_INTERNAL;
}

void Dispatcher::read_axes() {
  for (uint32_t i = 0; i < family_.axis_count; ++i) {
    const Axis& axis = family_.axes[i];
    if (axis.kind != 2) continue;
    const uint64_t guard = uint64_t(1) << (axis.bits - 1);
    fields_[integer_count_++] = {axis.shift, axis.equal, static_cast<int64_t>(guard - 1)};
    guards_ |= guard << axis.shift;
    (axis.equal ? equal_ : at_least_) |= (axis.equal ? 2 * guard - 1 : guard) << axis.shift;
  }
}

void Dispatcher::make_index() {
  int bits = 1;
  while ((uint32_t(1) << bits) < 2 * family_.group_count) ++bits;
  slots_.reset(size_t(1) << bits);
  for (Slot& slot : slots_) slot = {0, 0, 0};
  slot_shift_ = 64 - bits;
  std::vector<Entry> entries, members, kept;
  for (uint32_t g = 0; g < family_.group_count; ++g) {
    const Group& group = family_.groups[g];
    members.clear();
    for (uint32_t ref = group.begin; ref < group.end; ++ref) {
      if (refuse_here(row(ref)) != Refusal::chosen) continue;
      members.push_back(entry(row(ref), ref));
      asks_ = asks_ || target(row(ref))->refusal != nullptr;
    }
    if (members.empty()) continue;
    // Sorts so that of entries that are alike but for target and rank the one that always wins is first.
    std::sort(members.begin(), members.end(), [&](const Entry& a, const Entry& b) {
      if (a.held != b.held) return a.held < b.held;
      if (a.integers != b.integers) return a.integers < b.integers;
      if (a.order != b.order) return a.order > b.order;
      return a.how->rank != b.how->rank ? a.how->rank < b.how->rank : a.ref < b.ref;
    });
    kept.clear();
    for (const Entry& member : members) {
      size_t at = kept.size();
      while (at > 0 && kept[at - 1].integers == member.integers && !alike(kept[at - 1], member)) --at;
      if (at == 0 || kept[at - 1].integers != member.integers) kept.push_back(member);
    }
    // A tie goes to the first of the plan's order.
    std::sort(kept.begin(), kept.end(),
              [](const Entry& a, const Entry& b) { return a.held != b.held ? a.held < b.held : a.ref < b.ref; });
    const auto begin = static_cast<uint32_t>(entries.size());
    entries.insert(entries.end(), kept.begin(), kept.end());
    size_t at = first_slot(group.codes);
    while (slots_[at].begin != slots_[at].end) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {group.codes, begin, static_cast<uint32_t>(entries.size())};
  }
  entries_.reset(entries.size());
  std::copy(entries.begin(), entries.end(), entries_.begin());
}

tilekiln_status Dispatcher::trouble() const {
  TILEKILN_TRY(machine_.status());
  return sound();
}

const Group* Dispatcher::group(uint64_t codes) const {
  const Group* const end = family_.groups + family_.group_count;
  const Group* const found = std::lower_bound(family_.groups, end, codes,
                                              [](const Group& group, uint64_t value) { return group.codes < value; });
  return found != end && found->codes == codes ? found : nullptr;
}

Refusal Dispatcher::refuse(const Query& query, const Row& row) const {
  if (row.codes != query.codes) return Refusal::other_codes;
  Refusal small = Refusal::chosen;
  for (int i = 0; i < integer_count_; ++i) {
    const int64_t have = integer(row, i);
    if (fields_[i].equal && have != query.wants[i]) return Refusal::other_integers;
    if (have < query.wants[i]) small = Refusal::integers_small;
  }
  if (small != Refusal::chosen) return small;
  if (!holds(how(row).needs, query)) return Refusal::sizes_unmet;
  return refuse_here(row);
}

Refusal Dispatcher::refuse_here(const Row& row) const {
  const Machine::Use& use = machine_.use(row);
  const void* const* engines = engines_[row.target].list;
  if (!use.same_device) return Refusal::other_device;
  if (engines == nullptr || engines[how(row).pipeline] == nullptr) return Refusal::not_built;
  if (!use.supported) return Refusal::machine_lacks;
  if (use.refused != nullptr) return Refusal::system_refuses;
  if (!use.usable) return Refusal::isa_forbidden;
  return Refusal::chosen;
}

int64_t Dispatcher::held(const Row& row) const {
  int64_t sum = 0;
  for (int i = 0; i < integer_count_; ++i) {
    if (!fields_[i].equal) sum += integer(row, i);
  }
  return sum;
}

int64_t Dispatcher::waste(const Query& query, const Row& row) const {
  int64_t sum = held(row);
  for (int i = 0; i < integer_count_; ++i) {
    if (!fields_[i].equal) sum -= query.wants[i];
  }
  return sum;
}

Dispatcher::Entry Dispatcher::entry(const Row& of, uint32_t ref) const {
  return {of.integers, static_cast<uint32_t>(held(of)), ref, &how(of), static_cast<uint8_t>(target(of)->order)};
}

bool Dispatcher::alike(const Entry& a, const Entry& b) const {
  const Algorithm &first = *a.how, &second = *b.how;
  if (&first == &second) return true;
  for (uint32_t i = 0; i < family_.fit_count; ++i) {
    if (first.fields[family_.fits[i].field] != second.fields[family_.fits[i].field]) return false;
  }
  return strcmp(first.needs.text, second.needs.text) == 0 && strcmp(first.best.text, second.best.text) == 0;
}

int Dispatcher::preference(const Query& query, const Algorithm& how) {
  return tilekiln_preference(how.best.clause_count != 0, holds(how.best, query) ? 1 : 0);
}

tilekiln_fit Dispatcher::fitted(const Query& query, const Algorithm& how) const {
  tilekiln_fit result = {1, 1};
  for (uint32_t i = 0; i < family_.fit_count; ++i)
    tilekiln_fit_add(&result, query.sizes[family_.fits[i].size], how.fields[family_.fits[i].field]);
  return result;
}

Refusal Dispatcher::compare(const Query& query, const Entry& a, const Entry& b) const {
  if (a.held != b.held) return a.held > b.held ? Refusal::integers_waste : Refusal::chosen;
  if (a.how != b.how) {
    const int first = preference(query, *a.how), second = preference(query, *b.how);
    if (first != second) return first > second ? Refusal::best_elsewhere : Refusal::chosen;
    // Slower targets of a device lack its instructions, which no tile makes good; nor where a faster one says that it is best.
    if ((machine_.device().type != Device().type || first == 0) && a.order != b.order)
      return a.order < b.order ? Refusal::slower_target : Refusal::chosen;
    const tilekiln_fit fit = fitted(query, *a.how), other = fitted(query, *b.how);
    const int fits = tilekiln_fit_compare(&fit, &other);
    if (fits != 0) return fits > 0 ? Refusal::tile_fit : Refusal::chosen;
  }
  if (a.order != b.order) return a.order < b.order ? Refusal::slower_target : Refusal::chosen;
  return a.how->rank > b.how->rank ? Refusal::rank : Refusal::chosen;
}

Choice Dispatcher::find(const Query& query) const {
  Choice choice;
  size_t at = first_slot(query.codes);
  while (slots_[at].begin != slots_[at].end && slots_[at].codes != query.codes) at = (at + 1) & (slots_.size() - 1);
  uint64_t wants = 0;
  for (int i = 0; i < integer_count_; ++i) {
    const Field& field = fields_[i];
    const int64_t want = query.wants[i];
    wants |= static_cast<uint64_t>(want < 0 ? 0 : want > field.most ? field.most : want) << field.shift;
  }
  const Entry* best = nullptr;
  for (uint32_t i = slots_[at].begin; i < slots_[at].end; ++i) {
    const Entry& candidate = entries_[i];
    // Guards of fields stay set where the row's value is no less than the problem's.
    if ((((candidate.integers | guards_) - wants) & at_least_) != at_least_) continue;
    if (((candidate.integers ^ wants) & equal_) != 0) continue;
    if (candidate.how->needs.clause_count != 0 && !holds(candidate.how->needs, query)) continue;
    // Entries come by what they hold: from here on all waste more.
    if (best != nullptr && candidate.held > best->held) break;
    if (best == nullptr || compare(query, *best, candidate) != Refusal::chosen) best = &candidate;
  }
  if (best == nullptr) return choice;
  choice.instance = instance(best->ref);
  choice.row = &row_of(choice.instance);
  choice.how = best->how;
  choice.engine =
      table_.fixed != nullptr ? table_.fixed[choice.instance] : engines_[choice.row->target].list[best->how->pipeline];
  return choice;
}

Refusal Dispatcher::judge(const Query& query, uint32_t ref, const Choice& choice) const {
  const Row& candidate = row(ref);
  if (choice.row == &candidate) return Refusal::chosen;
  const Refusal refusal = refuse(query, candidate);
  if (refusal != Refusal::chosen || choice.row == nullptr) return refusal;
  const Refusal worse = compare(query, entry(candidate, ref), entry(*choice.row, ref));
  return worse == Refusal::chosen ? Refusal::rank : worse;
}

Choice Dispatcher::at(int64_t instance) const {
  Choice choice;
  const int64_t first = family_.first_instance;
  if (instance < first || instance >= first + int64_t(family_.instance_count)) return choice;
  choice.row = &row_of(instance);
  choice.instance = instance;
  choice.how = &how(*choice.row);
  const void* const* engines = engines_[choice.row->target].list;
  if (engines != nullptr) choice.engine = engines[choice.how->pipeline];
  if (table_.fixed != nullptr) choice.engine = table_.fixed[instance];
  return choice;
}

}  // namespace tilekiln
