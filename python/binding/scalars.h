/* What forward and backward calls share: the arguments past the arrays, and two questions. */
#ifndef TILEKILN_BINDING_SCALARS_H
#define TILEKILN_BINDING_SCALARS_H

#include "keywords.h"
#include "library.h"
#include "stream.h"
#include "values.h"

/* They stand in this order in the arguments of each operator. */
#define SHARED_SCALARS(X) \
  X(softmax_scale) X(causal) X(window) X(mask_origin) X(sink_size) X(softcap) X(dropout_p) X(rng) X(layout) X(stream) \
      X(num_threads) X(instance)

enum {
#define X(name) S_##name,
  SHARED_SCALARS(X) SHARED_SCALAR_COUNT
#undef X
};

static int read_instance(Library* self, PyObject* value, int64_t* result) {
  if (!value) return 0;
  if (!PyUnicode_Check(value)) {
    long long number;
    if (read_integer(value, "instance", -1, INT64_MAX, &number) < 0) return -1;
    *result = number;
    return 0;
  }
  const int64_t count = self->instance_count();
  for (int64_t i = 0; i < count; ++i)
    if (PyUnicode_CompareWithASCIIString(value, self->instance_name(i)) == 0) {
      *result = i;
      return 0;
    }
  return refuse("instance", "was %R, must be the number or the name of an instance: Library.instances lists them",
                value);
}

static int read_window(PyObject* value, int32_t* left, int32_t* right) {
  PyObject* pair;
  if (!value) return 0;
  if (read_pair(value, "window", "left, right", &pair) < 0) return -1;
  const int bad = read_int32(PyTuple_GetItem(pair, 0), "window", -1, left) < 0 ||
                  read_int32(PyTuple_GetItem(pair, 1), "window", -1, right) < 0;
  Py_DECREF(pair);
  return bad ? -1 : 0;
}

static int read_rng(PyObject* value, uint64_t* seed, uint64_t* offset) {
  PyObject* pair;
  if (!value) return 0;
  if (read_pair(value, "rng", "seed, offset", &pair) < 0) return -1;
  const int bad = read_uint64(PyTuple_GetItem(pair, 0), "rng", seed) < 0 ||
                  read_uint64(PyTuple_GetItem(pair, 1), "rng", offset) < 0;
  Py_DECREF(pair);
  return bad ? -1 : 0;
}

static int read_stream(PyObject* value, Stream** stream) {
  if (!value) return 0;
  if (Py_TYPE(value) != StreamType) return refuse("stream", "was %R, must be a tilekiln.Stream", value);
  *stream = (Stream*)value;
  return 0;
}

static const char* const mask_origins[] = {"bottom_right", "top_left", NULL};
static const char* const layouts[] = {"bshd", "bhsd", NULL};

/* given: the SHARED_SCALAR_COUNT arguments. args: a tilekiln_fmha_fwd_args or _bwd_args with its defaults; scale, which
 * it will point to, lives as long. */
#define READ_SHARED_SCALARS(self, given, args, scale, stream_place)                                           \
  (read_window((given)[S_window], &(args)->window_left, &(args)->window_right) < 0 ||                         \
   read_rng((given)[S_rng], &(args)->rng_seed, &(args)->rng_offset) < 0 ||                                    \
   read_stream((given)[S_stream], (stream_place)) < 0 ||                                                      \
   read_flag((given)[S_causal], "causal", &(args)->causal) < 0 ||                                             \
   read_word((given)[S_mask_origin], "mask_origin", mask_origins, &(args)->mask_origin) < 0 ||                \
   read_word((given)[S_layout], "layout", layouts, &(args)->layout) < 0 ||                                    \
   read_int32((given)[S_sink_size], "sink_size", 0, &(args)->sink_size) < 0 ||                                \
   read_int32((given)[S_num_threads], "num_threads", 0, &(args)->num_threads) < 0 ||                          \
   read_float((given)[S_softcap], "softcap", &(args)->softcap) < 0 ||                                         \
   read_float((given)[S_dropout_p], "dropout_p", &(args)->dropout_p) < 0 ||                                   \
   read_float((given)[S_softmax_scale], "softmax_scale", (scale)) < 0 ||                                      \
   read_instance((self), (given)[S_instance], &(args)->instance) < 0                                          \
       ? -1                                                                                                   \
       : ((args)->softmax_scale = (given)[S_softmax_scale] ? (scale) : NULL, 0))

/* Letting go of the GIL and taking it back costs some 50 ns, more than a tiny call may cost; a call of 2^18 multiplications takes
 * about 10 us. */
static int is_long(const tilekiln_tensor* q, const tilekiln_tensor* k, int32_t layout) {
  double work = 1;
  for (int i = 0; i < q->ndim; ++i) work *= (double)q->shape[i];
  const int rows = k->ndim - (layout == TILEKILN_BHSD ? 2 : 3);
  return work * (rows >= 0 && rows < k->ndim ? (double)k->shape[rows] : 1) > (double)(1 << 18);
}

/* A framework without the exchange API receives the NumPy array that was made for it. */
static PyObject* adopt(PyObject* like, PyObject* made) {
  if (PyArray_CheckExact(like) || exchange_api(Py_TYPE(like)) || PyArray_Check(like)) return Py_NewRef(made);
  return PyObject_CallMethod(facade, "adopt", "OO", like, made);
}

#endif
