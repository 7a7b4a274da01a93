// SPDX-License-Identifier: MIT
// The builder of problems of grouped convolutions: lengths and windows, of one to three spatial dimensions.
#pragma once
#include "tilekiln/dispatcher/setters.hpp"

namespace tilekiln::dispatcher {

// A problem of conv_fwd, conv_bwd_data or conv_bwd_weight, by the sizes of x and of the filters. Lengths and numbers of a window are those of
// the spatial dimensions, outermost first: two of images. Of a window one number is of all dimensions.
class GroupedConvProblemBuilder : public Builder<GroupedConvProblemBuilder> {
 public:
  GroupedConvProblemBuilder() : Builder("conv_fwd") {
    problem_.set(field::dtype, "fp32").set("layout", "ngchw").set(field::groups, int64_t{1});
  }

  // One of: forward, bwd_data, bwd_weight.
  GroupedConvProblemBuilder& operation(std::string_view name) {
    static const char* const operators[] = {"conv_fwd", "conv_bwd_data", "conv_bwd_weight"};
    return set(field::operator_name, operators[word("operation", name, {"forward", "bwd_data", "bwd_weight"})]);
  }
  // One of: fp32, fp16, bf16, or int8 forward.
  GroupedConvProblemBuilder& data_type(std::string_view name) {
    word("data_type", name, {"fp32", "fp16", "bf16", "int8"});
    return set(field::dtype, name);
  }
  // Dtype of y, or of dweight; unless given that of x, int32 of int8.
  GroupedConvProblemBuilder& out_type(std::string_view dtype) { return set("out_dtype", dtype); }
  // Layout of the result: nhwgc has channels of a pixel together, ngchw pixels of a channel.
  GroupedConvProblemBuilder& layout(std::string_view name) {
    word("layout", name, {"nhwgc", "ngchw"});
    return set("layout", name);
  }
  // Activation: relu, clamp, gelu, ...; none.
  GroupedConvProblemBuilder& activation(std::string_view name) { return set("activation", name); }
  // Target of the tree, such as cpu-avx512; unless given, any.
  GroupedConvProblemBuilder& gfx_arch(std::string_view target) { return set(field::target, target); }
  // Images.
  GroupedConvProblemBuilder& batch(int64_t batch) { return set(field::batch, detail::at_least("batch", batch, 1)); }
  // Channels of x and outputs of y, in all groups.
  GroupedConvProblemBuilder& channels(int64_t channels, int64_t outputs) {
    detail::at_least("outputs", outputs, 1);
    return set(field::channels, detail::at_least("channels", channels, 1)).set(field::outputs, outputs);
  }
  // Groups of channels, each with outputs of its own; unless given, one.
  GroupedConvProblemBuilder& groups(int64_t groups) {
    return set(field::groups, detail::at_least("groups", groups, 1));
  }

  // Lengths of an image, without its padding: one to three.
  template <class... Lengths> GroupedConvProblemBuilder& input_size(Lengths... lengths) { return put(0, lengths...); }
  // Lengths of a filter, alike.
  template <class... Lengths> GroupedConvProblemBuilder& filter_size(Lengths... lengths) { return put(1, lengths...); }
  // Pixels from output to output, and from tap to tap; unless given, 1.
  template <class... Numbers> GroupedConvProblemBuilder& stride(Numbers... numbers) { return put(2, numbers...); }
  template <class... Numbers> GroupedConvProblemBuilder& dilation(Numbers... numbers) { return put(3, numbers...); }
  // Zeros before and after x; unless given, none.
  template <class... Numbers> GroupedConvProblemBuilder& padding(Numbers... numbers) {
    return put(4, numbers...).put(5, numbers...);
  }
  // Zeros after x, where they are others than those before it: said after `padding`.
  template <class... Numbers> GroupedConvProblemBuilder& padding_after(Numbers... numbers) {
    return put(5, numbers...);
  }

  // Throws std::invalid_argument: what is missing, groups that do not divide, a filter that is too long.
  Problem build() const {
    Problem built = problem_;
    for (const Field size : {field::batch, field::channels, field::outputs, field::groups})
      if (built.number(size) <= 0) detail::refuse(size.name(), "not given", "at least 1");
    built.set(field::family, built.operator_name());
    const int64_t groups = built.number(field::groups);
    for (const Field total : {field::channels, field::outputs}) {
      const int64_t all = built.number(total);
      if (all % groups != 0)
        detail::refuse(total.name(), std::to_string(all), "a multiple of groups, " + std::to_string(groups));
      built.set(total, all / groups);
    }
    const size_t spatial = window_[0].size();
    if (spatial == 0) detail::refuse(names[0], "not given", "one to three lengths");
    std::vector<int64_t> each[6] = {window_[0]};
    for (size_t i = 1; i < 6; ++i) each[i] = of_each(i, spatial);
    int64_t pixels = 1, taps = 1;
    for (size_t i = 0; i < spatial; ++i) {
      const int64_t padded = each[0][i] + each[4][i] + each[5][i], extent = each[3][i] * (each[1][i] - 1) + 1;
      if (extent > padded)
        detail::refuse(names[1], std::to_string(extent) + " pixels long with dilation",
                       "at most " + std::to_string(padded) + ", x with padding");
      pixels *= (padded - extent) / each[2][i] + 1;
      taps *= each[1][i];
    }
    built.set("spatial", "d" + std::to_string(spatial)).set(field::pixels, pixels).set(field::taps, taps);
    if (built["out_dtype"].empty() && built.operator_name() != Value("conv_bwd_data"))
      built.set("out_dtype", built[field::dtype] == Value("int8") ? Value("int32") : built[field::dtype]);
    return built;
  }

 private:
  static size_t word(const char* name, std::string_view said, const detail::Words& words) {
    return detail::one_of(name, said, words);
  }

  static constexpr const char* names[] = {"input_size", "filter_size", "stride",
                                          "dilation",   "padding",     "padding_after"};

  template <class... Numbers> GroupedConvProblemBuilder& put(size_t at, Numbers... numbers) {
    const std::vector<int64_t> all = {static_cast<int64_t>(numbers)...};
    if (all.empty() || all.size() > 3)
      detail::refuse(names[at], std::to_string(all.size()) + " numbers", "one to three");
    for (const int64_t number : all) detail::at_least(names[at], number, at < 4 ? 1 : 0);
    window_[at] = all;
    return *this;
  }
  // A number for each dimension.
  std::vector<int64_t> of_each(size_t at, size_t spatial) const {
    const std::vector<int64_t>& said = window_[at];
    if (said.empty() && at == 1) detail::refuse(names[at], "not given", "one to three lengths");
    if (said.size() == spatial) return said;
    if (said.size() > 1 || at == 1)
      detail::refuse(names[at], std::to_string(said.size()) + " numbers",
                     (at == 1 ? "" : "1 or ") + std::to_string(spatial) + ", as many as of input_size");
    return std::vector<int64_t>(spatial, said.empty() ? at < 4 : said[0]);
  }

  std::vector<int64_t> window_[6];
};

}  // namespace tilekiln::dispatcher
