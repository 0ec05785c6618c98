/* Rules that draw random numbers: RandomUniform, RandomNormal, Bernoulli, Multinomial and Dropout in training mode.
 *
 * A number is a function of the node's seed (0 if it has none), a stream of its own, and the number of the call, which
 * the state "random.calls" counts: runs of a session differ from each other, and are the same in every process. */
#include "frontend/onnx_rules.h"
#include "ops/ids.h"

static bool is_body_of_function(const kva_module *m, const kva_graph *g) {
  for (uint32_t i = 0; i < m->functions.len; i++)
    if (m->functions.data[i]->graph == g) return true;
  return false;
}

/* The number of this call of the function, as an int64 scalar. Sub-graphs cannot access states. */
static kva_status number_of_call(kva_onnx_call *k, kva_value **out) {
  kva_builder *b = k->b;
  *out = k->c->random.call;
  if (*out && k->c->random.graph == b->graph) return KVA_OK;
  if (!is_body_of_function(b->m, b->graph))
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "random numbers in a branch or loop that is decided at run time");
  kva_state *calls = kva_module_find_state(b->m, "random.calls");
  if (!calls) calls = kva_state_create(b->m, "random.calls", kva_type_scalar(b->m, KVA_I64), KVA_STATE_BUFFER);
  *out = kva_build(b, KVA_OP_state_read, 0, NULL, &(kva_state_read_attrs){.state = calls});
  kva_value *next = kva_add(b, *out, kva_const_scalar(b, KVA_I64, 1));
  (void)kva_build_node(b, KVA_OP_state_write, 1, &next, 0, &(kva_state_write_attrs){.state = calls});
  k->c->random.call = *out;
  k->c->random.graph = b->graph;
  return KVA_OK;
}

/* Dropout's seed is an int, the others' a float, of which every bit counts. */
static int64_t seed_of(kva_onnx_call *k) {
  const kva_onnx_attr *a = kva_onnx_find_attr(k, "seed");
  if (a && a->kind == KVA_ONNX_INT) return a->i;
  double seed = kva_onnx_float(k, "seed", 0);
  int64_t bits;
  memcpy(&bits, &seed, sizeof bits);
  return bits;
}

/* Numbers of type t in this shape: uniform in (0, 1), or normal. */
static kva_status draw(kva_onnx_call *k, bool normal, uint32_t rank, const kva_dim *shape, kva_dtype t,
                       kva_value **out) {
  int64_t seed = seed_of(k);
  kva_value *call = NULL;
  KVA_TRY(number_of_call(k, &call));
  kva_value *in[2] = {kva_reshape(k->b, kva_const_i64s(k->b, 1, &seed), 0, NULL), call};
  int64_t stream = k->c->random.streams++;
  if (normal)
    *out = kva_build(k->b, KVA_OP_random_normal, 2, in,
                     &(kva_random_normal_attrs){.shape = {rank, shape}, .dtype = t, .stream = stream});
  else
    *out = kva_build(k->b, KVA_OP_random_uniform, 2, in,
                     &(kva_random_uniform_attrs){.shape = {rank, shape}, .dtype = t, .stream = stream});
  return k->b->failed ? KVA_INVALID : KVA_OK;
}

static kva_status result_dtype(kva_onnx_call *k, kva_dtype absent, kva_dtype *out) {
  int64_t t = kva_onnx_int(k, "dtype", absent);
  if (t <= 0 || t >= KVA_DTYPE_COUNT) return kva_onnx_fail(k, KVA_INVALID, "dtype %lld is no data type", (long long)t);
  *out = (kva_dtype)t;
  return KVA_OK;
}

/* Shape and type are those of input 0, or attributes. The argument: whether they are normal. */
kva_status kva_onnx_random(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *like = kva_onnx_in(k, 0), *y = NULL;
  kva_dims shape =
      like ? (kva_dims){like->type->rank, like->type->dims} : kva_onnx_dims_of(k, kva_onnx_ints(k, "shape"));
  bool normal = k->arg != 0;
  kva_dtype t = KVA_F32;
  KVA_TRY(result_dtype(k, like ? like->type->dtype : KVA_F32, &t));
  kva_dtype wide = t == KVA_F64 ? t : KVA_F32;
  if (!kva_dtype_is_float(t)) return kva_onnx_fail(k, KVA_INVALID, "dtype is %s, not a float", kva_dtype_name(t));
  for (uint32_t i = 0; i < shape.n; i++)
    if (!kva_expr_provably_le(kva_onnx_exprs(k), kva_expr_const(kva_onnx_exprs(k), 0), shape.v[i]))
      return kva_onnx_fail(k, KVA_INVALID, "extent %u of the shape is negative", i);
  if (shape.n > KVA_MAX_RANK) return kva_onnx_fail(k, KVA_UNSUPPORTED, "rank %u", shape.n);
  KVA_TRY(draw(k, normal, shape.n, shape.v, wide, &y));
  double low = normal ? kva_onnx_float(k, "mean", 0) : kva_onnx_float(k, "low", 0);
  double spread = normal ? kva_onnx_float(k, "scale", 1) : kva_onnx_float(k, "high", 1) - low;
  y = kva_add(b, kva_mul(b, y, kva_scalar_like(b, y, spread)), kva_scalar_like(b, y, low));
  return kva_onnx_done(k, kva_cast(b, y, t));
}

