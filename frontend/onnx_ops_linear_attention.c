/* Rule: LinearAttention, unrolled over a sequence of known length. Per key-value head a state S[Dk, Dv] is read and
 * updated:
 *
 *   linear       S = S + k v^T                     gated        S = diag(exp(g)) S + k v^T
 *   delta        S = S + k (beta (v - S^T k))^T    gated_delta  both: decay first, then the delta update
 *   y = scale * S^T q, with scale 0 standing for 1 / sqrt(Dk); the query heads of a group share a state.
 *
 * Inputs are [B, T, heads * width]; the arithmetic is in float (double for double). */
#include "frontend/onnx_region.h"
#include "ops/ids.h"

#include <math.h>

enum { MAX_STEPS = 1024 };
enum { IN_QUERY, IN_KEY, IN_VALUE, IN_PAST, IN_DECAY, IN_BETA };

typedef struct linear_attention {
  bool gated, delta;
  double scale;
  int64_t steps, q_heads, kv_heads; /* steps: -1 if they are not unrolled */
  kva_value *q, *k, *v;             /* [T, B, Hkv, group | 1, width] */
  kva_value *decay;                 /* [T, B, Hkv, Dk | 1, 1] or NULL */
  kva_value *beta;                  /* [T, B, Hkv | 1, 1, 1] or NULL */
  kva_value *state;                 /* [B, Hkv, Dk, Dv] */
  kva_value *at;                    /* the step's number; NULL: it is `number` */
  int64_t number;
} linear_attention;

/* Input [B, T, n] as [T, B, heads, rows, n / (heads rows)]. B and T are those of the queries. */
static kva_value *by_step(kva_onnx_call *k, uint32_t input, int64_t heads, int64_t rows) {
  kva_builder *b = k->b;
  kva_expr_ctx *e = kva_onnx_exprs(k);
  const kva_dim *query = kva_onnx_in(k, IN_QUERY)->type->dims;
  kva_value *x = kva_onnx_widen(b, kva_onnx_in(k, input));
  kva_dim width = kva_expr_div(e, kva_onnx_dim(x, 2), kva_expr_const(e, heads * rows));
  kva_dim extents[3] = {query[0], query[1], kva_expr_muli(e, width, heads * rows)};
  x = kva_onnx_with_dims(k, x, extents, "an input of LinearAttention");
  kva_dim dims[5] = {kva_onnx_dim(x, 0), kva_onnx_dim(x, 1), kva_expr_const(e, heads), kva_expr_const(e, rows), width};
  x = kva_reshape(b, x, 5, dims);
  return b->failed ? x : kva_transpose(b, x, (int64_t[]){1, 0, 2, 3, 4});
}

/* x, which has `extent` elements on its axis or a single one, with `extent` of them where that is not known here. */
static kva_value *stretched(kva_onnx_call *k, kva_value *x, uint32_t axis, kva_dim extent) {
  kva_builder *b = k->b;
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_dim own = b->failed ? extent : kva_onnx_dim(x, axis);
  if (own == extent || kva_expr_is_const(own, NULL) || !b->assumes) return x;
  kva_dim other = kva_expr_mul(e, kva_expr_addi(e, own, -1), kva_expr_sub(e, own, extent));
  x = kva_onnx_with_extent(k, x, axis, kva_expr_add(e, own, other), "decay or beta of LinearAttention");
  kva_value *last = kva_dim_scalar(b, KVA_I64, kva_expr_addi(e, own, -1));
  return kva_onnx_gather(b, x, kva_build2(b, KVA_OP_min, kva_onnx_ramp(b, KVA_I64, 1, 0, extent), last), axis);
}

