// SPDX-License-Identifier: MIT
// PTX text to kernels. PTX ISA 9.0: "Syntax", "State Spaces, Types, and Variables", "Directives".
#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>

#include "program.h"

namespace ptx {

std::unordered_map<std::string, Decoder>& opcodes() {
  static std::unordered_map<std::string, Decoder> table;
  return table;
}

Opcode::Opcode(const char* names, Decoder decoder) {
  std::string name;
  for (const char* at = names;; at++) {
    if (*at == ' ' || !*at) {
      if (!opcodes().emplace(name, decoder).second) fail("OPCODE: %s stands in the table twice", name.c_str());
      name.clear();
      if (!*at) return;
    } else {
      name += *at;
    }
  }
}

namespace {

struct Reg {
  u32 number = 0, offset = 0;  // of a predicate: offset is its index
  u8 bytes = 0;                // 0: a predicate
};
struct Range {
  Reg first;
  u32 count = 0;
};

std::string trimmed(const std::string& text) {
  size_t from = 0, to = text.size();
  while (from < to && std::isspace(u8(text[from]))) from++;
  while (to > from && std::isspace(u8(text[to - 1]))) to--;
  return text.substr(from, to - from);
}

[[noreturn]] void refuse(const std::string& line, const std::string& why) {
  fail("DECODE: %s: %.600s", why.c_str(), trimmed(line).c_str());
}

/// A whole number with nothing but room around it, below 2^32.
u32 count_of(const std::string& text, const std::string& line) {
  const std::string number = trimmed(text);
  char* end = nullptr;
  const u64 made = number.empty() || !std::isdigit(u8(number[0])) ? ~0ull : std::strtoull(number.c_str(), &end, 0);
  if (made > ~0u || *end) refuse(line, "the number " + number + " is unknown");
  return u32(made);
}

class Parser {
 public:
  Parser(Module& module, const std::string& text) : module_(module), text_(text) {}

  void run() {
    while (skip(), at_ < text_.size()) top_level();
    module_.const_memory.assign(module_.const_bytes + 16, 0);
    for (auto& [name, symbol] : module_.symbols)
      if (symbol.space == CONST)
        std::copy(symbol.bytes.begin(), symbol.bytes.end(), module_.const_memory.begin() + symbol.offset);
  }

 private:
  Module& module_;
  const std::string& text_;
  size_t at_ = 0;
  Kernel* kernel_ = nullptr;
  std::vector<std::map<std::string, Reg>> scopes_;
  std::unordered_map<std::string, Range> ranges_;
  std::unordered_map<std::string, int> labels_;
  std::unordered_map<std::string, u32> parameters_, shared_;
  std::vector<std::pair<int, std::string>> jumps_;
  bool dynamic_ = false;  // the kernel's dynamic shared memory has its place

