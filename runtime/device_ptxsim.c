/* The PTX simulator as a device: runs a GPU's code and checks every access. A kernel may access its arguments only;
 * inputs and constants are read-only; fresh memory holds a pattern instead of zeros. A finding of the simulator fails
 * the launch that caused it. */
#include "runtime/device.h"
#include "runtime/formula.h"
#include "runtime/ptxsim/ptxsim.h"

#include <stdlib.h>

enum { PATTERN = 0xA5 };

typedef struct ptxsim_device {
  kva_device base;
  const kva_artifact *artifact;
  kva_ptx_module *module;
  const kva_ptx_kernel **kernels; /* by number in the artefact */
  kva_diag *diag;                 /* for messages of launches */
  uint64_t launches;
  kva_text error;
} ptxsim_device;

/* ---- creation, code ---------------------------------------------------------------------------------------------- */

static kva_status create(kva_pool *pool, kva_diag *diag, kva_device **out_device) {
  ptxsim_device *d = calloc(1, sizeof *d);
  if (!d) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a device");
  d->base = (kva_device){&kva_device_ptxsim, pool};
  d->diag = kva_diag_create();
  *out_device = &d->base;
  return KVA_OK;
}

static void destroy(kva_device *device) {
  ptxsim_device *d = (ptxsim_device *)device;
  kva_ptx_module_destroy(d->module);
  kva_diag_destroy(d->diag);
  kva_text_free(&d->error);
  free(d->kernels);
  free(d);
}

