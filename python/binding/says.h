// SPDX-License-Identifier: MIT
/* Docstrings of the functions beside each operator's own, whose docstring the library brings. */
#ifndef TILEKILN_BINDING_SAYS_H
#define TILEKILN_BINDING_SAYS_H

static const char find_says[] =
    "The number of the instance that the operator would use for the same arguments, or a tuple of one a stage (-1: not "
    "needed).\nChecks them alike and runs nothing.";
static const char why_says[] =
    "Why the operator would use the instance it would use, or why there is none: the problem, the choice and what was\n"
    "refused, or the nearest instances, the axes that differ, the rule that forbids the problem and the command that\n"
    "builds it. Runs nothing.";
static const char describe_says[] =
    "The problem of the same arguments, a line a stage: its family, and its axes and sizes in the language of "
    "selections.\n"
    "Checks them alike and runs nothing; a problem that no kernel answers is described too.";

#endif
