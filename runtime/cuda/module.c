/* The artefact's module on the device: JIT loading by the driver, launches and their parameters. */
#include "runtime/cuda/cuda.h"
#include "runtime/formula.h"

#include <stdlib.h>

enum {
  LOG_BYTES = 1 << 18,
  LOCAL_BYTES = 64, /* of a thread, that pass without a warning: arrays with a few indices that are no constants */
};

/* ---- loading ----------------------------------------------------------------------------------------------------- */

/* Architecture names: "sm_80" runs on compute capability 8.0 and later, "sm_90a" on 9.0 only. */
static kva_status check_arch(const cuda_device *d, const kva_artifact *a, kva_diag *diag) {
  int wanted = 0, present = atoi(d->arch + 3);
  char exact = 0;
  const char *arch = kva_artifact_arch(a);
  if (sscanf(arch, "sm_%d%c", &wanted, &exact) < 1)
    return kva_error(diag, NULL, "the artefact is for '%s', which is no architecture of NVIDIA's", arch);
  if (exact ? present == wanted : present >= wanted) return KVA_OK;
  return kva_error(diag, NULL,
                   "the artefact is code for %s, which this GPU (%s) cannot run; compile it with --target %s", arch,
                   d->arch, d->arch);
}

/* A cubin runs on GPUs of its own major version; PTX also runs on later ones. KVASIR_CUDA_CODE=ptx ignores cubins. */
static bool suits(const cuda_device *d, const kva_code *code) {
  if (code->format != KVA_CODE_CUBIN) return true;
  const char *wanted = getenv("KVASIR_CUDA_CODE");
  if (wanted && !strcmp(wanted, "ptx")) return false;
  return atoi(code->arch + 3) / 10 == atoi(d->arch + 3) / 10;
}

static kva_status refuse_module(cuda_device *d, cu_result result, const char *log, kva_diag *diag) {
  char text[256];
  kva_cuda_error_text(&d->api, result, text, sizeof text);
  if (result == CU_ERROR_UNSUPPORTED_PTX_VERSION)
    return kva_fail(diag, KVA_MISSING, NULL,
                    "the driver is older than the artefact's PTX: %s; install a newer driver, or compile for an older "
                    "architecture (--target sm_80)",
                    text);
  return kva_error(diag, NULL, "the driver refuses the artefact's code: %s%s%s", text, *log ? ":\n" : "", log);
}

/* KVASIR_CUDA_LOG names a file that gets what the driver's compiler says of every module: registers, spills, notes. */
static void write_log(const kva_code *code, const char *log) {
  const char *path = getenv("KVASIR_CUDA_LOG");
  FILE *out = path && *path ? fopen(path, "a") : NULL;
  if (!out) return;
  fprintf(out, "%s for %s, %lld bytes\n%s\n", code->format == KVA_CODE_CUBIN ? "machine code" : "PTX", code->arch,
          (long long)code->bytes, log);
  fclose(out);
}

static kva_status load_image(cuda_device *d, const kva_code *code, const void *image, kva_diag *diag) {
  char *log = calloc(2, LOG_BYTES);
  if (!log) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory to load the artefact's code");
  cu_result options[] = {CU_JIT_INFO_LOG, CU_JIT_INFO_LOG_SIZE, CU_JIT_ERROR_LOG, CU_JIT_ERROR_LOG_SIZE,
                         CU_JIT_VERBOSE_LOG};
  void *size = (void *)(uintptr_t)(LOG_BYTES - 1), *yes = (void *)(uintptr_t)1;
  void *values[] = {log, size, log + LOG_BYTES, size, yes};
  cu_result result = d->api.cuModuleLoadDataEx(&d->module, image, 5, options, values);
  kva_status status = KVA_OK;
  if (result != CU_SUCCESS) d->module = NULL, status = refuse_module(d, result, log + LOG_BYTES, diag);
  write_log(code, result == CU_SUCCESS ? log : log + LOG_BYTES);
  free(log);
  return status;
}

/* The driver needs a terminating NUL, which the artefact's text need not have. */
static kva_status load_text(cuda_device *d, const kva_code *code, kva_diag *diag) {
  char *copy = calloc((size_t)code->bytes + 1, 1);
  if (!copy) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory to load the artefact's code");
  memcpy(copy, code->data, (size_t)code->bytes);
  kva_status status = load_image(d, code, copy, diag);
  free(copy);
  return status;
}

