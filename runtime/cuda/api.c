/* Dynamic lookup of the driver and cuBLASLt. */
#include "runtime/cuda/api.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdlib.h>

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

/* The newest library of the package nvidia-cublas in one Python installation; NULL: none. *out_path is a copy that
 * stays. */
static void *open_blas_of_python(const char *prefix, const char **out_path) {
  static char found[512]; /* one thread at a time creates devices */
  char pattern[512];
  glob_t files;
  void *library = NULL;
  int n = prefix && *prefix ? snprintf(pattern, sizeof pattern,
                                       "%s/lib/python3*/*-packages/nvidia/*/lib/libcublasLt.so.1[123]", prefix)
                            : 0;
  if (n <= 0 || n >= (int)sizeof pattern || glob(pattern, 0, NULL, &files) != 0) return NULL;
  for (size_t i = files.gl_pathc; !library && i-- > 0;) {
    snprintf(found, sizeof found, "%s", files.gl_pathv[i]);
    library = dlopen(*out_path = found, RTLD_NOW | RTLD_LOCAL);
  }
  globfree(&files);
  return library;
}

static void *open_blas_of_pythons(int n, const char *const *prefixes, const char **out_path) {
  void *library = NULL;
  for (int i = 0; !library && i < n; i++) library = open_blas_of_python(prefixes[i], out_path);
  return library;
}

/* An environment that was chosen goes before the toolkit, the machine's Python after it. */
static void *open_blas(const char **out_path) {
  static const char *const names[] = {"libcublasLt.so.13",
                                      "libcublasLt.so.12",
                                      "libcublasLt.so.11",
                                      "/usr/local/cuda/lib64/libcublasLt.so.13",
                                      "/usr/local/cuda/lib64/libcublasLt.so.12",
                                      "/usr/local/cuda/lib64/libcublasLt.so.11",
                                      "/opt/cuda/lib64/libcublasLt.so"};
  const char *const chosen[] = {getenv("VIRTUAL_ENV"), getenv("CONDA_PREFIX")}, *const machine[] = {"/usr/local",
                                                                                                    "/usr"};
  *out_path = getenv("KVASIR_CUBLASLT_LIBRARY");
  if (*out_path && **out_path) return dlopen(*out_path, RTLD_NOW | RTLD_LOCAL);
  void *library = open_blas_of_pythons(2, chosen, out_path);
  for (size_t i = 0; !library && i < sizeof names / sizeof *names; i++)
    library = dlopen(*out_path = names[i], RTLD_NOW | RTLD_LOCAL);
  return library ? library : open_blas_of_pythons(2, machine, out_path);
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
