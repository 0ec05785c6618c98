/* The models that ship as PTX: every step of a planned program runs on the simulator, with the plan's buffers, and
 * leaves what the reference leaves in outputs and states. */
#include "runtime/ptxsim/ptxsim.h"
#include "tests/support/evaluate.h"
#include "tests/support/target.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static const eval_size sizes[] = {{"B", 3}, {"T", 37}, {NULL, 0}};

typedef struct program {
  kva_module *m;
  kva_memory_plan *plan;
  kva_arena *arena;
  kva_diag *diag;
  kva_codegen *cg;
  kva_ptx_memory *memory;
  kva_ptx_module *module;
  void **data;                   /* by buffer */
  KVA_VEC(kva_kernel *) kernels; /* by step; NULL: a copy */
  KVA_VEC(int32_t) numbers;
} program;

static bool lookup(void *user, const kva_expr *symbol, int64_t *out_v) {
  (void)user;
  for (const eval_size *s = sizes; s->name; s++) {
    if (!symbol->name || strcmp(s->name, symbol->name) != 0) continue;
    *out_v = s->size;
    return true;
  }
  return false;
}

static int64_t evaluate(const kva_expr *e) {
  int64_t v = 0;
  assert_true(kva_expr_eval(e, lookup, NULL, &v));
  return v;
}

static size_t bytes_of(const kva_type *t) {
  int64_t n = 1, bytes = 0;
  for (uint32_t d = 0; d < t->rank; d++) n *= evaluate(t->dims[d]);
  assert_true(kva_dtype_bytes(t->dtype, n, &bytes));
  return (size_t)bytes;
}