static kva_status load(kva_device *device, const kva_artifact *a, kva_diag *diag) {
  ptxsim_device *d = (ptxsim_device *)device;
  d->artifact = a;
  const kva_code *code = &a->codes[kva_device_code(device->class, a, 0)];
  KVA_TRY(kva_ptx_module_create(code->data, (size_t)code->bytes, a->model ? a->model : "artefact", diag, &d->module));
  d->kernels = calloc((size_t)a->n_kernels + 1, sizeof *d->kernels);
  if (!d->kernels) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for %d kernels", a->n_kernels);
  for (int32_t i = 0; i < a->n_kernels; i++) {
    const char *name = a->kernels[i].name;
    d->kernels[i] = name ? kva_ptx_module_get_kernel(d->module, name) : NULL;
    if (!d->kernels[i])
      return kva_error(diag, NULL, "damaged artefact: its module has no kernel '%s'", name ? name : "(unnamed)");
  }
  return KVA_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static kva_status allocate(kva_device *d, int64_t bytes, kva_block *out_block) {
  (void)d;
  KVA_TRY(kva_block_create(bytes, out_block));
  if (out_block->data) memset(out_block->data, PATTERN, (size_t)bytes);
  return KVA_OK;
}

static void free_block(kva_device *d, kva_block *block) {
  (void)d;
  kva_block_destroy(block);
}

static kva_status copy(kva_device *d, void *to, const void *from, int64_t bytes) {
  (void)d;
  if (bytes && to != from) memcpy(to, from, (size_t)bytes);
  return KVA_OK;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static const char *kernel_name(const ptxsim_device *d, const kva_device_launch *l) {
  return d->artifact->kernels[l->step->kernel].name;
}

/* Reports an error of the simulator, whose text is in d->diag. */
static kva_status refuse(ptxsim_device *d, const kva_device_launch *l, kva_status status) {
  size_t n = kva_diag_count(d->diag);
  kva_text_add(&d->error, "%s: %s", kernel_name(d, l),
               n ? kva_diag_message(d->diag, n - 1, NULL, NULL) : kva_status_name(status));
  kva_diag_clear(d->diag);
  return status;
}

static bool is_known(const kva_step_desc *step, int32_t arg) {
  for (int32_t i = 0; i < arg; i++)
    if (step->args[i] == step->args[arg]) return true;
  return false;
}

static bool is_result(const kva_step_desc *step, int32_t buffer) {
  for (int32_t i = step->n_args - step->n_results; i < step->n_args; i++)
    if (step->args[i] == buffer) return true;
  return false;
}

/* GPUs have no byte atomics: stores of packed elements update whole words (see kva_kernel_desc). */
static size_t reach(const kva_buffer_desc *b, int64_t bytes) {
  return (size_t)(kva_dtype_bits((kva_dtype)b->dtype) < 8 ? (bytes + 3) / 4 * 4 : bytes);
}

/* Registers exactly the step's buffers as separate ranges, so that their neighbours in the arena are out of bounds. A
 * temporary is undefined at its first step. */
static kva_status add_ranges(const kva_device_launch *l, kva_ptx_memory *memory) {
  for (int32_t i = 0; i < l->step->n_args; i++) {
    int32_t number = l->step->args[i];
    const kva_buffer_desc *b = &l->program->buffers[number];
    if (is_known(l->step, i) || !l->bytes[number]) continue;
    bool writable = b->kind == KVA_BUFFER_INPUT ? is_result(l->step, number) : b->kind != KVA_BUFFER_CONST;
    char name[32];
    snprintf(name, sizeof name, "buffer %d", number);
    bool fresh = b->kind == KVA_BUFFER_TEMP && l->step - l->program->steps == b->first_step;
    size_t bytes = reach(b, l->bytes[number]);
    const char *called = b->name ? b->name : name;
    KVA_TRY(fresh ? kva_ptx_memory_add_undefined(memory, l->args[i], bytes, called)
                  : kva_ptx_memory_add(memory, l->args[i], bytes, writable, called));
  }
  return KVA_OK;
}

static kva_status report_findings(ptxsim_device *d, const kva_device_launch *l, const kva_ptx_report *report) {
  if (!report->n_findings) return KVA_OK;
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  if (out) {
    kva_ptx_report_print_findings(report, kernel_name(d, l), out);
    fclose(out);
  }
  kva_text_add(&d->error, "%u findings of the simulator:\n%s", report->n_findings, text ? text : "");
  while (d->error.len && d->error.data[d->error.len - 1] == '\n') d->error.data[--d->error.len] = 0;
  free(text);
  return KVA_INVALID;
}

static kva_status run(ptxsim_device *d, const kva_device_launch *l, const kva_ptx_memory *memory,
                      const void *const *params) {
  const kva_kernel_desc *k = &d->artifact->kernels[l->step->kernel];
  kva_ptx_dim3 grid = {kva_ptx_grid(l->items, k->cooperating), 1, 1}, block = {k->threads, 1, 1};
  kva_ptx_options options = {
      .pool = d->base.pool, .no_counters = true, .schedule_seed = ++d->launches, .cooperative = k->cooperating > 0};
  kva_ptx_report report;
  kva_status status =
      kva_ptx_launch(d->kernels[l->step->kernel], memory, grid, block, k->dynamic_bytes, params,
                     (uint32_t)(l->step->n_args + k->n_symbols + k->n_maps), &options, d->diag, &report);
  if (status != KVA_OK) return refuse(d, l, status);
  status = report_findings(d, l, &report);
  kva_ptx_report_free(&report);
  return status;
}

/* Encodes one of the kernel's tensor maps for this launch's symbols and addresses. */
static kva_status encode_map(ptxsim_device *d, const kva_device_launch *l, const kva_tensor_map_desc *desc,
                             unsigned char *out) {
  kva_ptxsim_map map = {.dtype = (kva_dtype)desc->dtype,
                        .rank = (uint32_t)desc->rank,
                        .address = l->args[desc->argument],
                        .swizzle = (uint32_t)desc->swizzle};
  for (int32_t k = 0; k < desc->rank && k < KVA_ABI_MAP_RANK; k++) {
    int64_t dim = 0, stride = 0;
    if (!kva_formula_eval(&desc->dims[k], l->symbols, &dim) ||
        (k && !kva_formula_eval(&desc->strides[k], l->symbols, &stride)))
      return kva_error(d->diag, NULL, "a tensor map's extents overflow");
    map.dims[k] = (uint64_t)dim;
    map.strides[k] = (uint64_t)stride;
    map.box[k] = (uint32_t)desc->box[k];
  }
  return kva_ptxsim_encode_map(&map, d->diag, out);
}

/* Fills in pointers to the parameters: arguments, symbols, then tensor maps, which are stored in `maps`. */
static kva_status set_params(ptxsim_device *d, const kva_device_launch *l, unsigned char *maps, const void **params) {
  const kva_kernel_desc *k = &d->artifact->kernels[l->step->kernel];
  for (int32_t i = 0; i < l->step->n_args; i++) *params++ = &l->args[i];
  for (int32_t i = 0; i < k->n_symbols; i++) *params++ = &l->symbols[k->symbols[i]];
  for (int32_t i = 0; i < k->n_maps; i++) {
    *params++ = maps + KVA_PTXSIM_MAP_BYTES * (size_t)i;
    KVA_TRY(encode_map(d, l, &k->maps[i], maps + KVA_PTXSIM_MAP_BYTES * (size_t)i));
  }
  return KVA_OK;
}

static kva_status launch_in(ptxsim_device *d, const kva_device_launch *l, kva_ptx_memory *memory) {
  const kva_kernel_desc *k = &d->artifact->kernels[l->step->kernel];
  const void **params = calloc((size_t)(l->step->n_args + k->n_symbols + k->n_maps) + 1, sizeof *params);
  unsigned char *maps = calloc((size_t)k->n_maps + 1, KVA_PTXSIM_MAP_BYTES);
  kva_status status = params && maps ? add_ranges(l, memory) : KVA_NO_MEMORY;
  if (status == KVA_OK) status = set_params(d, l, maps, params);
  status = status == KVA_OK ? run(d, l, memory, params) : refuse(d, l, status);
  free(maps);
  free(params);
  return status;
}

static kva_status launch(kva_device *device, const kva_device_launch *l) {
  ptxsim_device *d = (ptxsim_device *)device;
  const kva_kernel_desc *k = &d->artifact->kernels[l->step->kernel];
  kva_text_free(&d->error);
  if (!l->items) return KVA_OK;
  if (l->items > INT32_MAX) {
    kva_text_add(&d->error, "%s: %lld blocks; a GPU runs at most %d", k->name, (long long)l->items, INT32_MAX);
    return KVA_UNSUPPORTED;
  }
  kva_ptx_memory *memory = kva_ptx_memory_create();
  kva_status status = memory ? launch_in(d, l, memory) : refuse(d, l, KVA_NO_MEMORY);
  kva_ptx_memory_destroy(memory);
  return status;
}

static kva_status synchronise(kva_device *d) {
  (void)d;
  return KVA_OK;
}

static const char *error(const kva_device *d) {
  const char *text = ((const ptxsim_device *)d)->error.data;
  return text ? text : "";
}

const kva_device_class kva_device_ptxsim = {.name = "ptxsim",
                                            .formats = 1u << KVA_CODE_PTX,
                                            .arch = "sm_80",
                                            .create = create,
                                            .destroy = destroy,
                                            .load = load,
                                            .allocate = allocate,
                                            .free = free_block,
                                            .copy_in = copy,
                                            .copy_out = copy,
                                            .copy = copy,
                                            .launch = launch,
                                            .synchronise = synchronise,
                                            .error = error};
