/* The CPU as a device: kernels are functions of this process; the pool's threads share their work items. Items are
 * independent, so results have the same bits on any number of threads. */
#include "runtime/device.h"
#include "runtime/base/cpu.h"

/* Waking threads takes a few microseconds, which copies below SERIAL_BYTES do not repay. */
enum { SERIAL_BYTES = 16 << 10, COPY_PIECE = 64 << 10 };

typedef struct cpu_device {
  kva_device base;
  const kva_artifact *artifact;
} cpu_device;

static kva_status create(kva_pool *pool, kva_diag *diag, kva_device **out_device) {
  cpu_device *d = kva_allocate(kva_pool_allocator(pool), sizeof *d, _Alignof(cpu_device));
  if (!d) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a device");
  d->base = (kva_device){&kva_device_cpu, pool};
  *out_device = &d->base;
  return KVA_OK;
}

static void destroy(kva_device *d) {
  kva_release(kva_pool_allocator(d->pool), d);
}

static kva_status load(kva_device *d, const kva_artifact *a, kva_diag *diag) {
  ((cpu_device *)d)->artifact = a;
  return kva_cpu_check(a->codes[kva_device_code(&kva_device_cpu, a, 0)].needs, a->target, diag);
}

static kva_status allocate(kva_device *d, int64_t bytes, kva_block *out_block) {
  return kva_block_create_from(kva_pool_allocator(d->pool), bytes, out_block);
}

static void free_block(kva_device *d, kva_block *block) {
  (void)d;
  kva_block_destroy(block);
}

typedef struct copy_job {
  char *to;
  const char *from;
  int64_t bytes;
} copy_job;

static void copy_items(void *ctx, int64_t begin, int64_t end) {
  const copy_job *job = ctx;
  int64_t first = begin * COPY_PIECE, last = end * COPY_PIECE < job->bytes ? end * COPY_PIECE : job->bytes;
  memcpy(job->to + first, job->from + first, (size_t)(last - first));
}

static kva_status copy(kva_device *d, void *to, const void *from, int64_t bytes) {
  copy_job job = {.to = to, .from = from, .bytes = bytes};
  if (to != from)
    kva_pool_run(bytes < SERIAL_BYTES ? NULL : d->pool, (bytes + COPY_PIECE - 1) / COPY_PIECE, copy_items, &job);
  return KVA_OK;
}

typedef struct kernel_job {
  kva_kernel_fn fn;
  void *const *args;
  const int64_t *symbols;
} kernel_job;

static void run_items(void *ctx, int64_t begin, int64_t end) {
  const kernel_job *job = ctx;
  job->fn(job->args, job->symbols, begin, end);
}

static kva_status launch(kva_device *d, const kva_device_launch *l) {
  const kva_step_desc *s = l->step;
  kva_kernel_fn fn = ((const cpu_device *)d)->artifact->kernels[s->kernel].fn;
  int64_t symbols[KVA_ABI_STEP_SYMBOLS];
  for (int32_t i = 0; i < s->n_symbols; i++) symbols[i] = l->symbols[s->symbols[i]];
  kernel_job job = {.fn = fn, .args = l->args, .symbols = s->n_symbols ? symbols : l->symbols};
  kva_pool_run(l->serial ? NULL : d->pool, l->items, run_items, &job);
  return KVA_OK;
}

static kva_status synchronise(kva_device *d) {
  (void)d;
  return KVA_OK;
}

static const char *error(const kva_device *d) {
  (void)d;
  return "";
}

const kva_device_class kva_device_cpu = {.name = "cpu",
                                         .formats = 1u << KVA_CODE_FUNCTIONS,
                                         .host_memory = true,
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
