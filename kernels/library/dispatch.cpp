#include "tilekiln/runtime/dispatch.h"

#include <string.h>

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
  // Without branches on the data: the comparisons of a random search are not predictable, a conditional move does not care.
  const Group* base = family_.groups;
  uint32_t count = family_.group_count;
  if (count == 0) return nullptr;
  while (count > 1) {
    const uint32_t half = count / 2;
    base += base[half].features <= features ? half : 0;
    count -= half;
  }
  return base->features == features ? base : nullptr;
}

Refusal Dispatcher::refuse(const Query& query, const Row& row) const {
  if (features(row) != query.features) return Refusal::other_features;
  if (hdim_q(row) < query.hdim_q || hdim_v(row) < query.hdim_v) return Refusal::hdim_too_small;
  const Use& use = use_[row.target];
  if (use.engines == nullptr || use.engines[row.pipeline] == nullptr) return Refusal::not_built;
  if (!use.supported) return Refusal::machine_lacks;
  if (!use.usable) return Refusal::isa_forbidden;
  return Refusal::chosen;
}

Dispatcher::Score Dispatcher::score(const Query& query, const Row& row) const {
  return {hdim_q(row) + hdim_v(row) - query.hdim_q - query.hdim_v, tile_cost(query.seqlen_q, row.tile_q),
          -int64_t(row.tile_q), -int64_t(use_[row.target].order), row.rank};
}

Refusal Dispatcher::compare(const Score& a, const Score& b) {
  if (a.hdim_waste != b.hdim_waste) return a.hdim_waste > b.hdim_waste ? Refusal::hdim_waste : Refusal::chosen;
  if (a.tile_fit != b.tile_fit) return a.tile_fit > b.tile_fit ? Refusal::tile_fit : Refusal::chosen;
  // Of two tiles that fit alike, the taller: it reads every key less often.
  if (a.tile != b.tile) return a.tile > b.tile ? Refusal::tile_fit : Refusal::chosen;
  if (a.order != b.order) return a.order > b.order ? Refusal::slower_target : Refusal::chosen;
  return a.rank > b.rank ? Refusal::rank : Refusal::chosen;
}

Choice Dispatcher::find(const Query& query) const {
  Choice best;
  const Group* found = group(query.features);
  if (found == nullptr) return best;
  uint32_t best_ref = 0;
  Score best_score = {};
  for (uint32_t ref = found->begin; ref < found->end; ++ref) {
    const Row& candidate = row(ref);
    if (refuse(query, candidate) != Refusal::chosen) continue;
    const Score candidate_score = score(query, candidate);
    // A tie in everything goes to the first of the plan's order.
    if (best.row != nullptr && compare(best_score, candidate_score) == Refusal::chosen) continue;
    best.row = &candidate;
    best_ref = ref;
    best_score = candidate_score;
  }
  if (best.row == nullptr) return best;
  best.engine = use_[best.row->target].engines[best.row->pipeline];
  best.instance = instance(best_ref);
  return best;
}

Refusal Dispatcher::judge(const Query& query, uint32_t ref, const Choice& choice) const {
  const Row& candidate = row(ref);
  if (choice.row == &candidate) return Refusal::chosen;
  const Refusal refusal = refuse(query, candidate);
  if (refusal != Refusal::chosen || choice.row == nullptr) return refusal;
  const Refusal worse = compare(score(query, candidate), score(query, *choice.row));
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
