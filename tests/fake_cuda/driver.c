/* Devices, contexts, modules, launches; running an operation on the simulator. */
#include "tests/fake_cuda/fake.h"

#include <stdlib.h>
#include <unistd.h>

struct cu_context_object {
  int unused;
};
struct cu_module_object {
  kva_ptx_module *ptx;
  struct cu_function_object *functions; /* a list */
};
struct cu_function_object {
  fake_function f;
  struct cu_function_object *next;
};

static struct cu_context_object primary;
static int retained, in_use; /* in_use: the one GPU that a process uses */
static _Thread_local cu_context current;
static bool initialised;
static pid_t owner; /* that initialised it: its children cannot use what it has */
static int violations;
static kva_pool *pool;
static uint64_t launches;

static int setting(const char *name, int usual) {
  const char *v = getenv(name);
  return v && *v ? atoi(v) : usual;
}

void fake_violation(const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  fprintf(stderr, "fake_cuda: ");
  vfprintf(stderr, fmt, args);
  fprintf(stderr, "\n");
  va_end(args);
  violations++;
}

int fake_cuda_violations(void) {
  return violations;
}

cu_result fake_state(void) {
  if (!initialised || getpid() != owner) return 3; /* CUDA_ERROR_NOT_INITIALIZED */
  if (current != &primary || !retained) return ERROR_INVALID_CONTEXT;
  return fake_failure();
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

cu_result fake_cuInit(unsigned flags) {
  if (flags) return CU_ERROR_INVALID_VALUE;
  if (setting("FAKE_CUDA_DEVICES", 1) == 0) return CU_ERROR_NO_DEVICE;
  if (initialised && getpid() != owner) return 3; /* CUDA_ERROR_NOT_INITIALIZED */
  initialised = true, owner = getpid();
  return CU_SUCCESS;
}

cu_result fake_cuDriverGetVersion(int *out_version) {
  *out_version = setting("FAKE_CUDA_DRIVER", 12040);
  return CU_SUCCESS;
}

cu_result fake_cuDeviceGetCount(int *out_n) {
  *out_n = setting("FAKE_CUDA_DEVICES", 1);
  return CU_SUCCESS;
}

cu_result fake_cuDeviceGet(cu_device *out_device, int ordinal) {
  *out_device = ordinal;
  return ordinal >= 0 && ordinal < setting("FAKE_CUDA_DEVICES", 1) ? CU_SUCCESS : 101; /* INVALID_DEVICE */
}

cu_result fake_cuDeviceGetName(char *name, int size, cu_device device) {
  snprintf(name, (size_t)size, "Simulated GPU %d", device);
  return CU_SUCCESS;
}

enum { MULTIPROCESSORS = 4 };

cu_result fake_cuDeviceGetAttribute(int *out_value, cu_result attribute, cu_device device) {
  (void)device;
  int capability = setting("FAKE_CUDA_CAPABILITY", 90);
  switch (attribute) {
  case CU_ATTRIBUTE_MULTIPROCESSORS: *out_value = MULTIPROCESSORS; return CU_SUCCESS;
  case CU_ATTRIBUTE_COOPERATIVE_LAUNCH: *out_value = setting("FAKE_CUDA_COOPERATIVE", 1); return CU_SUCCESS;
  case CU_ATTRIBUTE_MAJOR: *out_value = capability / 10; return CU_SUCCESS;
  case CU_ATTRIBUTE_MINOR: *out_value = capability % 10; return CU_SUCCESS;
  default: return CU_ERROR_INVALID_VALUE;
  }
}

/* FAKE_CUDA_MEMORY, FAKE_CUDA_FREE: MiB that there are, and that are free. */
cu_result fake_cuDeviceTotalMem(size_t *out_bytes, cu_device device) {
  (void)device;
  *out_bytes = (size_t)setting("FAKE_CUDA_MEMORY", 1024) << 20;
  return CU_SUCCESS;
}

cu_result fake_cuMemGetInfo(size_t *out_free, size_t *out_total) {
  if (fake_state()) return fake_state();
  *out_free = (size_t)setting("FAKE_CUDA_FREE", 1024) << 20;
  return fake_cuDeviceTotalMem(out_total, 0);
}

cu_result fake_cuDevicePrimaryCtxRetain(cu_context *out_context, cu_device device) {
  if (!initialised || device < 0 || device >= setting("FAKE_CUDA_DEVICES", 1) || (retained && device != in_use))
    return CU_ERROR_INVALID_VALUE;
  in_use = device;
  retained++;
  if (!pool) pool = kva_pool_create(2);
  *out_context = &primary;
  return CU_SUCCESS;
}

int fake_ordinal(void) {
  return in_use;
}

cu_result fake_cuDevicePrimaryCtxRelease(cu_device device) {
  (void)device;
  if (!retained) return ERROR_INVALID_CONTEXT;
  if (--retained) return CU_SUCCESS;
  if (fake_live_blocks()) fake_violation("%d blocks of memory were never freed", fake_live_blocks());
  kva_pool_destroy(pool);
  pool = NULL;
  fake_forget_failure();
  return CU_SUCCESS;
}

cu_result fake_cuCtxSetCurrent(cu_context context) {
  if (context && (context != &primary || !retained)) return ERROR_INVALID_CONTEXT;
  current = context;
  return CU_SUCCESS;
}

cu_result fake_cuGetErrorName(cu_result error, const char **out_name) {
  static const struct {
    int error;
    const char *name;
  } names[] = {{0, "CUDA_SUCCESS"},
               {1, "CUDA_ERROR_INVALID_VALUE"},
               {2, "CUDA_ERROR_OUT_OF_MEMORY"},
               {100, "CUDA_ERROR_NO_DEVICE"},
               {201, "CUDA_ERROR_INVALID_CONTEXT"},
               {218, "CUDA_ERROR_INVALID_PTX"},
               {500, "CUDA_ERROR_NOT_FOUND"},
               {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
               {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
               {912, "CUDA_ERROR_INVALID_CLUSTER_SIZE"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (names[i].error == error) return *out_name = names[i].name, CU_SUCCESS;
  return CU_ERROR_INVALID_VALUE;
}

cu_result fake_cuGetErrorString(cu_result error, const char **out_text) {
  return fake_cuGetErrorName(error, out_text);
}

/* ---- modules ----------------------------------------------------------------------------------------------------- */

static void write_log(unsigned n, const cu_result *options, void **values, const char *text) {
  char *log = NULL;
  size_t size = 0;
  for (unsigned i = 0; i < n; i++) {
    if (options[i] == CU_JIT_ERROR_LOG) log = values[i];
    if (options[i] == CU_JIT_ERROR_LOG_SIZE) size = (size_t)(uintptr_t)values[i];
  }
  if (log && size) snprintf(log, size, "%s", text);
}

/* For tests of what is loaded. */
static void show_module(const char *ptx, bool is_cubin) {
  const char *target = strstr(ptx, ".target sm_");
  if (!getenv("FAKE_CUDA_SHOW_MODULES")) return;
  fprintf(stderr, "fake driver: %s for ", is_cubin ? "machine code" : "PTX");
  fprintf(stderr, "%.*s\n", target ? (int)strcspn(target + 8, ",\n ") : 15, target ? target + 8 : "no architecture");
}

cu_result fake_cuModuleLoadDataEx(cu_module *out_module, const void *image, unsigned n_options, cu_result *options,
                                  void **values) {
  cu_result r = fake_state();
  if (r != CU_SUCCESS) return r;
  /* This driver's machine code is PTX behind the mark of an ELF file. */
  bool is_cubin = !memcmp(image, "\177ELF", 4);
  if (is_cubin) image = (const char *)image + 4;
  show_module(image, is_cubin);
  cu_module m = calloc(1, sizeof *m);
  kva_diag *diag = kva_diag_create();
  if (!m || kva_ptx_module_create(image, strlen(image), "module", diag, &m->ptx) != KVA_OK) {
    write_log(n_options, options, values,
              kva_diag_count(diag) ? kva_diag_message(diag, 0, NULL, NULL) : "out of memory");
    free(m);
    m = NULL;
  }
  kva_diag_destroy(diag);
  *out_module = m;
  return m ? CU_SUCCESS : CU_ERROR_INVALID_PTX;
}

cu_result fake_cuModuleUnload(cu_module module) {
  fake_wait(NULL);
  kva_ptx_module_destroy(module->ptx);
  for (cu_function f = module->functions, next; f; f = next) {
    next = f->next;
    free(f);
  }
  free(module);
  return CU_SUCCESS;
}

cu_result fake_cuModuleGetFunction(cu_function *out_function, cu_module module, const char *name) {
  const kva_ptx_kernel *kernel = kva_ptx_module_get_kernel(module->ptx, name);
  if (!kernel) return CU_ERROR_NOT_FOUND;
  cu_function f = calloc(1, sizeof *f);
  if (!f) return CU_ERROR_OUT_OF_MEMORY;
  f->f = (fake_function){.kernel = kernel, .most_dynamic = 48 << 10, .module = module};
  f->next = module->functions;
  module->functions = *out_function = f;
  return CU_SUCCESS;
}

/* Local memory as the text says; registers are what this driver makes up. */
cu_result fake_cuFuncGetAttribute(int *out_value, cu_result attribute, cu_function function) {
  const kva_ptx_kernel_info *info = kva_ptx_kernel_get_info(function->f.kernel);
  switch (attribute) {
  case CU_FUNCTION_SHARED_BYTES: *out_value = (int)info->static_shared; return CU_SUCCESS;
  case CU_FUNCTION_LOCAL_BYTES: *out_value = setting("FAKE_CUDA_LOCAL_BYTES", (int)info->local); return CU_SUCCESS;
  case CU_FUNCTION_REGISTERS: *out_value = 32; return CU_SUCCESS;
  default: return CU_ERROR_INVALID_VALUE;
  }
}

cu_result fake_cuFuncSetAttribute(cu_function function, cu_result attribute, int value) {
  if (attribute != CU_FUNCTION_MAX_DYNAMIC_SHARED || value < 0 || value > 227 << 10) return CU_ERROR_INVALID_VALUE;
  function->f.most_dynamic = (uint32_t)value;
  return CU_SUCCESS;
}

/* CUtensorMapDataType by element type. */
static kva_dtype type_of(cu_result type) {
  static const kva_dtype types[] = {
      [CU_MAP_U8] = KVA_U8,   [CU_MAP_U16] = KVA_U16,  [CU_MAP_U32] = KVA_U32, [CU_MAP_I32] = KVA_I32,
      [CU_MAP_U64] = KVA_U64, [CU_MAP_I64] = KVA_I64,  [CU_MAP_F16] = KVA_F16, [CU_MAP_F32] = KVA_F32,
      [CU_MAP_F64] = KVA_F64, [CU_MAP_BF16] = KVA_BF16};
  return type >= 0 && type <= CU_MAP_BF16 ? types[type] : KVA_DTYPE_NONE;
}

/* Strides begin with that of dimension 1, in bytes; the simulator has an encoding of its own. */
cu_result fake_cuTensorMapEncodeTiled(cu_tensor_map *out_map, cu_result dtype, uint32_t rank, void *base,
                                      const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                                      const uint32_t *element_strides, cu_result interleave, cu_result swizzle,
                                      cu_result l2_promotion, cu_result out_of_bounds) {
  if (rank < 1 || rank > 5 || interleave || out_of_bounds || swizzle < 0 || swizzle > 3 || l2_promotion < 0 ||
      l2_promotion > 3 || (uintptr_t)out_map % 64)
    return CU_ERROR_INVALID_VALUE;
  kva_ptxsim_map map = {
      .dtype = type_of(dtype), .rank = rank, .address = base, .swizzle = swizzle ? 16u << swizzle : 0};
  for (uint32_t i = 0; i < rank; i++) {
    if (element_strides[i] != 1) return CU_ERROR_INVALID_VALUE;
    map.dims[i] = dims[i];
    map.strides[i] = i ? strides[i - 1] : 0;
    map.box[i] = box[i];
  }
  return kva_ptxsim_encode_map(&map, NULL, (unsigned char *)out_map) == KVA_OK ? CU_SUCCESS : CU_ERROR_INVALID_VALUE;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* A launch without attributes has the kernel's own clusters, which the grid must be a multiple of. */
static bool fills_clusters(const kva_ptx_kernel_info *info, unsigned x, unsigned y, unsigned z) {
  const uint32_t *c = info->cluster;
  return !c[0] || (x % c[0] == 0 && y % c[1] == 0 && z % c[2] == 0);
}

static cu_result enqueue_kernel(cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                unsigned block_x, unsigned block_y, unsigned block_z, unsigned dynamic_shared,
                                cu_stream stream, void **params, bool cooperative) {
  cu_result r = fake_state();
  if (r != CU_SUCCESS) return r;
  const kva_ptx_kernel_info *info = kva_ptx_kernel_get_info(function->f.kernel);
  if (!grid_x || !grid_y || !grid_z || grid_x > INT32_MAX || !block_x || !block_y || !block_z ||
      dynamic_shared > function->f.most_dynamic)
    return CU_ERROR_INVALID_VALUE;
  if (!fills_clusters(info, grid_x, grid_y, grid_z)) return ERROR_INVALID_CLUSTER_SIZE;
  size_t bytes = 0;
  for (uint32_t i = 0; i < info->n_params; i++) bytes += info->params[i].size + info->params[i].align;
  unsigned char *copy = calloc(bytes + 1, 1);
  if (!copy) return CU_ERROR_OUT_OF_MEMORY;
  for (uint32_t i = 0; i < info->n_params; i++) memcpy(copy + info->params[i].offset, params[i], info->params[i].size);
  const fake_op op = {.kind = FAKE_KERNEL,
                      .function = &function->f,
                      .grid = {grid_x, grid_y, grid_z},
                      .block = {block_x, block_y, block_z},
                      .dynamic = dynamic_shared,
                      .cooperative = cooperative,
                      .params = copy};
  return fake_enqueue(stream, &op);
}

cu_result fake_cuLaunchKernel(cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                              unsigned block_y, unsigned block_z, unsigned dynamic_shared, cu_stream stream,
                              void **params, void **extra) {
  if (extra) return CU_ERROR_INVALID_VALUE;
  return enqueue_kernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, dynamic_shared, stream, params,
                        false);
}

/* FAKE_CUDA_OCCUPANCY: blocks that a multiprocessor has room for, of any kernel. */
cu_result fake_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out_blocks, cu_function function, int threads,
                                                           size_t dynamic_shared) {
  if (threads <= 0 || dynamic_shared > function->f.most_dynamic) return CU_ERROR_INVALID_VALUE;
  *out_blocks = setting("FAKE_CUDA_OCCUPANCY", 3);
  return CU_SUCCESS;
}

cu_result fake_cuLaunchCooperativeKernel(cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                         unsigned block_x, unsigned block_y, unsigned block_z, unsigned dynamic_shared,
                                         cu_stream stream, void **params) {
  if ((uint64_t)grid_x * grid_y * grid_z > MULTIPROCESSORS * (uint64_t)setting("FAKE_CUDA_OCCUPANCY", 3))
    return ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  return enqueue_kernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, dynamic_shared, stream, params,
                        true);
}

static kva_status simulate(const fake_op *op, const void *const *params, kva_ptx_memory *memory, kva_diag *diag) {
  const kva_ptx_kernel_info *info = kva_ptx_kernel_get_info(op->function->kernel);
  launches++;
  kva_ptx_options options = {.pool = pool,
                             .no_counters = true,
                             .schedule_seed = launches,
                             .lazy = launches % 2,
                             .cooperative = op->cooperative};
  kva_ptx_report report;
  KVA_TRY(fake_register(memory));
  KVA_TRY(kva_ptx_launch(op->function->kernel, memory, op->grid, op->block, op->dynamic, params, info->n_params,
                         &options, diag, &report));
  uint32_t findings = report.n_findings;
  if (findings) kva_ptx_report_print_findings(&report, info->name, stderr);
  kva_ptx_report_free(&report);
  return findings ? KVA_INVALID : KVA_OK;
}

static cu_result run_kernel(const fake_op *op) {
  const kva_ptx_kernel_info *info = kva_ptx_kernel_get_info(op->function->kernel);
  const void **params = calloc(info->n_params + 1, sizeof *params);
  kva_ptx_memory *memory = kva_ptx_memory_create();
  kva_diag *diag = kva_diag_create();
  if (!params || !memory) return CU_ERROR_OUT_OF_MEMORY;
  for (uint32_t i = 0; i < info->n_params; i++) params[i] = op->params + info->params[i].offset;
  kva_status status = simulate(op, params, memory, diag);
  if (status != KVA_OK) kva_diag_print(diag, stderr);
  kva_diag_destroy(diag);
  kva_ptx_memory_destroy(memory);
  free(params);
  return status == KVA_OK ? CU_SUCCESS : ERROR_ILLEGAL_ADDRESS;
}

static bool is_alive(const void *p, size_t bytes) {
  return fake_is_device(p, bytes) || fake_is_pinned(p, bytes);
}

/* Whether FAKE_CUDA_INJECT ("hang=TEXT;fault=TEXT;wrong=TEXT") wants this to happen in the running case of the checker
 * (tools/gpucheck): "name, target, cubin" or "..., ptx" has TEXT in it. */
static bool is_injected(const char *what) {
  const char *list = getenv("FAKE_CUDA_INJECT"), *name = getenv("KVASIR_GPU_CASE");
  for (const char *p = list; p && name && *p; p += strcspn(p, ";"), p += *p == ';') {
    size_t key = strlen(what), size = strcspn(p, ";");
    char text[256];
    if (strncmp(p, what, key) != 0 || p[key] != '=') continue;
    snprintf(text, sizeof text, "%.*s", (int)(size - key - 1), p + key + 1);
    if (strstr(name, text)) return true;
  }
  return false;
}

/* A kernel that never ends, or one that fails; what is copied to the host is wrong at its end. */
static cu_result inject(const fake_op *op) {
  while (op->kind == FAKE_KERNEL && is_injected("hang")) pause();
  if (op->kind == FAKE_COPY && fake_is_pinned(op->to, op->bytes) && is_injected("wrong"))
    memset((char *)op->to + op->bytes - (op->bytes < 8 ? op->bytes : 8), 0x5A, op->bytes < 8 ? op->bytes : 8);
  return op->kind == FAKE_KERNEL && is_injected("fault") ? ERROR_ILLEGAL_ADDRESS : CU_SUCCESS;
}

cu_result fake_run(const fake_op *op) {
  cu_result r = CU_SUCCESS;
  if ((op->kind == FAKE_COPY && (!is_alive(op->to, op->bytes) || !is_alive(op->from, op->bytes))) ||
      (op->kind == FAKE_FILL && !is_alive(op->to, op->bytes))) {
    fake_violation("a copy or fill of %zu bytes reaches memory that was freed", op->bytes);
    return ERROR_ILLEGAL_ADDRESS;
  }
  switch (op->kind) {
  case FAKE_COPY: memmove(op->to, op->from, op->bytes); break;
  case FAKE_FILL: memset(op->to, op->value, op->bytes); break;
  case FAKE_KERNEL: r = run_kernel(op); break;
  case FAKE_GEMM: fake_multiply(&op->gemm); break;
  case FAKE_TRANSFER: r = fake_transfer(op); break;
  case FAKE_EVENT:
  case FAKE_AWAIT: break;
  }
  return r == CU_SUCCESS ? inject(op) : r;
}
