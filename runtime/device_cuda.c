/* NVIDIA GPUs as a device, through the driver API and cuBLASLt, both looked up at run time (runtime/cuda/api.h).
 *
 * One primary context and one stream: work runs in call order, and the host waits only in synchronise and copy_out,
 * which report errors of kernels. After such an error the driver leaves the context unusable. Of several GPUs the
 * processes of a host take one each (kva_gpu_ordinal); CUDA_VISIBLE_DEVICES selects those that there are. */
#include "runtime/cuda/cuda.h"
#include "runtime/cuda/query.h"

#include <stdlib.h>

/* ---- errors ------------------------------------------------------------------------------------------------------ */

kva_status kva_cuda_fail(cuda_device *d, kva_status status, const char *fmt, ...) {
  char text[512];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  kva_text_free(&d->error);
  kva_text_add(&d->error, "%s", text);
  return status;
}

kva_status kva_cuda_check(cuda_device *d, cu_result result, const char *what) {
  if (result == CU_SUCCESS) return KVA_OK;
  char text[256];
  kva_cuda_error_text(&d->api, result, text, sizeof text);
  return kva_cuda_fail(d, result == CU_ERROR_OUT_OF_MEMORY ? KVA_NO_MEMORY : KVA_INVALID, "%s: %s", what, text);
}

kva_status kva_cuda_enter(cuda_device *d) {
  kva_text_free(&d->error);
  return kva_cuda_check(d, d->api.cuCtxSetCurrent(d->context), "cuCtxSetCurrent");
}

/* ---- creation ---------------------------------------------------------------------------------------------------- */

static bool recordings_are_wanted(void) {
  const char *v = getenv("KVASIR_CUDA_GRAPHS");
  return !v || (strcmp(v, "0") != 0 && strcmp(v, "off") != 0);
}

