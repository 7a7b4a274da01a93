// SPDX-License-Identifier: MIT
// Shared parts of the programs: their examples and command line, arrays, and attention in double precision to compare with.
#pragma once
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <utility>

#include "tilekiln/dispatcher.hpp"

namespace example {

using namespace tilekiln::dispatcher;

// PROGRAM LIBRARY [NAME]... [--target TARGET] [--listing FILE]... [--to FILE]
struct Options {
  Library::Pointer library;
  std::vector<std::string> names;  // of the examples to run; none: all
  std::string target;              // kernels of this one alone; "": this machine's best
  std::vector<Listing> listings;   // of `codegen list RECEIPT --format json`
  std::string to = "kernels.json";
};

struct Example {
  std::string name, about;
  void (*run)(const Options& given);
};
// Examples of the program, by their numbers in upstream's list.
inline std::map<std::string, Example>& examples() {
  static std::map<std::string, Example> all;
  return all;
}
inline bool add_example(const Example& one) { return examples().emplace(one.name, one).second; }

// EXAMPLE(name, about) { ... }: an example of the program; `given` is the command line.
#define EXAMPLE(name, about)                                                                               \
  static void example_##name(const ::example::Options& given);                                             \
  static const bool added_##name = ::example::add_example({(#name) + 1, about, example_##name});           \
  static void example_##name([[maybe_unused]] const ::example::Options& given)

[[noreturn]] inline void stop(int code, const std::string& said) {
  std::fprintf(code == 0 ? stdout : stderr, "%s\n", said.c_str());
  std::exit(code);
}

// The listing of a receipt.
inline const Listing& listing(const Options& given, const std::string& receipt) {
  for (const Listing& one : given.listings)
    if (one.receipt == receipt) return one;
  stop(2,
       "--listing: none is of " + receipt + ", one must be the output of codegen list " + receipt + " --format json");
}

inline Options options(int count, char** words) {
  Options given;
  std::string use =
      std::string("usage: ") + words[0] + " LIBRARY [NAME]... [--target TARGET] [--listing FILE]... [--to FILE]";
  for (const auto& [name, one] : examples()) use += "\n  " + name + ": " + one.about;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i], value = i + 1 < count ? words[i + 1] : "";
    const bool takes = word == "--target" || word == "--listing" || word == "--to";
    i += takes;
    if (word == "--help" || i == count || (!takes && word.substr(0, 2) == "--")) stop(word == "--help" ? 0 : 2, use);
    if (word == "--target") given.target = value;
    if (word == "--listing") given.listings.push_back(read_listing_file(value));
    if (word == "--to") given.to = value;
    if (takes) continue;
    if (given.library != nullptr && examples().count(word) == 0)
      stop(2, "NAME: was " + word + ", must be an example of the program\n" + use);
    if (given.library != nullptr) given.names.push_back(word);
    if (given.library == nullptr) given.library = Library::open(word);
  }
  if (given.library == nullptr) stop(2, use);
  return given;
}

// Runs the examples that the command line names, each under a line of its name and what it shows.
inline int run_examples(int count, char** words) {
  Options given = options(count, words);
  if (given.names.empty())
    for (const auto& [name, one] : examples()) given.names.push_back(name);
  for (const std::string& name : given.names) {
    std::printf("-- %s: %s\n", name.c_str(), examples()[name].about.c_str());
    examples()[name].run(given);
  }
  return 0;
}

// A registry and a dispatcher over the library's kernels, of one target if it is named.
struct Session {
  Registry registry;
  Dispatcher dispatcher;
  bool planned = false;  // its kernels have no code: plans can be made, nothing runs

  explicit Session(const Options& given) : registry("examples"), dispatcher(registry, given.target) {
    dispatcher.add_library(given.library);
    for (const Listing& listing : given.listings) registry.add_all(listing.instances);
    if (given.target.empty()) return;
    planned = true;
    for (const auto& one : registry.get_all())
      if (one->key().target == given.target && !one->origin().empty()) planned = false;
    if (planned && given.listings.empty()) {
      std::printf("library %s has no kernel of %s; give its listing, of codegen list --target %s --format json\n",
                  given.library->receipt().c_str(), given.target.c_str(), given.target.c_str());
      std::exit(1);
    }
  }
  // Runs a call, or says that it cannot. Throws NoKernelFound.
  template <class Args>
  bool run(const char* operator_name, const Args& args, const Problem* problem = nullptr) const {
    if (planned) return false;
    const Call call(operator_name, args);
    problem == nullptr ? dispatcher.run(call) : dispatcher.run(*problem, call);
    return true;
  }
};

