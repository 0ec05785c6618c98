/* Queries the machine's driver, GPUs, cuBLASLt and NCCL. */
#include "runtime/cuda/query.h"
#include "runtime/cuda/api.h"

#include <stdlib.h>

/* Generated code uses asynchronous copies and bfloat16, available since compute capability 8.0. Newer GPUs run PTX for
 * older ones, except that wgmma and related instructions ("a") exist on 9.0 only. */
static const char *target_of(int major, int minor) {
  if (major < 8) return NULL;
  if (major == 8) return minor >= 9 ? "sm_89" : minor >= 6 ? "sm_86" : "sm_80";
  return major == 9 && minor == 0 ? "sm_90a" : "sm_90";
}

/* CUDA Toolkit release notes and PTX ISA, "Release Notes": the PTX version of each CUDA version. */
int kva_gpu_ptx_version(int driver) {
  static const struct {
    int driver, ptx;
  } rows[] = {{13010, 91}, {13000, 90}, {12090, 88}, {12080, 87}, {12070, 86}, {12050, 85}, {12040, 84}, {12030, 83},
              {12020, 82}, {12010, 81}, {12000, 80}, {11080, 78}, {11070, 77}, {11060, 76}, {11050, 75}, {11040, 74}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (driver >= rows[i].driver) return rows[i].ptx;
  return 0;
}

int kva_gpu_ordinal(int n) {
  static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", "LOCAL_RANK"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const char *rank = getenv(names[i]);
    if (rank && *rank && atoi(rank) >= 0) return n > 0 ? atoi(rank) % n : 0;
  }
  return 0;
}

static bool describe(const kva_cuda_api *api, int ordinal, kva_gpu *out) {
  cu_device device;
  size_t bytes = 0;
  if (api->cuDeviceGet(&device, ordinal) || api->cuDeviceGetName(out->name, sizeof out->name, device) ||
      api->cuDeviceGetAttribute(&out->major, CU_ATTRIBUTE_MAJOR, device) ||
      api->cuDeviceGetAttribute(&out->minor, CU_ATTRIBUTE_MINOR, device) ||
      api->cuDeviceGetAttribute(&out->multiprocessors, CU_ATTRIBUTE_MULTIPROCESSORS, device) ||
      api->cuDeviceTotalMem(&bytes, device))
    return false;
  out->memory = (int64_t)bytes;
  out->target = target_of(out->major, out->minor);
  return true;
}

static kva_status query_driver(kva_gpu_report *out, kva_diag *diag) {
  kva_cuda_api api;
  KVA_TRY(kva_cuda_api_load(diag, &api));
  int n = 0;
  if (api.cuDriverGetVersion(&out->driver) || api.cuDeviceGetCount(&n))
    return kva_fail(diag, KVA_MISSING, NULL, "device cuda: the driver does not answer; check it with nvidia-smi");
  for (int i = 0; i < n && out->n_gpus < KVA_GPU_MOST; i++)
    if (describe(&api, i, &out->gpus[out->n_gpus])) out->n_gpus++;
  if (out->n_gpus) return KVA_OK;
  return kva_fail(diag, KVA_MISSING, NULL, "device cuda: the driver finds no NVIDIA GPU; check it with nvidia-smi");
}

static void copy_message(const kva_diag *diag, char *text, size_t size) {
  size_t n = kva_diag_count(diag);
  snprintf(text, size, "%s", n ? kva_diag_message(diag, n - 1, NULL, NULL) : "");
}

static void query_nccl(kva_gpu_report *out, kva_diag *diag) {
  kva_nccl_api api;
  const char *path;
  if (kva_nccl_api_load(diag, &api, &path) != KVA_OK) {
    copy_message(diag, out->nccl_error, sizeof out->nccl_error);
    return;
  }
  if (api.ncclGetVersion(&out->nccl) != NCCL_SUCCESS) out->nccl = 0;
  snprintf(out->nccl_path, sizeof out->nccl_path, "%s", path);
}

void kva_gpu_query(kva_gpu_report *out) {
  *out = (kva_gpu_report){0};
  kva_diag *diag = kva_diag_create();
  if (query_driver(out, diag) != KVA_OK) copy_message(diag, out->driver_error, sizeof out->driver_error);
  kva_blas_api blas;
  const char *path;
  if (kva_blas_api_load(diag, &blas, &path) == KVA_OK) {
    out->blas = blas.cublasLtGetVersion();
    snprintf(out->blas_path, sizeof out->blas_path, "%s", path);
  } else {
    copy_message(diag, out->blas_error, sizeof out->blas_error);
  }
  query_nccl(out, diag);
  kva_diag_destroy(diag);
}

kva_status kva_gpu_find_blas(kva_diag *diag, const char **out_path) {
  kva_blas_api api;
  return kva_blas_api_load(diag, &api, out_path);
}

static int64_t ask_free(const kva_cuda_api *api, cu_device device) {
  cu_context context;
  size_t available = 0, whole;
  if (api->cuDevicePrimaryCtxRetain(&context, device)) return 0;
  if (api->cuCtxSetCurrent(context) || api->cuMemGetInfo(&available, &whole)) available = 0;
  api->cuCtxSetCurrent(NULL);
  api->cuDevicePrimaryCtxRelease(device);
  return (int64_t)available;
}

int64_t kva_gpu_available_memory(void) {
  kva_cuda_api api;
  cu_device device;
  int n;
  if (kva_cuda_api_load(NULL, &api) != KVA_OK || api.cuDeviceGetCount(&n) ||
      api.cuDeviceGet(&device, kva_gpu_ordinal(n)))
    return 0;
  return ask_free(&api, device);
}

kva_status kva_gpu_probe(kva_diag *diag, const char **out_arch) {
  kva_gpu_report r = {0};
  KVA_TRY(query_driver(&r, diag));
  const kva_gpu *own = &r.gpus[kva_gpu_ordinal(r.n_gpus)];
  *out_arch = own->target;
  if (*out_arch) return KVA_OK;
  return kva_fail(diag, KVA_MISSING, NULL,
                  "device cuda: %s has compute capability %d.%d; generated code needs 8.0 (Ampere) or newer; device "
                  "ptxsim runs the same code on a simulator",
                  own->name, own->major, own->minor);
}
