/* Compiles a module in process: passes, plans, machine code. */
#include "tools/driver/driver.h"

#include <stdlib.h>

kva_status kva_precision_named(const char *name, kva_diag *diag, kva_dtype *out_compute) {
  *out_compute = !name                   ? KVA_DTYPE_NONE
                 : !strcmp(name, "bf16") ? KVA_BF16
                 : !strcmp(name, "f16")  ? KVA_F16
                                         : KVA_DTYPE_NONE;
  if (!name || !strcmp(name, "f32") || *out_compute) return KVA_OK;
  return kva_error(diag, NULL, "unknown precision '%s'; known: f32, bf16, f16", name);
}

kva_status kva_gemm_named(const char *name, kva_diag *diag, kva_target_options *target) {
  bool library = name && !strcmp(name, "library"), parts = name && !strcmp(name, "bf16x3");
  if (name && !library && !parts && strcmp(name, "generated") != 0)
    return kva_error(diag, NULL, "gemm: expected library, generated or bf16x3, found '%s'", name);
  if (library && !target->arch)
    return kva_error(diag, NULL, "gemm library is for GPUs; a CPU's code is generated: generated or bf16x3");
  if (parts && target->arch) return kva_error(diag, NULL, "gemm bf16x3 is for CPUs with AMX");
  target->library_gemm = library, target->bf16x3_gemm = parts;
  return KVA_OK;
}

kva_status kva_math_named(const char *name, kva_diag *diag, kva_target_options *target) {
  target->byte_math = name && !strcmp(name, "int8");
  target->relaxed_math = target->byte_math || (name && !strcmp(name, "relaxed"));
  if (!name || target->relaxed_math || !strcmp(name, "exact")) return KVA_OK;
  return kva_error(diag, NULL, "math: expected exact, relaxed or int8, found '%s'", name);
}

/* `name=number` at *at, behind which *at is then. */
static bool take_axis(const char **at, const char *name, int64_t most, int64_t *out) {
  size_t n = strlen(name);
  if (strncmp(*at, name, n) != 0 || (*at)[n] != '=' || (*at)[n + 1] < '0' || (*at)[n + 1] > '9') return false;
  char *end;
  int64_t value = strtoll(*at + n + 1, &end, 10);
  if (value < 1 || value > most || (*end && *end != ',')) return false;
  *out = value;
  *at = end;
  return true;
}

kva_status kva_mesh_named(const char *text, kva_diag *diag, kva_mesh *out_mesh) {
  enum { MOST = 1 << 16, STAGES = 3 };
  *out_mesh = (kva_mesh){0};
  const struct {
    const char *name;
    int64_t most, *out;
  } axes[] = {{"data", MOST, &out_mesh->data},
              {"pipeline", KVA_MOST_STAGES, &out_mesh->pipeline},
              {"tensor", MOST, &out_mesh->tensor},
              {"sequence", MOST, &out_mesh->sequence},
              {"zero", STAGES, &out_mesh->zero}};
  enum { N = sizeof axes / sizeof *axes };
  for (const char *at = text; at;) {
    int i = 0;
    while (i < N && (*axes[i].out || !take_axis(&at, axes[i].name, axes[i].most, axes[i].out))) i++;
    if (i == N)
      return kva_error(diag, NULL,
                       "--mesh %s: expected data=N, tensor=N and sequence=N with numbers of processes, 1 to %d, "
                       "pipeline=P with 1 to %d stages, and zero=Z with Z of 1, 2 or 3, found '%s'",
                       text, MOST, KVA_MOST_STAGES, at);
    at = *at ? at + 1 : NULL;
  }
  if (out_mesh->zero && !out_mesh->data)
    return kva_error(diag, NULL, "--mesh %s: zero divides states among the processes of data=N", text);
  if (kva_mesh_processes(out_mesh) <= MOST) return KVA_OK;
  return kva_error(diag, NULL, "--mesh %s: expected %d processes at most", text, MOST);
}