  void skip() {
    for (;;) {
      while (at_ < text_.size() && std::isspace(u8(text_[at_]))) at_++;
      if (text_.compare(at_, 2, "//") == 0) {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (text_.compare(at_, 2, "/*") == 0) {
        at_ = std::min(text_.find("*/", at_), text_.size() - 2) + 2;
      } else {
        return;
      }
    }
  }
  std::string until(char end) {
    const size_t from = at_;
    const size_t found = text_.find(end, at_);
    if (found == std::string::npos) refuse(text_.substr(from, 80), std::string("no ") + end + " follows");
    at_ = found + 1;
    return text_.substr(from, found - from);
  }
  std::string line_here() { return text_.substr(at_, std::min(text_.find('\n', at_), text_.size()) - at_); }
  bool starts(const char* word) { return text_.compare(at_, std::strlen(word), word) == 0; }

  static std::vector<std::string> words(const std::string& text) {
    std::vector<std::string> found(1);
    for (char c : text) {
      if (!std::isspace(u8(c)))
        found.back() += c;
      else if (!found.back().empty())
        found.emplace_back();
    }
    if (found.back().empty()) found.pop_back();
    return found;
  }
  static u32 bytes_of(const std::string& type, const std::string& line) {
    static const std::map<std::string, u32> known = {
        {".b8", 1},  {".u8", 1},  {".s8", 1},  {".b16", 2}, {".u16", 2}, {".s16", 2}, {".f16", 2}, {".b32", 4},
        {".u32", 4}, {".s32", 4}, {".f32", 4}, {".b64", 8}, {".u64", 8}, {".s64", 8}, {".f64", 8}, {".pred", 0}};
    const auto found = known.find(type);
    if (found == known.end()) refuse(line, "the type " + type + " is unknown");
    return found->second;
  }

  struct Variable {
    std::string name;
    u32 bytes = 0, alignment = 1;
    bool open = false;  // []
  };
  /// ".align 16 .b8 name[128]"
  static Variable variable(const std::string& text) {
    Variable made;
    u32 element = 0;
    bool typed = false;
    const std::vector<std::string> parts = words(text);
    for (size_t k = 0; k < parts.size(); k++) {
      if (parts[k] == ".align" && k + 1 < parts.size()) {
        made.alignment = count_of(parts[++k], text);
      } else if (parts[k][0] == '.') {
        element = bytes_of(parts[k], text);
        made.alignment = std::max(made.alignment, element);
        typed = true;
      } else if (made.name.empty()) {
        made.name = parts[k];
      } else {
        refuse(text, "what follows the name is unknown");
      }
    }
    if (!typed || made.name.empty()) refuse(text, "the declaration is incomplete");
    made.bytes = element;
    const size_t bracket = made.name.find('[');
    if (bracket != std::string::npos) {
      const std::string count = made.name.substr(bracket + 1, made.name.find(']') - bracket - 1);
      made.open = count.empty();
      made.bytes = count.empty() ? 0 : element * count_of(count, text);
      made.name.resize(bracket);
    }
    return made;
  }
  static u32 aligned(u32 at, u32 alignment) { return (at + alignment - 1) / alignment * alignment; }

  void top_level() {
    for (const char* word : {".version", ".target", ".address_size"})
      if (starts(word)) {
        const std::string line = line_here();
        if (std::strcmp(word, ".address_size") == 0 && line.find("64") == std::string::npos)
          refuse(line, "addresses have 64 bits");
        at_ += line.size();
        return;
      }
    const std::string line = line_here();
    for (const char* word : {".visible ", ".weak "})
      if (starts(word)) at_ += std::strlen(word);
    skip();
    if (starts(".entry")) {
      at_ += 6;
      entry();
    } else if (starts(".const") || starts(".global")) {
      constant(trimmed(until(';')));
    } else if (starts(".extern .shared")) {
      const Variable made = variable(until(';').substr(15));
      if (!made.open) refuse(line, "dynamic shared memory has no size");
      module_.symbols[made.name] = {SHARED, 0, 0, made.alignment, {}};
    } else if (starts(".shared")) {
      const Variable made = variable(until(';').substr(7));
      if (made.open) refuse(line, "shared memory has no size");
      module_.symbols[made.name] = {SHARED, 0, made.bytes, made.alignment, {}};
    } else {
      refuse(line, "the directive is unknown");
    }
  }

  void constant(const std::string& text) {
    const size_t equals = text.find('=');
    const Variable made = variable(
        text.substr(text[1] == 'c' ? 6 : 7, equals == std::string::npos ? equals : equals - (text[1] == 'c' ? 6 : 7)));
    if (text[1] != 'c') refuse(text, "global variables are unknown here");
    Symbol symbol{CONST, aligned(module_.const_bytes, made.alignment), made.bytes, made.alignment,
                  std::vector<u8>(made.bytes)};
    if (equals != std::string::npos) {
      if (text.find(".b8") == std::string::npos) refuse(text, "constants are lists of bytes here");
      const size_t open = text.find('{'), close = text.find('}');
      if (open == std::string::npos || close == std::string::npos) refuse(text, "constants are lists of bytes here");
      size_t k = 0;
      for (const std::string& byte : split(text.substr(open + 1, close - open - 1))) {
        if (k >= symbol.bytes.size()) refuse(text, "the list is longer than the variable");
        symbol.bytes[k++] = u8(count_of(byte, text));
      }
    }
    module_.const_bytes = symbol.offset + made.bytes;
    module_.symbols[made.name] = symbol;
  }

  void entry() {
    skip();
    const size_t bracket = text_.find('(', at_);
    auto kernel = std::make_unique<Kernel>();
    kernel_ = kernel.get();
    kernel_->name = trimmed(text_.substr(at_, bracket - at_));
    at_ = bracket + 1;
    const std::string list = until(')');
    scopes_.assign(1, {});
    ranges_.clear(), labels_.clear(), parameters_.clear(), shared_.clear(), jumps_.clear();
    dynamic_ = false;
    for (size_t from = 0; from < list.size();) {
      size_t comma = std::min(list.find(',', from), list.size());
      const std::string one = trimmed(list.substr(from, comma - from));
      if (!one.empty()) {
        if (one.compare(0, 6, ".param") != 0) refuse(one, "a parameter begins with .param");
        const Variable made = variable(one.substr(6));
        parameters_[made.name] = aligned(kernel_->parameter_bytes, made.alignment);
        kernel_->parameter_bytes = parameters_[made.name] + made.bytes;
      }
      from = comma + 1;
    }
    while (skip(), at_ < text_.size() && text_[at_] != '{') {
      const std::string line = line_here();
      if (starts(".maxntid"))
        kernel_->most_threads = threads_of(line.substr(8), line);
      else if (starts(".minnctapersm"))
        kernel_->least_blocks = u32(std::stoul(line.substr(13)));
      else if (starts(".reqnctapercluster"))
        kernel_->cluster = threads_of(line.substr(18), line);
      else if (!starts(".explicitcluster"))
        refuse(line, "the directive of a kernel is unknown");
      at_ += line.size();
    }
    at_++;
    share_module_variables();
    for (u32& offset : kernel_->special) offset = give(4).offset;
    body();
    for (const auto& [index, label] : jumps_) {
      const auto found = labels_.find(label);
      if (found == labels_.end()) refuse(kernel_->program[size_t(index)].text, "the label is nowhere");
      kernel_->program[size_t(index)].target = found->second;
    }
    kernel_->shared_bytes = std::max(kernel_->shared_bytes, u32(kSharedBegin));
    finish();
    const std::string name = kernel_->name;
    module_.kernels[name] = std::move(kernel);
  }

  /// "128, 1, 1"
  static u32 threads_of(const std::string& list, const std::string& line) {
    u32 product = 1;
    for (const std::string& side : split(list)) product *= count_of(side, line);
    return product;
  }

  /// Variables of shared memory that stand outside of kernels: each kernel that names one has its own.
  void share_module_variables() {
    const std::string text = text_.substr(at_, std::min(text_.find(".entry", at_), text_.size()) - at_);
    const auto inside_a_name = [&](size_t at) {
      return at < text.size() && (std::isalnum(u8(text[at])) || std::strchr("_$", text[at]));
    };
    for (const auto& [name, symbol] : module_.symbols)
      for (size_t at = 0; symbol.space == SHARED && symbol.size && (at = text.find(name, at)) != std::string::npos;) {
        const size_t end = at + name.size();
        if (!inside_a_name(end) && !(at && inside_a_name(at - 1))) {
          declare_shared(name, symbol.size, symbol.alignment);
          break;
        }
        at = end;
      }
  }
  void declare_shared(const std::string& name, u32 bytes, u32 alignment) {
    u32& end = kernel_->shared_bytes;
    end = aligned(std::max(end, u32(kSharedBegin)), alignment);
    shared_[name] = end;
    end += bytes;
  }

  /// Finds the registers of wgmma's sums, and marks the other instructions that touch them.
  void finish() {
    auto& is = kernel_->is_product;
    is.assign(kernel_->registers, 0);
    const auto each = [](const Instruction& in, auto body) {
      for (int k = 0; k < in.operands; k++)
        if (in.operand[k].kind == Kind::lanes) body(in.operand[k]);
      for (const Operand& item : in.items)
        if (item.kind == Kind::lanes) body(item);
    };
    const auto is_wgmma = [](const Instruction& in) { return in.opcode.compare(0, 15, "wgmma.mma_async") == 0; };
    for (const Instruction& in : kernel_->program)
      if (is_wgmma(in))
        each(in, [&](const Operand& o) {
          if (o.bytes == 4 && !is[o.number]) is[o.number] = 1, kernel_->product_registers.push_back(o.number);
        });
    for (Instruction& in : kernel_->program)
      if (!is_wgmma(in)) each(in, [&](const Operand& o) { in.touches_product |= is[o.number] != 0; });
  }

  Reg give(u32 bytes) {
    Reg made;
    made.number = kernel_->registers++;
    made.bytes = u8(bytes);
    if (bytes == 0) {
      made.offset = kernel_->predicates++;
    } else {
      made.offset = kernel_->file_bytes;
      kernel_->file_bytes += bytes == 8 ? 256 : 128;
    }
    return made;
  }

  void body() {
    int depth = 1;
    while (depth) {
      skip();
      if (at_ >= text_.size()) refuse(kernel_->name, "the kernel has no end");
      if (text_[at_] == '{') {
        at_++, depth++;
        scopes_.emplace_back();
      } else if (text_[at_] == '}') {
        at_++, depth--;
        scopes_.pop_back();
      } else {
        statement();
      }
    }
  }

  void statement() {
    if (starts(".reg")) return registers(until(';'));
    if (starts(".shared")) {
      const std::string line = line_here();
      const Variable made = variable(until(';').substr(7));
      if (dynamic_) refuse(line, "shared memory is declared behind a use of the dynamic one");
      declare_shared(made.name, made.bytes, made.alignment);
      return;
    }
    if (starts(".pragma") || starts(".loc")) {  // hints, of which none changes what a kernel computes
      until(starts(".loc") ? '\n' : ';');
      return;
    }
    size_t end = at_;
    while (end < text_.size() && (std::isalnum(u8(text_[end])) || std::strchr("_$%", text_[end]))) end++;
    if (end > at_ && end < text_.size() && text_[end] == ':' && text_[end + 1] != ':') {
      labels_[text_.substr(at_, end - at_)] = int(kernel_->program.size());
      at_ = end + 1;
      return;
    }
    instruction(until(';'));
  }

  void registers(const std::string& text) {
    const std::vector<std::string> parts = words(text.substr(4));
    if (parts.size() < 2) refuse(text, "the declaration is incomplete");
    const u32 bytes = bytes_of(parts[0], text);
    std::string names;
    for (size_t k = 1; k < parts.size(); k++) names += parts[k];
    for (size_t from = 0; from < names.size();) {
      const size_t comma = std::min(names.find(',', from), names.size());
      const std::string name = names.substr(from, comma - from);
      from = comma + 1;
      const size_t bracket = name.find('<');
      if (bracket == std::string::npos) {
        scopes_.back()[name] = give(bytes);
        continue;
      }
      Range range;
      range.count = count_of(name.substr(bracket + 1, name.find('>') - bracket - 1), text);
      range.first = give(bytes);
      for (u32 k = 1; k < range.count; k++) give(bytes);
      ranges_[name.substr(0, bracket)] = range;
    }
  }

  bool find(const std::string& name, Reg& found) {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const auto one = scope->find(name);
      if (one != scope->end()) return found = one->second, true;
    }
    size_t end = name.size();
    while (end && std::isdigit(u8(name[end - 1]))) end--;
    const auto range = ranges_.find(name.substr(0, end));
    if (range == ranges_.end() || end == name.size()) return false;
    const u64 index = std::strtoull(name.c_str() + end, nullptr, 10);
    if (index >= range->second.count) return false;
    found = range->second.first;
    found.number += u32(index);
    found.offset += u32(index) * (found.bytes == 0 ? 1 : found.bytes == 8 ? 256 : 128);
    return true;
  }

