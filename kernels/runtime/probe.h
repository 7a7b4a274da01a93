// SPDX-License-Identifier: MIT
// Marks in the program that perf, gdb, bpftrace and SystemTap find by name: TILEKILN_PROBE(call_begin, name, pointer).
//
// A mark is one `nop` and a note in the section .note.stapsdt that says where it is and in which registers its two arguments, of 8
// bytes each, are; whoever traces puts a breakpoint there. The layout of the note is that of SystemTap's page "UserSpaceProbeImplementation".
#pragma once

#if defined(__linux__) && defined(__ELF__) && (defined(__x86_64__) || defined(__aarch64__))
#define TILEKILN_PROBE(name, first, second)                                                                       \
  asm volatile("990: nop\n"                                                                                       \
               ".pushsection .note.stapsdt,\"?\",\"note\"\n"                                                      \
               ".balign 4\n"                                                                                      \
               ".4byte 992f-991f, 994f-993f, 3\n"                                                                 \
               "991: .asciz \"stapsdt\"\n"                                                                        \
               "992: .balign 4\n"                                                                                 \
               "993: .8byte 990b, _.stapsdt.base, 0\n"                                                            \
               ".asciz \"tilekiln\"\n"                                                                            \
               ".asciz \"" #name "\"\n"                                                                           \
               ".asciz \"8@%0 8@%1\"\n"                                                                           \
               "994: .balign 4\n"                                                                                 \
               ".popsection\n"                                                                                    \
               ".ifndef _.stapsdt.base\n"                                                                         \
               ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"                            \
               ".weak _.stapsdt.base\n"                                                                           \
               ".hidden _.stapsdt.base\n"                                                                         \
               "_.stapsdt.base: .space 1\n"                                                                       \
               ".size _.stapsdt.base, 1\n"                                                                        \
               ".popsection\n"                                                                                    \
               ".endif\n" ::"r"(first),                                                                           \
               "r"(second))
#else
#define TILEKILN_PROBE(name, first, second) static_cast<void>(first), static_cast<void>(second)
#endif
