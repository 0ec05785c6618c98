#include "tools/verify/compiled.h"
#include "ops/ids.h"

#include <stdlib.h>

typedef struct symbol_value {
  const kva_expr *symbol;
  int64_t value;
} symbol_value;

typedef struct run {
  kva_arena *arena;
  kva_module *m;
  kva_codegen *cg;
  KVA_VEC(symbol_value) symbols;
  void **data; /* by value id */
} run;

static bool lookup(void *user, const kva_expr *symbol, int64_t *out_v) {
  const run *r = user;
  for (uint32_t i = 0; i < r->symbols.len; i++) {
    if (r->symbols.data[i].symbol != symbol) continue;
    *out_v = r->symbols.data[i].value;
    return true;
  }
  return false;
}

static void bind_symbols(run *r, const kva_type *t, const kva_ref_tensor *w) {
  for (uint32_t d = 0; d < t->rank; d++) {
    int64_t known;
    if (t->dims[d]->kind != KVA_EXPR_SYMBOL || lookup(r, t->dims[d], &known)) continue;
    symbol_value v = {t->dims[d], w->dims[d]};
    KVA_PUSH(r->arena, &r->symbols, v);
  }
}

static int64_t evaluate(run *r, const kva_expr *e) {
  int64_t v = -1;
  KVA_ASSERT(kva_expr_eval(e, lookup, r, &v));
  return v;
}

static size_t bytes_of(run *r, const kva_type *t) {
  int64_t n = 1, bytes;
  for (uint32_t d = 0; d < t->rank; d++) n *= evaluate(r, t->dims[d]);
  KVA_ASSERT(kva_dtype_bytes(t->dtype, n, &bytes));
  return (size_t)bytes;
}

/* Fills memory with a pattern, to reveal elements that nothing stores. */
static void *allocate(run *r, const kva_type *t) {
  size_t bytes = bytes_of(r, t);
  void *data = kva_arena_alloc(r->arena, bytes + 64);
  memset(data, 0xA5, bytes);
  return data;
}

typedef struct step {
  kva_node *node;
  kva_kernel *kernel;
  int32_t number;
} step;

static kva_status compile_node(run *r, kva_node *n, uint32_t n_symbols, const kva_expr *const *symbols, step *out) {
  const kva_target *target = kva_codegen_target(r->cg);
  *out = (step){n, NULL, -1};
  KVA_TRY(kva_codegen_kernel(r->arena, n, target, &(kva_pass_control){.verify_each = true}, &out->kernel));
  if (getenv("KVA_TEST_PRINT")) {
    kva_text text = {0};
    kva_kernel_print(out->kernel, &text);
    fputs(text.data, stderr);
    kva_text_free(&text);
  }
  return kva_codegen_add(r->cg, out->kernel, n_symbols, symbols, &out->number);
}

static bool seen_before(const kva_node *n, uint32_t i) {
  for (uint32_t k = 0; k < i; k++) {
    if (n->operands[k].value == n->operands[i].value) return true;
  }
  return false;
}

static void run_step(run *r, const step *s, const int64_t *symbols) {
  void **buffers = KVA_NEW_ARRAY(r->arena, void *, s->node->n_operands + s->node->n_results);
  uint32_t n = 0;
  for (uint32_t i = 0; i < s->node->n_operands; i++) {
    const kva_value *v = s->node->operands[i].value;
    if (v && !seen_before(s->node, i)) buffers[n++] = r->data[v->id];
  }
  for (uint32_t i = 0; i < s->node->n_results; i++) {
    r->data[s->node->results[i].id] = allocate(r, s->node->results[i].type);
    buffers[n++] = r->data[s->node->results[i].id];
  }
  if (s->node->op->traits & KVA_UPDATES_PART)
    memcpy(buffers[n - s->node->n_results], buffers[0], bytes_of(r, s->node->results[0].type));
  int64_t items = evaluate(r, kva_codegen_grid(s->kernel));
  kva_kernel_fn fn = kva_codegen_function(r->cg, s->number);
  fn(buffers, symbols, items / 2, items);
  fn(buffers, symbols, 0, items / 2);
}

static kva_status run_graph(run *r, kva_graph *g) {
  KVA_VEC(step) steps = {0};
  const kva_expr **symbols = KVA_NEW_ARRAY(r->arena, const kva_expr *, r->symbols.len + 1);
  int64_t *values = KVA_NEW_ARRAY(r->arena, int64_t, r->symbols.len + 1);
  for (uint32_t i = 0; i < r->symbols.len; i++) {
    symbols[i] = r->symbols.data[i].symbol;
    values[i] = r->symbols.data[i].value;
  }
  for (kva_node *n = g->first; n; n = n->next) {
    if (n->op->traits & KVA_RETURN) continue;
    if (kva_is(n, KVA_OP_constant)) {
      r->data[n->results[0].id] = (void *)(uintptr_t)((const kva_constant_attrs *)n->attrs)->value->data;
      continue;
    }
    step s;
    KVA_TRY(compile_node(r, n, r->symbols.len, symbols, &s));
    KVA_PUSH(r->arena, &steps, s);
  }
  KVA_TRY(kva_codegen_jit(r->cg));
  for (uint32_t i = 0; i < steps.len; i++) run_step(r, &steps.data[i], values);
  return KVA_OK;
}

static kva_ref_tensor *read_output(run *r, const kva_value *v) {
  int64_t dims[KVA_MAX_RANK];
  for (uint32_t d = 0; d < v->type->rank; d++) dims[d] = evaluate(r, v->type->dims[d]);
  return kva_ref_tensor_from_data(v->type->dtype, v->type->rank, dims, r->data[v->id]);
}

static void load_inputs(run *r, kva_graph *g, const kva_ref_tensor *const *inputs) {
  for (uint32_t i = 0; i < g->inputs.len; i++) bind_symbols(r, g->inputs.data[i]->type, inputs[i]);
  for (uint32_t i = 0; i < g->inputs.len; i++) {
    const kva_value *v = g->inputs.data[i];
    r->data[v->id] = allocate(r, v->type);
    kva_ref_tensor_to_data(inputs[i], r->data[v->id]);
  }
}

kva_status kva_run_compiled(void *user, kva_module *m, kva_function *f, const kva_ref_tensor *const *inputs,
                            kva_ref_tensor **outputs, kva_diag *diag) {
  run r = {.arena = kva_arena_create(), .m = m};
  kva_status status = kva_codegen_create(user, diag, &r.cg);
  if (status == KVA_OK) {
    r.data = KVA_NEW_ARRAY(r.arena, void *, m->next_value_id);
    load_inputs(&r, f->graph, inputs);
    status = run_graph(&r, f->graph);
  }
  for (uint32_t i = 0; status == KVA_OK && i < kva_graph_output_count(f->graph); i++) {
    outputs[i] = read_output(&r, kva_graph_output(f->graph, i));
  }
  kva_codegen_destroy(r.cg);
  kva_arena_destroy(r.arena);
  return status;
}
