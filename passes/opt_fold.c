/* Constant folding.
 *
 * What: a pure node with constant operands and a static result shape becomes a constant, computed by the operator's
 * reference. This includes nodes without operands (iota, dims).
 *
 * Algorithm: one forward sweep; a folded result is a constant for later nodes. Requires: SSA order. Breaks: nothing.
 *
 * Why a limit: folding `expand(0, [4096, 4096])` would turn one scalar into 64 MiB. Only results of at most FOLD_LIMIT
 * elements, or smaller than their operands together, are folded. A long iota beside variables is cheaper to compute
 * than to load. A product with many floating-point operations is not folded either: compiled code takes a hundredth of
 * the time that its reference takes. Weights that products read stay packed (KVA_UNPACKS). On a CPU, dequantised codes
 * whose products will be computed in integers (opt_integer.c) are not folded either, nor are casts of 16-bit floats for
 * products. */
#include "passes/passes_internal.h"
#include "ops/index.h"

enum { FOLD_LIMIT = 1 << 16, LONG_IOTA = 64, MAX_FLOPS = 1 << 26 /* 0.2 s of a reference */ };

static bool no_symbols(void *user, const kva_expr *symbol, int64_t *out_v) {
  (void)user, (void)symbol, (void)out_v;
  return false;
}

static int64_t static_elements(kva_module *m, const kva_type *t) {
  int64_t n;
  return kva_expr_is_const(kva_type_elements(m, t), &n) ? n : -1;
}

static bool is_foldable_type(const kva_type *t) {
  return t->kind == KVA_TYPE_TENSOR && kva_type_is_static(t) && t->dtype != KVA_STRING && t->dtype != KVA_C64 &&
         t->dtype != KVA_C128;
}

/* Attributes may depend on symbols even if the shape does not: dims(N), a slice that starts at N. */
static bool has_static_attrs(const kva_node *n) {
  for (uint32_t i = 0; n->op->attrs && i < n->op->attrs->n_fields; i++) {
    const kva_attr_field *f = &n->op->attrs->fields[i];
    const void *at = (const char *)n->attrs + f->offset;
    if (f->kind == KVA_ATTR_DIM && *(const kva_dim *)at && !kva_expr_is_const(*(const kva_dim *)at, NULL)) return false;
    kva_dims dims = f->kind == KVA_ATTR_DIMS ? *(const kva_dims *)at : (kva_dims){0};
    for (uint32_t k = 0; k < dims.n; k++)
      if (!kva_expr_is_const(dims.v[k], NULL)) return false;
  }
  return true;
}

/* Whether folding n enables no further folding: every user also has a variable operand. */
static bool meets_variables_only(const kva_node *n) {
  for (const kva_use *u = n->results[0].uses; u; u = u->next) {
    bool constant = true;
    for (uint32_t i = 0; i < u->user->n_operands; i++) {
      const kva_value *v = u->user->operands[i].value;
      constant &= !v || v == &n->results[0] || kva_constant_of(v);
    }
    if (constant) return false;
  }
  return n->results[0].uses;
}

static bool is_long_product(kva_module *m, const kva_node *n) {
  kva_sizes sizes = {.m = m, .lookup = no_symbols};
  return n->op->flops && n->op->flops(n, &sizes) > MAX_FLOPS;
}

static bool can_fold(kva_module *m, const kva_node *n, const kva_pass_options *o) {
  bool stays = kva_stays_packed(n) || (!kva_for_gpu(o) && (kva_stays_codes(n) || kva_stays_narrow(n)));
  if (stays || n->op->lower_kind == KVA_LOWER_CALL) return false;
  if (!kva_node_is_pure(n) || !n->op->ref || kva_is(n, KVA_OP_constant)) return false;
  if (kva_is(n, KVA_OP_random_uniform) || kva_is(n, KVA_OP_random_normal) || !has_static_attrs(n)) return false;
  int64_t operand_elements = 0, result_elements = 0;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_value *v = n->operands[i].value;
    if (!v) continue;
    if (!kva_constant_of(v) || !is_foldable_type(v->type)) return false;
    operand_elements += static_elements(m, v->type);
  }
  for (uint32_t r = 0; r < n->n_results; r++) {
    if (!is_foldable_type(n->results[r].type)) return false;
    result_elements += static_elements(m, n->results[r].type);
  }
  if (kva_is(n, KVA_OP_iota) && result_elements > LONG_IOTA && meets_variables_only(n)) return false;
  if (is_long_product(m, n)) return false;
  return result_elements <= FOLD_LIMIT || result_elements <= operand_elements;
}

