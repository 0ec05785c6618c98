/* kva_gpu_pack DIR [TEXT]...: compiles all cases for GPUs and writes, into DIR, an object for every artefact (kN.o), a
 * table of them in C (table.c) and the file of cases with inputs and expected results (cases.bin). Run by
 * tools/gpu-check. With ptxas named kernels and training steps have machine code beside their PTX, and are cases of
 * their own with each.
 *
 * kva_gpu_pack --cpu TARGET [--every N] [--share I/N] DIR [TEXT]...: the same of the operators alone, for a CPU of
 * another machine: the cases of kvasir ops --verify. --every N: the first of each operator in each type, and every Nth
 * of the others.
 * --share I/N: of these share I, from 1 on, of N.
 *
 * Expected results come from the reference evaluator in double, of the training run from the CPU. */
#include "tools/driver/build.h"
#include "tools/driver/summary.h"
#include "ops/ids.h"
#include "tools/gpucheck/format.h"
#include "tools/gpucheck/kernels.h"
#include "tools/library/library.h"
#include "tools/verify/check.h"
#include "tools/verify/verify.h"

#include <stdlib.h>

enum { MAX_TENSORS = 8, RANDOM_CASES = 2 /* of an operator in a type, for a CPU */ };

typedef struct pack {
  const char *dir;
  kva_diag *diag;
  kva_text cases; /* the file's bytes after the header */
  int64_t n_cases;
  int32_t n_artifacts, without_code;
  bool machine; /* there is a ptxas */
  int n_only;
  char *const *only;                  /* cases whose names have one of these in them; n_only 0: all */
  const char *cpu;                    /* the target that operators are packed for; NULL: GPUs */
  uint32_t every;                     /* for a CPU: kva_verify_options.every */
  uint32_t share, shares, n_met;      /* for a CPU: the cases that are packed, of those met; shares 0: all */
  const kva_cache *cache;             /* of compiled code; NULL: none */
  kva_dtype_set packed[KVA_OP_COUNT]; /* for a CPU: types in which there is a case, in whatever share */
} pack;

static bool is_asked(const pack *p, const char *name) {
  for (int i = 0; i < p->n_only; i++)
    if (strstr(name, p->only[i])) return true;
  return !p->n_only;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static kva_status write_file(const pack *p, const char *name, const char *data, size_t size) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", p->dir, name);
  return kva_file_write(path, data, size, p->diag);
}

static void add_bytes(pack *p, const void *data, size_t size) {
  static const char zeros[8] = {0};
  kva_text_add_bytes(&p->cases, data, size);
  kva_text_add_bytes(&p->cases, zeros, (8 - size % 8) % 8);
}

static void add_case(pack *p, gpu_case c) {
  add_bytes(p, &c, sizeof c);
  p->n_cases++;
}

static gpu_case new_case(gpu_case_kind kind, char phase, const char *name, const char *target) {
  gpu_case c = {.kind = kind, .phase = phase, .kernel = -1};
  snprintf(c.name, sizeof c.name, "%s", name);
  snprintf(c.target, sizeof c.target, "%s", target);
  return c;
}

static void add_tensor(pack *p, const kva_ref_tensor *w, bool packed, double tolerance) {
  gpu_tensor t = {.dtype = (int32_t)w->dtype, .rank = (int32_t)w->rank, .tolerance = tolerance};
  memcpy(t.dims, w->dims, sizeof *w->dims * w->rank);
  if (packed && !kva_dtype_bytes(w->dtype, w->n, &t.bytes)) return;
  if (!packed) t.bytes = w->n * 8;
  add_bytes(p, &t, sizeof t);
  char *data = packed ? calloc((size_t)t.bytes + 1, 1) : NULL;
  if (data) kva_ref_tensor_to_data(w, data);
  add_bytes(p, packed ? data : w->f ? (const void *)w->f : (const void *)w->i, (size_t)t.bytes);
  free(data);
}

/* ---- artefacts --------------------------------------------------------------------------------------------------- */