/* If the driver rejects a cubin (of a newer toolkit), the PTX that follows it is loaded. */
static kva_status load_module(cuda_device *d, const kva_artifact *a, kva_diag *diag) {
  kva_status status = KVA_MISSING;
  for (int32_t i = 0; (i = kva_device_code(d->base.class, a, i)) >= 0; i++) {
    const kva_code *code = &a->codes[i];
    bool last = kva_device_code(d->base.class, a, i + 1) < 0;
    if (!suits(d, code)) continue;
    status =
        code->format == KVA_CODE_CUBIN ? load_image(d, code, code->data, last ? diag : NULL) : load_text(d, code, diag);
    d->format = code->format;
    if (status == KVA_OK) return KVA_OK;
  }
  return status == KVA_MISSING ? kva_fail(diag, status, NULL, "the artefact has no code for this GPU (%s)", d->arch)
                               : status;
}

/* Facts that the driver does not tell stay 0. */
static void note_facts(cuda_device *d, int32_t i) {
  const kva_kernel_desc *k = &d->artifact->kernels[i];
  int registers = 0, local = 0, shared = 0;
  (void)d->api.cuFuncGetAttribute(&registers, CU_FUNCTION_REGISTERS, d->functions[i]);
  (void)d->api.cuFuncGetAttribute(&local, CU_FUNCTION_LOCAL_BYTES, d->functions[i]);
  (void)d->api.cuFuncGetAttribute(&shared, CU_FUNCTION_SHARED_BYTES, d->functions[i]);
  d->facts[i] = (kva_kernel_facts){.name = k->name,
                                   .code = d->format,
                                   .registers = registers,
                                   .threads = (int)k->threads,
                                   .local_bytes = local,
                                   .shared_bytes = shared + (int64_t)k->dynamic_bytes};
}

void kva_cuda_facts(const kva_device *d, int32_t kernel, kva_kernel_facts *out) {
  *out = ((const cuda_device *)d)->facts[kernel];
}

static void warn_of_local_memory(const cuda_device *d, kva_diag *diag) {
  const kva_kernel_facts *worst = NULL;
  int n = 0;
  for (int32_t i = 0; i < d->artifact->n_kernels; i++) {
    if (d->facts[i].local_bytes <= LOCAL_BYTES) continue;
    n++;
    if (!worst || d->facts[i].local_bytes > worst->local_bytes) worst = &d->facts[i];
  }
  if (worst)
    kva_warn(
        diag, NULL,
        "%d of %d kernels keep values in local memory, which is slow; the most, %lld bytes a thread, '%s'. Machine "
        "code of ptxas (kvasir build --cubin) may need none; KVASIR_CUDA_LOG=FILE keeps what the compiler says",
        n, d->artifact->n_kernels, (long long)worst->local_bytes, worst->name);
}

static kva_status refuse_kernel(const kva_kernel_desc *k, cu_result result, const cuda_device *d, kva_diag *diag) {
  char text[256];
  kva_cuda_error_text(&d->api, result, text, sizeof text);
  return kva_error(diag, NULL, "kernel '%s' (%u bytes of shared memory): %s", k->name,
                   k->shared_bytes + k->dynamic_bytes, text);
}

/* As many blocks as run at once, in whole groups. */
static kva_status find_most_blocks(cuda_device *d, int32_t i, kva_diag *diag) {
  const kva_kernel_desc *k = &d->artifact->kernels[i];
  int may = 0, multiprocessors = 0, each = 0;
  cu_result result = d->api.cuDeviceGetAttribute(&may, CU_ATTRIBUTE_COOPERATIVE_LAUNCH, d->device);
  if (result == CU_SUCCESS)
    result = d->api.cuDeviceGetAttribute(&multiprocessors, CU_ATTRIBUTE_MULTIPROCESSORS, d->device);
  if (result == CU_SUCCESS)
    result =
        d->api.cuOccupancyMaxActiveBlocksPerMultiprocessor(&each, d->functions[i], (int)k->threads, k->dynamic_bytes);
  if (result != CU_SUCCESS) return refuse_kernel(k, result, d, diag);
  int64_t n = may ? (int64_t)multiprocessors * each : 0;
  if (n > KVA_ABI_COOPERATING) n = KVA_ABI_COOPERATING;
  d->most_blocks[i] = (uint32_t)(n - n % k->cooperating);
  if (d->most_blocks[i]) return KVA_OK;
  return kva_fail(diag, KVA_UNSUPPORTED, NULL,
                  "kernel '%s': %u blocks share a row and run at once; this GPU has room for %lld%s", k->name,
                  k->cooperating, (long long)n, may ? "" : ", since its driver has no cooperative launches");
}