static kva_ref_tensor *tensor_of_type(const kva_type *t) {
  int64_t dims[KVA_MAX_RANK];
  for (uint32_t d = 0; d < t->rank; d++) kva_expr_is_const(t->dims[d], &dims[d]);
  return kva_ref_tensor_create(t->dtype, t->rank, dims);
}

/* Operators that take v as indices see only now which they are. */
static kva_status check_users(kva_module *m, const kva_value *v) {
  for (const kva_use *u = v->uses; u; u = u->next) KVA_TRY(kva_index_check_constant(m, u->user));
  return KVA_OK;
}

static kva_status replace_by_constant(kva_module *m, kva_node *n, uint32_t r, const kva_ref_tensor *w) {
  KVA_ASSERT(r < n->n_results && w->dtype == n->results[r].type->dtype);
  int64_t bytes;
  if (!kva_dtype_bytes(w->dtype, w->n, &bytes)) return KVA_NO_MEMORY;
  kva_tensor_data *t = KVA_NEW(m->arena, kva_tensor_data);
  void *data = kva_arena_alloc(m->arena, (size_t)bytes);
  kva_ref_tensor_to_data(w, data);
  *t = (kva_tensor_data){.dtype = w->dtype, .rank = w->rank, .data = data, .bytes = bytes, .spare = true};
  t->dims = kva_arena_memdup(m->arena, w->dims, w->rank * sizeof *w->dims);
  kva_builder b = kva_builder_before(m, n);
  kva_value *v = kva_const_tensor(&b, t);
  kva_value_replace_all_uses(&n->results[r], v);
  return check_users(m, v);
}

static kva_status evaluate(kva_module *m, kva_node *n, kva_arena *scratch, kva_ref_tensor **in, kva_ref_tensor **out) {
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_tensor_data *t = kva_constant_of(n->operands[i].value);
    in[i] = t ? kva_ref_tensor_from_data(t->dtype, t->rank, t->dims, t->data) : NULL;
    if (t && !in[i]) return KVA_NO_MEMORY;
  }
  for (uint32_t r = 0; r < n->n_results; r++) {
    out[r] = tensor_of_type(n->results[r].type);
    if (!out[r]) return KVA_NO_MEMORY;
  }
  kva_ref ref = {.diag = m->diag, .scratch = scratch, .lookup = no_symbols};
  kva_task task = {.what = "operator", .name = n->op->name, .loc = &n->loc};
  kva_task_begin(&task);
  kva_status status = n->op->ref(&ref, n, (const kva_ref_tensor *const *)in, (kva_ref_tensor *const *)out);
  kva_task_end(&task);
  return status;
}

static kva_status fold_node(kva_module *m, kva_node *n) {
  kva_arena *scratch = kva_arena_create();
  kva_ref_tensor **in = KVA_NEW_ARRAY(scratch, kva_ref_tensor *, n->n_operands + 1);
  kva_ref_tensor **out = KVA_NEW_ARRAY(scratch, kva_ref_tensor *, n->n_results + 1);
  kva_status status = evaluate(m, n, scratch, in, out);
  for (uint32_t r = 0; status == KVA_OK && r < n->n_results; r++) status = replace_by_constant(m, n, r, out[r]);
  for (uint32_t i = 0; i < n->n_operands; i++) kva_ref_tensor_free(in[i]);
  for (uint32_t r = 0; r < n->n_results; r++) kva_ref_tensor_free(out[r]);
  kva_arena_destroy(scratch);
  if (status == KVA_OK) kva_node_remove(n);
  return status;
}

static kva_status fold_graph(kva_module *m, kva_graph *g, const kva_pass_options *o, bool *changed) {
  for (kva_node *n = g->first, *next; n; n = next) {
    next = n->next;
    if (!kva_may_change(o)) return KVA_OK;
    if (!can_fold(m, n, o)) continue;
    KVA_TRY(fold_node(m, n));
    kva_count_change(o, n, NULL, changed);
  }
  return KVA_OK;
}

kva_status kva_opt_fold(kva_module *m, const kva_pass_options *o, bool *changed) {
  return kva_visit_graphs(m, fold_graph, o, changed);
}