  bool special(const std::string& name, Operand& made) {
    static const char* const names[] = {"%tid.x",    "%tid.y",    "%tid.z",   "%ntid.x",         "%ntid.y",
                                        "%ntid.z",   "%ctaid.x",  "%ctaid.y", "%ctaid.z",        "%nctaid.x",
                                        "%nctaid.y", "%nctaid.z", "%laneid",  "%cluster_ctarank"};
    for (int k = 0; k < SPECIALS; k++)
      if (name == names[k]) {
        made.kind = Kind::lanes;
        made.bytes = 4;
        made.offset = kernel_->special[k];
        return true;
      }
    return false;
  }

  Operand operand(Instruction& in, std::string text) {
    Operand made;
    made.text = text = trimmed(text);
    if (text.empty()) refuse(in.text, "an operand is missing");
    if (text[0] == '{' || text[0] == '[') {
      if (text.back() != (text[0] == '{' ? '}' : ']')) refuse(in.text, "a bracket has no end");
      made.kind = text[0] == '{' ? Kind::list : Kind::address;
      std::string inside = text.substr(1, text.size() - 2);
      std::vector<std::string> parts = split(inside);
      if (made.kind == Kind::address && parts.size() == 1) {
        const size_t plus = parts[0].find('+');
        if (plus != std::string::npos) {
          const std::string by = trimmed(parts[0].substr(plus + 1));
          char* end = nullptr;
          made.immediate = std::strtoll(by.c_str(), &end, 0);
          if (by.empty() || *end) refuse(in.text, "the offset " + by + " is unknown");
          parts[0].resize(plus);
        }
      }
      std::vector<Operand> items;
      for (const std::string& part : parts) {
        Operand item = operand(in, part);
        if (item.kind == Kind::list) {  // the coordinates of a tensor copy
          std::vector<Operand> inner(in.items.begin() + item.first, in.items.begin() + item.first + item.count);
          items.insert(items.end(), inner.begin(), inner.end());
        } else {
          items.push_back(item);
        }
      }
      made.first = int(in.items.size());
      made.count = int(items.size());
      in.items.insert(in.items.end(), items.begin(), items.end());
      return made;
    }
    if (text[0] == '!') {
      made = operand(in, text.substr(1));
      if (made.kind != Kind::predicate) refuse(in.text, "! stands before what is no predicate");
      made.negated = true;
      return made;
    }
    if (text == "_") return made;
    Reg found;
    if (special(text, made)) return made;
    if (find(text, found)) {
      made.kind = found.bytes ? Kind::lanes : Kind::predicate;
      made.number = found.number;
      made.offset = found.offset;
      made.bytes = found.bytes;
      return made;
    }
    made.kind = Kind::constant;
    if (std::isdigit(u8(text[0])) || text[0] == '-') {
      char* end = nullptr;
      if (text.size() > 2 && text[0] == '0' && std::strchr("fFdD", text[1]))
        made.immediate = i64(std::strtoull(text.c_str() + 2, &end, 16));
      else if (text[0] == '-')
        made.immediate = std::strtoll(text.c_str(), &end, 0);
      else
        made.immediate = i64(std::strtoull(text.c_str(), &end, 0));
      if (*end && std::strcmp(end, "U")) refuse(in.text, "the constant " + text + " is unknown");
      return made;
    }
    const auto parameter = parameters_.find(text);
    const auto shared = shared_.find(text);
    const auto symbol = module_.symbols.find(text);
    if (parameter != parameters_.end()) {
      made.immediate = i64(kParamOffset(parameter->second));
    } else if (shared != shared_.end()) {
      made.immediate = shared->second;
    } else if (symbol != module_.symbols.end() && symbol->second.space == SHARED) {
      made.immediate = kDynamic(symbol->second.alignment);
    } else if (symbol != module_.symbols.end()) {
      made.immediate = i64(1ull << 62) + symbol->second.offset;
    } else {
      refuse(in.text, "the operand " + text + " is unknown");
    }
    return made;
  }
  static u64 kParamOffset(u32 offset) { return (1ull << 61) + offset; }
  /// The address at which dynamic shared memory begins, behind the arrays that the kernel declares.
  i64 kDynamic(u32 alignment) {
    u32& end = kernel_->shared_bytes;
    end = aligned(std::max(end, u32(kSharedBegin)), alignment);
    dynamic_ = true;
    return end;
  }

