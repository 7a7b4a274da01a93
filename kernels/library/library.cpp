// The C ABI's questions about the library itself.
#include "tilekiln/runtime/library.h"

#include "tilekiln/runtime/environment.h"

namespace tilekiln {

const Dispatcher& dispatcher(uint32_t) {
  static const Dispatcher fmha_fwd(table, 0, environment().isa);
  return fmha_fwd;
}

}  // namespace tilekiln

using namespace tilekiln;

int32_t tilekiln_abi_version(void) { return TILEKILN_ABI_VERSION; }

const char* tilekiln_version(void) { return table.version; }

const char* tilekiln_receipt(void) { return table.receipt; }

const char* tilekiln_manifest(size_t* length) {
  if (length != nullptr) *length = table.manifest_length;
  return table.manifest;
}

int64_t tilekiln_instance_count(void) { return table.instance_count; }

const char* tilekiln_instance_name(int64_t instance) {
  if (instance < 0 || instance >= table.instance_count) return nullptr;
  return table.names + table.name_offset[instance];
}

int32_t tilekiln_instance_usable(int64_t instance) {
  if (instance < 0 || instance >= table.instance_count) return 0;
  const Dispatcher& dispatch = dispatcher(0);
  return dispatch.usable(dispatch.row(table.plan[instance])) ? 1 : 0;
}

const char* tilekiln_isa(void) {
  const Dispatcher& dispatch = dispatcher(0);
  if (dispatch.status() != TILEKILN_OK || dispatch.best() == nullptr) return "";
  return dispatch.best()->isa;
}

int32_t tilekiln_num_threads(void) {
  int threads = 0;
  return thread_count(0, &threads) == TILEKILN_OK ? threads : 0;
}

const char* tilekiln_last_error(void) { return error_text(); }
