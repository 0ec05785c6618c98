/* Mixed precision: products in bfloat16 or float16, everything delicate in float.
 *
 * What: operands of matrix products, convolutions and attention become `compute`, and so do their results, with what
 * follows them element by element or only moves elements. Reductions, norms, softmax, losses, optimisers and all other
 * operators keep float; so do states (master weights, moments), inputs, outputs and constants. A value is cast once for
 * all who need it in the other type. Products that give parameters their gradients have narrow operands and a float
 * result, and what is done to gradients up to the update is float.
 *
 * Algorithm: one sweep in SSA order; a node is retyped where it stands by narrowing or widening operands and inferring
 * again. An elementwise node with a narrow operand of its full shape is
 *   narrow   when the other operands are narrow too, or numbers that `compute` holds exactly;
 *   wrapped  when the others are smaller float tensors (biases, scales) or numbers: it computes in float, from operands
 *            that are cast up, and its result is cast down;
 *   float    when another operand of full shape is float (a residual stream).
 * Casts to `compute` are marked `may_stay_wide`: inside a fused kernel they cost nothing, and the value is rounded when
 * it is stored. Casts of the model are left alone.
 *
 * Requires: after differentiation, so that gradients follow the same rules; no sub-graphs. Breaks: adds casts for the
 * clean-up to merge. Why not casts before differentiation: rules would then sum gradients in the narrow type. */
#include "passes/passes_internal.h"

enum { ALL_OPERANDS = 0x7fffffff };

typedef struct value_info {
  kva_value *cast; /* the same value in the other type, or NULL */
  bool narrow;     /* this pass made it narrow; a model's own narrow values are left alone */
  bool gradient;   /* of a parameter, on the way to its update */
} value_info;

typedef struct precision {
  kva_module *m;
  kva_dtype narrow;
  KVA_VEC(value_info) info; /* by value id */
  kva_arena *scratch;
} precision;

static value_info *info(precision *p, const kva_value *v) {
  while (p->info.len <= v->id) KVA_PUSH(p->scratch, &p->info, (value_info){0});
  return &p->info.data[v->id];
}

static bool is_float(const kva_value *v) {
  return v && v->type->kind == KVA_TYPE_TENSOR && v->type->dtype == KVA_F32;
}

static bool is_narrow(precision *p, const kva_value *v) {
  return v && info(p, v)->narrow;
}

/* ---- which operators --------------------------------------------------------------------------------------------- */

/* Operands whose type n takes, as a set of bits. */
static uint32_t followed_operands(const kva_node *n) {
  return n->op->traits & KVA_VIEW ? ALL_OPERANDS : n->op->follows;
}

static bool is_gradient(precision *p, const kva_node *n) {
  return n->n_results == 1 && info(p, &n->results[0])->gradient;
}

/* Backwards from the updates through what adds up, scales and moves gradients. */
static void mark_gradients(precision *p, const kva_graph *g) {
  for (const kva_node *n = g->last; n; n = n->prev) {
    bool passes_on = is_gradient(p, n) && (n->op->traits & (KVA_ELEMENTWISE | KVA_VIEW));
    for (uint32_t i = 0; i < n->n_operands; i++)
      if (n->operands[i].value && (passes_on || (n->op->traits & KVA_UPDATES && i == KVA_UPDATE_GRADIENT)))
        info(p, n->operands[i].value)->gradient = true;
  }
}

/* ---- casts ------------------------------------------------------------------------------------------------------- */

static bool has(uint32_t operands, uint32_t i) {
  return operands == ALL_OPERANDS || kva_in_operands(operands, i);
}

/* Views of one operand are made again of the operand in the other type, so that one cast serves all views. */
static bool is_plain_view(const kva_node *def) {
  return def && (kva_is(def, KVA_OP_reshape) || kva_is(def, KVA_OP_transpose));
}

static kva_value *narrowed(const precision *p, kva_builder *b, kva_value *v) {
  KVA_ASSERT(is_float(v));
  return kva_build(b, KVA_OP_cast, 1, &v, &(kva_cast_attrs){.to = p->narrow, .saturate = true, .may_stay_wide = true});
}

/* v in the other type, made before n, the first that needs it. */
static kva_value *other(precision *p, kva_value *v, kva_node *n) {
  KVA_ASSERT(v && kva_dtype_is_float(v->type->dtype));
  if (info(p, v)->cast) return info(p, v)->cast;
  bool to_narrow = !info(p, v)->narrow;
  kva_builder b = kva_builder_before(p->m, n);
  kva_value *made;
  if (to_narrow && is_plain_view(v->def))
    made = kva_build(&b, (kva_op_id)v->def->op->id, 1, (kva_value *[]){other(p, kva_operand(v->def, 0), n)},
                     v->def->attrs);
  else
    made = to_narrow ? narrowed(p, &b, v) : kva_cast(&b, v, KVA_F32);
  info(p, made)->narrow = to_narrow;
  info(p, v)->cast = made;
  return made;
}

static kva_status infer_again(precision *p, kva_node *n) {
  KVA_ASSERT(n->op->infer);
  const kva_type **types = KVA_NEW_ARRAY(p->scratch, const kva_type *, n->n_results + 1);
  KVA_TRY(n->op->infer(p->m, n, types));
  for (uint32_t r = 0; r < n->n_results; r++) {
    if (types[r] != n->results[r].type) info(p, &n->results[r])->narrow = true;
    n->results[r].type = types[r];
  }
  return KVA_OK;
}

