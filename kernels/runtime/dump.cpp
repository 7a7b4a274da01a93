// SPDX-License-Identifier: MIT
// A file is one of https://huggingface.co/docs/safetensors: 8 bytes of length, a JSON header, the bytes of all arrays. An array
// whose elements follow each other has its own shape there, another is one dimension, as far as its memory reaches: how it lies in
// that is said in the header, under "arrays".
#include "kernels/runtime/dump.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <vector>

#include "kernels/runtime/arguments.h"
#include "kernels/runtime/array.h"
#include "kernels/runtime/atomic.h"
#include "kernels/runtime/backend.h"
#include "kernels/runtime/choose.h"
#include "kernels/runtime/environment.h"
#include "kernels/runtime/log.h"

namespace tilekiln {
namespace {

constexpr int max_arrays = 64;
constexpr size_t header_capacity = 1 << 16;
constexpr size_t chunk = 1 << 20;

// An array of the call. Its bytes are written where it may be an input: what is written in place is one too.
struct Saved {
  const char* name;
  Array array;
  Device device;
  bool input, written;
  uint64_t bytes() const { return input ? array.last - array.first : 0; }
};

// The format's own name; null: it has none.
const char* format_dtype(int32_t dtype) {
  switch (dtype) {
    case TILEKILN_FP32: return "F32";
    case TILEKILN_FP16: return "F16";
    case TILEKILN_BF16: return "BF16";
    case TILEKILN_FP8: return "F8_E4M3";
    case TILEKILN_BF8: return "F8_E5M2";
    case TILEKILN_FP64: return "F64";
    case TILEKILN_INT8: return "I8";
    case TILEKILN_INT32: return "I32";
    case TILEKILN_INT64: return "I64";
    case TILEKILN_UINT8: return "U8";
    case TILEKILN_INT16: return "I16";
    case TILEKILN_UINT16: return "U16";
    case TILEKILN_UINT32: return "U32";
    case TILEKILN_UINT64: return "U64";
    case TILEKILN_BOOL: return "BOOL";
    default: return nullptr;
  }
}

int read_arrays(const tilekiln_operator& table, const void* args, Saved* saved) {
  int count = 0;
  for (int i = 0; i < table.argument_count && count < max_arrays; ++i) {
    const tilekiln_argument& argument = table.arguments[i];
    if (!is_array(argument) || array_of(argument, args) == nullptr) continue;
    const tilekiln_tensor& tensor = *array_of(argument, args);
    Saved& one = saved[count];
    one = {argument.name,
           {},
           {tensor.device_type, tensor.device_id},
           argument.kind != TILEKILN_RESULT,
           argument.kind == TILEKILN_WRITTEN};
    if (format_dtype(tensor.dtype) == nullptr || check_array(argument.name, tensor, &one.array) != TILEKILN_OK)
      continue;
    ++count;
  }
  return count;
}

void add_integers(Text& text, const int64_t* values, int count) {
  text.add("[");
  for (int i = 0; i < count; ++i) text.add("%s%lld", i == 0 ? "" : ",", static_cast<long long>(values[i]));
  text.add("]");
}

bool follow_each_other(const Array& array) {
  int64_t step = 1;
  for (int i = array.ndim - 1; i >= 0; --i) {
    if (array.shape[i] != 1 && array.stride[i] != step) return false;
    step *= array.shape[i];
  }
  return true;
}

// Adds JSON as a text inside of JSON.
void add_quoted(Text& text, const char* json) {
  text.add("\"");
  for (; *json != 0; ++json) text.add(*json == '"' || *json == '\\' ? "\\%c" : "%c", *json);
  text.add("\"");
}

void add_scalars(Text& text, const tilekiln_operator& table, const void* args) {
  const char* separator = "";
  text.add("{");
  for (int i = 0; i < table.argument_count; ++i) {
    const tilekiln_argument& argument = table.arguments[i];
    if (is_array(argument) || argument.kind == TILEKILN_INSTANCE || !is_given(table, argument, args)) continue;
    text.add("%s\"%s\": ", separator, argument.name);
    separator = ", ";
    add_value(text, argument, args);
  }
  text.add("}");
}

// Every array: its shape, its strides, and which element of its memory is its first.
void add_arrays(Text& text, const Saved* saved, int count) {
  text.add("{");
  for (int i = 0; i < count; ++i) {
    const Array& array = saved[i].array;
    char name[32];
    text.add("%s\"%s\": {\"dtype\": \"%s\", \"shape\": ", i == 0 ? "" : ", ", saved[i].name,
             dtype_name(array.dtype, name));
    add_integers(text, array.shape, array.ndim);
    text.add(", \"stride\": ");
    add_integers(text, array.stride, array.ndim);
    const uint64_t before = array.empty() ? 0 : reinterpret_cast<uint64_t>(array.data) - array.first;
    text.add(", \"first\": %llu, \"input\": %s, \"written\": %s}",
             static_cast<unsigned long long>(before / static_cast<uint64_t>(dtype_bytes(array.dtype))),
             saved[i].input ? "true" : "false", saved[i].written ? "true" : "false");
  }
  text.add("}");
}

void add_header(Text& text, const tilekiln_operator& table, const void* args, const Saved* saved, int count) {
  std::vector<char> json(header_capacity);
  text.add("{\"__metadata__\": {\"operator\": \"%s\", \"library\": \"%s\", \"version\": \"%s\", \"arguments\": ",
           table.name, tilekiln_receipt(), tilekiln_version());
  Text scalars(json.data(), header_capacity);
  add_scalars(scalars, table, args);
  add_quoted(text, json.data());
  text.add(", \"arrays\": ");
  Text arrays(json.data(), header_capacity);
  add_arrays(arrays, saved, count);
  add_quoted(text, json.data());
  text.add("}");
  uint64_t at = 0;
  for (int i = 0; i < count; ++i) {
    if (!saved[i].input) continue;
    const Array& array = saved[i].array;
    const int64_t elements = static_cast<int64_t>(saved[i].bytes()) / dtype_bytes(array.dtype);
    const bool plain = array.empty() || follow_each_other(array);
    text.add(", \"%s\": {\"dtype\": \"%s\", \"shape\": ", saved[i].name, format_dtype(array.dtype));
    add_integers(text, plain ? array.shape : &elements, plain ? array.ndim : 1);
    text.add(", \"data_offsets\": [%llu, %llu]}", static_cast<unsigned long long>(at),
             static_cast<unsigned long long>(at + saved[i].bytes()));
    at += saved[i].bytes();
  }
  text.add("}");
  while (text.length() % 8 != 0) text.add(" ");
}

bool write_array(FILE* file, const Saved& one) {
  const Backend* const backend = backend_of(one.device.type);
  if (backend == nullptr) return false;
  std::vector<char> host(backend->host_memory ? 0 : chunk);
  for (uint64_t done = 0; done < one.bytes();) {
    const size_t bytes = std::min<uint64_t>(chunk, one.bytes() - done);
    const void* from = reinterpret_cast<const void*>(one.array.first + done);
    if (!host.empty()) {
      if (backend->copy(one.device, nullptr, host.data(), from, bytes, Direction::to_host) != TILEKILN_OK) return false;
      from = host.data();
    }
    if (fwrite(from, 1, bytes, file) != bytes) return false;
    done += bytes;
  }
  return true;
}

bool write_file(const char* name, const tilekiln_operator& table, const void* args, const Saved* saved, int count) {
  std::vector<char> header(header_capacity);
  Text text(header.data(), header_capacity);
  add_header(text, table, args, saved, count);
  if (text.length() >= header_capacity) return false;
  FILE* const file = fopen(name, "wbe");
  if (file == nullptr) return false;
  const uint64_t length = text.length();
  bool written = fwrite(&length, sizeof(length), 1, file) == 1 && fwrite(header.data(), length, 1, file) == 1;
  for (int i = 0; i < count && written; ++i) written = write_array(file, saved[i]);
  return fclose(file) == 0 && written;
}

// The error of the system, "" for none.
const char* write_whole(const char* name, const tilekiln_operator& table, const void* args, const Saved* saved,
                        int count) {
  char part[Dumped::path_capacity + 8];
  snprintf(part, sizeof(part), "%s.part", name);
  errno = 0;
  if (write_file(part, table, args, saved, count) && rename(part, name) == 0) return "";
  const int error = errno;
  static_cast<void>(unlink(part));
  return error == 0 ? "its arrays cannot be read" : strerror(error);
}

Atomic<uint64_t> all_written;

void write_call(Text& text, const tilekiln_operator& table, const void* args, Dumped& record) {
  const Environment& asked = environment();
  std::vector<Saved> saved(max_arrays);
  const int count = read_arrays(table, args, saved.data());
  const uint64_t written = all_written.load();
  uint64_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += saved[i].bytes();
  if (written + bytes > asked.dump_bytes) {
    text.add(": not written: %.1f MB more than TILEKILN_DUMP_SIZE, %.1f MB",
             1e-6 * static_cast<double>(written + bytes - asked.dump_bytes),
             1e-6 * static_cast<double>(asked.dump_bytes));
    return;
  }
  // Earlier work of the stream may still be making an input: it is waited for.
  uint64_t mark = 0;
  int32_t passed = 0;
  tilekiln_stream* const stream = stream_of(table, args);
  if (stream != nullptr) static_cast<void>(tilekiln_stream_wait(stream, INT64_MAX, &mark, &passed));
  static_cast<void>(mkdir(asked.dump, 0777));  // where it fails and the folder is not there, so does what follows
  const char* const error = write_whole(record.path, table, args, saved.data(), count);
  if (*error == 0) {
    all_written.add(bytes);
    record.bytes = bytes, record.written = true;
  } else {
    text.add(": not written: %s", error);
  }
}

// Tells whether the arguments are right: what is refused may name memory that is not there.
bool is_right(const tilekiln_operator& table, const void* args) {
  const Describing alone;  // no choice is made
  return table.why(args, nullptr, 0, nullptr) != TILEKILN_INVALID_ARGUMENT;
}

}  // namespace

void dump_call(const tilekiln_operator& table, const void* args, Dumped& record) noexcept {
  if (!is_right(table, args)) return;
  static Atomic<int> number;
  snprintf(record.path, sizeof(record.path), "%s/%s-%ld-%d.safetensors", environment().dump, table.name,
           static_cast<long>(getpid()), number.add(1) + 1);
  Text text(record.line, sizeof(record.line) - 1);
  text.add("tilekiln: dump: %s", record.path);
  try {
    write_call(text, table, args, record);
  } catch (const std::bad_alloc&) {
    text.add(": not written: out of memory");
  }
  strcat(record.line, "\n");
}

void say(const Dumped& record) noexcept {
  if (*record.line != 0) write_log(record.line, strlen(record.line));
}

void withdraw(const Dumped& record) noexcept {
  if (!record.written) return;
  static_cast<void>(unlink(record.path));
  all_written.add(-record.bytes);
}

}  // namespace tilekiln
