// SPDX-License-Identifier: MIT
// The index arrays of an attention call: how long each sequence is and where it starts.
#include <algorithm>
#include <vector>

#include "kernels/attention/host_copies.h"
#include "kernels/attention/index_arrays.h"
#include "kernels/runtime/launch.h"

namespace tilekiln::fmha {

using ll = long long;

tilekiln_status check_index(const Array& array, i64 count, const char* sum) {
  TILEKILN_TRY(check_dtype(array, TILEKILN_INT32, "int32"));
  TILEKILN_TRY(check_ndim(array, 1, sum));
  if (array.shape[0] == count) return TILEKILN_OK;
  return fail_argument(array.name, "had %lld entries, must have %lld: %s", static_cast<ll>(array.shape[0]),
                       static_cast<ll>(count), sum);
}

tilekiln_status check_cumulative(const Array& array, i64 batch, i64 limit, const char* limit_name) {
  int32_t before = 0;
  for (i64 i = 0; i <= batch; ++i) {
    const int32_t value = entry(array, i);
    if (value < 0) return fail_argument(array.name, "entry %lld was %d, must be 0 or more", static_cast<ll>(i), value);
    if (value < before) {
      return fail_argument(array.name, "must not decrease, but entry %lld is %d after %d", static_cast<ll>(i), value,
                           before);
    }
    before = value;
  }
  if (before > limit) {
    return fail_argument(array.name, "ended at %d, must end at %lld or before, %s", before, static_cast<ll>(limit),
                         limit_name);
  }
  return TILEKILN_OK;
}

namespace {

// The q or the k side.
struct Side {
  const Array &seqstart, &seqlen, &cu_seqlens, &scale_start;
  i64 scale_blocks;  // of its descale array, in group mode with block scales
  const char *seqstart_name, *cu_name;
  i64 physical;  // batch mode: the length of the dimension; group mode: of all sequences together
  const char* physical_name;
  int Sequence::* length;
  i64 Sequence::* place;
  i64 Sequence::* place_scale;
  i64 Sequence::* room;
};

tilekiln_status check_length_of(const Array& array, i64 i, i64 length, i64 room, const char* room_name) {
  if (length < 0)
    return fail_argument(array.name, "entry %lld was %lld, must be 0 or more", static_cast<ll>(i),
                         static_cast<ll>(length));
  if (length > room) {
    return fail_argument(array.name, "sequence %lld was %lld long, must be at most %lld, %s", static_cast<ll>(i),
                         static_cast<ll>(length), static_cast<ll>(room), room_name);
  }
  if (length > max_seqlen) {
    return fail_argument(array.name, "sequence %lld was %lld long, must be at most %d", static_cast<ll>(i),
                         static_cast<ll>(length), max_seqlen);
  }
  return TILEKILN_OK;
}

tilekiln_status read_side(const Side& side, bool group, i64 batch, bool blockscale, Sequence* sequences, int* longest) {
  const bool own_starts = side.seqstart.given();
  // The array that holds the physical starts in group mode.
  const Array& starts = own_starts ? side.seqstart : side.cu_seqlens;
  if (side.seqlen.given()) TILEKILN_TRY(check_index(side.seqlen, batch, "batch"));
  if (side.cu_seqlens.given()) {
    TILEKILN_TRY(check_index(side.cu_seqlens, batch + 1, "batch + 1"));
    const bool physical = group && !own_starts;
    TILEKILN_TRY(check_cumulative(side.cu_seqlens, batch, physical ? side.physical : INT32_MAX, side.physical_name));
  }
  if (own_starts) {
    TILEKILN_TRY(check_index(side.seqstart, batch + 1, "batch + 1"));
    TILEKILN_TRY(check_cumulative(side.seqstart, batch, side.physical, side.physical_name));
  }
  if (blockscale && group) {
    TILEKILN_TRY(check_index(side.scale_start, batch + 1, "batch + 1"));
    TILEKILN_TRY(check_cumulative(side.scale_start, batch, side.scale_blocks, "the blocks of its descale array"));
  }
  const char* const room_name = group ? "the space that the seqstart array leaves it" : side.physical_name;
  for (i64 i = 0; i < batch; ++i) {
    Sequence& sequence = sequences[i];
    i64 room = side.physical, place = i;
    if (group) {
      place = entry(starts, i);
      room = entry(starts, i + 1) - place;
    }
    i64 length = room;
    if (side.seqlen.given()) {
      length = entry(side.seqlen, i);
      TILEKILN_TRY(check_length_of(side.seqlen, i, length, room, room_name));
    } else if (side.cu_seqlens.given()) {
      length = static_cast<i64>(entry(side.cu_seqlens, i + 1)) - entry(side.cu_seqlens, i);
      TILEKILN_TRY(check_length_of(side.cu_seqlens, i, length, room, room_name));
    } else if (group) {
      TILEKILN_TRY(check_length_of(starts, i, length, room, room_name));
    }
    sequence.*side.length = static_cast<int>(length);
    sequence.*side.place = place;
    sequence.*side.room = room;
    sequence.*side.place_scale = i;
    if (blockscale && group) {
      const i64 first = entry(side.scale_start, i), blocks = entry(side.scale_start, i + 1) - first;
      const i64 needed = (length + scale_block - 1) / scale_block;
      if (blocks < needed) {
        return fail_argument(
            side.scale_start.name, "sequence %lld had %lld blocks, must have %lld: one per %d of its %lld",
            static_cast<ll>(i), static_cast<ll>(blocks), static_cast<ll>(needed), scale_block, static_cast<ll>(length));
      }
      sequence.*side.place_scale = first;
    }
    if (length > *longest) *longest = static_cast<int>(length);
  }
  return TILEKILN_OK;
}

// Checks which index arrays are given together.
tilekiln_status check_given(const Side& side, bool group, bool blockscale) {
  if (side.seqlen.given() && side.cu_seqlens.given()) {
    return fail_argument(side.seqlen.name, "was given with %s, must be alone: both say the logical lengths",
                         side.cu_seqlens.name);
  }
  if (!group && side.seqstart.given()) {
    return fail_argument(
        side.seqstart.name,
        "was given in batch mode (q of 4 dimensions), must be null: there a sequence starts at its batch index");
  }
  if (group && !side.seqstart.given() && !side.cu_seqlens.given()) {
    return fail_argument(side.cu_name, "was null, must be given in group mode (q of 3 dimensions) unless %s is",
                         side.seqstart_name);
  }
  const bool wanted = group && blockscale;
  if (side.scale_start.given() && !wanted) {
    return fail_argument(side.scale_start.name, "was given, must be null without block scales in group mode");
  }
  return TILEKILN_OK;
}

Side query_side(const IndexArrays& arrays, bool group, i64 physical, i64 scale_blocks) {
  return {arrays.seqstart_q,
          arrays.seqlen_q,
          arrays.cu_seqlens_q,
          arrays.block_scale_seqstart_q,
          scale_blocks,
          "seqstart_q",
          "cu_seqlens_q",
          physical,
          group ? "the total length of q" : "the seqlen of q",
          &Sequence::seqlen_q,
          &Sequence::place_q,
          &Sequence::place_scale_q,
          &Sequence::room_q};
}

// Counts sequences: in group mode the starts of q say how many there are.
tilekiln_status count_sequences(const Side& q, AttentionCall* call) {
  const Array& starts = q.seqstart.given() ? q.seqstart : q.cu_seqlens;
  TILEKILN_TRY(check_ndim(starts, 1, "batch + 1"));
  if (starts.shape[0] < 1) return fail_argument(starts.name, "had no entry, must have batch + 1");
  if (starts.shape[0] - 1 > INT32_MAX)
    return fail_argument(starts.name, "had %lld entries, must have fewer than 2^31", static_cast<ll>(starts.shape[0]));
  call->batch = static_cast<int>(starts.shape[0] - 1);
  return TILEKILN_OK;
}

void make_sequences(AttentionCall* call) {
  call->sequences.reset(static_cast<size_t>(call->batch));
  for (int i = 0; i < call->batch; ++i) call->sequences[i].batch = i;
}

}  // namespace

tilekiln_status check_unread(const Array& array, i64 count, const char* sum) {
  if (!array.given()) return TILEKILN_OK;
  TILEKILN_TRY(check_index(array, count, sum));
  return check_last_contiguous(array);
}

namespace {

// The arrays of an unread call.
tilekiln_status check_shapes(const Side& side, i64 batch) {
  TILEKILN_TRY(check_unread(side.seqlen, batch, "batch"));
  for (const Array* array : {&side.cu_seqlens, &side.seqstart, &side.scale_start})
    TILEKILN_TRY(check_unread(*array, batch + 1, "batch + 1"));
  return TILEKILN_OK;
}

}  // namespace

tilekiln_status check_queries(const IndexArrays& arrays, bool group, i64 physical_q, AttentionCall* call) {
  const Side q = query_side(arrays, group, physical_q, 0);
  TILEKILN_TRY(check_given(q, group, false));
  if (group) TILEKILN_TRY(count_sequences(q, call));
  if (call->unread) return check_shapes(q, call->batch);
  make_sequences(call);
  return read_side(q, group, call->batch, false, call->sequences.begin(), &call->seqlen_q);
}

namespace {

struct Sides { Side q, k; };

// Checks both sides; which arrays are given, and how many sequences there are: call->batch.
tilekiln_status check_sides(const Sides& sides, bool group, bool blockscale, AttentionCall* call) {
  TILEKILN_TRY(check_given(sides.q, group, blockscale));
  TILEKILN_TRY(check_given(sides.k, group, blockscale));
  if (group && blockscale) {
    if (!sides.q.scale_start.given())
      return fail_argument("block_scale_seqstart_q", "was null, must be given with block scales in group mode");
    if (!sides.k.scale_start.given())
      return fail_argument("block_scale_seqstart_k", "was null, must be given with block scales in group mode");
  }
  return group ? count_sequences(sides.q, call) : TILEKILN_OK;
}

Sides sides_of(const IndexArrays& arrays, bool group, i64 physical_q, i64 physical_k, const ScaleBlocks* scales) {
  const Side k = {arrays.seqstart_k,
                  arrays.seqlen_k,
                  arrays.cu_seqlens_k,
                  arrays.block_scale_seqstart_k,
                  scales != nullptr ? scales->k : 0,
                  "seqstart_k",
                  "cu_seqlens_k",
                  physical_k,
                  group ? "the total length of k" : "the seqlen of k",
                  &Sequence::seqlen_k,
                  &Sequence::place_k,
                  &Sequence::place_scale_k,
                  &Sequence::room_k};
  return {query_side(arrays, group, physical_q, scales != nullptr ? scales->q : 0), k};
}

}  // namespace

tilekiln_status check_longest_given(int max_seqlen_q, int max_seqlen_k) {
  if ((max_seqlen_q == 0) == (max_seqlen_k == 0)) return TILEKILN_OK;
  const bool q = max_seqlen_q == 0;
  return fail_argument(q ? "max_seqlen_q" : "max_seqlen_k", "was 0, must be given with %s",
                       q ? "max_seqlen_k" : "max_seqlen_q");
}

// Batch mode without any index array: every sequence has the lengths of the arrays.
bool all_alike(const IndexArrays& in, bool group) {
  return !group && !in.seqstart_q.given() && !in.seqstart_k.given() && !in.seqlen_q.given() && !in.seqlen_k.given() &&
         !in.cu_seqlens_q.given() && !in.cu_seqlens_k.given() && !in.block_scale_seqstart_q.given() &&
         !in.block_scale_seqstart_k.given();
}

tilekiln_status check_longest(const char* name, int given, int longest) {
  if (given == 0 || longest <= given) return TILEKILN_OK;
  return fail_argument(name, "was %d, must be at least %d, the longest sequence", given, longest);
}

tilekiln_status check_sequences(const IndexArrays& arrays, bool group, i64 physical_q, i64 physical_k,
                                const ScaleBlocks* scales, AttentionCall* call) {
  if (all_alike(arrays, group)) {
    call->uniform = true;
    call->seqlen_q = static_cast<int>(physical_q);
    call->seqlen_k = static_cast<int>(physical_k);
    return TILEKILN_OK;
  }
  const bool blockscale = scales != nullptr;
  const Sides sides = sides_of(arrays, group, physical_q, physical_k, scales);
  TILEKILN_TRY(check_sides(sides, group, blockscale, call));
  make_sequences(call);
  TILEKILN_TRY(read_side(sides.q, group, call->batch, blockscale, call->sequences.begin(), &call->seqlen_q));
  return read_side(sides.k, group, call->batch, blockscale, call->sequences.begin(), &call->seqlen_k);
}

tilekiln_status check_sequences_within(const IndexArrays& arrays, bool group, i64 physical_q, i64 physical_k,
                                       const ScaleBlocks* scales, int max_seqlen_q, int max_seqlen_k,
                                       AttentionCall* call) {
  TILEKILN_TRY(check_longest_given(max_seqlen_q, max_seqlen_k));
  if (!call->unread) {
    TILEKILN_TRY(check_sequences(arrays, group, physical_q, physical_k, scales, call));
    TILEKILN_TRY(check_longest("max_seqlen_q", max_seqlen_q, call->seqlen_q));
    return check_longest("max_seqlen_k", max_seqlen_k, call->seqlen_k);
  }
  const Sides sides = sides_of(arrays, group, physical_q, physical_k, scales);
  TILEKILN_TRY(check_sides(sides, group, scales != nullptr, call));
  for (const Side* side : {&sides.q, &sides.k}) TILEKILN_TRY(check_shapes(*side, call->batch));
  call->on_device.reset(new UnreadArrays{arrays, group, scales != nullptr, physical_q, physical_k,
                                         scales != nullptr ? *scales : ScaleBlocks{}});
  call->seqlen_q = static_cast<int>(std::min<i64>(max_seqlen_q, physical_q));
  call->seqlen_k = static_cast<int>(std::min<i64>(max_seqlen_k, physical_k));
  return TILEKILN_OK;
}

tilekiln_status read_sequences(AttentionCall* call) {
  UnreadArrays& unread = *call->on_device;
  IndexArrays& arrays = unread.arrays;
  Array* const all[] = {&arrays.seqstart_q,
                        &arrays.seqstart_k,
                        &arrays.seqlen_q,
                        &arrays.seqlen_k,
                        &arrays.cu_seqlens_q,
                        &arrays.cu_seqlens_k,
                        &arrays.block_scale_seqstart_q,
                        &arrays.block_scale_seqstart_k};
  HostCopies copies;
  for (Array* array : all) TILEKILN_TRY(copies.take(*call, array));
  const int most_q = call->seqlen_q, most_k = call->seqlen_k;
  call->seqlen_q = call->seqlen_k = 0;
  call->unread = false;
  TILEKILN_TRY(check_sequences(arrays, unread.group, unread.physical_q, unread.physical_k,
                               unread.scaled ? &unread.scales : nullptr, call));
  TILEKILN_TRY(check_longest("max_seqlen_q", most_q, call->seqlen_q));
  return check_longest("max_seqlen_k", most_k, call->seqlen_k);
}

tilekiln_status place_lengths(const AttentionCall& call, bool group, CallMemory* memory, DeviceLengths* lengths) {
  *lengths = {};
  if (call.uniform) return TILEKILN_OK;
  if (call.unread) {
    const IndexArrays& in = call.on_device->arrays;
    const auto data = [](const Array& array) {
      return array.given() ? reinterpret_cast<const int*>(array.data) : nullptr;
    };
    *lengths = {data(in.seqstart_q),
                data(in.seqstart_k),
                data(in.seqlen_q),
                data(in.seqlen_k),
                data(in.cu_seqlens_q),
                data(in.cu_seqlens_k),
                static_cast<int>(call.on_device->physical_q),
                static_cast<int>(call.on_device->physical_k),
                data(in.block_scale_seqstart_q),
                data(in.block_scale_seqstart_k)};
    return TILEKILN_OK;
  }
  const size_t batch = call.sequences.size();
  if (batch == 0) return TILEKILN_OK;
  const size_t starts = batch + 1;
  std::vector<int> numbers(2 * starts + 4 * batch);
  for (const Sequence& sequence : call.sequences) {
    const auto at = static_cast<size_t>(sequence.batch);
    numbers[at] = static_cast<int>(sequence.place_q);
    numbers[starts + at] = static_cast<int>(sequence.place_k);
    numbers[2 * starts + at] = sequence.seqlen_q;
    numbers[2 * starts + batch + at] = sequence.seqlen_k;
    numbers[2 * starts + 2 * batch + at] = static_cast<int>(sequence.place_scale_q);
    numbers[2 * starts + 3 * batch + at] = static_cast<int>(sequence.place_scale_k);
    if (at + 1 < batch) continue;
    numbers[at + 1] = static_cast<int>(sequence.place_q + sequence.room_q);
    numbers[starts + at + 1] = static_cast<int>(sequence.place_k + sequence.room_k);
  }
  TILEKILN_TRY(memory->get(call, sizeof(int) * numbers.size()));
  const int* const at = memory->as<int>();
  *lengths = {group ? at : nullptr,
              group ? at + starts : nullptr,
              at + 2 * starts,
              at + 2 * starts + batch,
              nullptr,
              nullptr,
              INT32_MAX,
              INT32_MAX,
              group ? at + 2 * starts + 2 * batch : nullptr,
              group ? at + 2 * starts + 3 * batch : nullptr};
  return call.backend->copy(call.device, call.native, memory->as<int>(), numbers.data(), sizeof(int) * numbers.size(),
                            Direction::to_device);
}

}  // namespace tilekiln::fmha