/* ---- one node ---------------------------------------------------------------------------------------------------- */

static void widen_operands(precision *p, kva_node *n) {
  for (uint32_t i = 0; i < n->n_operands; i++)
    if (is_narrow(p, kva_operand(n, i))) kva_node_set_operand(n, i, other(p, kva_operand(n, i), n));
}

static kva_status narrow_node(precision *p, kva_node *n, uint32_t operands) {
  for (uint32_t i = 0; i < n->n_operands; i++)
    if (has(operands, i) && is_float(kva_operand(n, i))) kva_node_set_operand(n, i, other(p, kva_operand(n, i), n));
  return infer_again(p, n);
}

/* n's attributes with `to` = float. */
static void *float_result(precision *p, const kva_node *n) {
  const kva_attr_field *to = kva_attrs_find(n->op->attrs, "to", 2);
  KVA_ASSERT(to && to->kind == KVA_ATTR_DTYPE);
  char *attrs = kva_arena_memdup(p->m->arena, n->attrs, n->op->attrs->size);
  *(kva_dtype *)(attrs + to->offset) = KVA_F32;
  return attrs;
}

static kva_status narrow_product(precision *p, kva_node *n) {
  if (!is_float(&n->results[0])) return KVA_OK;
  kva_product_result result = n->op->product_result;
  if (result == KVA_FLOAT_RESULT || (result == KVA_FLOAT_GRADIENT && is_gradient(p, n))) n->attrs = float_result(p, n);
  return narrow_node(p, n, n->op->product);
}

static bool all_narrow(precision *p, const kva_node *n, uint32_t operands) {
  bool any = false;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_value *v = kva_operand(n, i);
    if (!v || !has(operands, i) || !kva_dtype_is_float(v->type->dtype)) continue;
    if (!is_narrow(p, v)) return false;
    any = true;
  }
  return any;
}

static bool is_exact_number(const precision *p, const kva_value *v) {
  double x;
  uint64_t storage = 0;
  if (!kva_splat_value(v, &x)) return false;
  kva_store_f64(p->narrow, &storage, 0, x);
  return kva_load_f64(p->narrow, &storage, 0) == x;
}

/* Computes in float and gives everyone after it the narrow result. */
static void wrap(precision *p, kva_node *n) {
  KVA_ASSERT(n->n_results == 1 && n->results[0].type->dtype == KVA_F32);
  widen_operands(p, n);
  kva_builder b = kva_builder_before(p->m, n->next);
  kva_value *result = &n->results[0], *narrow = narrowed(p, &b, result);
  kva_value_replace_all_uses(result, narrow);
  kva_node_set_operand(narrow->def, 0, result);
  info(p, narrow)->narrow = true;
}

/* Someone after n would take its result narrow. */
static bool is_wanted_narrow(precision *p, const kva_node *n) {
  for (const kva_use *u = n->results[0].uses; u; u = u->next) {
    if (is_gradient(p, u->user)) continue;
    const kva_op_info *op = u->user->op;
    if (op->product || followed_operands(u->user) || op->traits & KVA_NARROW) return true;
  }
  return false;
}

static kva_status visit_elementwise(precision *p, kva_node *n) {
  bool full_narrow = false, full_float = false, inexact = false;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_value *v = kva_operand(n, i);
    if (!v || !kva_dtype_is_float(v->type->dtype)) continue;
    bool narrow = is_narrow(p, v), full = kva_type_same_shape(v->type, n->results[0].type);
    full_narrow |= narrow && full;
    full_float |= !narrow && full;
    inexact |= !narrow && !is_exact_number(p, v);
  }
  bool narrow = full_narrow && !full_float && is_wanted_narrow(p, n);
  if (narrow && !inexact) return narrow_node(p, n, ALL_OPERANDS);
  if (narrow)
    wrap(p, n);
  else
    widen_operands(p, n);
  return KVA_OK;
}

static kva_status visit(precision *p, kva_node *n) {
  if (n->op->product) return narrow_product(p, n);
  bool gradient = is_gradient(p, n) && (n->op->traits & (KVA_ELEMENTWISE | KVA_VIEW));
  uint32_t followed = followed_operands(n);
  if (!gradient && n->op->traits & KVA_NARROW && is_float(&n->results[0])) return visit_elementwise(p, n);
  if (!gradient && followed && all_narrow(p, n, followed)) return infer_again(p, n);
  widen_operands(p, n);
  return KVA_OK;
}

static kva_status visit_function(precision *p, kva_graph *g) {
  mark_gradients(p, g);
  kva_status status = KVA_OK;
  for (kva_node *n = g->first, *next; n && !status; n = next) {
    next = n->next;
    status = visit(p, n);
  }
  return status;
}

kva_status kva_precision(kva_module *m, const kva_pass_options *o, bool *changed) {
  if (!o->compute) return kva_error(m->diag, NULL, "pass 'precision' needs a type: --precision bf16 or f16");
  KVA_ASSERT(o->compute == KVA_BF16 || o->compute == KVA_F16);
  precision p = {.m = m, .narrow = o->compute, .scratch = kva_arena_create()};
  uint32_t before = m->next_node_id;
  kva_status status = KVA_OK;
  for (uint32_t f = 0; f < m->functions.len && !status; f++) status = visit_function(&p, m->functions.data[f]->graph);
  kva_arena_destroy(p.scratch);
  *changed = m->next_node_id != before; /* no type changes without a cast */
  return status;
}
