/* kva_gpu_pack DIR: compiles all cases for GPUs and writes, into DIR, an object for every artefact (kN.o), a table of
 * them in C (table.c) and the file of cases with inputs and expected results (cases.bin). Run by tools/gpu-check.
 *
 * Expected results come from the reference evaluator in double, of the training run from the CPU. */
#include "tools/driver/summary.h"
#include "ops/ids.h"
#include "tools/gpucheck/format.h"
#include "tools/gpucheck/kernels.h"
#include "tools/verify/check.h"

#include <stdlib.h>

enum { MAX_TENSORS = 8 };

typedef struct pack {
  const char *dir;
  kva_diag *diag;
  kva_text cases; /* the file's bytes after the header */
  int64_t n_cases;
  int32_t n_artifacts, without_code;
} pack;

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

/* Writes the GPU's tables and text to an object of this machine. */
static kva_status write_object(pack *p, const kva_artifact *a, int32_t *out_artifact) {
  char prefix[32], name[40];
  kva_codegen *cg;
  const char *object = NULL;
  size_t size;
  snprintf(prefix, sizeof prefix, "k%d", p->n_artifacts);
  snprintf(name, sizeof name, "%s.o", prefix);
  KVA_TRY(kva_codegen_create(&(kva_target_options){.opt_level = 0, .cpu = "x86-64"}, p->diag, &cg));
  kva_status status = kva_codegen_object(cg, a, &(kva_object_options){.prefix = prefix}, &object, &size);
  if (status == KVA_OK) status = write_file(p, name, object, size);
  *out_artifact = p->n_artifacts++;
  kva_codegen_destroy(cg);
  return status;
}

static kva_status compile_plans(pack *p, kva_module *m, const kva_target_options *target, kva_arena *arena, uint32_t n,
                                kva_memory_plan **plans, int32_t *out_artifact) {
  kva_codegen *cg;
  kva_artifact *a;
  KVA_TRY(kva_codegen_create(target, p->diag, &cg));
  kva_status status = kva_codegen_tables(cg, arena, m, n, plans, &a);
  if (status == KVA_OK) status = write_object(p, a, out_artifact);
  kva_codegen_destroy(cg);
  return status;
}

/* ---- operators --------------------------------------------------------------------------------------------------- */

