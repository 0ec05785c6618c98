/* The pipeline of a kernel: what happens to a step of a plan, in order, until machine code is made. Each pass is a row
 * of passes.def. */
#include "codegen/legalize.h"
#include "codegen/schedule_gpu.h"

/* ---- properties -------------------------------------------------------------------------------------------------- */

static bool is_lowered(const void *ir) {
  return ((const kva_kernel_job *)ir)->kernel;
}

static bool is_unscheduled(const void *ir) {
  return !kva_sched_is_scheduled(((const kva_kernel_job *)ir)->kernel);
}

static bool is_scheduled(const void *ir) {
  return !kva_sched_has_map(((const kva_kernel_job *)ir)->kernel->body);
}

static bool has_threads(const void *ir) {
  return ((const kva_kernel_job *)ir)->kernel->threads;
}

static const kva_pass_property properties[] = {
#define PROPERTY(name, function, help) {#name, help, function},
#include "codegen/passes.def"
};

/* ---- passes ------------------------------------------------------------------------------------------------------ */

static void visit_index(void *user, const kva_expr **e) {
  *(bool *)user |= (*e)->kind == KVA_EXPR_OVERFLOW;
}

static void find_overflow(void *user, kva_kinstr *i) {
  const kva_kinstr **found = user;
  bool overflowed = false;
  kva_k_each_index(i, visit_index, &overflowed);
  if (overflowed) *found = i;
}

/* Groups that fusion made have simple indices (passes/fuse_budget.c); one operator over very many symbols may not. */
static kva_status lower(kva_kernel_job *job) {
  const kva_kinstr *overflow = NULL;
  job->kernel = kva_codegen_lower(job->arena, job->node, job->target);
  if (!job->kernel) return KVA_UNSUPPORTED;
  kva_k_each_instr(job->kernel, find_overflow, &overflow);
  if (!overflow) return KVA_OK;
  return kva_fail(job->diag, KVA_UNSUPPORTED, &job->node->loc,
                  "kv.%s: cannot be compiled: the index of a %s is too long an expression, or beyond 64 bits",
                  kva_codegen_kernel_name_of(job->node), kva_kop_name(overflow->op));
}

#define ON_KERNEL(name, call)                   \
  static kva_status name(kva_kernel_job *job) { \
    call;                                       \
    return KVA_OK;                              \
  }
ON_KERNEL(drop_empty, kva_sched_drop_empty(job->kernel->body))
ON_KERNEL(collapse, kva_sched_collapse(job->kernel, job->kernel->body))
ON_KERNEL(nests, kva_sched_cpu_nests(job->kernel, job->target))
ON_KERNEL(reuse_rows, kva_sched_reuse_rows(job->kernel))
ON_KERNEL(pieces, kva_sched_pieces(job->kernel, job->target))
ON_KERNEL(threads, kva_sched_gpu_threads(job->kernel))
ON_KERNEL(items, kva_sched_gpu_items(job->kernel))
ON_KERNEL(sink, kva_sched_gpu_sink(job->kernel))
ON_KERNEL(blocks, kva_sched_gpu_blocks(job->kernel, job->target))
ON_KERNEL(keep_long, kva_sched_gpu_long(job->kernel, job->target))
ON_KERNEL(registers, kva_sched_gpu_registers(job->kernel, job->target))
ON_KERNEL(stage, kva_sched_stage(job->kernel))
ON_KERNEL(near, kva_legalize_near(job->kernel))
ON_KERNEL(math, kva_legalize_math(job->kernel))
ON_KERNEL(math_f64, kva_legalize_math_f64(job->kernel))
ON_KERNEL(rem, kva_legalize_rem(job->kernel))
ON_KERNEL(sweep, kva_kernel_sweep(job->kernel))

/* None of them says whether it changed something: the level's hash does. What it unlinked is gone. */
static kva_status run_one(kva_kernel_job *job, kva_status (*pass)(kva_kernel_job *job), bool *changed) {
  *changed = true;
  KVA_TRY(pass(job));
  kva_kernel_forget_unlinked(job->kernel);
  return KVA_OK;
}

#define PASS(name, function, ...)                                              \
  static kva_status run_##name(void *ir, const void *options, bool *changed) { \
    (void)options;                                                             \
    return run_one(ir, function, changed);                                     \
  }
#include "codegen/passes.def"

static const kva_pass passes[] = {
#define PASS(name, function, flags, needs, options, help) {#name, flags, needs, options, help, run_##name},
#include "codegen/passes.def"
};

static kva_status verify(void *ir, kva_diag *diag) {
  return kva_kernel_verify(((const kva_kernel_job *)ir)->kernel, diag);
}