static void require(program *p, kva_status status, const char *what) {
  if (status == KVA_OK) return;
  kva_diag_print(p->diag, stderr);
  fail_msg("%s: %s", p->plan ? p->plan->function->name : "model", what);
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

static const kva_value *input_of(const program *p, uint32_t buffer) {
  for (uint32_t i = 0; i < p->plan->inputs.len; i++)
    if (p->plan->inputs.data[i] == (int32_t)buffer) return p->plan->function->graph->inputs.data[i];
  fail_msg("buffer %u is no input", buffer);
  return NULL;
}

static void fill(program *p, uint32_t b) {
  const kva_plan_buffer *buffer = &p->plan->buffers.data[b];
  size_t bytes = bytes_of(buffer->type);
  memset(p->data[b], 0xA5, bytes);
  if (buffer->place == KVA_PLACE_CONST) memcpy(p->data[b], buffer->data->data, bytes);
  if (buffer->place != KVA_PLACE_STATE && buffer->place != KVA_PLACE_INPUT) return;
  kva_ref_tensor *w = buffer->place == KVA_PLACE_STATE ? eval_state(buffer->state) : eval_input(input_of(p, b), sizes);
  kva_ref_tensor_to_data(w, p->data[b]);
  kva_ref_tensor_free(w);
}

static void create_buffers(program *p) {
  p->data = KVA_NEW_ARRAY(p->arena, void *, p->plan->buffers.len + 1);
  for (uint32_t b = 0; b < p->plan->buffers.len; b++) {
    const kva_plan_buffer *buffer = &p->plan->buffers.data[b];
    size_t bytes = bytes_of(buffer->type);
    p->data[b] = aligned_alloc(64, bytes / 64 * 64 + 64);
    assert_non_null(p->data[b]);
    fill(p, b);
    bool writable = buffer->place != KVA_PLACE_CONST && buffer->place != KVA_PLACE_INPUT;
    const char *name = buffer->name ? buffer->name : "buffer";
    require(p, kva_ptx_memory_add(p->memory, p->data[b], bytes, writable, name), "memory");
  }
}

/* ---- code -------------------------------------------------------------------------------------------------------- */

static void compile(program *p) {
  const kva_target *target = kva_codegen_target(p->cg);
  for (uint32_t i = 0; i < p->plan->steps.len; i++) {
    const kva_node *n = p->plan->steps.data[i].node;
    kva_kernel *k = n ? kva_codegen_lower(p->arena, n, target) : NULL;
    const kva_expr *const *symbols;
    int32_t number = -1;
    if (n && !k) require(p, KVA_UNSUPPORTED, "no lowering");
    if (k) {
      kva_codegen_schedule(k, target);
      require(p, kva_kernel_verify(k, p->diag), "schedule");
      uint32_t n_symbols = kva_codegen_symbols(k, p->arena, &symbols);
      require(p, kva_codegen_add(p->cg, k, n_symbols, symbols, &number), "code");
    }
    KVA_PUSH(p->arena, &p->kernels, k);
    KVA_PUSH(p->arena, &p->numbers, number);
  }
  char *text;
  size_t size;
  require(p, kva_codegen_emit(p->cg, "ptx", &text, &size), "ptx");
  require(p, kva_ptx_module_create(text, size, p->plan->function->name, p->diag, &p->module), "module");
  free(text);
}

static void launch(program *p, uint32_t step) {
  const kva_plan_step *s = &p->plan->steps.data[step];
  const kva_kernel *k = p->kernels.data[step];
  const kva_expr *const *symbols;
  uint32_t n_symbols = kva_codegen_symbols(k, p->arena, &symbols);
  const void **params = KVA_NEW_ARRAY(p->arena, const void *, s->n_args + n_symbols + 1);
  int64_t *values = KVA_NEW_ARRAY(p->arena, int64_t, n_symbols + 1);
  for (uint32_t i = 0; i < s->n_args; i++) params[i] = &p->data[s->args[i]];
  for (uint32_t i = 0; i < n_symbols; i++) {
    values[i] = evaluate(symbols[i]);
    params[s->n_args + i] = &values[i];
  }
  uint32_t blocks = (uint32_t)evaluate(kva_codegen_grid(k));
  if (!blocks) return;
  const char *name = kva_codegen_kernel_name(p->cg, p->numbers.data[step]);
  kva_launch shape = kva_codegen_launch(p->cg, p->numbers.data[step]);
  kva_ptx_dim3 grid = {kva_ptx_grid(blocks, shape.cooperating), 1, 1}, block = {shape.threads, 1, 1};
  kva_ptx_report report;
  kva_ptx_options options = {
      .no_counters = true, .check_global = true, .schedule_seed = step + 1, .cooperative = shape.cooperating > 0};
  require(p,
          kva_ptx_launch(kva_ptx_module_get_kernel(p->module, name), p->memory, grid, block, shape.dynamic_bytes,
                         params, s->n_args + n_symbols, &options, p->diag, &report),
          "launch");
  if (report.n_findings) {
    kva_ptx_report_print_findings(&report, name, stderr);
    fail_msg("%s: findings", name);
  }
  kva_ptx_report_free(&report);
}

static void run(program *p) {
  for (uint32_t i = 0; i < p->plan->steps.len; i++) {
    const kva_plan_step *s = &p->plan->steps.data[i];
    if (s->node)
      launch(p, i);
    else
      memcpy(p->data[s->args[0]], p->data[s->args[1]], bytes_of(p->plan->buffers.data[s->args[0]].type));
  }
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static kva_ref_tensor *read_buffer(const program *p, int32_t b) {
  const kva_type *t = p->plan->buffers.data[b].type;
  int64_t dims[KVA_MAX_RANK];
  for (uint32_t d = 0; d < t->rank; d++) dims[d] = evaluate(t->dims[d]);
  return kva_ref_tensor_from_data(t->dtype, t->rank, dims, p->data[b]);
}

static evaluated results(const program *p) {
  evaluated e = {.n_outputs = p->plan->outputs.len, .n_states = p->m->states.len};
  e.outputs = calloc(e.n_outputs + 1, sizeof *e.outputs);
  e.states = calloc(e.n_states + 1, sizeof *e.states);
  assert_true(e.outputs && e.states);
  for (uint32_t i = 0; i < e.n_outputs; i++) e.outputs[i] = read_buffer(p, p->plan->outputs.data[i]);
  for (uint32_t b = 0; b < p->plan->buffers.len; b++) {
    const kva_plan_buffer *buffer = &p->plan->buffers.data[b];
    if (buffer->place == KVA_PLACE_STATE) e.states[buffer->state->id] = read_buffer(p, (int32_t)b);
  }
  return e;
}

static evaluated evaluate_ptx(kva_module *m, kva_function *f, const char *arch, uint32_t runs, kva_diag *diag) {
  program p = {.m = m, .diag = diag, .arena = kva_arena_create(), .memory = kva_ptx_memory_create()};
  require(&p, kva_plan(m, f, p.arena, &p.plan), "plan");
  const kva_target_options target = test_target(2, arch);
  require(&p, kva_codegen_create(&target, diag, &p.cg), "target");
  create_buffers(&p);
  compile(&p);
  for (uint32_t i = 0; i < runs; i++) run(&p);
  evaluated e = results(&p);
  print_message("%s: %u steps, %d kernels\n", f->name, p.plan->steps.len, kva_codegen_kernel_count(p.cg));
  for (uint32_t b = 0; b < p.plan->buffers.len; b++) free(p.data[b]);
  kva_ptx_module_destroy(p.module);
  kva_ptx_memory_destroy(p.memory);
  kva_codegen_destroy(p.cg);
  kva_arena_destroy(p.arena);
  return e;
}

static void check_model(const char *path, uint32_t n, const kva_define *defines) {
  kva_diag *diag = kva_diag_create();
  kva_module *m;
  kva_load_options options = {.defines = defines, .n_defines = n};
  kva_pass_options passes = {.target = kva_target_gpu("sm_80")};
  assert_int_equal(kva_load_model(path, &options, diag, &m), KVA_OK);
  assert_int_equal(kva_optimize(m, &passes), KVA_OK);
  assert_int_equal(kva_make_training(m, &passes), KVA_OK);
  evaluated step = evaluate_reference(m, kva_module_find_function(m, "train_step"), sizes);
  evaluated forward = evaluate_reference(m, m->functions.data[0], sizes);
  assert_int_equal(kva_prepare(m, &passes), KVA_OK);
  evaluated found = evaluate_ptx(m, m->functions.data[0], "sm_80", 1, diag);
  assert_true(evaluated_equal(path, m, &forward, &found, 1e-5));
  evaluated_free(&found);
  found = evaluate_ptx(m, kva_module_find_function(m, "train_step"), "sm_90a", 1, diag);
  assert_true(evaluated_equal(path, m, &step, &found, 1e-4));
  evaluated_free(&found);
  evaluated_free(&step);
  evaluated_free(&forward);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static void test_mlp(void **state) {
  (void)state;
  static const kva_define defines[] = {{"vocab", "40"}, {"d", "32"}, {"hidden", "48"}};
  check_model("models/mlp.kv", 3, defines);
}

static void test_induction(void **state) {
  (void)state;
  static const kva_define defines[] = {{"vocab", "37"}, {"d", "32"}, {"heads", "2"}, {"ffn", "40"}};
  check_model("models/induction.kv", 4, defines);
}

static void test_lm(void **state) {
  (void)state;
  static const kva_define defines[] = {{"vocab", "33"}, {"d", "64"},       {"heads", "4"},
                                       {"ffn", "48"},   {"kv_heads", "2"}, {"layers", "1"}};
  check_model("models/lm.kv", 6, defines);
}

static void test_documents(void **state) {
  (void)state;
  static const kva_define defines[] = {{"vocab", "9"}, {"d", "64"},     {"heads", "2"},
                                       {"ffn", "48"},  {"layers", "2"}, {"separator", "3"}};
  check_model("models/lm.kv", 6, defines);
}

static void check_text(const char *text, const char *arch, uint32_t runs) {
  kva_diag *diag = kva_diag_create();
  kva_module *m;
  kva_status status = kva_load_text(text, arch, &(kva_load_options){0}, diag, &m);
  if (status != KVA_OK) kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
  evaluated expected = evaluate_reference(m, m->functions.data[0], sizes);
  assert_int_equal(kva_prepare(m, &(kva_pass_options){.target = kva_target_gpu("sm_80")}), KVA_OK);
  evaluated found = evaluate_ptx(m, m->functions.data[0], arch, runs, diag);
  assert_true(evaluated_equal(arch, m, &expected, &found, 1e-5));
  evaluated_free(&found);
  evaluated_free(&expected);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

/* Rows that blocks share. One launch leaves their message slots as the next one needs them; a state that lies where its
 * new value does is stored once. */
static void test_shared_rows(void **state) {
  (void)state;
  static const char softmax[] = "f (float[B, 131072] x) => (float[B, 131072] y) { y = kv.softmax(x) }";
  static const char sums[] = "state float[2, 1] \"sum\" : param ~ zeros\n"
                             "f (float[2, 131072] x) => (float[1, 1] z) {\n"
                             "  before = kv.state_read <state = \"sum\"> ()\n"
                             "  m = kv.reduce_max <axes = [1]> (x)\n"
                             "  s = kv.reduce_sum <axes = [1]> (kv.exp(kv.sub(x, m)))\n"
                             "  t = kv.add(s, before)\n"
                             "  z = kv.reduce_sum(t)\n"
                             "  kv.state_write <state = \"sum\"> (t)\n"
                             "}";
  static const char *const archs[] = {"sm_80", "sm_90a"};
  for (size_t a = 0; a < sizeof archs / sizeof *archs; a++) {
    check_text(softmax, archs[a], 2);
    check_text(sums, archs[a], 1);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_mlp), cmocka_unit_test(test_induction),
                                     cmocka_unit_test(test_lm), cmocka_unit_test(test_documents),
                                     cmocka_unit_test(test_shared_rows)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