static kva_status find_kernel(cuda_device *d, int32_t i, kva_diag *diag) {
  const kva_kernel_desc *k = &d->artifact->kernels[i];
  cu_result result = k->name ? d->api.cuModuleGetFunction(&d->functions[i], d->module, k->name) : CU_ERROR_NOT_FOUND;
  if (result == CU_ERROR_NOT_FOUND)
    return kva_error(diag, NULL, "damaged artefact: its module has no kernel '%s'", k->name ? k->name : "(unnamed)");
  if (result == CU_SUCCESS && k->dynamic_bytes)
    result = d->api.cuFuncSetAttribute(d->functions[i], CU_FUNCTION_MAX_DYNAMIC_SHARED, (int)k->dynamic_bytes);
  if (result == CU_SUCCESS) {
    note_facts(d, i);
    return k->cooperating ? find_most_blocks(d, i, diag) : KVA_OK;
  }
  return refuse_kernel(k, result, d, diag);
}

/* Allocates as many parameters as the largest step needs. */
static kva_status allocate_params(cuda_device *d, kva_diag *diag) {
  const kva_artifact *a = d->artifact;
  int32_t most = 0, most_maps = 0;
  for (int32_t p = 0; p < a->n_programs; p++)
    for (int32_t i = 0; i < a->programs[p].n_steps; i++) {
      const kva_step_desc *s = &a->programs[p].steps[i];
      if (s->kind != KVA_STEP_KERNEL) continue;
      const kva_kernel_desc *k = &a->kernels[s->kernel];
      int32_t n = s->n_args + k->n_symbols + k->n_maps;
      most = n > most ? n : most;
      most_maps = k->n_maps > most_maps ? k->n_maps : most_maps;
    }
  d->params = calloc((size_t)most + 1, sizeof *d->params);
  d->maps = aligned_alloc(_Alignof(cu_tensor_map), sizeof *d->maps * ((size_t)most_maps + 1));
  if (d->params && d->maps) return KVA_OK;
  return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for the parameters of kernels");
}

static bool has_gemms(const kva_artifact *a) {
  for (int32_t p = 0; p < a->n_programs; p++)
    for (int32_t i = 0; i < a->programs[p].n_steps; i++)
      if (a->programs[p].steps[i].kind == KVA_STEP_CALL && a->programs[p].steps[i].call == KVA_CALL_GEMM) return true;
  return false;
}

kva_status kva_cuda_load(kva_device *device, const kva_artifact *a, kva_diag *diag) {
  cuda_device *d = (cuda_device *)device;
  d->artifact = a;
  KVA_TRY(check_arch(d, a, diag));
  KVA_TRY(kva_cuda_enter(d));
  d->functions = calloc((size_t)a->n_kernels + 1, sizeof *d->functions);
  d->facts = calloc((size_t)a->n_kernels + 1, sizeof *d->facts);
  d->most_blocks = calloc((size_t)a->n_kernels + 1, sizeof *d->most_blocks);
  if (!d->functions || !d->facts || !d->most_blocks)
    return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for %d kernels", a->n_kernels);
  if (a->n_kernels) KVA_TRY(load_module(d, a, diag));
  for (int32_t i = 0; i < a->n_kernels; i++) KVA_TRY(find_kernel(d, i, diag));
  warn_of_local_memory(d, diag);
  KVA_TRY(allocate_params(d, diag));
  return has_gemms(a) ? kva_cuda_blas_create(d, diag) : KVA_OK;
}

/* ---- tensor maps ------------------------------------------------------------------------------------------------- */

static int map_type(int32_t dtype) {
  switch (dtype) {
  case KVA_F32: return CU_MAP_F32;
  case KVA_F16: return CU_MAP_F16;
  case KVA_BF16: return CU_MAP_BF16;
  case KVA_F64: return CU_MAP_F64;
  case KVA_I32: return CU_MAP_I32;
  case KVA_I64: return CU_MAP_I64;
  case KVA_U8:
  case KVA_I8: return CU_MAP_U8;
  default: return -1;
  }
}

