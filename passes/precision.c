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
 *            that are cast up, and its result is cast down; in a fused kernel the casts cost nothing;
 *   float    when another operand of full shape is float (a residual stream).
 * Requires: after differentiation, so that gradients follow the same rules; no sub-graphs. Breaks: adds casts for the
 * clean-up to merge. Why not casts before differentiation: rules would then sum gradients in the narrow type. */
#include "ops/attention.h"
#include "passes/passes_internal.h"

enum { ALL_OPERANDS = 0xff };

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

/* Operands that a product reads in the narrow type, as a set of bits; 0: no product. */
static uint32_t product_operands(const kva_node *n) {
  switch ((kva_op_id)n->op->id) {
  case KVA_OP_matmul:
  case KVA_OP_conv:
  case KVA_OP_conv_input_grad:
  case KVA_OP_conv_weight_grad: return 0x3;
  case KVA_OP_attention: return 0x7; /* q k v */
  case KVA_OP_attention_grad_q:
  case KVA_OP_attention_grad_kv: return 0x7 | 1u << KVA_ATTENTION_DY; /* delta and lse stay float */
  default: return 0;
  }
}

/* Operators that take the type of these operands, whatever the others have. */
static uint32_t leading_operands(const kva_node *n) {
  switch ((kva_op_id)n->op->id) {
  case KVA_OP_rope:
  case KVA_OP_max_pool: return 0x1;
  case KVA_OP_kv_shift:
  case KVA_OP_kv_shift_input_grad: return 0x5;  /* x or dy, past */
  case KVA_OP_kv_shift_weight_grad: return 0x7; /* x, dy, past */
  case KVA_OP_gather:
  case KVA_OP_gather_elements: return 0x1;
  default: return n->op->traits & KVA_VIEW ? ALL_OPERANDS : 0;
  }
}

/* Elementwise operators that lose nothing by narrow operands beyond the rounding of their result. */
static bool may_be_narrow(const kva_node *n) {
  if (!(n->op->traits & KVA_ELEMENTWISE) || kva_is(n, KVA_OP_cast) || kva_is(n, KVA_OP_bitcast)) return false;
  switch ((kva_op_id)n->op->id) {
  case KVA_OP_silu:
  case KVA_OP_gelu:
  case KVA_OP_sigmoid:
  case KVA_OP_tanh:
  case KVA_OP_erf: return true;
  default: return n->op->traits & KVA_CHEAP && !(n->op->traits & KVA_BOOL_RESULT);
  }
}

static bool is_update(const kva_node *n) {
  return kva_is(n, KVA_OP_adamw) || kva_is(n, KVA_OP_sgd) || kva_is(n, KVA_OP_momentum) || kva_is(n, KVA_OP_adagrad);
}

static bool is_gradient(precision *p, const kva_node *n) {
  return n->n_results == 1 && info(p, &n->results[0])->gradient;
}

/* Backwards from the updates through what adds up, scales and moves gradients. */
static void mark_gradients(precision *p, const kva_graph *g) {
  for (const kva_node *n = g->last; n; n = n->prev) {
    bool passes_on = is_gradient(p, n) && (n->op->traits & (KVA_ELEMENTWISE | KVA_VIEW));
    for (uint32_t i = 0; i < n->n_operands; i++)
      if (n->operands[i].value && (passes_on || (is_update(n) && i == 1)))
        info(p, n->operands[i].value)->gradient = true;
  }
}

/* ---- casts ------------------------------------------------------------------------------------------------------- */

static bool has(uint32_t operands, uint32_t i) {
  return operands == ALL_OPERANDS || (i < 8 && operands >> i & 1);
}

/* Views of one operand are made again of the operand in the other type, so that one cast serves all views. */
static bool is_plain_view(const kva_node *def) {
  return def && (kva_is(def, KVA_OP_reshape) || kva_is(def, KVA_OP_transpose));
}

/* v in the other type, made before n, the first that needs it. */
static kva_value *other(precision *p, kva_value *v, kva_node *n) {
  if (info(p, v)->cast) return info(p, v)->cast;
  bool to_narrow = !info(p, v)->narrow;
  kva_builder b = kva_builder_before(p->m, n);
  kva_value *made;
  if (to_narrow && is_plain_view(v->def))
    made = kva_build(&b, (kva_op_id)v->def->op->id, 1, (kva_value *[]){other(p, kva_operand(v->def, 0), n)},
                     v->def->attrs);
  else
    made = kva_cast(&b, v, to_narrow ? p->narrow : KVA_F32);
  info(p, made)->narrow = to_narrow;
  info(p, v)->cast = made;
  return made;
}

static kva_status infer_again(precision *p, kva_node *n) {
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

static kva_status narrow_product(precision *p, kva_node *n, uint32_t operands) {
  if (!is_float(&n->results[0])) return KVA_OK;
  if (kva_is(n, KVA_OP_matmul) && is_gradient(p, n)) {
    kva_matmul_attrs a = *(const kva_matmul_attrs *)n->attrs;
    a.to = KVA_F32;
    n->attrs = kva_arena_memdup(p->m->arena, &a, sizeof a);
  } else if (kva_is(n, KVA_OP_conv_weight_grad)) {
    kva_conv_weight_grad_attrs a = *(const kva_conv_weight_grad_attrs *)n->attrs;
    a.to = KVA_F32;
    n->attrs = kva_arena_memdup(p->m->arena, &a, sizeof a);
  }
  return narrow_node(p, n, operands);
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

static bool same_shape(const kva_type *a, const kva_type *b) {
  return a->rank == b->rank && (!a->rank || !memcmp(a->dims, b->dims, a->rank * sizeof *a->dims));
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
  widen_operands(p, n);
  kva_builder b = kva_builder_before(p->m, n->next);
  kva_value *result = &n->results[0], *narrow = kva_cast(&b, result, p->narrow);
  kva_value_replace_all_uses(result, narrow);
  kva_node_set_operand(narrow->def, 0, result);
  info(p, narrow)->narrow = true;
}

/* Someone after n would take its result narrow. */
static bool is_wanted_narrow(precision *p, const kva_node *n) {
  for (const kva_use *u = n->results[0].uses; u; u = u->next) {
    if (is_gradient(p, u->user)) continue;
    if (product_operands(u->user) || leading_operands(u->user) || may_be_narrow(u->user)) return true;
  }
  return false;
}

static kva_status visit_elementwise(precision *p, kva_node *n) {
  bool full_narrow = false, full_float = false, inexact = false;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_value *v = kva_operand(n, i);
    if (!v || !kva_dtype_is_float(v->type->dtype)) continue;
    bool narrow = is_narrow(p, v), full = same_shape(v->type, n->results[0].type);
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
  uint32_t operands = product_operands(n);
  if (operands) return narrow_product(p, n, operands);
  bool gradient = is_gradient(p, n) && (n->op->traits & (KVA_ELEMENTWISE | KVA_VIEW));
  if (!gradient && may_be_narrow(n) && is_float(&n->results[0])) return visit_elementwise(p, n);
  if (!gradient && (operands = leading_operands(n)) && all_narrow(p, n, operands)) return infer_again(p, n);
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

kva_status kva_precision(kva_module *m, kva_dtype compute) {
  precision p = {.m = m, .narrow = compute, .scratch = kva_arena_create()};
  kva_status status = KVA_OK;
  for (uint32_t f = 0; f < m->functions.len && !status; f++) status = visit_function(&p, m->functions.data[f]->graph);
  kva_arena_destroy(p.scratch);
  return status;
}