static kva_status read_rule(kva_onnx_call *k, linear_attention *a) {
  const char *rule = kva_onnx_string(k, "update_rule", "gated_delta");
  *a = (linear_attention){.scale = kva_onnx_float(k, "scale", 0),
                          .q_heads = kva_onnx_int(k, "q_num_heads", 0),
                          .kv_heads = kva_onnx_int(k, "kv_num_heads", 0)};
  a->gated = !strcmp(rule, "gated") || !strcmp(rule, "gated_delta");
  a->delta = !strcmp(rule, "delta") || !strcmp(rule, "gated_delta");
  if (!a->gated && !a->delta && strcmp(rule, "linear"))
    return kva_onnx_fail(k, KVA_INVALID, "attribute 'update_rule': '%s'", rule);
  if (a->kv_heads < 1 || a->q_heads < 1 || a->q_heads % a->kv_heads)
    return kva_onnx_fail(k, KVA_INVALID, "%lld query heads for %lld key heads", (long long)a->q_heads,
                         (long long)a->kv_heads);
  for (uint32_t i = 0; i < 6; i++)
    if (i != IN_PAST && kva_onnx_in(k, i) && kva_onnx_in(k, i)->type->rank != 3)
      return kva_onnx_fail(k, KVA_INVALID, "input %u: expected rank 3", i);
  if ((a->gated && !kva_onnx_in(k, IN_DECAY)) || (a->delta && !kva_onnx_in(k, IN_BETA)))
    return kva_onnx_fail(k, KVA_INVALID, "update rule '%s' needs %s", rule, a->gated ? "decay" : "beta");
  bool known = kva_expr_is_const(kva_onnx_dim(kva_onnx_in(k, IN_QUERY), 1), &a->steps);
  if (!known || a->steps < 1 || a->steps > MAX_STEPS) a->steps = -1;
  return KVA_OK;
}

static kva_status read_tensors(kva_onnx_call *k, linear_attention *a) {
  kva_builder *b = k->b;
  a->q = by_step(k, IN_QUERY, a->kv_heads, a->q_heads / a->kv_heads);
  a->k = by_step(k, IN_KEY, a->kv_heads, 1);
  a->v = by_step(k, IN_VALUE, a->kv_heads, 1);
  if (b->failed) return KVA_INVALID;
  if (a->gated) {
    kva_value *g = by_step(k, IN_DECAY, a->kv_heads, 1); /* [T, B, Hkv, 1, Dk | 1] */
    g = stretched(k, g, 4, a->k->type->dims[4]);
    if (b->failed) return KVA_INVALID;
    a->decay = kva_build1(b, KVA_OP_exp, kva_transpose(b, g, (int64_t[]){0, 1, 2, 4, 3}));
  }
  if (a->delta) {
    kva_value *beta = kva_onnx_widen(b, kva_onnx_in(k, IN_BETA)); /* [B, T, Hkv | 1] */
    kva_dim extents[3] = {a->k->type->dims[1], a->k->type->dims[0], NULL};
    beta = kva_onnx_with_dims(k, beta, extents, "beta of LinearAttention");
    beta = stretched(k, beta, 2, kva_expr_const(kva_onnx_exprs(k), a->kv_heads));
    if (b->failed) return KVA_INVALID;
    a->beta = kva_onnx_unsqueeze(b, kva_transpose(b, beta, (int64_t[]){1, 0, 2}), 3, 2);
  }
  const kva_dim *key = a->k->type->dims;
  kva_dim dims[4] = {key[1], key[2], key[4], a->v->type->dims[4]};
  kva_value *past = kva_onnx_in(k, IN_PAST);
  if (past && past->type->rank != 4) return kva_onnx_fail(k, KVA_INVALID, "past_state: expected rank 4");
  if (past) past = kva_onnx_with_dims(k, past, dims, "the past state of LinearAttention");
  a->state = past ? kva_onnx_widen(b, past) : kva_zeros(b, kva_type_tensor(b->m, a->k->type->dtype, 4, dims));
  return b->failed ? KVA_INVALID : KVA_OK;
}

/* The step's part of x. */
static kva_value *at_step(kva_onnx_call *k, const linear_attention *a, kva_value *x) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  if (a->at) return kva_onnx_gather(k->b, x, a->at, 0);
  kva_value *row = kva_onnx_slice(k->b, x, 0, kva_expr_const(e, a->number), kva_expr_const(e, 1));
  return kva_reshape(k->b, row, 4, x->type->dims + 1);
}

/* Updates the state and returns y of the step as [B, Hkv, group, Dv]. */
static kva_value *step(kva_onnx_call *k, linear_attention *a) {
  kva_builder *b = k->b;
  kva_value *key = at_step(k, a, a->k), *write = at_step(k, a, a->v);
  if (a->gated) a->state = kva_mul(b, a->state, at_step(k, a, a->decay));
  if (a->delta) {
    kva_value *read = kva_matmul(b, key, a->state, false, false);
    write = kva_mul(b, at_step(k, a, a->beta), kva_sub(b, write, read));
  }
  a->state = kva_add(b, a->state, kva_matmul(b, key, write, true, false));
  return kva_matmul(b, at_step(k, a, a->q), a->state, false, false);
}