kva_target_options kva_target_named(const char *name) {
  kva_target_options t = {.opt_level = 2};
  if (!name) return t;
  if (!strncmp(name, "sm_", 3))
    t.arch = name;
  else if (strstr(name, "-linux-"))
    t.triple = name;
  else if (strcmp(name, "native") != 0)
    t.cpu = name, t.triple = kva_codegen_triple(name);
  return t;
}

static void drop_first(kva_module *m) {
  memmove(m->functions.data, m->functions.data + 1, --m->functions.len * sizeof *m->functions.data);
}

kva_status kva_compile_graph(kva_module *m, const kva_compile_options *options) {
  kva_pass_options passes = options->passes;
  kva_target target;
  KVA_TRY(kva_codegen_describe(&options->target, m->diag, &target));
  passes.target = &target;
  passes.step = options->decode;
  KVA_TRY(kva_optimize(m, &passes));
  if (options->decode) KVA_TRY(kva_make_decode(m, &passes));
  if (options->decode_only) drop_first(m);
  if (options->train) KVA_TRY(kva_make_training(m, &passes));
  return kva_prepare(m, &passes);
}

/* Functions that become programs: all, except for "eval" and "loss" of a model that is only run. */
static bool is_program(const kva_function *f, const kva_compile_options *options) {
  return options->train || strcmp(f->name, "loss") != 0;
}

kva_status kva_plan_functions(kva_module *m, const kva_compile_options *options, kva_arena *arena, uint32_t *out_n,
                              kva_memory_plan ***out_plans) {
  bool changed = false;
  KVA_TRY(kva_run_pass(m, KVA_PASS_plan, &options->passes, &changed));
  *out_n = 0;
  *out_plans = KVA_NEW_ARRAY(arena, kva_memory_plan *, m->functions.len + 1);
  for (uint32_t i = 0; i < m->functions.len; i++) {
    kva_function *f = m->functions.data[i];
    if (is_program(f, options)) (*out_plans)[(*out_n)++] = f->plan;
  }
  return KVA_OK;
}

static kva_status compile(kva_compiled *c, const kva_compile_options *options, kva_diag *diag) {
  double start = kva_now();
  KVA_TRY(kva_compile_graph(c->module, options));
  KVA_TRY(kva_plan_functions(c->module, options, c->arena, &c->n_plans, &c->plans));
  KVA_TRY(kva_check_room(c->module, c->n_plans, c->plans, options));
  c->pass_seconds = kva_now() - start;
  kva_target_options target = options->target;
  target.control = options->passes.control;
  target.in_process = true;
  KVA_TRY(kva_codegen_create(&target, diag, &c->cg));
  KVA_TRY(kva_codegen_artifact(c->cg, c->arena, c->module, c->n_plans, c->plans, &c->artifact));
  c->codegen_seconds = kva_now() - start - c->pass_seconds;
  c->cached = kva_codegen_cached(c->cg);
  return KVA_OK;
}

kva_status kva_compile(kva_module *m, const kva_compile_options *options, kva_diag *diag, kva_compiled **out_compiled) {
  *out_compiled = NULL;
  kva_compiled *c = calloc(1, sizeof *c);
  if (!c) {
    kva_module_destroy(m);
    return kva_fail(diag, KVA_NO_MEMORY, NULL, "out of memory");
  }
  c->module = m;
  c->arena = kva_arena_create();
  kva_status status = compile(c, options, diag);
  if (status != KVA_OK) {
    kva_compiled_destroy(c);
    return status;
  }
  *out_compiled = c;
  return KVA_OK;
}

void kva_compiled_destroy(kva_compiled *c) {
  if (!c) return;
  if (c->cg) kva_codegen_destroy(c->cg);
  kva_module_destroy(c->module);
  kva_arena_destroy(c->arena);
  free(c);
}