static kva_status write_object(pack *p, kva_codegen *cg, const kva_artifact *a, int32_t *out_artifact) {
  char prefix[32], name[40];
  const char *object = NULL;
  size_t size;
  snprintf(prefix, sizeof prefix, "k%d", p->n_artifacts);
  snprintf(name, sizeof name, "%s.o", prefix);
  KVA_TRY(kva_codegen_object(cg, a, &(kva_object_options){.prefix = prefix}, &object, &size));
  *out_artifact = p->n_artifacts++;
  return write_file(p, name, object, size);
}

/* Writes the GPU's tables and text to an object of this machine. */
static kva_status write_text(pack *p, const kva_artifact *a, int32_t *out_artifact) {
  kva_codegen *cg;
  KVA_TRY(kva_codegen_create(&(kva_target_options){.opt_level = 0, .cpu = "x86-64"}, p->diag, &cg));
  kva_status status = write_object(p, cg, a, out_artifact);
  kva_codegen_destroy(cg);
  return status;
}

static kva_status compile_plans(pack *p, kva_module *m, const kva_target_options *target, kva_arena *arena, uint32_t n,
                                kva_memory_plan **plans, bool machine, int32_t *out_artifact) {
  kva_codegen *cg;
  kva_artifact *a;
  kva_target_options cached = *target;
  cached.cache = p->cache;
  KVA_TRY(kva_codegen_create(&cached, p->diag, &cg));
  kva_status status = kva_codegen_tables(cg, arena, m, n, plans, &a);
  if (status == KVA_OK && machine && a->n_kernels) status = kva_add_machine_code(a, arena, p->diag);
  if (status == KVA_OK) status = target->arch ? write_text(p, a, out_artifact) : write_object(p, cg, a, out_artifact);
  kva_codegen_destroy(cg);
  return status;
}

/* ---- operators --------------------------------------------------------------------------------------------------- */

static kva_status compile_operator(pack *p, kva_case_built *built, const char *name, int32_t *out_artifact) {
  kva_arena *arena = kva_arena_create();
  kva_memory_plan *plan;
  const kva_target_options target = kva_target_named(name);
  kva_status status = kva_plan(built->m, built->f, arena, &plan);
  if (status == KVA_OK) status = compile_plans(p, built->m, &target, arena, 1, &plan, false, out_artifact);
  kva_arena_destroy(arena);
  return status;
}

static void add_results(pack *p, kva_ref_tensor *const *inputs, uint32_t n_inputs, kva_ref_tensor *const *expected,
                        uint32_t n_outputs, double tolerance) {
  double scale = 0;
  for (uint32_t i = 0; i < n_inputs; i++) {
    scale = fmax(scale, kva_check_largest(inputs[i]));
    add_tensor(p, inputs[i], true, 0);
  }
  for (uint32_t i = 0; i < n_outputs; i++) {
    double largest = fmax(scale, kva_check_largest(expected[i]));
    add_tensor(p, expected[i], false, expected[i]->f ? kva_case_tolerance(tolerance, expected[i]->dtype) * largest : 0);
  }
}

static bool add_built(pack *p, const kva_case *c, gpu_case row, kva_case_built *built,
                      kva_ref_tensor *const *expected) {
  if (compile_operator(p, built, row.target, &row.artifact) != KVA_OK) return false;
  row.n_inputs = (int32_t)built->n_inputs, row.n_outputs = (int32_t)built->n_outputs;
  add_case(p, row);
  add_results(p, built->inputs, built->n_inputs, expected, built->n_outputs, kva_ops.ops[c->op]->tolerance);
  return true;
}

/* Adds one case in one type; counts those without code for the target. */
static void add_operator(pack *p, const kva_case *c, kva_dtype dtype, const char *target) {
  kva_case_built built;
  kva_ref_tensor *expected[MAX_TENSORS] = {0};
  kva_text text = {0};
  kva_case_describe(c, dtype, &text);
  gpu_case row = new_case(GPU_OPERATOR, 'A', text.data, target);
  kva_text_free(&text);
  if (!is_asked(p, row.name)) return;
  bool ok = kva_case_build(c, dtype, &built) == KVA_OK && built.n_outputs <= MAX_TENSORS &&
            kva_run_reference(NULL, built.m, built.f, (const kva_ref_tensor *const *)built.inputs, expected,
                              built.diag) == KVA_OK;
  ok = ok && add_built(p, c, row, &built, expected);
  p->without_code += !ok;
  if (!ok && p->cpu) {
    kva_diag_print(built.diag, stderr);
    kva_error(p->diag, NULL, "%s: no code for %s", row.name, target);
  }
  for (uint32_t i = 0; i < MAX_TENSORS; i++) kva_ref_tensor_free(expected[i]);
  kva_case_free(&built);
}

