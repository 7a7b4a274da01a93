// SPDX-License-Identifier: MIT
#include "kernels/runtime/check.h"

#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <span>

#include "kernels/runtime/backend.h"
#include "kernels/runtime/environment.h"

namespace tilekiln::op {

namespace {

bool is_same(const Array& a, const Array& b) {
  bool same = a.data == b.data && a.dtype == b.dtype && a.ndim == b.ndim;
  for (int i = 0; same && i < a.ndim; ++i) same = a.shape[i] == b.shape[i] && a.stride[i] == b.stride[i];
  return same;
}

// "(2, 3)"
const char* shape_text(int ndim, const int64_t* lengths, char (&text)[256]) {
  int at = snprintf(text, sizeof(text), "(");
  for (int i = 0; i < ndim; ++i)
    at += snprintf(text + at, sizeof(text) - at, "%s%lld", i > 0 ? ", " : "", static_cast<long long>(lengths[i]));
  snprintf(text + at, sizeof(text) - at, ")");
  return text;
}

}  // namespace

tilekiln_status GivenArrays::check_own(const Array& output, const Array* in_place) const {
  if (overlaps_itself(output)) {
    return fail_argument(
        output.name,
        "strides put two elements at one address, must give each its own: pass an array that is not expanded");
  }
  for (int i = 0; i < count_; ++i) {
    if (list_[i] == &output || !overlap(output, *list_[i])) continue;
    if (list_[i] != in_place) {
      return fail_argument(output.name, "shares memory with %s, must have its own", list_[i]->name);
    }
    if (!is_same(output, *in_place)) {
      return fail_argument(output.name, "shares memory with %s, must have its own or be %s, with its strides",
                           in_place->name, in_place->name);
    }
  }
  return TILEKILN_OK;
}

tilekiln_status GivenArrays::take_device(const char* name, const tilekiln_tensor& tensor) {
  const Backend* const backend = backend_of(tensor.device_type);
  const Device device = {tensor.device_type, tensor.device_id};
  char was[48], must[48];
  if (backend == nullptr) {
    const tilekiln_status refused =
        fail_argument(name, "device was %s, must be %s%s", device_text(device, was, sizeof(was)),
                      known_devices(!has_name(device), must, sizeof(must)),
                      count_ > 1 ? "" : ": this library holds no target of such devices (scons -h lists targets)");
    return fail_device(refused, must, was);
  }
  if (count_ > 1 && (on_device_ == 0 || device != device_)) {
    return fail_argument(name, "device was %s, must be %s, the device of %s", device_text(device, was, sizeof(was)),
                         device_text(device_, must, sizeof(must)), list_[0]->name);
  }
  on_device_ |= uint32_t(1) << (count_ - 1);
  device_ = device;
  backend_ = backend;
  return TILEKILN_OK;
}

tilekiln_status GivenArrays::check_devices(std::initializer_list<Array*> given, tilekiln_stream* stream,
                                           const char* instead, bool* unread, bool by_kernels) {
  const std::span<Array* const> read(given.begin(), by_kernels && !backend_->takes_units ? 0 : given.size());
  const auto is_read = [&](int i) { return std::find(read.begin(), read.end(), list_[i]) != read.end(); };
  for (int i = 0; i < count_ && unread != nullptr && !backend_->host_memory; ++i)
    *unread = *unread || ((on_device_ >> i & 1) != 0 && is_read(i));
  const bool stay = unread != nullptr && *unread;
  for (int i = 0; i < count_; ++i) {
    if ((on_device_ >> i & 1) != 0 || (!stay && is_read(i))) continue;
    char must[48];
    return fail_argument(list_[i]->name, "device was cpu, must be %s, the device of %s",
                         device_text(device_, must, sizeof(must)), list_[0]->name);
  }
  if (stay || backend_->host_memory) return TILEKILN_OK;
  Run run;
  run.device = device_;
  run.backend = backend_;
  if (stream != nullptr) {
    TILEKILN_TRY(check_stream(stream));
    TILEKILN_TRY(check_stream_of(*stream, &run));
  }
  for (Array* const array : read) {
    for (int i = 0; i < count_; ++i) {
      if (list_[i] != array) continue;
      TILEKILN_TRY(check_not_captured(*array, stream != nullptr ? native_of(*stream) : nullptr, instead));
      if ((on_device_ >> i & 1) != 0) TILEKILN_TRY(copy_to_host(array, run.native));
    }
  }
  return TILEKILN_OK;
}

// A graph would hold what the host reads now, or break off.
tilekiln_status GivenArrays::check_not_captured(const Array& array, void* stream, const char* instead) const {
  bool captured = false;
  if (backend_->captured == nullptr) return TILEKILN_OK;
  TILEKILN_TRY(backend_->captured(device_, stream, &captured));
  if (!captured) return TILEKILN_OK;
  char where[48];
  device_text(device_, where, sizeof(where));
  if (instead == nullptr)
    return fail_argument("stream", "was being captured into a graph, must not be: the host reads %s", array.name);
  return fail_argument("stream",
                       "was being captured into a graph, must not be while the host reads %s: give %s, and index "
                       "arrays on %s",
                       array.name, instead, where);
}

tilekiln_status GivenArrays::copy_to_host(Array* array, void* stream) {
  if (array->empty()) return TILEKILN_OK;
  const size_t bytes = array->last - array->first;
  auto* const head = static_cast<Copy*>(malloc(64 + bytes));
  if (head == nullptr) return fail(TILEKILN_OUT_OF_MEMORY, "no memory for a copy of %s", array->name);
  head->next = copies_;
  copies_ = head;
  char* const copy = reinterpret_cast<char*>(head) + 64;
  const auto* const from = reinterpret_cast<const char*>(array->first);
  TILEKILN_TRY(backend_->copy(device_, stream, copy, from, bytes, Direction::to_host));
  array->data = copy + (array->data - from);
  return TILEKILN_OK;
}

void GivenArrays::free_copies() {
  while (copies_ != nullptr) {
    Copy* const next = copies_->next;
    free(copies_);
    copies_ = next;
  }
}

tilekiln_status check_host_array(const char* name, const tilekiln_tensor& tensor, Array* array) {
  if (tensor.device_type == TILEKILN_CPU) return check_array(name, tensor, array);
  const Device device = {tensor.device_type, tensor.device_id};
  char was[48];
  return fail_argument(name, "device was %s, must be cpu%s", device_text(device, was, sizeof(was)),
                       has_name(device) ? "" : " (1)");
}

tilekiln_status check_size(size_t was, size_t must, const char* name) {
  if (was == must) return TILEKILN_OK;
  return fail_argument("args", "size was %zu, must be %zu, sizeof(%s_args) of ABI %d: start from %s_defaults()", was,
                       must, name, TILEKILN_ABI_VERSION, name);
}

tilekiln_status check_dtype_like(const Array& array, const Array& like) {
  if (array.dtype == like.dtype) return TILEKILN_OK;
  char text[64], buffer[32];
  snprintf(text, sizeof(text), "%s, the dtype of %s", dtype_name(like.dtype, buffer), like.name);
  return check_dtype(array, like.dtype, text);
}

tilekiln_status check_one_element(const Array& array) {
  for (int i = 0; i < array.ndim; ++i) {
    if (array.shape[i] != 1) {
      return fail_argument(array.name, "dimension %d was %lld long, must have one element", i,
                           static_cast<long long>(array.shape[i]));
    }
  }
  return TILEKILN_OK;
}

tilekiln_status check_dims(const char* name, const tilekiln_dims& dims) {
  if (dims.count >= 0 && dims.count <= TILEKILN_MAX_NDIM) return TILEKILN_OK;
  return fail_argument(name, "count was %d, must be from 0 to %d", dims.count, TILEKILN_MAX_NDIM);
}

tilekiln_status find_dims(const char* name, const tilekiln_dims& dims, int ndim, int* dim) {
  uint32_t seen = 0;
  for (int i = 0; i < dims.count; ++i) {
    const int32_t said = dims.dim[i];
    if (said < -ndim || said >= ndim) {
      return fail_argument(name, "number %d was %d, must be from %d to %d: the array has %d dimensions", i, said, -ndim,
                           ndim - 1, ndim);
    }
    dim[i] = said < 0 ? said + ndim : said;
    if ((seen >> dim[i] & 1) != 0) return fail_argument(name, "had dimension %d twice, must have each once", dim[i]);
    seen |= uint32_t(1) << dim[i];
  }
  return TILEKILN_OK;
}

tilekiln_status check_shape(const Array& array, const tilekiln_shape& shape) {
  bool same = array.ndim == shape.ndim;
  for (int i = 0; same && i < shape.ndim; ++i) same = array.shape[i] == shape.length[i];
  if (same) return TILEKILN_OK;
  char was_text[256], must_text[256];
  return fail_argument(array.name, "shape was %s, must be %s", shape_text(array.ndim, array.shape, was_text),
                       shape_text(shape.ndim, shape.length, must_text));
}

tilekiln_status check_matrix(const Array& array) {
  const int row = array.ndim - 2, column = array.ndim - 1;  // of the last two dimensions
  if (array.empty() || array.shape[row] <= 1 || array.shape[column] <= 1) return TILEKILN_OK;
  if (array.stride[row] == 1 || array.stride[column] == 1) return TILEKILN_OK;
  return fail_argument(array.name,
                       "strides were (%lld, %lld), one of them must be 1: pass a copy that is row- or column-major",
                       static_cast<long long>(array.stride[row]), static_cast<long long>(array.stride[column]));
}

tilekiln_status check_run(int32_t num_threads, const tilekiln_executor* executor, Run* run) {
  TILEKILN_TRY(thread_count(num_threads, &run->threads));
  if (executor == nullptr) return TILEKILN_OK;
  if (executor->size != sizeof(tilekiln_executor)) {
    return fail_argument("executor", "size was %zu, must be %zu, sizeof(tilekiln_executor)", executor->size,
                         sizeof(tilekiln_executor));
  }
  if (executor->parallel_for == nullptr) return fail_argument("executor", "parallel_for was null, must be a function");
  if (executor->max_workers < 1)
    return fail_argument("executor", "max_workers was %d, must be 1 or more", executor->max_workers);
  run->lent = true;
  run->executor = *executor;
  // The threads are the caller's, so it is the caller who says how many; num_threads can only ask for fewer.
  if (num_threads == 0 || executor->max_workers < run->threads) run->threads = executor->max_workers;
  return TILEKILN_OK;
}

}  // namespace tilekiln::op