// An array of floats (fp32 or bf16), of 32-bit indices or of bytes.
class Array {
 public:
  // seed 0: zeros; else numbers between -1 and 1.
  explicit Array(const std::vector<int64_t>& shape, unsigned seed = 0, int32_t dtype = TILEKILN_FP32) {
    tensor_.dtype = dtype, tensor_.device_type = TILEKILN_CPU, tensor_.ndim = static_cast<int32_t>(shape.size());
    int64_t count = 1;
    for (size_t i = shape.size(); i-- > 0; count *= shape[i]) tensor_.shape[i] = shape[i], tensor_.stride[i] = count;
    size_ = static_cast<size_t>(count);
    bytes_.resize(size_ * (dtype == TILEKILN_UINT8 ? 1 : dtype == TILEKILN_BF16 ? 2 : 4));
    tensor_.data = bytes_.data();
    std::mt19937 random(seed);
    for (size_t i = 0; i < size_ && seed != 0; ++i) set(i, static_cast<float>(random() % 4001) / 2000.f - 1.f);
  }
  static Array indices(const std::vector<int32_t>& numbers) {
    Array made({static_cast<int64_t>(numbers.size())}, 0, TILEKILN_INT32);
    std::memcpy(made.bytes_.data(), numbers.data(), numbers.size() * 4);
    return made;
  }
  // fp32 elements of another from one on.
  static Array part(const std::vector<int64_t>& shape, const Array& of, size_t from = 0) {
    Array made(shape);
    for (size_t i = 0; i < made.size(); ++i) made.set(i, static_cast<float>(of[from + i]));
    return made;
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  Array(Array&&) noexcept = default;  // its bytes stay where they are

  const tilekiln_tensor* tensor() const { return &tensor_; }
  int64_t shape(int i) const { return tensor_.shape[i]; }
  size_t size() const { return size_; }
  const std::vector<unsigned char>& raw() const { return bytes_; }
  double operator[](int64_t i) const {
    if (tensor_.dtype == TILEKILN_UINT8) return bytes_[i];
    const size_t size = tensor_.dtype == TILEKILN_FP32 ? 4 : 2;  // bf16 is the upper half
    float number = 0;
    std::memcpy(reinterpret_cast<char*>(&number) + 4 - size, bytes_.data() + size * i, size);
    return number;
  }
  void set(size_t i, float number) {
    uint32_t bits = 0;
    std::memcpy(&bits, &number, 4);
    const size_t size = tensor_.dtype == TILEKILN_FP32 ? 4 : 2;
    if (size == 2) bits += 0x7fff + (bits >> 16 & 1);  // round to nearest even
    std::memcpy(bytes_.data() + size * i, reinterpret_cast<char*>(&bits) + 4 - size, size);
  }

 private:
  tilekiln_tensor tensor_ = {};
  size_t size_ = 0;
  std::vector<unsigned char> bytes_;
};

// The options of an attention problem: mask, soft cap, bias and sinks.
struct Asked {
  int64_t left = -1, right = -1;  // the window; causal: right 0
  bool top_left = false;
  int64_t sinks = 0;  // columns that stay visible to the left of the window
  double softcap = 0;
  const Array* bias = nullptr;          // (seqlen_q, seqlen_k)
  const Array* alibi_slopes = nullptr;  // (nhead_q)
  // Copy with the mask and the sinks of a problem.
  Asked of(const Problem& problem) const {
    Asked made = *this;
    if (problem["mask"] == Value("window")) {
      const bool window = !problem["window_left"].empty();
      made.left = window ? problem.number("window_left") : -1;
      made.right = window ? problem.number("window_right") : 0;
    }
    made.top_left = problem["mask_origin"] == Value("top_left");
    made.sinks = problem.number("sink_size");
    return made;
  }
};

// Answer in double precision: q (b, sq, h, d), k and v (b, sk, hk, d). out as q; lse (b, h, sq); weights (b, h, sq, sk); where dout is given,
// the gradients: D = rowsum(dout out); dS = P (dout v^T - D); dq = scale dS k; dk = scale dS^T q; dv = P^T dout.
struct Expected { std::vector<double> out, lse, weights, dq, dk, dv; };
inline Expected attention(const Array& q, const Array& k, const Array& v, const Asked& asked = {},
                          const Array* dout = nullptr) {
  const int64_t sq = q.shape(1), heads = q.shape(2), sk = k.shape(1), shift = asked.top_left ? 0 : sk - sq;
  const double scale = 1 / std::sqrt(static_cast<double>(q.shape(3)));
  Expected made;
  made.out.resize(q.shape(0) * sq * heads * v.shape(3));
  made.dq.resize(q.size()), made.dk.resize(k.size()), made.dv.resize(v.size());
  for (int64_t b = 0; b < q.shape(0); ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < sq; ++i) {
        const auto row = [&](const Array& of) { return ((b * sq + i) * heads + h) * of.shape(3); };
        const auto key = [&](const Array& of, int64_t j) {
          return ((b * sk + j) * of.shape(2) + h / (heads / of.shape(2))) * of.shape(3);
        };
        const auto product = [&](const Array& of_row, const Array& of_key, int64_t j) {
          double sum = 0;
          for (int64_t x = 0; x < of_key.shape(3); ++x) sum += of_row[row(of_row) + x] * of_key[key(of_key, j) + x];
          return sum;
        };
        std::vector<double> weights(sk);
        double most = -INFINITY, sum = 0, all = 0;
        for (int64_t j = 0; j < sk; ++j) {
          double score = scale * product(q, k, j);
          if (asked.softcap > 0) score = asked.softcap * std::tanh(score / asked.softcap);
          if (asked.bias != nullptr) score += (*asked.bias)[i * sk + j];
          if (asked.alibi_slopes != nullptr)
            score -= (*asked.alibi_slopes)[h] * std::fabs(static_cast<double>(i + shift - j));
          const bool left = asked.left < 0 || j >= i + shift - asked.left || j < asked.sinks;
          weights[j] = left && (asked.right < 0 || j <= i + shift + asked.right) ? score : -INFINITY;
          most = std::max(most, weights[j]);
        }
        for (double& weight : weights) sum += weight = most == -INFINITY ? 0 : std::exp(weight - most);
        made.lse.push_back(sum > 0 ? most + std::log(sum) : -INFINITY);
        for (int64_t j = 0; j < sk && sum > 0; ++j) {
          weights[j] /= sum;
          for (int64_t x = 0; x < v.shape(3); ++x) made.out[row(v) + x] += weights[j] * v[key(v, j) + x];
          if (dout != nullptr) all += weights[j] * product(*dout, v, j);
        }
        made.weights.insert(made.weights.end(), weights.begin(), weights.end());
        for (int64_t j = 0; j < sk && dout != nullptr; ++j) {
          const double ds = scale * weights[j] * (product(*dout, v, j) - all);
          for (int64_t x = 0; x < q.shape(3); ++x) {
            made.dq[row(q) + x] += ds * k[key(k, j) + x];
            made.dk[key(k, j) + x] += ds * q[row(q) + x];
          }
          for (int64_t x = 0; x < v.shape(3); ++x) made.dv[key(v, j) + x] += weights[j] * (*dout)[row(*dout) + x];
        }
      }
  return made;
}

// "agrees with float64", or how far it is from it.
inline std::string verdict(const Array& got, const std::vector<double>& expected, double bound = 1e-5) {
  double worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = got[i] == expected[i] ? 0 : std::fabs(got[i] - expected[i]);
    worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
  }
  return worst <= bound ? "agrees with float64" : "is off by " + std::to_string(worst);
}

