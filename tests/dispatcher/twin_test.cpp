// SPDX-License-Identifier: MIT
// Answers of the C++ dispatcher, for Python's to be held to: twin MODE FILE..., a mode a function below.
#include <fstream>
#include <iterator>
#include <sstream>

namespace twin_test {

using Words = std::vector<std::string>;

// The lines of a file, each in parts.
std::vector<Words> parts_of(const char* path, char apart) {
  std::ifstream lines(path);
  std::vector<Words> all;
  for (std::string line, part; std::getline(lines, line);) {
    std::istringstream parts(line);
    for (all.emplace_back(); std::getline(parts >> std::ws, part, apart);) all.back().push_back(part);
  }
  return all;
}

template <class To>
To converted(const std::string& word) {
  if constexpr (std::is_same_v<To, bool>) {
    return word == "yes";
  } else if constexpr (std::is_same_v<To, int64_t>) {
    return std::stoll(word);
  } else {
    return To(word);
  }
}
template <class Builder, class Base, class... Arguments, size_t... at>
void call(Builder& builder, Builder& (Base::*setter)(Arguments...), const Words& words, std::index_sequence<at...>) {
  (builder.*setter)(converted<Arguments>(words[at + 1])...);
}
template <class Builder, class Base, class... Arguments>
void call(Builder& builder, Builder& (Base::*setter)(Arguments...), Words words) {
  words.resize(sizeof...(Arguments) + 1);  // a word that is left out is empty
  call(builder, setter, words, std::index_sequence_for<Arguments...>());
}

template <class Builder>
using Setters = std::map<std::string, std::function<void(Builder&, const Words&)>>;
#define OF(Builder, name) {#name, [](Builder& builder, const Words& words) { call(builder, &Builder::name, words); }}
#define EACH(X) \
  X(set), X(api_family), X(kernel_family), X(gfx_arch), X(data_type), X(dims), X(nheads), X(mask_type), \
  X(bias_type), X(lse), X(dropout), X(qscale_type), X(rope_type), X(logits_soft_cap), X(v_rowmajor), \
  X(group_mode), X(paged_kv), X(fp8_static_quant), X(skip_min_seqlen_q), X(sink), X(kv_cache), X(window), \
  X(sink_size), X(max_seqlen), X(num_splits), X(bwd_flags)
#define ATTENTION(name) OF(ProblemBuilder, name)
const Setters<ProblemBuilder> of_attention = {EACH(ATTENTION)};
#define GEMM(name) OF(GemmProblemBuilder, name)
const Setters<GemmProblemBuilder> of_gemm = {
    GEMM(set),        GEMM(dimensions), GEMM(strides),     GEMM(activation), GEMM(bias),
    GEMM(c),          GEMM(scaled),     GEMM(batch),       GEMM(split_k),    GEMM(workspace_budget),
    GEMM(persistent), GEMM(from_ab),    GEMM(from_shapes), GEMM(dtypes),     GEMM(layouts)};

#include "twin_convolutions.h"

// Words that setters refuse, and the problem that comes of the others.
template <class Builder>
void told(Builder builder, const Words& calls, const Setters<Builder>& setters) {
  const auto say = [](const std::function<void()>& statement) {
    const std::string refused = thrown<std::invalid_argument>(statement);
    if (!refused.empty()) std::printf("%s\n", refused.c_str());
  };
  for (size_t i = 1; i < calls.size(); ++i) {
    std::istringstream words(calls[i]);
    const Words all{std::istream_iterator<std::string>(words), {}};
    say([&] { setters.at(all[0])(builder, all); });
  }
  say([&] {
    const Problem built = builder.build();
    std::printf("%s\n%s %s %lld ", built.to_string().c_str(), built.family().text().c_str(),
                built.canonical_key().c_str(), static_cast<long long>(built.num_ops()));
    std::printf("%lld %lld %d\n", static_cast<long long>(built.effective_max_seqlen_q()),
                static_cast<long long>(built.effective_max_seqlen_k()), built.has_variable_seqlen_k());
  });
}

// FILE: on each line attention, empty, gemm or conv, and setters with their words.
void builders(const char* path) {
  for (const Words& calls : parts_of(path, ';')) {
    if (calls[0] == "gemm") told(GemmProblemBuilder(), calls, of_gemm);
    if (calls[0] == "conv") told(GroupedConvProblemBuilder(), calls, of_conv);
    if (calls[0] == "attention") told(attention(), calls, of_attention);
    if (calls[0] == "empty") told(ProblemBuilder(), calls, of_attention);
  }
}

// WORDS KNOWN: the nearest of the known to each of the words.
void nearest_of(const char* path, const char* known) {
  Words all;
  for (const Words& line : parts_of(known, '\n')) all.push_back(line[0]);
  for (const Words& line : parts_of(path, '\n')) std::printf("%s\n", nearest(line[0], all).c_str());
}

// REGISTRY: how many kernels are read, or what is wrong.
void read(const char* path) {
  Registry registry("read");
  const std::string wrong = thrown<FileError>([&] { from_json(registry, JsonReader::contents(path), "kernels.json"); });
  std::printf("%s %zu kernels\n", wrong.c_str(), registry.size());
}

// REGISTRY PROBLEMS: what is chosen for each problem and why, and the registry again.
void choices(const char* path, const char* problems) {
  Registry registry("twins");
  from_file(registry, path);
  Dispatcher dispatcher(registry);
  dispatcher.add_operator("fmha_fwd_splitkv",
                          {{"fmha_fwd_splitkv", "fmha_fwd_splitkv_combine"}, "fmha_fwd_splitkv", {}});
  dispatcher.add_operator(
      "fmha_bwd", {{"fmha_bwd_dot_do_o", "fmha_bwd_dq_dk_dv"}, "fmha_bwd_dq_dk_dv", {{"fmha_bwd_dot_do_o", "found"}}});
  dispatcher.add_operator(
      "fmha_fwd_appendkv",
      {{"fmha_fwd_appendkv", "fmha_fwd_splitkv"}, "fmha_fwd_appendkv", {{"fmha_fwd_splitkv", "attend"}}});
  for (const Words& words : parts_of(problems, ' ')) {
    Problem problem(words[0]);
    for (size_t i = 1; i < words.size(); ++i)
      problem.set(Field(words[i].substr(0, words[i].find('='))), Value(words[i].substr(words[i].find('=') + 1)));
    const Registry::Pointer chosen = dispatcher.select(problem);
    std::printf("%s\n%s\n", chosen == nullptr ? "-" : chosen->key().id().c_str(), dispatcher.why(problem, 4).c_str());
    std::printf("%s %lld\n", problem.canonical_key().c_str(), static_cast<long long>(problem.num_ops()));
  }
  std::printf("%s", registry.to_json().c_str());
}

int run(char** words) {
  const std::string mode = words[1];
  if (mode == "builders") builders(words[2]);
  if (mode == "nearest") nearest_of(words[2], words[3]);
  if (mode == "read") read(words[2]);
  if (mode == "choices") choices(words[2], words[3]);
  return 0;
}
}  // namespace twin_test
