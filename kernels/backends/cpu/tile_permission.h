// SPDX-License-Identifier: MIT
// Permission to use tiles, by process. Linux saves them for a process that has asked, and has none of them otherwise.
#pragma once

namespace tilekiln::amx {

// Tells whether the processor and the system have tiles and their products of bf16 and int8. Asks for nothing.
bool present() noexcept;

// Asks the system to let this process use tiles, unless it already may, and answers null; or why it must not, as a clause. To be called
// where `present`: when tiles are wanted, not before, since afterwards the system takes no signal stack that is too small to save them.
// All threads may, those that began before too, and children; a program that is executed asks again.
const char* refusal() noexcept;

}  // namespace tilekiln::amx