static kva_status open_device(cuda_device *d) {
  int n = 0;
  KVA_TRY(kva_cuda_check(d, d->api.cuDeviceGetCount(&n), "cuDeviceGetCount"));
  KVA_TRY(kva_cuda_check(d, d->api.cuDeviceGet(&d->device, kva_gpu_ordinal(n)), "cuDeviceGet"));
  int major = 0, minor = 0;
  KVA_TRY(kva_cuda_check(d, d->api.cuDeviceGetAttribute(&major, CU_ATTRIBUTE_MAJOR, d->device), "major number"));
  KVA_TRY(kva_cuda_check(d, d->api.cuDeviceGetAttribute(&minor, CU_ATTRIBUTE_MINOR, d->device), "minor number"));
  snprintf(d->arch, sizeof d->arch, "sm_%d%d", major, minor);
  KVA_TRY(kva_cuda_check(d, d->api.cuDevicePrimaryCtxRetain(&d->context, d->device), "cuDevicePrimaryCtxRetain"));
  KVA_TRY(kva_cuda_enter(d));
  KVA_TRY(kva_cuda_check(d, d->api.cuStreamCreate(&d->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate"));
  return kva_cuda_create_slots(d);
}

static void destroy(kva_device *device) {
  cuda_device *d = (cuda_device *)device;
  if (d->context && kva_cuda_enter(d) == KVA_OK) {
    if (d->stream) d->api.cuStreamSynchronize(d->stream);
    kva_cuda_recordings_destroy(d);
    kva_cuda_blas_destroy(d);
    kva_cuda_peers_destroy(d);
    for (int32_t i = 0; i < d->n_marks; i++) d->api.cuEventDestroy(d->marks[i]);
    kva_cuda_destroy_slots(d);
    if (d->module) d->api.cuModuleUnload(d->module);
    if (d->stream) d->api.cuStreamDestroy(d->stream);
  }
  if (d->context) d->api.cuDevicePrimaryCtxRelease(d->device);
  kva_text_free(&d->error);
  free(d->marks);
  free(d->functions);
  free(d->facts);
  free(d->most_blocks);
  free(d->params);
  free(d->maps);
  free(d);
}

static kva_status create(kva_pool *pool, kva_diag *diag, kva_device **out_device) {
  const char *arch;
  KVA_TRY(kva_gpu_probe(diag, &arch));
  cuda_device *d = calloc(1, sizeof *d);
  if (!d) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a device");
  d->base = (kva_device){&kva_device_cuda, pool};
  kva_status status = kva_cuda_api_load(diag, &d->api);
  if (status == KVA_OK) {
    status = open_device(d);
    if (status != KVA_OK) kva_fail(diag, status, NULL, "device cuda: %s", d->error.data);
  }
  if (status == KVA_OK && recordings_are_wanted() && !(d->recordings = kva_cuda_recordings_create()))
    status = kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a device");
  if (status == KVA_OK)
    *out_device = &d->base;
  else
    destroy(&d->base);
  return status;
}

/* ---- waiting and time -------------------------------------------------------------------------------------------- */

static kva_status synchronise(kva_device *device) {
  cuda_device *d = (cuda_device *)device;
  KVA_TRY(kva_cuda_enter(d));
  return kva_cuda_check(d, d->api.cuStreamSynchronize(d->stream), "cuStreamSynchronize");
}

static kva_status mark(kva_device *device, int32_t index) {
  cuda_device *d = (cuda_device *)device;
  KVA_TRY(kva_cuda_enter(d));
  if (index >= d->n_marks) {
    cu_event *more = realloc(d->marks, sizeof *more * ((size_t)index + 1));
    if (!more) return kva_cuda_fail(d, KVA_NO_MEMORY, "no memory to measure time");
    d->marks = more;
    for (; d->n_marks <= index; d->n_marks++)
      KVA_TRY(kva_cuda_check(d, d->api.cuEventCreate(&d->marks[d->n_marks], 0), "cuEventCreate"));
  }
  return kva_cuda_check(d, d->api.cuEventRecord(d->marks[index], d->stream), "cuEventRecord");
}

static kva_status elapsed(kva_device *device, int32_t index, double *out_seconds) {
  cuda_device *d = (cuda_device *)device;
  float milliseconds = 0;
  *out_seconds = 0;
  KVA_TRY(kva_cuda_enter(d));
  KVA_TRY(kva_cuda_check(d, d->api.cuEventElapsedTime(&milliseconds, d->marks[index - 1], d->marks[index]),
                         "cuEventElapsedTime"));
  *out_seconds = milliseconds * 1e-3;
  return KVA_OK;
}

static const char *error(const kva_device *d) {
  const char *text = ((const cuda_device *)d)->error.data;
  return text ? text : "";
}

const kva_device_class kva_device_cuda = {.name = "cuda",
                                          .formats = 1u << KVA_CODE_CUBIN | 1u << KVA_CODE_PTX,
                                          .arch = "sm_80",
                                          .probe = kva_gpu_probe,
                                          .create = create,
                                          .destroy = destroy,
                                          .load = kva_cuda_load,
                                          .allocate = kva_cuda_allocate,
                                          .free = kva_cuda_free,
                                          .copy_in = kva_cuda_copy_in,
                                          .copy_out = kva_cuda_copy_out,
                                          .copy = kva_cuda_copy,
                                          .launch = kva_cuda_launch,
                                          .supports = kva_cuda_supports,
                                          .call = kva_cuda_call,
                                          .join = kva_cuda_join,
                                          .exchanges = kva_cuda_exchanges,
                                          .exchange = kva_cuda_exchange,
                                          .await = kva_cuda_await,
                                          .exchanged = kva_cuda_exchanged,
                                          .begin = kva_cuda_begin,
                                          .end = kva_cuda_end,
                                          .mark = mark,
                                          .elapsed = elapsed,
                                          .facts = kva_cuda_facts,
                                          .synchronise = synchronise,
                                          .error = error};