/* Adds every case in its own type, and the first of each operator also in bfloat16 and half. */
static void add_operators(pack *p, const kva_case_table *table, const char *arch, bool seen[KVA_OP_COUNT]) {
  static const kva_dtype halves[] = {KVA_BF16, KVA_F16};
  for (uint32_t i = 0; i < table->n; i++) {
    const kva_case *c = &table->cases[i];
    add_operator(p, c, KVA_DTYPE_NONE, arch);
    for (int k = 0; k < 2 && !seen[c->op]; k++)
      if (kva_dtype_in(kva_case_dtypes(c), halves[k])) add_operator(p, c, halves[k], arch);
    seen[c->op] = true;
  }
  kva_diag_clear(p->diag);
}

/* ---- operators for a CPU ----------------------------------------------------------------------------------------- */

static void add_for_cpu(void *user, const kva_case *c, kva_dtype dtype) {
  pack *p = user;
  kva_dtype_set type = (kva_dtype_set)1 << (dtype ? dtype : c->dtype ? c->dtype : KVA_F32);
  p->packed[c->op] |= type;
  if (p->shares && p->n_met++ % p->shares + 1 != p->share) return;
  add_operator(p, c, dtype, p->cpu);
}

/* Operators that have code have a case in each of their types. */
static kva_status check_complete(const pack *p) {
  for (uint32_t op = 0; op < KVA_OP_COUNT && !p->n_only; op++) {
    kva_dtype_set missing = kva_case_op_dtypes((kva_op_id)op) & ~p->packed[op];
    if (kva_op_has_code(kva_ops.ops[op]) && (missing || !p->packed[op]))
      kva_error(p->diag, NULL, "kv.%s has no case in some types (set 0x%x)", kva_ops.ops[op]->name, missing);
  }
  return kva_diag_errors(p->diag) ? KVA_INVALID : KVA_OK;
}

static kva_status add_cpu_operators(pack *p) {
  kva_target ignored;
  const kva_target_options target = kva_target_named(p->cpu);
  KVA_TRY(kva_codegen_describe(&target, p->diag, &ignored));
  KVA_TRY(
      kva_verify_cases(&(kva_verify_options){.n_random = RANDOM_CASES, .every = p->every}, p->diag, add_for_cpu, p));
  return check_complete(p);
}

/* ---- named kernels ----------------------------------------------------------------------------------------------- */

/* Parses "M=64 K=96" as pins or definitions. */
static uint32_t read_pins(kva_arena *arena, const char *text, kva_define *out) {
  uint32_t n = 0;
  for (const char *t = text; *t && n < MAX_TENSORS;) {
    size_t len = strcspn(t, " "), name = strcspn(t, "=");
    out[n++] = (kva_define){kva_arena_strndup(arena, t, name), kva_arena_strndup(arena, t + name + 1, len - name - 1)};
    t += len + (t[len] == ' ');
  }
  return n;
}

static kva_ref_tensor *input_for(const kva_type *t, uint32_t index, bool filled) {
  int64_t dims[KVA_MAX_RANK];
  for (uint32_t d = 0; d < t->rank; d++)
    if (!kva_expr_is_const(t->dims[d], &dims[d])) return NULL;
  kva_ref_tensor *w = kva_ref_tensor_create(t->dtype, t->rank, dims);
  for (int64_t i = 0; w && filled && i < w->n; i++)
    w->f[i] = kva_round_f64(t->dtype, 2 * kva_case_uniform((uint64_t)i, index + 1) - 1);
  return w;
}

/* With machine code, if there is a ptxas. */
static kva_status compile_model(pack *p, kva_module *m, const kva_compile_options *o, int32_t *out_artifact) {
  kva_arena *arena = kva_arena_create();
  kva_memory_plan **plans;
  uint32_t n;
  kva_status status = kva_compile_graph(m, o);
  if (status == KVA_OK) status = kva_plan_functions(m, o, arena, &n, &plans);
  if (status == KVA_OK) status = compile_plans(p, m, &o->target, arena, n, plans, p->machine, out_artifact);
  kva_arena_destroy(arena);
  return status;
}

