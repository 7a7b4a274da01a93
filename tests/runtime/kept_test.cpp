// SPDX-License-Identifier: MIT
// Blocks that are kept: used again, replaced by larger ones, bounded, one user at a time, whole in a forked child.
#include "kernels/backends/cpu/kept.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "check.h"

using tilekiln::give_back;
using tilekiln::KeptBlock;
using tilekiln::take_block;

namespace {

constexpr size_t mib = 1 << 20;

bool mapped(const KeptBlock& block) {
  unsigned char resident;
  return mincore(block.data, 1, &resident) == 0;
}

KeptBlock take(size_t bytes) {
  const KeptBlock block = take_block(bytes);
  CHECK(block.data != nullptr && block.bytes >= bytes && reinterpret_cast<uintptr_t>(block.data) % 4096 == 0);
  return block;
}

void used_again() {
  const KeptBlock first = take(5 * mib), second = take(5 * mib);
  CHECK(first.data != second.data);
  static_cast<char*>(first.data)[5 * mib - 1] = 7;
  give_back(first);
  const KeptBlock again = take(4 * mib);
  CHECK(again.data == first.data && static_cast<char*>(again.data)[5 * mib - 1] == 7);
  give_back(again);
  const KeptBlock larger = take(20 * mib);  // what is too small for a call goes
  CHECK(!mapped(first));
  give_back(larger);
  give_back(second);
  give_back({});
}

void bounded() {
  const KeptBlock large = take(65 * mib);
  give_back(large);
  CHECK(!mapped(large));
  std::vector<KeptBlock> blocks;
  for (int i = 0; i < 9; ++i) blocks.push_back(take(2 * mib));
  for (const KeptBlock& block : blocks) give_back(block);
  size_t kept = 0, count = 0;
  for (const KeptBlock& block : blocks) {
    if (mapped(block)) kept += block.bytes, ++count;
  }
  CHECK(count == 8 && kept <= 64 * mib);
  blocks = {take(30 * mib), take(30 * mib), take(30 * mib)};
  for (const KeptBlock& block : blocks) give_back(block);
  CHECK(mapped(blocks[0]) && mapped(blocks[1]) && !mapped(blocks[2]));
}

void one_user_at_a_time() {
  std::vector<std::thread> threads;
  std::vector<int> broken(4, 0);
  for (int id = 0; id < 4; ++id) {
    threads.emplace_back([id, &broken] {
      for (int round = 0; round < 300; ++round) {
        const KeptBlock block = take_block(static_cast<size_t>(1 + round % 3) * 4 * mib);
        int* const mine = static_cast<int*>(block.data);
        *mine = id;
        std::this_thread::yield();
        broken[static_cast<size_t>(id)] += *mine != id;
        give_back(block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : broken) CHECK(count == 0);
}

void in_a_child() {
  const KeptBlock kept = take(6 * mib), held = take(6 * mib);
  *static_cast<int*>(held.data) = 1;
  give_back(kept);
  const pid_t child = fork();
  if (child == 0) {
    const KeptBlock own = take_block(6 * mib);
    *static_cast<int*>(own.data) = 2;
    *static_cast<int*>(held.data) = 2;
    give_back(own);
    _exit(own.data == kept.data ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(*static_cast<int*>(held.data) == 1);
  give_back(held);
}

}  // namespace

int main() {
  used_again();
  bounded();
  one_user_at_a_time();
  in_a_child();
  return check_result();
}
