// SPDX-License-Identifier: MIT
// The dispatcher's answers as sentences for people.
#pragma once
#include "kernels/runtime/dispatch.h"

namespace tilekiln {

// "fmha_fwd dtype=bf16 hdim_q=111 ...": the problem, in the language of selections.
void describe(Text& text, const Dispatcher& dispatcher, const Query& query);

// Explains why no instance answers: instances for other machines, or the rule that forbids the problem, or the nearest
// instances with the axes that differ; and the command that builds it, or that no receipt lists it. `refusals` gets each reason as data; the text is
// made from it, a line a reason.
void explain_missing(Text& text, Refusals& refusals, const Dispatcher& dispatcher, const Query& query);

// The choice, and one line for every other instance of the signature with the reason it was not taken.
void explain_choice(Text& text, const Dispatcher& dispatcher, const Query& query, const Choice& choice);

// Explains why an instance the caller asked for by number cannot answer: the axes that differ, or the ISA.
void explain_unfit(Text& text, const Dispatcher& dispatcher, const Query& query, const Choice& choice);

// The choice, and the first time how many instances were refused for which reason; explain_choice names each. For the log (log.h).
void report(const Dispatcher& dispatcher, const Query& query, const Choice& choice);

}  // namespace tilekiln
