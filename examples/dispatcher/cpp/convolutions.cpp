// SPDX-License-Identifier: MIT
// Convolutions in groups: their problems, and the kernels that answer, from the output of codegen list conv --format json.
#include "example.hpp"

using namespace example;

static GroupedConvProblemBuilder resnet() {
  return GroupedConvProblemBuilder().batch(2).channels(64, 128).input_size(56, 56).filter_size(3, 3).padding(1);
}

EXAMPLE(_36_convolutions,
        "Problems of grouped convolutions: forward and both gradients, dimensions, layouts, groups of one channel.") {
  Registry registry("convolutions");
  registry.add_all(listing(given, "conv").instances);
  const std::pair<const char*, Problem> all[] = {
      {"forward", resnet().stride(2).activation("relu").build()},
      {"bwd_data", resnet().operation("bwd_data").build()},
      {"bwd_weight", resnet().operation("bwd_weight").data_type("bf16").build()},
      {"channels last", resnet().layout("nhwgc").data_type("int8").build()},
      {"depthwise", resnet().channels(64, 64).groups(64).build()},
      {"1D", GroupedConvProblemBuilder().batch(1).channels(80, 512).input_size(3000).filter_size(3).build()},
      {"int8 gradient", resnet().operation("bwd_data").data_type("int8").build()},
  };
  for (const auto& [name, problem] : all) {
    const Entry* const kernel = registry.index()->select(problem);
    std::printf("%-13s %7.1f MFLOP: %s\n", name, 1e-6 * static_cast<double>(problem.num_ops()),
                kernel == nullptr ? "no kernel" : kernel->instance->key().family.c_str());
  }
}

int main(int count, char** words) { return run_examples(count, words); }