/* The library's kernels are not ours: both codes would be the same. */
static int lowest_code(const pack *p, const gpu_kernel *k) {
  return k->library ? p->machine : 0;
}

static kva_status add_small(pack *p, const gpu_kernel *k, kva_module *m, const kva_compile_options *o, gpu_case row) {
  kva_function *f = m->functions.data[0];
  kva_ref_tensor *in[MAX_TENSORS] = {0}, *expected[MAX_TENSORS] = {0};
  uint32_t n_in = f->graph->inputs.len, n_out = kva_graph_output_count(f->graph);
  for (uint32_t i = 0; i < n_in; i++) in[i] = input_for(f->graph->inputs.data[i]->type, i, true);
  kva_status status = kva_run_reference(NULL, m, f, (const kva_ref_tensor *const *)in, expected, p->diag);
  if (status == KVA_OK) status = compile_model(p, m, o, &row.artifact);
  row.n_inputs = (int32_t)n_in, row.n_outputs = (int32_t)n_out;
  for (int machine = p->machine; status == KVA_OK && machine >= lowest_code(p, k); machine--) {
    row.machine = machine;
    add_case(p, row);
    add_results(p, in, n_in, expected, n_out, k->tolerance);
  }
  for (uint32_t i = 0; i < MAX_TENSORS; i++) kva_ref_tensor_free(in[i]), kva_ref_tensor_free(expected[i]);
  return status;
}

static kva_status shape_of(pack *p, const kva_type *t, const char *name, gpu_tensor *out) {
  *out = (gpu_tensor){.dtype = (int32_t)t->dtype, .rank = (int32_t)t->rank};
  for (uint32_t d = 0; d < t->rank; d++)
    if (!kva_expr_is_const(t->dims[d], &out->dims[d]))
      return kva_error(p->diag, NULL, "%s: a shape of the large case is not pinned", name);
  return KVA_OK;
}

/* The shapes of m's inputs and outputs, at most MAX_TENSORS of each. */
static kva_status shapes_of(pack *p, const kva_module *m, gpu_case *row, double tolerance, gpu_tensor *out) {
  const kva_graph *g = m->functions.data[0]->graph;
  row->n_inputs = (int32_t)g->inputs.len, row->n_outputs = (int32_t)kva_graph_output_count(g);
  for (int32_t i = 0; i < row->n_inputs; i++) KVA_TRY(shape_of(p, g->inputs.data[i]->type, row->name, out++));
  for (int32_t i = 0; i < row->n_outputs; i++, out++) {
    KVA_TRY(shape_of(p, kva_graph_output(g, (uint32_t)i)->type, row->name, out));
    out->tolerance = kva_case_tolerance(tolerance, (kva_dtype)out->dtype);
  }
  return KVA_OK;
}

/* Adds a case whose tensors are shapes only. */
static void add_shaped(pack *p, const gpu_case *row, const gpu_tensor *tensors) {
  add_case(p, *row);
  for (int32_t i = 0; i < row->n_inputs + row->n_outputs; i++) add_bytes(p, &tensors[i], sizeof tensors[i]);
}

static kva_status add_large(pack *p, const gpu_kernel *k, kva_module *m, const kva_compile_options *o, gpu_case row) {
  gpu_tensor tensors[2 * MAX_TENSORS];
  KVA_TRY(shapes_of(p, m, &row, k->tolerance, tensors));
  KVA_TRY(compile_model(p, m, o, &row.artifact));
  row.flops = k->flops, row.bytes = k->bytes;
  for (int machine = p->machine; machine >= lowest_code(p, k); machine--) {
    row.machine = machine;
    add_shaped(p, &row, tensors);
  }
  return KVA_OK;
}

static gpu_case case_of(const gpu_kernel *k, const char *target, bool large) {
  bool timed = large && (k->flops > 0 || k->bytes > 0);
  gpu_case_kind kind = timed ? GPU_TIMING : large ? GPU_SHAPE : GPU_KERNEL;
  gpu_case c = new_case(kind, timed && !k->ceiling ? 'B' : 'A', k->name, target);
  c.kernel = (int32_t)(k - gpu_kernels);
  return c;
}

