/* Rule: LinearAttention, unrolled over a sequence of known length. Per key-value head a state S[Dk, Dv] is read and
 * updated:
 *
 *   linear       S = S + k v^T                     gated        S = diag(exp(g)) S + k v^T
 *   delta        S = S + k (beta (v - S^T k))^T    gated_delta  both: decay first, then the delta update
 *   y = scale * S^T q, with scale 0 standing for 1 / sqrt(Dk); the query heads of a group share a state.
 *
 * Inputs are [B, T, heads * width]; the arithmetic is in float (double for double). */
#include "frontend/onnx_rules.h"
#include "ops/ids.h"

#include <math.h>

enum { MAX_STEPS = 1024 };
enum { IN_QUERY, IN_KEY, IN_VALUE, IN_PAST, IN_DECAY, IN_BETA };

typedef struct linear_attention {
  bool gated, delta;
  double scale;
  int64_t steps, q_heads, kv_heads;
  kva_value *q, *k, *v; /* [T, B, Hkv, group | 1, width] */
  kva_value *decay;     /* [T, B, Hkv, Dk | 1, 1] or NULL */
  kva_value *beta;      /* [T, B, Hkv | 1, 1, 1] or NULL */
  kva_value *state;     /* [B, Hkv, Dk, Dv] */
} linear_attention;

/* Input [B, T, n] as [T, B, heads, rows, n / (heads rows)]. */
static kva_value *by_step(kva_onnx_call *k, uint32_t input, int64_t heads, int64_t rows) {
  kva_builder *b = k->b;
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_value *x = kva_onnx_widen(b, kva_onnx_in(k, input));
  kva_dim width = kva_expr_div(e, kva_onnx_dim(kva_onnx_in(k, input), 2), kva_expr_const(e, heads * rows));
  kva_dim dims[5] = {kva_onnx_dim(x, 0), kva_onnx_dim(x, 1), kva_expr_const(e, heads), kva_expr_const(e, rows), width};
  x = kva_reshape(b, x, 5, dims);
  return b->failed ? x : kva_transpose(b, x, (int64_t[]){1, 0, 2, 3, 4});
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
  if (!kva_expr_is_const(kva_onnx_dim(kva_onnx_in(k, IN_QUERY), 1), &a->steps) || a->steps < 1 || a->steps > MAX_STEPS)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "the sequence must have a known length of at most %d", MAX_STEPS);
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
    if (b->failed) return KVA_INVALID;
    a->decay = kva_build1(b, KVA_OP_exp, kva_transpose(b, g, (int64_t[]){0, 1, 2, 4, 3}));
  }
  if (a->delta) {
    bool shared = kva_expr_is(kva_onnx_dim(kva_onnx_in(k, IN_BETA), 2), 1);
    a->beta = by_step(k, IN_BETA, shared ? 1 : a->kv_heads, 1);
  }
  const kva_dim *key = a->k->type->dims;
  kva_dim dims[4] = {key[1], key[2], key[4], a->v->type->dims[4]};
  kva_value *past = kva_onnx_in(k, IN_PAST);
  a->state = past ? kva_onnx_widen(b, past) : kva_zeros(b, kva_type_tensor(b->m, a->k->type->dtype, 4, dims));
  return b->failed ? KVA_INVALID : KVA_OK;
}

static kva_value *at_step(kva_onnx_call *k, kva_value *x, int64_t t) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_value *row = kva_onnx_slice(k->b, x, 0, kva_expr_const(e, t), kva_expr_const(e, 1));
  return kva_reshape(k->b, row, 4, x->type->dims + 1);
}

/* Updates the state and returns y of step t as [B, Hkv, group, Dv]. */
static kva_value *step(kva_onnx_call *k, linear_attention *a, int64_t t) {
  kva_builder *b = k->b;
  kva_value *key = at_step(k, a->k, t), *write = at_step(k, a->v, t);
  if (a->gated) a->state = kva_mul(b, a->state, at_step(k, a->decay, t));
  if (a->delta) {
    kva_value *read = kva_matmul(b, key, a->state, false, false);
    write = kva_mul(b, at_step(k, a->beta, t), kva_sub(b, write, read));
  }
  a->state = kva_add(b, a->state, kva_matmul(b, key, write, true, false));
  return kva_matmul(b, at_step(k, a->q, t), a->state, false, false);
}

kva_status kva_onnx_linear_attention(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_expr_ctx *e = kva_onnx_exprs(k);
  linear_attention a;
  KVA_TRY(read_rule(k, &a));
  KVA_TRY(read_tensors(k, &a));
  kva_value **rows = KVA_NEW_ARRAY(k->c->arena, kva_value *, a.steps);
  for (int64_t t = 0; t < a.steps; t++) {
    rows[t] = kva_onnx_unsqueeze(b, step(k, &a, t), 1, 1);
    if (b->failed) return KVA_INVALID;
  }
  kva_concat_attrs attrs = {.axis = 1};
  kva_value *y = a.steps == 1 ? rows[0] : kva_build(b, KVA_OP_concat, (uint32_t)a.steps, rows, &attrs);
  int64_t width;
  if (a.scale == 0 && !kva_expr_is_const(a.k->type->dims[4], &width))
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "the width of the keys is symbolic");
  y = kva_mul(b, y, kva_scalar_like(b, y, a.scale != 0 ? a.scale : 1 / sqrt((double)width)));
  const kva_dim *q = kva_onnx_in(k, IN_QUERY)->type->dims;
  kva_dim out[3] = {q[0], q[1], kva_expr_muli(e, a.v->type->dims[4], a.q_heads)};
  kva_dtype t = kva_onnx_in(k, IN_QUERY)->type->dtype;
  kva_onnx_set_out(k, 1, kva_cast(b, a.state, t));
  return kva_onnx_done(k, kva_cast(b, kva_reshape(b, y, 3, out), t));
}
