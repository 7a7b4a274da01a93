// SPDX-License-Identifier: MIT
/* The DLPack ABI, version 1: declarations of what an exporter hands out. Layouts follow the DLPack specification (dmlc.github.io/dlpack). */
#ifndef TILEKILN_BINDING_DLPACK_H
#define TILEKILN_BINDING_DLPACK_H

#include <stdint.h>

typedef struct { uint32_t major, minor; } DLPackVersion;

typedef struct {
  int32_t device_type;
  int32_t device_id;
} DLDevice;

typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} DLDataType;

typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides; /* in elements; null: contiguous */
  uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensor* self);
} DLManagedTensor;

enum { DLPACK_READ_ONLY = 1, DLPACK_CUDA = 2 };
typedef struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
} DLManagedTensorVersioned;

/* The table of functions that a type offers as the capsule "dlpack_exchange_api" in its attribute __dlpack_c_exchange_api__.
* Functions that return int return 0, or -1 with a Python exception set (the allocator: with SetError called). */
typedef struct DLPackExchangeAPI {
  DLPackVersion version;
  struct DLPackExchangeAPI* previous; /* an older major version, or null */
  int (*allocate)(DLTensor* prototype, DLManagedTensorVersioned** out, void* error_context,
                  void (*set_error)(void* error_context, const char* kind, const char* message));
  int (*managed_from_object)(void* object, DLManagedTensorVersioned** out);
  int (*managed_to_object)(DLManagedTensorVersioned* tensor, void** object); /* takes the tensor over */
  int (*tensor_from_object)(void* object, DLTensor* out);                    /* borrowed from the object; may be null */
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void** stream);
} DLPackExchangeAPI;

#endif
