// SPDX-License-Identifier: MIT
// Lengths and starts of sequences, of numbers that the host has not looked at, too, within what their arrays hold.
#pragma once
#include "kernels/backends/hip/vocabulary.h"

namespace tilekiln::hip {

/// The length of sequence b, within the longest.
TILEKILN_DEVICE int length(const int* lengths, const int* starts, int b, int most) {
  int found = most;
  if (lengths)
    found = ((Global<const int>)lengths)[b];
  else if (starts)
    found = ((Global<const int>)starts)[b + 1] - ((Global<const int>)starts)[b];
  return found < 0 ? 0 : found > most ? most : found;
}

/// The first row of packed sequence b.
TILEKILN_DEVICE int start(const int* starts, int b, int total) {
  const int found = ((Global<const int>)starts)[b];
  return found < 0 ? 0 : found > total ? total : found;
}

}  // namespace tilekiln::hip