static kva_status compile_operator(pack *p, kva_case_built *built, int32_t *out_artifact) {
  kva_arena *arena = kva_arena_create();
  kva_memory_plan *plan;
  const kva_target_options target = {.arch = "sm_80", .opt_level = 2};
  kva_status status = kva_plan(built->m, built->f, arena, &plan);
  if (status == KVA_OK) status = compile_plans(p, built->m, &target, arena, 1, &plan, out_artifact);
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

/* Adds one case in one type; counts operators without GPU code. */
static void add_operator(pack *p, const kva_case *c, kva_dtype dtype) {
  kva_case_built built;
  kva_ref_tensor *expected[MAX_TENSORS] = {0};
  int32_t artifact;
  bool ok = kva_case_build(c, dtype, &built) == KVA_OK && built.n_outputs <= MAX_TENSORS &&
            kva_run_reference(NULL, built.m, built.f, (const kva_ref_tensor *const *)built.inputs, expected,
                              built.diag) == KVA_OK;
  bool has_code = ok && compile_operator(p, &built, &artifact) == KVA_OK;
  p->without_code += !has_code;
  if (has_code) {
    gpu_case row = {.target = "sm_80",
                    .kind = GPU_OPERATOR,
                    .artifact = artifact,
                    .n_inputs = (int32_t)built.n_inputs,
                    .n_outputs = (int32_t)built.n_outputs};
    kva_text text = {0};
    kva_case_describe(c, dtype, &text);
    snprintf(row.name, sizeof row.name, "%s", text.data);
    kva_text_free(&text);
    add_case(p, row);
    add_results(p, built.inputs, built.n_inputs, expected, built.n_outputs, kva_ops.ops[c->op]->tolerance);
  }
  for (uint32_t i = 0; i < MAX_TENSORS; i++) kva_ref_tensor_free(expected[i]);
  kva_case_free(&built);
}

/* Adds every case in its own type, and the first of each operator also in bfloat16 and half. */
static void add_operators(pack *p, const kva_case_table *table, bool seen[KVA_OP_COUNT]) {
  static const kva_dtype halves[] = {KVA_BF16, KVA_F16};
  for (uint32_t i = 0; i < table->n; i++) {
    const kva_case *c = &table->cases[i];
    add_operator(p, c, KVA_DTYPE_NONE);
    for (int k = 0; k < 2 && !seen[c->op]; k++)
      if (kva_dtype_in(kva_case_dtypes(c), halves[k])) add_operator(p, c, halves[k]);
    seen[c->op] = true;
  }
  kva_diag_clear(p->diag);
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

static kva_status compile_model(pack *p, kva_module *m, const kva_compile_options *o, int32_t *out_artifact) {
  kva_arena *arena = kva_arena_create();
  kva_memory_plan **plans;
  uint32_t n;
  kva_status status = kva_compile_graph(m, o);
  if (status == KVA_OK) status = kva_plan_functions(m, o, arena, &n, &plans);
  if (status == KVA_OK) status = compile_plans(p, m, &o->target, arena, n, plans, out_artifact);
  kva_arena_destroy(arena);
  return status;
}

static kva_status add_small(pack *p, const gpu_kernel *k, kva_module *m, const kva_compile_options *o, gpu_case row) {
  kva_function *f = m->functions.data[0];
  kva_ref_tensor *in[MAX_TENSORS] = {0}, *expected[MAX_TENSORS] = {0};
  uint32_t n_in = f->graph->inputs.len, n_out = kva_graph_output_count(f->graph);
  for (uint32_t i = 0; i < n_in; i++) in[i] = input_for(f->graph->inputs.data[i]->type, i, true);
  kva_status status = kva_run_reference(NULL, m, f, (const kva_ref_tensor *const *)in, expected, p->diag);
  if (status == KVA_OK) status = compile_model(p, m, o, &row.artifact);
  if (status == KVA_OK) {
    row.kind = GPU_KERNEL, row.n_inputs = (int32_t)n_in, row.n_outputs = (int32_t)n_out;
    add_case(p, row);
    add_results(p, in, n_in, expected, n_out, k->tolerance);
  }
  for (uint32_t i = 0; i < MAX_TENSORS; i++) kva_ref_tensor_free(in[i]), kva_ref_tensor_free(expected[i]);
  return status;
}

/* The shapes of m's inputs, at most MAX_TENSORS. */
static kva_status input_shapes(pack *p, const kva_module *m, const char *name, gpu_tensor *out, int32_t *out_n) {
  const kva_graph *g = m->functions.data[0]->graph;
  *out_n = (int32_t)g->inputs.len;
  for (int32_t i = 0; i < *out_n; i++) {
    const kva_type *t = g->inputs.data[i]->type;
    out[i] = (gpu_tensor){.dtype = (int32_t)t->dtype, .rank = (int32_t)t->rank};
    for (uint32_t d = 0; d < t->rank; d++)
      if (!kva_expr_is_const(t->dims[d], &out[i].dims[d]))
        return kva_error(p->diag, NULL, "%s: a shape of the large case is not pinned", name);
  }
  return KVA_OK;
}

/* Adds a case whose inputs are shapes only. */
static void add_shaped(pack *p, const gpu_case *row, const gpu_tensor *inputs) {
  add_case(p, *row);
  for (int32_t i = 0; i < row->n_inputs; i++) add_bytes(p, &inputs[i], sizeof inputs[i]);
}

static kva_status add_large(pack *p, const gpu_kernel *k, kva_module *m, const kva_compile_options *o, gpu_case row) {
  gpu_tensor inputs[MAX_TENSORS];
  KVA_TRY(input_shapes(p, m, k->name, inputs, &row.n_inputs));
  KVA_TRY(compile_model(p, m, o, &row.artifact));
  row.kind = GPU_TIMING, row.flops = k->flops, row.bytes = k->bytes;
  add_shaped(p, &row, inputs);
  return KVA_OK;
}

static kva_status add_kernel(pack *p, const gpu_kernel *k, const char *target, bool large) {
  kva_arena *arena = kva_arena_create();
  kva_define pins[MAX_TENSORS];
  kva_load_options load = {.n_pins = read_pins(arena, large ? k->large : k->small, pins), .pins = pins};
  const kva_compile_options o = {.target = {.arch = target, .opt_level = 2, .library_gemm = k->library}};
  gpu_case row = {0};
  snprintf(row.name, sizeof row.name, "%s", k->name);
  snprintf(row.target, sizeof row.target, "%s", target);
  kva_module *m = NULL;
  kva_status status = kva_load_text(k->model, k->name, &load, p->diag, &m);
  if (status == KVA_OK) status = (large ? add_large : add_small)(p, k, m, &o, row);
  kva_module_destroy(m);
  kva_arena_destroy(arena);
  return status;
}

static kva_status add_kernels(pack *p) {
  static const char *const targets[] = {"sm_80", "sm_90a"};
  for (int i = 0; i < gpu_n_kernels; i++)
    for (int t = 0; t < 2; t++)
      for (int large = 0; large < 2; large++) KVA_TRY(add_kernel(p, &gpu_kernels[i], targets[t], large));
  return KVA_OK;
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

static bool note_loss(void *user, const kva_train_event *e) {
  kva_ref_tensor *curve = user;
  if (!e->evaluation) curve->f[e->step - 1] = e->values[0];
  return true;
}

static kva_status train_on_cpu(const kva_compiled *c, kva_ref_tensor *curve, kva_diag *diag) {
  kva_train_options options;
  kva_data_source data = {0};
  kva_session *s = NULL;
  KVA_TRY(gpu_training(&options, &data, diag));
  options.progress = note_loss, options.user = curve;
  kva_status status = kva_session_create(c->artifact, NULL, diag, &s);
  if (status == KVA_OK) status = kva_train(s, &data, &options, diag);
  kva_session_destroy(s);
  data.destroy(data.self);
  return status;
}

static kva_status load_training(pack *p, kva_module **out) {
  static const kva_define defines[] = {{"d", "16"}, {"heads", "2"}, {"ffn", "32"}, {"vocab", "64"}, {"pool", "24"}};
  static const kva_define pins[] = {{"B", "4"}, {"T", "32"}};
  const kva_load_options o = {.n_defines = 5, .defines = defines, .n_pins = 2, .pins = pins};
  return kva_load_model("models/induction.kv", &o, p->diag, out);
}

static kva_status add_training(pack *p, const char *target, bool library) {
  kva_module *m;
  KVA_TRY(load_training(p, &m));
  kva_compiled *c;
  KVA_TRY(kva_compile(m, &(kva_compile_options){.train = true, .target = {.opt_level = 2}}, p->diag, &c));
  const int64_t steps = GPU_TRAIN_STEPS;
  kva_ref_tensor *curve = kva_ref_tensor_create(KVA_F64, 1, &steps);
  kva_status status = train_on_cpu(c, curve, p->diag);
  kva_compiled_destroy(c);
  gpu_case row = {.kind = GPU_TRAINING, .n_outputs = 1};
  snprintf(row.name, sizeof row.name, "induction%s", library ? ", library products" : "");
  snprintf(row.target, sizeof row.target, "%s", target);
  const kva_compile_options o = {.train = true, .target = {.arch = target, .opt_level = 2, .library_gemm = library}};
  if (status == KVA_OK) status = load_training(p, &m);
  if (status == KVA_OK) {
    status = compile_model(p, m, &o, &row.artifact);
    kva_module_destroy(m);
  }
  if (status == KVA_OK) {
    add_case(p, row);
    add_tensor(p, curve, false, 2e-2);
  }
  kva_ref_tensor_free(curve);
  return status;
}

/* ---- steps of a large model -------------------------------------------------------------------------------------- */

typedef struct steps_case {
  const char *name, *target;
  const char *defines, *pins; /* of models/lm.kv */
  bool library;
} steps_case;

/* For the tiny model launches dominate the time. */
static const steps_case steps_cases[] = {
    {"step of 1.5B, bf16, library products", "sm_90a", "preset=1.5B", "B=4 T=2048", true},
    {"step of 1.5B, bf16", "sm_90a", "preset=1.5B", "B=4 T=2048", false},
    {"step of a tiny model, bf16", "sm_80", "vocab=96 d=32 layers=1 heads=2 ffn=64", "B=2 T=32", false},
};

/* FLOPs of products in a call of "train_step", whose symbols are pinned. */
static kva_status flops_of_step(kva_module *m, const kva_compile_options *o, double *out_flops) {
  kva_arena *arena = kva_arena_create();
  kva_memory_plan **plans;
  kva_summary summary;
  uint32_t n;
  kva_status status = kva_plan_functions(m, o, arena, &n, &plans);
  for (uint32_t i = 0; status == KVA_OK && i < n; i++) {
    if (strcmp(plans[i]->function->name, "train_step") != 0) continue;
    status = kva_summarize(m, plans[i], &(kva_binding){0}, &summary);
    *out_flops = summary.contraction_flops;
  }
  kva_arena_destroy(arena);
  return status;
}

/* m: models/lm.kv, whose input are tokens and whose output are the logits of a vocabulary. */
static kva_status add_steps_of(pack *p, const steps_case *c, kva_module *m) {
  const kva_compile_options o = {.train = true,
                                 .target = {.arch = c->target, .opt_level = 2, .library_gemm = c->library},
                                 .passes = {.compute = KVA_BF16}};
  const kva_type *logits = kva_graph_output(m->functions.data[0]->graph, 0)->type;
  gpu_tensor tokens[MAX_TENSORS];
  gpu_case row = {.kind = GPU_STEPS};
  snprintf(row.name, sizeof row.name, "%s", c->name);
  snprintf(row.target, sizeof row.target, "%s", c->target);
  if (!kva_expr_is_const(logits->dims[logits->rank - 1], &row.vocab))
    return kva_error(p->diag, NULL, "%s: the vocabulary is no constant", c->name);
  KVA_TRY(input_shapes(p, m, c->name, tokens, &row.n_inputs));
  KVA_TRY(compile_model(p, m, &o, &row.artifact));
  KVA_TRY(flops_of_step(m, &o, &row.flops));
  add_shaped(p, &row, tokens);
  return KVA_OK;
}

static kva_status add_steps(pack *p, const steps_case *c) {
  kva_arena *arena = kva_arena_create();
  kva_define defines[MAX_TENSORS], pins[MAX_TENSORS];
  const kva_load_options load = {.n_defines = read_pins(arena, c->defines, defines),
                                 .defines = defines,
                                 .n_pins = read_pins(arena, c->pins, pins),
                                 .pins = pins};
  kva_module *m = NULL;
  kva_status status = kva_load_model("models/lm.kv", &load, p->diag, &m);
  if (status == KVA_OK) status = add_steps_of(p, c, m);
  kva_module_destroy(m);
  kva_arena_destroy(arena);
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

static kva_status make_pack(pack *p) {
  bool seen[KVA_OP_COUNT] = {false};
  add_operators(p, &kva_cases_core, seen);
  add_operators(p, &kva_cases_nn, seen);
  KVA_TRY(add_kernels(p));
  for (size_t i = 0; i < sizeof steps_cases / sizeof *steps_cases; i++) KVA_TRY(add_steps(p, &steps_cases[i]));
  KVA_TRY(add_training(p, "sm_80", false));
  KVA_TRY(add_training(p, "sm_80", true));
  KVA_TRY(write_cases(p));
  return write_table(p);
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "kva_gpu_pack DIR: writes what tools/gpu-check packs\n");
    return 2;
  }
  pack p = {.dir = argv[1], .diag = kva_diag_create()};
  kva_status status = make_pack(&p);
  kva_diag_print(p.diag, stderr);
  if (status == KVA_OK)
    printf("%lld cases, %d artefacts; %d operator cases have no code for GPUs\n", (long long)p.n_cases, p.n_artifacts,
           p.without_code);
  kva_text_free(&p.cases);
  kva_diag_destroy(p.diag);
  return kva_status_exit_code(status);
}