// The stages of a plan and its main kernel, or why there is none, after what it is of.
inline void say(const Plan& plan, const std::string& of = " ") {
  std::printf("%s", of.c_str());
  if (!plan.is_valid()) std::printf(" no plan: %s\n", plan.reason.substr(0, plan.reason.find(" in registry")).c_str());
  for (const Plan::Stage& one : plan.stages)
    std::printf("%s %s", &one == &plan.stages[0] ? "" : " +", one.family.c_str());
  for (const Plan::Stage& stage : plan.stages) {
    if (stage.family != plan.main) continue;
    const Key& key = stage.instance->key();
    std::printf(": %s", key.signature[field::dtype].text().c_str());
    for (const Field axis : {field::hdim_q, field::hdim_v})
      if (key.signature.has(axis)) std::printf(" %s=%s", axis.name().c_str(), key.signature[axis].text().c_str());
    std::printf(", %s\n", key.algorithm["pipeline"].text().c_str());
  }
}
// A row for each problem.
inline void say(const Session& session, const std::vector<std::pair<std::string, Problem>>& problems) {
  for (const auto& [name, problem] : problems) say(session.dispatcher.plan(problem), name + ":");
}

// fp32, head dims 64, as most examples ask.
inline ProblemBuilder fp32(int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t nhead_q = 4,
                           int64_t nhead_k = 4) {
  return ProblemBuilder().data_type("fp32").dims(64, 64, batch, seqlen_q, seqlen_k).nheads(nhead_q, nhead_k);
}

