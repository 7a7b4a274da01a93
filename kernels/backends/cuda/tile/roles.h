// SPDX-License-Identifier: MIT
// Warp specialisation: warpgroup 0 produces, the others consume, and setmaxnreg moves registers from the one to the
// others.
//
// Invariants: every thread of the CTA calls run, once. Barriers are initialised and visible before any role begins; all
// CTAs of a cluster begin and end together, since they copy to each other and arrive at each other's barriers. A role's
// warpgroup index is uniform. Roles are branches of one `if` each: else ptxas ignores setmaxnreg (C7508).
#pragma once

#include "kernels/backends/cuda/ptx.h"

namespace tilekiln::cuda {

struct Warpgroup {
  int index, thread;  // index: among the consumers, from 0; thread: 0 to 127
  __device__ __forceinline__ int lane() const { return thread & 31; }
  __device__ __forceinline__ int warp() const { return uniform(thread >> 5); }
};

template <int kConsumers_, int kProducerRegisters, int kConsumerRegisters> struct Roles {
  static constexpr int kConsumers = kConsumers_, kThreads = 128 * (kConsumers + 1);
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;  // of a thread, when it begins
  static_assert((kProducerRegisters + kConsumers * kConsumerRegisters) * 128 <= kLaunchRegisters * kThreads,
                "setmaxnreg would wait for ever: the roles ask for more registers than the launch has");

  // Arrivals at an empty barrier: one a warp of `warpgroups` consumers in each of `ctas` CTAs.
  static __device__ __forceinline__ int arrivals(int warpgroups, int ctas) { return 4 * warpgroups * ctas; }

  // init() by one thread, then produce(thread) and consume(Warpgroup) by their warpgroups; `consumers` of these have
  // work, the others run idle().
  template <bool kCluster, class Init, class Produce, class Consume>
  static __device__ __forceinline__ void run(int consumers, Init&& init, Produce&& produce, Consume&& consume) {
    run<kCluster>(consumers, init, produce, consume, [] {});
  }
  template <bool kCluster, class Init, class Produce, class Consume, class Idle>
  static __device__ __forceinline__ void run(int consumers, Init&& init, Produce&& produce, Consume&& consume,
                                             Idle&& idle) {
    const int warpgroup = uniform(threadIdx.x >> 7), thread = threadIdx.x & 127;
    if (threadIdx.x == 0) {
      init();
      barrier_init_done();
    }
    if constexpr (kCluster)
      cluster_arrive_relaxed(), cluster_wait();
    else
      __syncthreads();
    if (warpgroup == 0) {
      fewer_registers<kProducerRegisters>();
      produce(thread);
    } else if (warpgroup <= consumers) {
      more_registers<kConsumerRegisters>();
      consume(Warpgroup{warpgroup - 1, thread});
    } else {
      idle();
    }
    if constexpr (kCluster) {
      __syncwarp();
      cluster_arrive_relaxed(), cluster_wait();
    }
  }
};

// Roles that are more than one producer and equal consumers: a Role for each, in the order of their warpgroups.
template <int kWarpgroups_, int kRegisters_> struct Role {
  static constexpr int kWarpgroups = kWarpgroups_, kRegisters = kRegisters_;
};
template <class... Each> struct NamedRoles {
  static constexpr int kWarpgroups = (Each::kWarpgroups + ...), kThreads = 128 * kWarpgroups;
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;  // of a thread, when it begins
  static_assert(((Each::kWarpgroups * Each::kRegisters) + ...) <= kLaunchRegisters * kWarpgroups,
                "setmaxnreg would wait for ever: the roles ask for more registers than the launch has");

  // Arrivals at a barrier: one a warp of `warpgroups`.
  static __device__ __forceinline__ int arrivals(int warpgroups) { return 4 * warpgroups; }

  // init() by one thread, then play(Warpgroup) of each role by its warpgroups, whose index is that in the role.
  template <class Init, class... Play> static __device__ __forceinline__ void run(Init&& init, Play&&... play) {
    const int warpgroup = uniform(threadIdx.x >> 7);
    if (threadIdx.x == 0) {
      init();
      barrier_init_done();
    }
    __syncthreads();
    play_first<Each...>(Warpgroup{warpgroup, int(threadIdx.x & 127)}, play...);
  }

 private:
  template <class First, class... Rest, class Play, class... Others>
  static __device__ __forceinline__ void play_first(const Warpgroup& w, Play&& play, Others&&... others) {
    if (sizeof...(Rest) == 0 || w.index < First::kWarpgroups) {
      if constexpr (First::kRegisters < kLaunchRegisters)
        fewer_registers<First::kRegisters>();
      else
        more_registers<First::kRegisters>();
      play(w);
    } else if constexpr (sizeof...(Rest) > 0) {
      play_first<Rest...>(Warpgroup{w.index - First::kWarpgroups, w.thread}, others...);
    }
  }
};

}  // namespace tilekiln::cuda