static kva_status add_kernel(pack *p, const gpu_kernel *k, const char *target, bool large) {
  const char *pins_text = large ? k->large : k->small;
  if (!pins_text || !is_asked(p, k->name)) return KVA_OK;
  kva_arena *arena = kva_arena_create();
  kva_define pins[MAX_TENSORS];
  kva_load_options load = {.n_pins = read_pins(arena, pins_text, pins), .pins = pins};
  const kva_compile_options o = {.target = {.arch = target, .opt_level = 2, .library_gemm = k->library}};
  kva_module *m = NULL;
  kva_status status = kva_load_text(k->model, k->name, &load, p->diag, &m);
  if (status == KVA_OK) status = (large ? add_large : add_small)(p, k, m, &o, case_of(k, target, large));
  kva_module_destroy(m);
  kva_arena_destroy(arena);
  return status;
}

/* In order of what is wanted first: what the newest code does, large before small. */
static kva_status add_kernels(pack *p) {
  static const char *const targets[] = {"sm_90a", "sm_80"};
  for (int t = 0; t < 2; t++)
    for (int large = 1; large >= 0; large--)
      for (int i = 0; i < gpu_n_kernels; i++) KVA_TRY(add_kernel(p, &gpu_kernels[i], targets[t], large));
  return KVA_OK;
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

static bool note_loss(void *user, const kva_train_event *e) {
  kva_ref_tensor *curve = user;
  if (!e->evaluation) curve->f[e->step - 1] = e->values[0];
  return true;
}

static kva_status train_on_cpu(int index, const kva_compiled *c, kva_ref_tensor *curve, kva_diag *diag) {
  kva_train_options options;
  kva_data_source data = {0};
  kva_session *s = NULL;
  KVA_TRY(gpu_training(index, &options, &data, diag));
  options.progress = note_loss, options.user = curve;
  kva_status status = kva_session_create(c->artifact, NULL, diag, &s);
  if (status == KVA_OK) status = kva_train(s, &data, &options, diag);
  kva_session_destroy(s);
  data.destroy(data.self);
  return status;
}

static kva_status load_with(pack *p, const char *model, const char *defines_text, const char *pins_text,
                            kva_module **out) {
  kva_arena *arena = kva_arena_create();
  kva_define defines[MAX_TENSORS], pins[MAX_TENSORS];
  const kva_load_options load = {.n_defines = read_pins(arena, defines_text, defines),
                                 .defines = defines,
                                 .n_pins = read_pins(arena, pins_text, pins),
                                 .pins = pins};
  kva_status status = kva_load_model(model, &load, p->diag, out);
  kva_arena_destroy(arena);
  return status;
}

static kva_compile_options training_options(bool narrow, const char *arch, bool library) {
  return (kva_compile_options){.train = true,
                               .target = {.arch = arch, .opt_level = 2, .library_gemm = library},
                               .passes = {.compute = narrow ? KVA_BF16 : KVA_DTYPE_NONE}};
}

static kva_status expected_curve(pack *p, int index, kva_ref_tensor *curve) {
  const gpu_training_run *r = &gpu_trainings[index];
  const kva_compile_options o = training_options(r->narrow, NULL, false);
  kva_module *m;
  kva_compiled *c;
  KVA_TRY(load_with(p, r->model, r->defines, r->pins, &m));
  KVA_TRY(kva_compile(m, &o, p->diag, &c));
  kva_status status = train_on_cpu(index, c, curve, p->diag);
  kva_compiled_destroy(c);
  return status;
}

static kva_status add_run(pack *p, int index, const char *target, bool library, const kva_ref_tensor *curve) {
  const gpu_training_run *r = &gpu_trainings[index];
  const kva_compile_options o = training_options(r->narrow, target, library);
  gpu_case row = new_case(GPU_TRAINING, r->phase, r->name, target);
  if (library) snprintf(row.name, sizeof row.name, "%s, library products", r->name);
  row.training = index, row.n_outputs = 1, row.machine = p->machine;
  kva_module *m;
  KVA_TRY(load_with(p, r->model, r->defines, r->pins, &m));
  kva_status status = compile_model(p, m, &o, &row.artifact);
  kva_module_destroy(m);
  KVA_TRY(status);
  add_case(p, row);
  add_tensor(p, curve, false, r->tolerance);
  return KVA_OK;
}

static kva_status add_training(pack *p, int index) {
  const gpu_training_run *r = &gpu_trainings[index];
  if (!is_asked(p, r->name)) return KVA_OK;
  kva_ref_tensor *curve = kva_ref_tensor_create(KVA_F64, 1, &r->steps);
  kva_status status = expected_curve(p, index, curve);
  for (int t = 0; t < 2 && r->targets[t]; t++)
    for (int library = 0; status == KVA_OK && library < 2; library++)
      status = add_run(p, index, r->targets[t], library, curve);
  kva_ref_tensor_free(curve);
  return status;
}

/* ---- steps of a large model -------------------------------------------------------------------------------------- */

typedef struct steps_case {
  const char *name, *target;
  const char *defines, *pins; /* of models/lm.kv */
  bool library, both;         /* both: also as the driver compiles it */
} steps_case;

/* For the tiny model launches dominate the time. */
static const steps_case steps_cases[] = {
    {"step of 1.5B, 8192 tokens, generated products", "sm_90a", "preset=1.5B", "B=4 T=2048", false, true},
    {"step of 1.5B, 8192 tokens, library products", "sm_90a", "preset=1.5B", "B=4 T=2048", true, false},
    {"step of 1.5B, 32768 tokens, generated products", "sm_90a", "preset=1.5B", "B=16 T=2048", false, false},
    {"step of 1.5B, 32768 tokens, library products", "sm_90a", "preset=1.5B", "B=16 T=2048", true, false},
    {"step of a tiny model", "sm_80", "vocab=96 d=32 layers=1 heads=2 ffn=64", "B=2 T=32", false, true},
};

/* FLOPs of a training step's products, without those that are computed again: three times those of the loss, once
 * forward and for the gradients of both factors. Symbols are pinned. */
static kva_status flops_of_step(kva_module *m, const kva_compile_options *o, double *out_flops) {
  kva_arena *arena = kva_arena_create();
  kva_memory_plan **plans;
  kva_summary summary;
  uint32_t n;
  kva_status status = kva_plan_functions(m, o, arena, &n, &plans);
  for (uint32_t i = 0; status == KVA_OK && i < n; i++) {
    if (strcmp(plans[i]->function->name, "eval") != 0) continue;
    status = kva_summarize(m, plans[i], &summary);
    *out_flops = 3 * (double)summary.contraction_flops;
  }
  kva_arena_destroy(arena);
  return status;
}

/* m: models/lm.kv, whose input are tokens and whose output are the logits of a vocabulary. */
static kva_status add_steps_of(pack *p, const steps_case *c, kva_module *m) {
  const kva_compile_options o = training_options(true, c->target, c->library);
  const kva_type *logits = kva_graph_output(m->functions.data[0]->graph, 0)->type;
  gpu_tensor tensors[2 * MAX_TENSORS];
  gpu_case row = new_case(GPU_STEPS, 'C', c->name, c->target);
  if (!kva_expr_is_const(logits->dims[logits->rank - 1], &row.vocab))
    return kva_error(p->diag, NULL, "%s: the vocabulary is no constant", c->name);
  KVA_TRY(shapes_of(p, m, &row, 0, tensors));
  row.n_outputs = 0;
  KVA_TRY(compile_model(p, m, &o, &row.artifact));
  KVA_TRY(flops_of_step(m, &o, &row.flops));
  for (int machine = p->machine; machine >= (c->both ? 0 : p->machine); machine--) {
    row.machine = machine;
    add_shaped(p, &row, tensors);
  }
  return KVA_OK;
}

static kva_status add_steps(pack *p, const steps_case *c) {
  kva_module *m = NULL;
  if (!is_asked(p, c->name)) return KVA_OK;
  kva_status status = load_with(p, "models/lm.kv", c->defines, c->pins, &m);
  if (status == KVA_OK) status = add_steps_of(p, c, m);
  kva_module_destroy(m);
  return status;
}

/* ---- the archive ------------------------------------------------------------------------------------------------- */

static kva_status write_cases(pack *p) {
  gpu_header header = {.magic = GPU_CHECK_MAGIC, .n_cases = p->n_cases};
  kva_text file = {0};
  kva_text_add_bytes(&file, (const char *)&header, sizeof header);
  kva_text_add_bytes(&file, p->cases.data, p->cases.len);
  kva_status status = write_file(p, "cases.bin", file.data, file.len);
  kva_text_free(&file);
  return status;
}

static kva_status write_table(const pack *p) {
  kva_text text = {0};
  kva_text_add(&text, "#include \"tools/gpucheck/check.h\"\n");
  for (int32_t i = 0; i < p->n_artifacts; i++) kva_text_add(&text, "const kva_artifact *k%d_artifact(void);\n", i);
  kva_text_add(&text, "const gpu_artifact gpu_artifacts[] = {\n");
  for (int32_t i = 0; i < p->n_artifacts; i++) kva_text_add(&text, "  k%d_artifact,\n", i);
  kva_text_add(&text, "};\nconst int gpu_n_artifacts = %d;\n", p->n_artifacts);
  kva_status status = write_file(p, "table.c", text.data, text.len);
  kva_text_free(&text);
  return status;
}

/* Cases run in this order: the first ones are those that say most. */
static kva_status add_gpu_cases(pack *p) {
  static const char *const targets[] = {"sm_90a", "sm_80"};
  KVA_TRY(add_kernels(p));
  for (int i = 0; i < gpu_n_trainings; i++) KVA_TRY(add_training(p, i));
  for (size_t i = 0; i < sizeof steps_cases / sizeof *steps_cases; i++) KVA_TRY(add_steps(p, &steps_cases[i]));
  for (int t = 0; t < 2; t++) {
    bool seen[KVA_OP_COUNT] = {false};
    add_operators(p, &kva_cases_core, targets[t], seen);
    add_operators(p, &kva_cases_nn, targets[t], seen);
  }
  return KVA_OK;
}

static kva_status make_pack(pack *p) {
  KVA_TRY(p->cpu ? add_cpu_operators(p) : add_gpu_cases(p));
  KVA_TRY(write_cases(p));
  return write_table(p);
}

static void report(const pack *p, const char *ptxas) {
  printf("%lld cases, %d artefacts; ", (long long)p->n_cases, p->n_artifacts);
  if (p->cpu)
    printf("target %s\n", p->cpu);
  else
    printf("%d operator cases have no code for GPUs; machine code: %s\n", p->without_code,
           p->machine ? ptxas : "none, there is no ptxas");
}

/* false: wrong usage. */
static bool read_arguments(int argc, char **argv, pack *p) {
  int i = 1;
  for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
    if (!strcmp(argv[i], "--cpu"))
      p->cpu = argv[i + 1];
    else if (!strcmp(argv[i], "--every") && atoi(argv[i + 1]) > 0)
      p->every = (uint32_t)atoi(argv[i + 1]);
    else if (strcmp(argv[i], "--share") != 0 || sscanf(argv[i + 1], "%u/%u", &p->share, &p->shares) != 2)
      return false;
  }
  if (i == argc || argv[i][0] == '-') return false;
  p->dir = argv[i], p->only = argv + i + 1, p->n_only = argc - i - 1;
  return true;
}

int main(int argc, char **argv) {
  char ptxas[4096];
  pack p = {.machine = kva_find_ptxas(ptxas, sizeof ptxas)};
  if (!read_arguments(argc, argv, &p)) {
    fprintf(stderr,
            "kva_gpu_pack [--cpu TARGET] [--every N] [--share I/N] DIR [TEXT]...: writes what tools/gpu-check packs\n");
    return 2;
  }
  kva_arena *arena = kva_arena_create();
  p.diag = kva_diag_create();
  p.cache = kva_user_cache(arena, NULL);
  kva_status status = make_pack(&p);
  kva_diag_print(p.diag, stderr);
  if (status == KVA_OK) report(&p, ptxas);
  kva_text_free(&p.cases);
  kva_diag_destroy(p.diag);
  kva_arena_destroy(arena);
  return kva_status_exit_code(status);
}