// Arrays of attention and of its backward, fp32 and head dim 64.
struct Arrays {
  std::vector<int64_t> of_q, of_k;  // shapes
  Array q{of_q, 1}, k{of_k, 2}, v{of_k, 3}, out{of_q}, lse{{of_q[0], of_q[2], of_q[1]}};
  Array dout{of_q, 4}, dq{of_q}, dk{of_k}, dv{of_k};
  Arrays(int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t nhead_q = 4, int64_t nhead_k = 4)
      : of_q{batch, seqlen_q, nhead_q, 64}, of_k{batch, seqlen_k, nhead_k, 64} {}
  explicit Arrays(const Problem& of)
      : Arrays(of.number("batch"), of.number("seqlen_q"), of.number("seqlen_k"), of.number("nhead_q"),
               of.number("nhead_k")) {}
  tilekiln_fmha_fwd_args forward(const Asked& asked = {}) const {
    tilekiln_fmha_fwd_args args = filled(tilekiln_fmha_fwd_defaults(), asked);
    args.sink_size = asked.sinks, args.softcap = asked.softcap;
    if (asked.bias != nullptr) args.bias = asked.bias->tensor();
    return args;
  }
  tilekiln_fmha_bwd_args backward(const Asked& asked = {}) const {
    tilekiln_fmha_bwd_args args = filled(tilekiln_fmha_bwd_defaults(), asked);
    args.lse = lse.tensor(), args.dout = dout.tensor();
    args.dq = dq.tensor(), args.dk = dk.tensor(), args.dv = dv.tensor();
    return args;
  }
  // Runs the forward of what a backward is asked for; false where nothing runs.
  bool run_forward(const Session& session, const tilekiln_fmha_bwd_args& asked,
                   const tilekiln_tensor* randval = nullptr) const {
    tilekiln_fmha_fwd_args args = forward();
    args.lse = lse.tensor(), args.alibi_slopes = asked.alibi_slopes, args.randval = randval;
    args.causal = asked.causal, args.window_left = asked.window_left, args.window_right = asked.window_right,
    args.mask_origin = asked.mask_origin;
    args.dropout_p = asked.dropout_p, args.rng_seed = asked.rng_seed, args.rng_offset = asked.rng_offset;
    return session.run("fmha_fwd", args);
  }
  // Runs what is asked, a backward after its forward, and compares it with float64; "planned" where nothing runs.
  std::string checked(const Session& session, const Problem& problem, const Asked& asked = {}) const {
    const tilekiln_fmha_fwd_args plain = forward(asked);
    const tilekiln_fmha_bwd_args args = backward(asked);
    if (problem.operator_name() == Value("fmha_fwd"))
      return session.run("fmha_fwd", plain, &problem) ? verdict(out, attention(q, k, v, asked).out) : "planned";
    return run_forward(session, args) && session.run("fmha_bwd", args, &problem) ? of_gradients(asked) : "planned";
  }
  // The verdict of all three gradients.
  std::string of_gradients(const Asked& asked = {}) const {
    const Expected of = attention(q, k, v, asked, &dout);
    std::string worst = "agrees with float64";
    for (const auto& [got, want] : {std::pair{&dq, &of.dq}, {&dk, &of.dk}, {&dv, &of.dv}})
      if (const std::string said = verdict(*got, *want, 5e-5); said != worst) return said;
    return worst;
  }

 private:
  template <class Args>
  Args filled(Args args, const Asked& asked) const {
    args.q = q.tensor(), args.k = k.tensor(), args.v = v.tensor(), args.out = out.tensor();
    args.window_left = asked.left, args.window_right = asked.right, args.mask_origin = asked.top_left;
    if (asked.alibi_slopes != nullptr) args.alibi_slopes = asked.alibi_slopes->tensor();
    return args;
  }
};

// A call a row, on arrays of its problem's sizes; the rows of one verdict are one line.
struct Row {
  std::string label;
  Problem problem;
  Asked asked = {};
};
inline void table(const Session& session, const std::vector<Row>& rows) {
  std::map<std::string, std::string> labels;
  for (const Row& row : rows) {
    std::string& to = labels[Arrays(row.problem).checked(session, row.problem, row.asked.of(row.problem))];
    to += (to.empty() ? "" : "; ") + row.label;
  }
  for (const auto& [said, of] : labels) std::printf("%s: each %s\n", of.c_str(), said.c_str());
}

// Slopes of alibi for four heads.
inline Array slopes_of_four() {
  Array slopes({4});
  for (size_t h = 0; h < 4; ++h) slopes.set(h, std::pow(2.f, -2.f * static_cast<float>(h + 1)));
  return slopes;
}

// Every kind of mask.
inline std::vector<Row> masks(const ProblemBuilder& of) {
  std::vector<Row> rows;
  for (const char* name : {"no_mask", "top_left", "bottom_right", "window_generic"}) {
    ProblemBuilder builder = of;
    builder.mask_type(name);
    if (rows.size() == 3) builder.window(20, 5);
    rows.push_back({name, builder.build()});
  }
  return rows;
}

}  // namespace example
