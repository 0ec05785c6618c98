/* Dynamic lookup of the driver, cuBLASLt and NCCL. */
#include "runtime/cuda/api.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdlib.h>

enum { PATH_BYTES = 512 };

typedef struct symbol_row {
  const char *name;
  size_t offset;
} symbol_row;

#define DRIVER_ROW(name, symbol, params) {symbol, offsetof(kva_cuda_api, name)},
#define BLAS_ROW(name, symbol, params)   {symbol, offsetof(kva_blas_api, name)},
static const symbol_row driver_rows[] = {KVA_CUDA_FUNCTIONS(DRIVER_ROW)};
static const symbol_row driver_optional_rows[] = {KVA_CUDA_OPTIONAL_FUNCTIONS(DRIVER_ROW)};
static const symbol_row blas_rows[] = {
    KVA_BLAS_FUNCTIONS(BLAS_ROW){"cublasLtGetVersion", offsetof(kva_blas_api, cublasLtGetVersion)}};
#define NCCL_ROW(name, symbol, params) {symbol, offsetof(kva_nccl_api, name)},
static const symbol_row nccl_rows[] = {
    KVA_NCCL_FUNCTIONS(NCCL_ROW){"ncclGetErrorString", offsetof(kva_nccl_api, ncclGetErrorString)}};
#define N_ROWS(rows) (sizeof(rows) / sizeof *(rows))

/* Fills in a table; returns the name of the first function that the library lacks, or NULL. */
static const char *look_up(void *library, const symbol_row *rows, size_t n, void *table) {
  const char *missing = NULL;
  for (size_t i = 0; i < n; i++) {
    void *f = dlsym(library, rows[i].name);
    if (!f && !missing) missing = rows[i].name;
    memcpy((char *)table + rows[i].offset, &f, sizeof f);
  }
  return missing;
}

void kva_cuda_error_text(const kva_cuda_api *api, cu_result error, char *text, size_t size) {
  const char *name = NULL, *words = NULL;
  if (api->cuGetErrorName(error, &name) != CU_SUCCESS) name = NULL;
  if (api->cuGetErrorString(error, &words) != CU_SUCCESS) words = NULL;
  if (name)
    snprintf(text, size, "%s (%s)", name, words ? words : "no text");
  else
    snprintf(text, size, "error %d of the driver", error);
}

static kva_status initialise(kva_diag *diag, const char *path, const kva_cuda_api *api) {
  cu_result result = api->cuInit(0);
  if (result == CU_SUCCESS) return KVA_OK;
  char text[256];
  kva_cuda_error_text(api, result, text, sizeof text);
  if (result == CU_ERROR_NO_DEVICE)
    return kva_fail(diag, KVA_MISSING, NULL,
                    "device cuda: the driver (%s) finds no NVIDIA GPU: %s; device ptxsim runs the same code on a "
                    "simulator",
                    path, text);
  return kva_fail(diag, KVA_MISSING, NULL,
                  "device cuda: the driver (%s) does not start: %s; check it with nvidia-smi; device ptxsim runs the "
                  "same code on a simulator",
                  path, text);
}

kva_status kva_cuda_api_load(kva_diag *diag, kva_cuda_api *out_api) {
  const char *path = getenv("KVASIR_CUDA_LIBRARY");
  if (!path || !*path) path = "libcuda.so.1";
  *out_api = (kva_cuda_api){.library = dlopen(path, RTLD_NOW | RTLD_LOCAL)};
  if (!out_api->library)
    return kva_fail(diag, KVA_MISSING, NULL,
                    "device cuda: no NVIDIA driver: %s; install the driver of your GPU (package nvidia-driver of most "
                    "distributions), or set KVASIR_CUDA_LIBRARY to its libcuda.so.1; device ptxsim runs the same code "
                    "on a simulator",
                    dlerror());
  const char *missing = look_up(out_api->library, driver_rows, N_ROWS(driver_rows), out_api);
  if (missing)
    return kva_fail(diag, KVA_MISSING, NULL,
                    "device cuda: the driver (%s) has no function %s; install a driver for CUDA 11.4 or newer", path,
                    missing);
  (void)look_up(out_api->library, driver_optional_rows, N_ROWS(driver_optional_rows), out_api);
  return initialise(diag, path, out_api);
}

/* The newest library of a package of NVIDIA's in one Python installation; NULL: none. *out_path is a copy that stays.
 */
