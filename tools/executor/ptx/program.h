// SPDX-License-Identifier: MIT
// Kernels as they are read from PTX text: registers, operands, instructions, and the table that gives an opcode its meaning.
// PTX ISA 9.0, "Instruction Operands" and "Instruction Statements".
#pragma once
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "fault.h"
#include "formats.h"

namespace ptx {

using namespace executor;  // tools/executor/common. Kinds of faults are listed in tools/executor/README.md

enum class Kind : u8 { none, lanes, predicate, constant, address, list };

/// A source or a target of an instruction. Constants are 32 lanes, too, so that reading one is reading a register.
struct Operand {
  Kind kind = Kind::none;
  bool negated = false;             // of a predicate: !p
  u8 bytes = 0;                     // of a lane of the register
  u32 number = 0;                   // of the register: where its definedness lies; 0: always defined
  u32 offset = 0;                   // bytes into the register file; of a predicate: its index
  const u32* constant = nullptr;    // 32 lanes of 32 bits
  const u64* constant64 = nullptr;  // 32 lanes of 64 bits
  i64 immediate = 0;                // of a constant; of an address: what is added
  int first = 0, count = 0;         // of a list: its operands in Instruction::items; of an address: item 0 is the base
  std::string text;
};

struct Machine;
struct Warp;
struct Instruction;

enum class Step : u8 { next, branch, stay, exit };
using Handler = Step (*)(Machine&, Warp&, const Instruction&, u32 lanes);

struct Instruction {
  Handler run = nullptr;
  std::string text, opcode;  // the line; the opcode with its modifiers
  Operand operand[8];
  int operands = 0;
  std::vector<Operand> items;  // of lists and addresses
  int guard = -1;              // index of a predicate; -1: always
  bool guard_negated = false;
  u32 guard_number = 0;
  bool converges = false;        // the whole warp executes it at once (.sync.aligned)
  bool touches_product = false;  // a register that some wgmma takes, but is none itself
  int target = -1;               // of a branch
  int bytes = 0, parts = 1;      // of an access: of one element, and how many
  int space = 0;                 // of an access
  u8 order = 0;                  // of an access to global memory: Order
  int a = 0, b = 0, c = 0;       // what an opcode's decoder notes for its handler
  u64 executed = 0;
};

enum Order : u8 { STRONG = 1, ACQUIRES = 2, RELEASES = 4 };
enum Space : int { GENERIC, GLOBAL, SHARED, PARAM, CONST };

struct Symbol {
  int space;
  u32 offset, size, alignment;
  std::vector<u8> bytes;  // of .const
};

struct Kernel {
  std::string name;
  std::vector<Instruction> program;
  u32 registers = 1, file_bytes = 0, predicates = 0;  // registers: numbers given away; 0 is none
  u32 parameter_bytes = 0, shared_bytes = 0;          // shared: before the dynamic part, from kSharedBegin on
  u32 most_threads = 1024;
  u32 least_blocks = 1;                // blocks at once that a processor has room for
  u32 cluster = 1;                     // blocks of a cluster, neighbours along x
  int granule_shift = 2;               // of shared memory: its smallest access
  bool waits_for_others = false;       // other blocks' writes are acquired
  std::vector<u32> product_registers;  // numbers
  std::vector<u8> is_product;
  u32 special[16];  // offsets in the file of %tid.x ... (Special)
};
enum Special : int {
  TID_X,
  TID_Y,
  TID_Z,
  NTID_X,
  NTID_Y,
  NTID_Z,
  CTAID_X,
  CTAID_Y,
  CTAID_Z,
  NCTAID_X,
  NCTAID_Y,
  NCTAID_Z,
  LANEID,
  CLUSTER_RANK,
  SPECIALS
};

/// A block's shared memory begins behind what the system keeps of it, as on sm_90.
enum : u32 { kSharedBegin = 1024 };

struct Module {
  std::unordered_map<std::string, std::unique_ptr<Kernel>> kernels;
  std::unordered_map<std::string, Symbol> symbols;
  std::vector<std::unique_ptr<u32[]>> constants;
  std::vector<std::unique_ptr<u64[]>> constants64;
  std::unordered_map<u64, std::pair<const u32*, const u64*>> known;
  u32 const_bytes = 0;
  std::vector<u8> const_memory;
};

/// Reads PTX. Throws Fault "DECODE: ..." for all that is unknown, quoting the line.
void parse(Module&, const char* text);

/// A decoder's view of one instruction: it takes the modifiers one by one and says of what type the operands are.
class Decode {
 public:
  Decode(Module& module, Kernel& kernel, Instruction& in, std::vector<std::string> words)
      : module(module), kernel(kernel), in(in), words_(std::move(words)) {}

  /// The next modifier, if it is this one.
  bool take(const char* word);
  /// One of these must come next; its place in the list.
  int one_of(std::initializer_list<const char*> list);
  std::string next();
  /// No modifier is left, and there are so many operands.
  void end(int operands, Handler run);
  void end(int least, int most, Handler run);
  /// Operand i is a register or a constant of so many bytes.
  void value(int i, int bytes, bool is_float = false);
  void values(int from, int to, int bytes, bool is_float = false);
  void predicate(int i);
  void address(int i);
  /// Operand i is a list of so many values, or a single one when count is 1.
  void list(int i, int count, int bytes, bool is_float = false);
  [[noreturn]] void refuse(const std::string& why) const;
  void bind(Operand& operand, int bytes, bool is_float);

  Module& module;
  Kernel& kernel;
  Instruction& in;

 private:
  std::vector<std::string> words_;
  size_t at_ = 0;
};

using Decoder = void (*)(Decode&);
/// Decoders by base opcode: "add", "wgmma".
std::unordered_map<std::string, Decoder>& opcodes();

struct Opcode { Opcode(const char* names, Decoder decoder); };
#define PTX_JOIN2(a, b) a##b
#define PTX_JOIN(a, b) PTX_JOIN2(a, b)
/// OPCODE("add sub", { body }): d, the Decode, is the body's.
#define OPCODE(names, ...) static const Opcode PTX_JOIN(opcode_, __COUNTER__)(names, [](Decode & d) __VA_ARGS__)

/// A type word: bytes, and whether it is signed or floating.
struct Type {
  int bytes;
  char kind;  // b, u, s, f
};
Type type_of(Decode&, const std::string& word);

}  // namespace ptx
