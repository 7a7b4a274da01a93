// SPDX-License-Identifier: MIT
// A ring of stages in shared memory between producers and consumers, with a full and an empty mbarrier each.
//
//     Pipeline<Stage, 4> in shared memory; one thread: init(producer arrivals, consumer arrivals)
//     Producer:  Stage& s = pipe.acquire(); pipe.expect(bytes); s.a.load(map, pipe.full(), ...); pipe.advance();
//     Consumer:  Stage& s = pipe.wait(); mma(...); pipe.release_previous(not the first); pipe.advance();
//
// Invariants: producers and consumers walk the stages in one order, each with a state of its own in registers. A stage
// is written between acquire and its barrier's last arrival, and read between wait and release. Every consumer warp
// releases every stage once; of a cluster, in all of its CTAs, since either CTA's TMA writes to both. A release is
// predicated: at a branch ptxas would wait for all wgmmas in flight.
#pragma once

#include "kernels/backends/cuda/ptx.h"

namespace tilekiln::cuda {

// The next stage, and the parity of its round.
template <int kStages> struct PipelineState {
  int slot = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void advance() {
    if (++slot == kStages) slot = 0, phase ^= 1;
  }
  // Goes past `steps` stages, of which the caller neither reads nor releases any.
  __device__ __forceinline__ void skip(int steps) {
    const int to = slot + steps, rounds = to / kStages;
    slot = to - rounds * kStages, phase ^= rounds & 1;
  }
  __device__ __forceinline__ int index() const { return slot; }
  __device__ __forceinline__ uint32_t parity() const { return phase; }
  __device__ __forceinline__ int previous() const { return slot == 0 ? kStages - 1 : slot - 1; }
  // Tells ptxas that it is alike in all lanes.
  __device__ __forceinline__ void keep() { slot = uniform(slot), phase = uniform(phase); }
};

// Steps so far, instead: a register less, for roles of few registers.
template <int kStages> struct CountedState {
  uint32_t count = 0;
  __device__ __forceinline__ void advance() { ++count; }
  __device__ __forceinline__ int index() const { return count % kStages; }
  __device__ __forceinline__ uint32_t parity() const { return count / kStages & 1; }
};

// One stage for every round, where each producer of a pipeline has a stage of its own.
struct OwnState {
  int own;
  uint32_t round = 0;
  __device__ __forceinline__ void advance() { ++round; }
  __device__ __forceinline__ int index() const { return own; }
  __device__ __forceinline__ uint32_t parity() const { return round & 1; }
};

template <class Stage_, int kStages_, bool kCluster_ = false> struct Pipeline {
  using Stage = Stage_;
  using Handle = Pipeline&;  // what producers and consumers hold of it
  static constexpr int kStages = kStages_;
  static constexpr bool kCluster = kCluster_;

  Stage stage[kStages];
  uint64_t full[kStages], empty[kStages];

  // Arrivals a stage: Roles::arrivals counts those of consumers. Called in Roles::run's init.
  __device__ __forceinline__ void init(int producers, int consumers) {
    for (int i = 0; i < kStages; ++i) barrier_init(full[i], producers), barrier_init(empty[i], consumers);
  }
};

// A pipeline of stages and barriers that lie apart: stages of several pipelines next to each other, where padding of
// each to 1,024 bytes would not fit.
template <int kStages> struct Barriers {
  uint64_t full[kStages], empty[kStages];

  // Arrivals a stage, as Pipeline has them.
  __device__ __forceinline__ void init(int producers, int consumers) {
    for (int i = 0; i < kStages; ++i) barrier_init(full[i], producers), barrier_init(empty[i], consumers);
  }
};
template <class Stage_, int kStages_> struct PipelineApart {
  using Stage = Stage_;
  using Handle = PipelineApart;
  static constexpr int kStages = kStages_;
  static constexpr bool kCluster = false;

  Stage (&stage)[kStages];
  uint64_t (&full)[kStages], (&empty)[kStages];
  __device__ __forceinline__ PipelineApart(Stage (&stage)[kStages], Barriers<kStages>& barriers)
      : stage(stage), full(barriers.full), empty(barriers.empty) {}
};

template <class Pipe, class State = PipelineState<Pipe::kStages>> struct Producer {
  using Stage = typename Pipe::Stage;
  typename Pipe::Handle pipe;
  State at;
  explicit __device__ __forceinline__ Producer(typename Pipe::Handle pipe, const State& at = {}) : pipe(pipe), at(at) {}

  // The next stage, once its consumers have released it.
  __device__ __forceinline__ Stage& acquire() const {
    wait(pipe.empty[at.index()], at.parity() ^ 1);
    return pipe.stage[at.index()];
  }
  // The next stage, released or not.
  __device__ __forceinline__ Stage& next() const { return pipe.stage[at.index()]; }
  // Waits until consumers have released the stage that was committed now, before advance.
  __device__ __forceinline__ void wait_for_release() const { wait(pipe.empty[at.index()], at.parity()); }
  __device__ __forceinline__ uint64_t& full() const { return pipe.full[at.index()]; }
  // One arrival, and so many bytes of TMA to come.
  __device__ __forceinline__ void expect(uint32_t bytes) const { arrive_expecting(full(), bytes); }
  // One arrival of a thread that has stored to the stage.
  __device__ __forceinline__ void commit() const { arrive(full()); }
  // One arrival of a warp whose lanes have stored to the stage; commit_stores: what wgmma or TMA will read.
  __device__ __forceinline__ void commit_warp(int lane) const { warp_arrive(full(), lane); }
  __device__ __forceinline__ void commit_stores(int lane) const {
    async_shared_fence();
    commit_warp(lane);
  }
  __device__ __forceinline__ void advance() { at.advance(); }
};

template <class Pipe, class State = PipelineState<Pipe::kStages>> struct Consumer {
  using Stage = typename Pipe::Stage;
  typename Pipe::Handle pipe;
  int lane, peers;  // peers: the other CTAs of the cluster, 0 or 1
  State at;
  __device__ __forceinline__ Consumer(typename Pipe::Handle pipe, int lane, int peers = 0)
      : pipe(pipe), lane(lane), peers(peers) {}

  // The next stage, full or not; and once it is full.
  __device__ __forceinline__ Stage& next() const { return pipe.stage[at.index()]; }
  __device__ __forceinline__ Stage& wait() const {
    cuda::wait(pipe.full[at.index()], at.parity());
    return pipe.stage[at.index()];
  }
  __device__ __forceinline__ void advance() { at.advance(); }
  // Releases the next stage: the warp has read it. release_alone: this thread has, and counts for its warp.
  __device__ __forceinline__ void release() const { warp_arrive(pipe.empty[at.index()], lane); }
  __device__ __forceinline__ void release_alone() const { arrive(pipe.empty[at.index()]); }
  // release where `condition`, while wgmmas are in flight. kFresh: the lane is asked for anew, which saves a register.
  template <bool kFresh = false> __device__ __forceinline__ void release_if(bool condition) const {
    warp_arrive_if(condition, pipe.empty[at.index()], kFresh ? fresh_lane() : lane);
  }
  // Releases the stage before the next one, where `condition`: the warp has read it.
  __device__ __forceinline__ void release_previous(bool condition) const {
    uint64_t& empty = pipe.empty[at.previous()];
    if constexpr (Pipe::kCluster) {
      const int cta = fresh_lane();
      __syncwarp();
      cluster_arrive_if(condition && cta <= peers, cluster_address(shared_address(&empty), cta & peers));
    } else {
      warp_arrive_if(condition, empty, lane);
    }
  }
};

// A word from one thread to another, without a stage: raised once a round, and waited for in every round.
struct Signal {
  uint64_t raised;

  __device__ __forceinline__ void init() { barrier_init(raised, 1); }
  __device__ __forceinline__ void raise() { arrive(raised); }
  __device__ __forceinline__ void wait(uint32_t round) { cuda::wait(raised, round & 1); }
};

}  // namespace tilekiln::cuda
