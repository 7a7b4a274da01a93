#include "tilekiln/runtime/dispatch.h"

#include <string.h>

#include <algorithm>
#include <vector>

namespace tilekiln {

int64_t tile_cost(int64_t seqlen_q, int64_t tile_q) {
  const int64_t rows = (seqlen_q + tile_q - 1) / tile_q * tile_q, forgiven = seqlen_q + seqlen_q / 4;
  return rows > forgiven ? rows : forgiven;
}

Dispatcher::Dispatcher(const Table& table, uint32_t family, const char* isa)
    : table_(table), family_(table.families[family]), isa_(isa) {
  for (uint32_t i = 0; i < family_.axis_count; ++i) {
    const Axis& axis = family_.axes[i];
    const int mask = (1 << axis.bits) - 1;
    if (strcmp(axis.name, "hdim_q") == 0) shift_q_ = axis.shift, mask_q_ = mask;
    if (strcmp(axis.name, "hdim_v") == 0) shift_v_ = axis.shift, mask_v_ = mask;
  }
  hdims_ = (static_cast<uint64_t>(mask_q_) << shift_q_) | (static_cast<uint64_t>(mask_v_) << shift_v_);
  const Target* limit = nullptr;
  for (uint32_t i = 0; i < table.target_count; ++i) {
    const Target& target = table.targets[i];
    Use& use = use_[target.index];
    use.target = &target;
    use.engines = target.engines[family];
    use.supported = target.supported();
    use.order = target.order;
    if (strcmp(target.isa, isa) == 0 && use.supported) limit = &target;
  }
  isa_known_ = *isa == 0 || limit != nullptr;
  for (uint32_t i = 0; i < table.target_count; ++i) {
    const Target& target = table.targets[i];
    Use& use = use_[target.index];
    use.usable = use.supported && isa_known_ && (limit == nullptr || target.order <= limit->order);
    if (use.usable && (best_ == nullptr || target.order > best_->order)) best_ = &target;
  }
  make_index();
}

void Dispatcher::make_index() {
  int bits = 1;
  while ((uint32_t(1) << bits) < 2 * family_.group_count) ++bits;
  slots_.reset(size_t(1) << bits);
  for (Slot& slot : slots_) slot = {0, 0, 0};
  slot_shift_ = 64 - bits;
  std::vector<Entry> entries, members;
  for (uint32_t g = 0; g < family_.group_count; ++g) {
    const Group& group = family_.groups[g];
    members.clear();
    for (uint32_t ref = group.begin; ref < group.end; ++ref) {
      if (refuse_here(row(ref)) == Refusal::chosen) members.push_back(entry(row(ref), ref));
    }
    if (members.empty()) continue;
    const auto alike = [](const Entry& a, const Entry& b) {
      return a.hdim_q == b.hdim_q && a.hdim_v == b.hdim_v && a.tile_q == b.tile_q && a.load == b.load &&
             (a.load == KvLoad::any || a.tile_k == b.tile_k);
    };
    std::sort(members.begin(), members.end(), [](const Entry& a, const Entry& b) {
      if (a.hdim_q + a.hdim_v != b.hdim_q + b.hdim_v) return a.hdim_q + a.hdim_v < b.hdim_q + b.hdim_v;
      if (a.hdim_q != b.hdim_q) return a.hdim_q < b.hdim_q;
      // The order of the choice for a problem of no size, in which all tiles fit.
      const Score first = score({}, a), second = score({}, b);
      if (compare(second, first) != Refusal::chosen) return true;
      return compare(first, second) == Refusal::chosen && a.ref < b.ref;
    });
    members.erase(std::unique(members.begin(), members.end(), alike), members.end());
    const auto begin = static_cast<uint32_t>(entries.size());
    entries.insert(entries.end(), members.begin(), members.end());
    size_t at = first_slot(group.features);
    while (slots_[at].begin != slots_[at].end) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {group.features, begin, static_cast<uint32_t>(entries.size())};
  }
  entries_.reset(entries.size());
  std::copy(entries.begin(), entries.end(), entries_.begin());
}

tilekiln_status Dispatcher::status() const {
  if (__builtin_expect(isa_known_, 1)) return TILEKILN_OK;
  Text text(error_buffer(), error_capacity);
  text.add("TILEKILN_ISA: was \"%s\"", isa_);
  int known = 0;
  for (uint32_t i = 0; i < table_.target_count; ++i) {
    if (strcmp(table_.targets[i].isa, isa_) == 0) text.add(", which this machine has not");
    known += use_[table_.targets[i].index].supported;
  }
  if (known == 0) {
    text.add("; library %s holds nothing this machine can run: build it here with scons receipt=%s", table_.receipt,
             table_.receipt);
    return TILEKILN_INVALID_ARGUMENT;
  }
  text.add(", must be one that library %s holds and this machine has (", table_.receipt);
  const char* separator = "";
  for (uint32_t i = 0; i < table_.target_count; ++i) {
    if (!use_[table_.targets[i].index].supported) continue;
    text.add("%s%s", separator, table_.targets[i].isa);
    separator = ", ";
  }
  text.add(") or unset");
  return TILEKILN_INVALID_ARGUMENT;
}

const Group* Dispatcher::group(uint64_t features) const {
  const Group* const end = family_.groups + family_.group_count;
  const Group* const found = std::lower_bound(
      family_.groups, end, features, [](const Group& group, uint64_t value) { return group.features < value; });
  return found != end && found->features == features ? found : nullptr;
}

Refusal Dispatcher::refuse(const Query& query, const Row& row) const {
  if (features(row) != query.features) return Refusal::other_features;
  if (hdim_q(row) < query.hdim_q || hdim_v(row) < query.hdim_v) return Refusal::hdim_too_small;
  if (static_cast<KvLoad>(row.kv_load) == KvLoad::small && needs_large_load(query.cache, row.tile_k)) {
    return Refusal::cache_too_large;
  }
  return refuse_here(row);
}

Refusal Dispatcher::refuse_here(const Row& row) const {
  const Use& use = use_[row.target];
  if (use.engines == nullptr || use.engines[row.pipeline] == nullptr) return Refusal::not_built;
  if (!use.supported) return Refusal::machine_lacks;
  if (!use.usable) return Refusal::isa_forbidden;
  return Refusal::chosen;
}

Dispatcher::Entry Dispatcher::entry(const Row& of, uint32_t ref) const {
  return {static_cast<uint16_t>(hdim_q(of)),
          static_cast<uint16_t>(hdim_v(of)),
          of.tile_q,
          of.tile_k,
          use_[of.target].order,
          of.rank,
          static_cast<KvLoad>(of.kv_load),
          ref};
}

Dispatcher::Score Dispatcher::score(const Query& query, const Entry& entry) {
  return {entry.hdim_q + entry.hdim_v - query.hdim_q - query.hdim_v,
          tile_cost(query.seqlen_q, entry.tile_q),
          -int64_t(entry.tile_q),
          entry.load == KvLoad::large,
          -int64_t(entry.order),
          entry.rank};
}

Refusal Dispatcher::compare(const Score& a, const Score& b) {
  if (a.hdim_waste != b.hdim_waste) return a.hdim_waste > b.hdim_waste ? Refusal::hdim_waste : Refusal::chosen;
  if (a.tile_fit != b.tile_fit) return a.tile_fit > b.tile_fit ? Refusal::tile_fit : Refusal::chosen;
  // Of two tiles that fit alike, the taller: it reads every key less often.
  if (a.tile != b.tile) return a.tile > b.tile ? Refusal::tile_fit : Refusal::chosen;
  if (a.load != b.load) return a.load > b.load ? Refusal::longer_loads : Refusal::chosen;
  if (a.order != b.order) return a.order > b.order ? Refusal::slower_target : Refusal::chosen;
  return a.rank > b.rank ? Refusal::rank : Refusal::chosen;
}

Choice Dispatcher::find(const Query& query) const {
  Choice choice;
  size_t at = first_slot(query.features);
  while (slots_[at].begin != slots_[at].end && slots_[at].features != query.features)
    at = (at + 1) & (slots_.size() - 1);
  const Entry* best = nullptr;
  Score best_score = {};
  for (uint32_t i = slots_[at].begin; i < slots_[at].end; ++i) {
    const Entry& candidate = entries_[i];
    if (candidate.hdim_q < query.hdim_q || candidate.hdim_v < query.hdim_v) continue;
    if (candidate.load == KvLoad::small && needs_large_load(query.cache, candidate.tile_k)) continue;
    // Entries come by their head dims: from here on all waste more.
    if (best != nullptr && candidate.hdim_q + candidate.hdim_v > best->hdim_q + best->hdim_v) break;
    const Score candidate_score = score(query, candidate);
    // A tie in everything goes to the first of the plan's order.
    if (best != nullptr && compare(best_score, candidate_score) == Refusal::chosen) continue;
    best = &candidate;
    best_score = candidate_score;
  }
  if (best == nullptr) return choice;
  choice.row = &row(best->ref);
  choice.engine = use_[choice.row->target].engines[choice.row->pipeline];
  choice.instance = instance(best->ref);
  return choice;
}

Refusal Dispatcher::judge(const Query& query, uint32_t ref, const Choice& choice) const {
  const Row& candidate = row(ref);
  if (choice.row == &candidate) return Refusal::chosen;
  const Refusal refusal = refuse(query, candidate);
  if (refusal != Refusal::chosen || choice.row == nullptr) return refusal;
  const Refusal worse = compare(score(query, entry(candidate, ref)), score(query, entry(*choice.row, ref)));
  return worse == Refusal::chosen ? Refusal::rank : worse;
}

Choice Dispatcher::at(int64_t instance) const {
  Choice choice;
  const Row& wanted = row(table_.plan[instance]);
  const Group* found = group(features(wanted));
  if (found == nullptr) return choice;
  for (uint32_t ref = found->begin; ref < found->end; ++ref) {
    if (this->instance(ref) != instance) continue;
    choice.row = &wanted;
    choice.instance = instance;
    const Use& use = use_[wanted.target];
    if (use.engines != nullptr) choice.engine = use.engines[wanted.pipeline];
  }
  return choice;
}

}  // namespace tilekiln