  static std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> found(1);
    int depth = 0;
    for (char c : text) {
      if (c == '{' || c == '[' || c == '(') depth++;
      if (c == '}' || c == ']' || c == ')') depth--;
      if (c == ',' && depth == 0)
        found.emplace_back();
      else
        found.back() += c;
    }
    if (trimmed(found.back()).empty()) found.pop_back();
    return found;
  }

  void instruction(const std::string& line) {
    kernel_->program.emplace_back();
    Instruction& in = kernel_->program.back();
    in.text = trimmed(line);
    std::string rest = in.text;
    if (rest[0] == '@') {
      size_t end = 1;
      while (end < rest.size() && !std::isspace(u8(rest[end]))) end++;
      in.guard_negated = rest[1] == '!';
      Reg found;
      const std::string name = rest.substr(in.guard_negated ? 2 : 1, end - (in.guard_negated ? 2 : 1));
      if (!find(name, found) || found.bytes) refuse(line, "the guard " + name + " is no predicate");
      in.guard = int(found.offset);
      in.guard_number = found.number;
      rest = trimmed(rest.substr(end));
    }
    size_t end = 0;
    while (end < rest.size() && !std::isspace(u8(rest[end]))) end++;
    in.opcode = rest.substr(0, end);
    std::vector<std::string> modifiers;
    for (size_t from = 0; from <= in.opcode.size();) {
      size_t dot = std::min(in.opcode.find('.', from), in.opcode.size());
      modifiers.push_back(in.opcode.substr(from, dot - from));
      from = dot + 1;
    }
    const std::string base = modifiers[0];
    modifiers.erase(modifiers.begin());
    const auto found = opcodes().find(base);
    if (found == opcodes().end()) refuse(line, "the opcode " + base + " is unknown");
    if (base == "bra") {
      jumps_.emplace_back(int(kernel_->program.size()) - 1, trimmed(rest.substr(end)));
    } else {
      for (std::string& part : split(rest.substr(end))) {
        const size_t bar = part.find('|');  // two targets in one place
        for (const std::string& one : bar == std::string::npos
                                          ? std::vector<std::string>{part}
                                          : std::vector<std::string>{part.substr(0, bar), part.substr(bar + 1)}) {
          if (in.operands == 8) refuse(line, "there are more than 8 operands");
          in.operand[in.operands++] = operand(in, one);
        }
      }
    }
    Decode decode(module_, *kernel_, in, modifiers);
    found->second(decode);
  }
};

}  // namespace

void parse(Module& module, const char* text) {
  const std::string whole = text;
  Parser(module, whole).run();
}

}  // namespace ptx