/* y of all steps, [B, T, Hkv, group, Dv]. */
static kva_status unroll(kva_onnx_call *k, linear_attention *a, kva_value **out) {
  kva_builder *b = k->b;
  kva_value **rows = KVA_NEW_ARRAY(k->c->arena, kva_value *, a->steps);
  for (a->number = 0; a->number < a->steps; a->number++) {
    rows[a->number] = kva_onnx_unsqueeze(b, step(k, a), 1, 1);
    if (b->failed) return KVA_INVALID;
  }
  kva_concat_attrs attrs = {.axis = 1};
  *out = a->steps == 1 ? rows[0] : kva_build(b, KVA_OP_concat, (uint32_t)a->steps, rows, &attrs);
  return KVA_OK;
}

/* (t, state) -> (true, state, y) */
static kva_status loop_body(kva_onnx_call *k, const linear_attention *a, const kva_region *body) {
  kva_builder *b = k->b;
  linear_attention inner = *a;
  inner.at = kva_graph_add_input(body->graph, kva_type_scalar(b->m, KVA_I64), NULL);
  inner.state = kva_graph_add_input(body->graph, a->state->type, NULL);
  kva_value *y = step(k, &inner), *out[3] = {kva_const_scalar(b, KVA_BOOL, 1), inner.state, y};
  if (b->failed) return KVA_INVALID;
  kva_region_close(k, body, 3, out);
  return KVA_OK;
}

static kva_status loop_over(kva_onnx_call *k, linear_attention *a, kva_value **out) {
  kva_builder *b = k->b;
  kva_dim length = kva_onnx_dim(a->q, 0);
  kva_value *operands[3] = {kva_dim_scalar(b, KVA_I64, length), NULL, a->state};
  kva_region body = kva_region_open(k);
  kva_status status = loop_body(k, a, &body);
  if (status) return kva_region_discard(k, &body), status;
  kva_loop_attrs *attrs = kva_attrs_default(b->m->arena, KVA_OP(loop)->attrs);
  attrs->carried = 1;
  attrs->trips = length;
  kva_node *n = kva_region_node(k, KVA_OP_loop, 1, &body, 3, operands, 2, attrs);
  KVA_TRY(kva_region_infer(k, n));
  a->state = kva_result(n, 0);
  *out = kva_transpose(b, kva_result(n, 1), (int64_t[]){1, 0, 2, 3, 4});
  return KVA_OK;
}

/* attribute scale, or 1 / sqrt(width of the keys) */
static kva_value *scaled(kva_onnx_call *k, const linear_attention *a, kva_value *y) {
  kva_builder *b = k->b;
  int64_t width;
  kva_dim d = a->k->type->dims[4];
  if (a->scale != 0) return kva_mul(b, y, kva_scalar_like(b, y, a->scale));
  if (kva_expr_is_const(d, &width)) return kva_mul(b, y, kva_scalar_like(b, y, 1 / sqrt((double)width)));
  return kva_div(b, y, kva_build1(b, KVA_OP_sqrt, kva_dim_scalar(b, y->type->dtype, d)));
}

kva_status kva_onnx_linear_attention(kva_onnx_call *k) {
  kva_builder *b = k->b;
  linear_attention a;
  kva_value *y = NULL;
  KVA_TRY(read_rule(k, &a));
  KVA_TRY(read_tensors(k, &a));
  KVA_TRY(a.steps < 0 ? loop_over(k, &a, &y) : unroll(k, &a, &y));
  y = scaled(k, &a, y);
  const kva_dim *q = kva_onnx_in(k, IN_QUERY)->type->dims;
  kva_dim out[3] = {q[0], q[1], kva_expr_muli(kva_onnx_exprs(k), a.v->type->dims[4], a.q_heads)};
  kva_dtype t = kva_onnx_in(k, IN_QUERY)->type->dtype;
  kva_onnx_set_out(k, 1, kva_cast(b, a.state, t));
  return kva_onnx_done(k, kva_cast(b, kva_reshape(b, y, 3, out), t));
}