static void *open_of_python(const char *prefix, const char *name, char found[PATH_BYTES], const char **out_path) {
  char pattern[PATH_BYTES];
  glob_t files;
  void *library = NULL;
  int n = prefix && *prefix
              ? snprintf(pattern, sizeof pattern, "%s/lib/python3*/*-packages/nvidia/*/lib/%s", prefix, name)
              : 0;
  if (n <= 0 || n >= (int)sizeof pattern || glob(pattern, 0, NULL, &files) != 0) return NULL;
  for (size_t i = files.gl_pathc; !library && i-- > 0;) {
    snprintf(found, PATH_BYTES, "%s", files.gl_pathv[i]);
    library = dlopen(*out_path = found, RTLD_NOW | RTLD_LOCAL);
  }
  globfree(&files);
  return library;
}

/* A library by a variable's path, or by its names, or those of a Python installation: an environment that was chosen
 * goes before the names, the machine's Python after them. found: what stays of a path that was searched. */
static void *open_library(const char *variable, size_t n, const char *const *names, const char *python,
                          char found[PATH_BYTES], const char **out_path) {
  const char *const chosen[] = {getenv("VIRTUAL_ENV"), getenv("CONDA_PREFIX")}, *const machine[] = {"/usr/local",
                                                                                                    "/usr"};
  *out_path = getenv(variable);
  if (*out_path && **out_path) return dlopen(*out_path, RTLD_NOW | RTLD_LOCAL);
  void *library = NULL;
  for (size_t i = 0; !library && i < 2; i++) library = open_of_python(chosen[i], python, found, out_path);
  for (size_t i = 0; !library && i < n; i++) library = dlopen(*out_path = names[i], RTLD_NOW | RTLD_LOCAL);
  for (size_t i = 0; !library && i < 2; i++) library = open_of_python(machine[i], python, found, out_path);
  return library;
}

/* One thread at a time creates devices. */
static void *open_blas(const char **out_path) {
  static char found[PATH_BYTES];
  static const char *const names[] = {"libcublasLt.so.13",
                                      "libcublasLt.so.12",
                                      "libcublasLt.so.11",
                                      "/usr/local/cuda/lib64/libcublasLt.so.13",
                                      "/usr/local/cuda/lib64/libcublasLt.so.12",
                                      "/usr/local/cuda/lib64/libcublasLt.so.11",
                                      "/opt/cuda/lib64/libcublasLt.so"};
  return open_library("KVASIR_CUBLASLT_LIBRARY", N_ROWS(names), names, "libcublasLt.so.1[123]", found, out_path);
}

kva_status kva_blas_api_load(kva_diag *diag, kva_blas_api *out_api, const char **out_path) {
  *out_api = (kva_blas_api){.library = open_blas(out_path)};
  if (!out_api->library)
    return kva_fail(diag, KVA_MISSING, NULL,
                    "device cuda: no cuBLASLt (libcublasLt.so.13, .12 or .11): %s; install the CUDA runtime libraries "
                    "(package libcublas, or nvidia-cublas of the Python in VIRTUAL_ENV), set KVASIR_CUBLASLT_LIBRARY "
                    "to it, or compile with --gemm generated",
                    dlerror());
  const char *missing = look_up(out_api->library, blas_rows, N_ROWS(blas_rows), out_api);
  if (!missing) return KVA_OK;
  dlclose(out_api->library);
  *out_api = (kva_blas_api){0};
  return kva_fail(diag, KVA_MISSING, NULL, "device cuda: %s has no function %s; install CUDA 11 or newer", *out_path,
                  missing);
}

kva_status kva_nccl_api_load(kva_diag *diag, kva_nccl_api *out_api, const char **out_path) {
  static char found[PATH_BYTES];
  static const char *const names[] = {"libnccl.so.2", "libnccl.so"};
  const char *chosen = getenv("KVASIR_NCCL_LIBRARY");
  *out_api = (kva_nccl_api){0};
  if (chosen && !strcmp(chosen, "off"))
    return kva_fail(diag, KVA_MISSING, NULL, "device cuda: no NCCL: KVASIR_NCCL_LIBRARY is off");
  out_api->library = open_library("KVASIR_NCCL_LIBRARY", N_ROWS(names), names, "libnccl.so.2", found, out_path);
  if (!out_api->library)
    return kva_fail(diag, KVA_MISSING, NULL,
                    "device cuda: no NCCL (libnccl.so.2): %s; install it (package libnccl2, or nvidia-nccl of the "
                    "Python in VIRTUAL_ENV), or set KVASIR_NCCL_LIBRARY to it",
                    dlerror());
  const char *missing = look_up(out_api->library, nccl_rows, N_ROWS(nccl_rows), out_api);
  if (!missing) return KVA_OK;
  dlclose(out_api->library);
  *out_api = (kva_nccl_api){0};
  return kva_fail(diag, KVA_MISSING, NULL, "device cuda: %s has no function %s; install NCCL 2.7 or newer", *out_path,
                  missing);
}
