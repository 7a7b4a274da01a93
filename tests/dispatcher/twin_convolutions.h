// SPDX-License-Identifier: MIT
// Setters of the builder of convolutions, for twin_test.cpp.
#pragma once

#define CONV(name) OF(GroupedConvProblemBuilder, name)
#define NUMBERS(name)                                                                                       \
  {#name, [](GroupedConvProblemBuilder& builder, const Words& words) {                                      \
     std::vector<int64_t> n;                                                                                \
     for (size_t i = 1; i < words.size(); ++i) n.push_back(std::stoll(words[i]));                           \
     n.size() == 1 ? builder.name(n[0]) : n.size() == 2 ? builder.name(n[0], n[1])                          \
     : n.size() == 3 ? builder.name(n[0], n[1], n[2]) : builder.name(1, 1, 1, 1);                           \
   }}
const Setters<GroupedConvProblemBuilder> of_conv = {
    CONV(set),       CONV(operation),   CONV(gfx_arch),      CONV(data_type),
    CONV(out_type),  CONV(layout),      CONV(activation),    CONV(batch),
    CONV(channels),  CONV(groups),      NUMBERS(input_size), NUMBERS(filter_size),
    NUMBERS(stride), NUMBERS(dilation), NUMBERS(padding),    NUMBERS(padding_after)};