/* 1 with probability x. */
kva_status kva_onnx_bernoulli(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0), *u = NULL;
  kva_dtype t = KVA_F32;
  KVA_TRY(result_dtype(k, x->type->dtype, &t));
  x = kva_onnx_widen(k->b, x);
  KVA_TRY(draw(k, false, x->type->rank, x->type->dims, x->type->dtype, &u));
  return kva_onnx_done(k, kva_cast(k->b, kva_build2(k->b, KVA_OP_less, u, x), t));
}

/* Classes drawn by their unnormalised log-probabilities x[B, classes]: the number of classes whose cumulative
 * probability a uniform number exceeds. */
kva_status kva_onnx_multinomial(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0), *u = NULL;
  int64_t samples = kva_onnx_int(k, "sample_size", 1), last = 2;
  kva_dtype t = KVA_F32;
  KVA_TRY(result_dtype(k, KVA_I32, &t));
  if (x->type->rank != 2 || samples < 1)
    return kva_onnx_fail(k, KVA_INVALID, "expected rank 2 and positive sample_size");
  x = kva_onnx_widen(b, x);
  kva_dim shape[2] = {kva_onnx_dim(x, 0), kva_expr_const(kva_onnx_exprs(k), samples)};
  KVA_TRY(draw(k, false, 2, shape, x->type->dtype, &u));
  kva_value *p = kva_build(b, KVA_OP_softmax, 1, &x, &(kva_softmax_attrs){.axis = -1});
  p = kva_build(b, KVA_OP_cumsum, 1, &p, &(kva_cumsum_attrs){.axis = 1, .exclusive = true});
  kva_value *reached = kva_build2(b, KVA_OP_less_equal, kva_onnx_unsqueeze(b, p, 1, 1), kva_onnx_unsqueeze(b, u, 2, 1));
  kva_value *count = kva_reduce(b, KVA_OP_reduce_sum, kva_cast(b, reached, KVA_I64), 1, &last, false);
  return kva_onnx_done(k, kva_cast(b, kva_sub(b, count, kva_const_scalar(b, KVA_I64, 1)), t));
}

/* ---- dropout ----------------------------------------------------------------------------------------------------- */

static bool known_zero(kva_onnx_call *k, const kva_value *v) {
  const kva_ref_tensor *w = v ? kva_onnx_constant(k->c, v) : NULL;
  return w && w->n == 1 && kva_ref_tensor_get(w, 0) == 0;
}

static kva_status dropout_outputs(kva_onnx_call *k, kva_value *y, kva_value *mask) {
  if (kva_onnx_wants(k, 1)) kva_onnx_set_out(k, 1, mask);
  return kva_onnx_done(k, y);
}

/* Whether training steps drop elements by a ratio that is known, and nobody reads which: an operator of the IR. */
static bool is_of_training(kva_onnx_call *k, const kva_value *mode, const kva_value *ratio, double *out) {
  const kva_ref_tensor *r = ratio ? kva_onnx_constant(k->c, ratio) : NULL;
  *out = r && r->n == 1 ? kva_ref_tensor_get(r, 0) : 0.5;
  return kva_onnx_as_inference(k, 1) && kva_onnx_constant(k->c, mode) && (r || !ratio) && *out >= 0 && *out < 1;
}

/* Ratio and mode are inputs since opset 12; before, and where one of them is known to be off, nothing is dropped. */

kva_status kva_onnx_dropout(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0), *ratio = kva_onnx_in(k, 1), *mode = kva_onnx_in(k, 2), *u = NULL;
  double fixed;
  kva_value *one = kva_const_scalar(b, k->version < 10 ? x->type->dtype : KVA_BOOL, 1);
  if (k->version < 12 || !mode || known_zero(k, mode) || known_zero(k, ratio))
    return dropout_outputs(k, x, kva_expand_like(b, one, x->type));
  if (is_of_training(k, mode, ratio, &fixed)) {
    kva_value *y = kva_build(b, KVA_OP_dropout, 1, &x, &(kva_dropout_attrs){.ratio = fixed});
    return dropout_outputs(k, y, kva_expand_like(b, one, x->type));
  }
  kva_value *wide = kva_onnx_widen(b, x);
  KVA_TRY(draw(k, false, x->type->rank, x->type->dims, wide->type->dtype, &u));
  mode = kva_reshape(b, kva_cast(b, mode, KVA_BOOL), 0, NULL);
  ratio = ratio ? kva_reshape(b, kva_cast(b, ratio, wide->type->dtype), 0, NULL) : kva_scalar_like(b, wide, 0.5);
  ratio = kva_onnx_where(b, mode, ratio, kva_scalar_like(b, wide, 0));
  kva_value *keep = kva_build2(b, KVA_OP_less_equal, ratio, u);
  kva_value *kept = kva_div(b, wide, kva_sub(b, kva_scalar_like(b, wide, 1), ratio));
  kva_value *y = kva_onnx_where(b, keep, kept, kva_scalar_like(b, wide, 0));
  return dropout_outputs(k, kva_cast(b, y, x->type->dtype), keep);
}