static void print(void *ir, const kva_pass *after, kva_text *out) {
  (void)after;
  kva_kernel_print(((const kva_kernel_job *)ir)->kernel, out);
}

static uint64_t hash(const void *ir) {
  const kva_kernel *k = ((const kva_kernel_job *)ir)->kernel;
  kva_text text = {0};
  if (k) kva_kernel_encode(k, 0, NULL, &text);
  uint64_t h = kva_hash(0, text.data, text.len);
  kva_text_free(&text);
  return h;
}

const kva_pass_level kva_kernel_level = {.name = "kernel",
                                         .n_passes = sizeof passes / sizeof *passes,
                                         .n_properties = sizeof properties / sizeof *properties,
                                         .passes = passes,
                                         .properties = properties,
                                         .verify = verify,
                                         .print = print,
                                         .hash = hash};

/* ---- pipelines --------------------------------------------------------------------------------------------------- */

kva_status kva_run_kernel_pass(kva_kernel_job *job, const kva_pass *pass) {
  bool changed = false;
  const char *name = job->kernel ? job->kernel->name : kva_codegen_kernel_name_of(job->node);
  const kva_pass_unit unit = {&kva_kernel_level, job, name, job->diag};
  return kva_pass_run(pass, &unit, NULL, job->control, &changed);
}

static kva_status run(kva_kernel_job *job, kva_kernel_pass pass) {
  return kva_run_kernel_pass(job, &passes[pass]);
}

static kva_status schedule_cpu(kva_kernel_job *job) {
  if (!kva_sched_is_scheduled(job->kernel)) {
    KVA_TRY(run(job, KVA_KERNEL_PASS_drop_empty));
    KVA_TRY(run(job, KVA_KERNEL_PASS_collapse));
    KVA_TRY(run(job, KVA_KERNEL_PASS_nests));
    KVA_TRY(run(job, KVA_KERNEL_PASS_reuse_rows));
    KVA_TRY(run(job, KVA_KERNEL_PASS_pieces));
  }
  KVA_TRY(run(job, KVA_KERNEL_PASS_math));
  return run(job, KVA_KERNEL_PASS_sweep);
}

/* A kernel with threads was written for a GPU. */
static kva_status place_threads(kva_kernel_job *job) {
  if (job->kernel->threads) return KVA_OK;
  KVA_TRY(run(job, KVA_KERNEL_PASS_threads));
  KVA_TRY(run(job, KVA_KERNEL_PASS_drop_empty));
  if (kva_sched_is_scheduled(job->kernel)) {
    KVA_TRY(run(job, KVA_KERNEL_PASS_items));
  } else {
    KVA_TRY(run(job, KVA_KERNEL_PASS_sink));
    KVA_TRY(run(job, KVA_KERNEL_PASS_collapse));
    KVA_TRY(run(job, KVA_KERNEL_PASS_blocks));
  }
  KVA_TRY(run(job, KVA_KERNEL_PASS_keep_long));
  return run(job, KVA_KERNEL_PASS_registers);
}

static kva_status schedule_gpu(kva_kernel_job *job) {
  KVA_TRY(place_threads(job));
  KVA_TRY(run(job, KVA_KERNEL_PASS_stage));
  KVA_TRY(run(job, KVA_KERNEL_PASS_near));
  KVA_TRY(run(job, KVA_KERNEL_PASS_math));
  KVA_TRY(run(job, KVA_KERNEL_PASS_math_f64));
  KVA_TRY(run(job, KVA_KERNEL_PASS_rem));
  return run(job, KVA_KERNEL_PASS_sweep);
}

kva_status kva_schedule_job(kva_kernel_job *job) {
  return job->target->kind == KVA_TARGET_GPU ? schedule_gpu(job) : schedule_cpu(job);
}

kva_status kva_codegen_kernel(kva_arena *arena, const kva_node *node, const kva_target *target,
                              kva_pass_control *control, kva_kernel **out_kernel) {
  kva_kernel_job job = {
      .arena = arena, .node = node, .target = target, .control = control, .diag = node->graph->module->diag};
  *out_kernel = NULL;
  KVA_TRY(run(&job, KVA_KERNEL_PASS_lower));
  KVA_TRY(kva_schedule_job(&job));
  *out_kernel = job.kernel;
  return KVA_OK;
}

bool kva_codegen_is_scheduled(const kva_kernel *k) {
  return kva_sched_is_scheduled(k);
}

void kva_codegen_schedule(kva_kernel *k, const kva_target *target) {
  kva_diag *diag = kva_diag_create();
  kva_status status = kva_schedule_job(&(kva_kernel_job){.target = target, .kernel = k, .diag = diag});
  if (status != KVA_OK) kva_diag_print(diag, stderr);
  KVA_ASSERT(status == KVA_OK);
  kva_diag_destroy(diag);
}