static int map_swizzle(int32_t bytes) {
  return bytes == 128 ? CU_MAP_SWIZZLE_128 : bytes == 64 ? CU_MAP_SWIZZLE_64 : bytes == 32 ? CU_MAP_SWIZZLE_32 : 0;
}

/* No cache: encoding takes well under a microsecond, and a recorded run keeps the encoded maps. */
static kva_status encode_map(cuda_device *d, const kva_device_launch *l, const kva_tensor_map_desc *m,
                             cu_tensor_map *out) {
  static const uint32_t ones[KVA_ABI_MAP_RANK] = {1, 1, 1, 1, 1};
  uint64_t dims[KVA_ABI_MAP_RANK], strides[KVA_ABI_MAP_RANK];
  uint32_t box[KVA_ABI_MAP_RANK];
  for (int32_t i = 0; i < m->rank; i++) {
    int64_t dim = -1, stride = 0;
    if (!kva_formula_eval(&m->dims[i], l->symbols, &dim) || dim < 0 ||
        (i && (!kva_formula_eval(&m->strides[i], l->symbols, &stride) || stride < 0)))
      return kva_cuda_fail(d, KVA_INVALID, "a tensor map's size is negative or overflows for these shapes");
    dims[i] = (uint64_t)dim;
    if (i) strides[i - 1] = (uint64_t)stride;
    box[i] = (uint32_t)m->box[i];
  }
  int type = map_type(m->dtype);
  if (type < 0 || !d->api.cuTensorMapEncodeTiled)
    return kva_cuda_fail(d, KVA_MISSING, "tensor maps of this type need a driver for CUDA 12 or newer");
  return kva_cuda_check(d,
                        d->api.cuTensorMapEncodeTiled(out, type, (uint32_t)m->rank, l->args[m->argument], dims, strides,
                                                      box, ones, 0, map_swizzle(m->swizzle), CU_MAP_L2_128, 0),
                        "cuTensorMapEncodeTiled");
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* Order: arguments, symbols, tensor maps (see kva_kernel_desc). The driver copies all of them before the launch
 * returns. */
static kva_status fill_params(cuda_device *d, const kva_device_launch *l, const kva_kernel_desc *k) {
  int32_t n = 0;
  for (int32_t i = 0; i < l->step->n_args; i++) d->params[n++] = (void *)(uintptr_t)&l->args[i];
  for (int32_t i = 0; i < k->n_symbols; i++) d->params[n++] = (void *)(uintptr_t)&l->symbols[k->symbols[i]];
  for (int32_t i = 0; i < k->n_maps; i++) {
    KVA_TRY(encode_map(d, l, &k->maps[i], &d->maps[i]));
    d->params[n++] = &d->maps[i];
  }
  return KVA_OK;
}

static cu_result start(cuda_device *d, int32_t kernel, int64_t items) {
  const kva_kernel_desc *k = &d->artifact->kernels[kernel];
  cu_function f = d->functions[kernel];
  unsigned n = (unsigned)items;
  if (!k->cooperating)
    return d->api.cuLaunchKernel(f, n, 1, 1, k->threads, 1, 1, k->dynamic_bytes, d->stream, d->params, NULL);
  if (n > d->most_blocks[kernel]) n = d->most_blocks[kernel];
  return d->api.cuLaunchCooperativeKernel(f, n, 1, 1, k->threads, 1, 1, k->dynamic_bytes, d->stream, d->params);
}

kva_status kva_cuda_launch(kva_device *device, const kva_device_launch *l) {
  cuda_device *d = (cuda_device *)device;
  const kva_kernel_desc *k = &d->artifact->kernels[l->step->kernel];
  KVA_TRY(kva_cuda_enter(d));
  if (!l->items) return KVA_OK;
  if (l->items > INT32_MAX)
    return kva_cuda_fail(d, KVA_UNSUPPORTED, "%s: %lld blocks; a GPU runs at most %d", k->name, (long long)l->items,
                         INT32_MAX);
  if (k->cooperating && l->items % k->cooperating)
    return kva_cuda_fail(d, KVA_INVALID, "%s: %lld blocks, of which %u wait for each other", k->name,
                         (long long)l->items, k->cooperating);
  KVA_TRY(fill_params(d, l, k));
  return kva_cuda_check(d, start(d, l->step->kernel, l->items), k->name);
}
