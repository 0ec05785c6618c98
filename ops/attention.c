/* attention(q[B,H,T,D], k[B,Hkv,S,D], v[B,Hkv,S,Dv], mask?, slopes?) -> y[B,H,T,Dv], lse[B,H,T].
 *
 *   s_ts = cap(scale * q_t . k_s) - slope_h |t + offset - s| + mask_ts        cap(x) = softcap * tanh(x / softcap)
 *   lse_t = log sum_s exp(s_ts),   y_t = sum_s exp(s_ts - lse_t) v_s
 *
 * Query head h uses key-value head h / (H / Hkv) (grouped queries). scale 0 means 1/sqrt(D); softcap 0 means no cap.
 * slopes (ALiBi) is float[H]. mask broadcasts to [B,H,T,S]: bool (true: visible) or float (added). causal: key s is
 * visible if s <= t + offset; with window > 0, if t + offset - window < s <= t + offset. A row without visible keys
 * gives y = 0 and lse = -inf. lse is float (double for double).
 *
 * Gradients recompute the probabilities p = exp(s - lse): attention_grad_q.c, attention_grad_kv.c, attention_grad.c.
 * Where the mask is a finite number for all keys of a query, so large that lse cannot hold the logarithm of their
 * number beside it, each p would be 1: -inf says that a query has no keys. mask, slopes and lse have none. Tolerance
 * 64: the exponential magnifies the error of a score, a sum of D products; scores of typical models stay below 50. */
#include "ops/attention.h"
#include "ops/check.h"
#include "ops/element.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/incremental.h"
#include "ops/partition.h"
#include "ops/shape.h"

#include <math.h>

KVA_OP_FUNCTIONS(attention)

_Static_assert(sizeof(kva_attention_grad_q_attrs) == sizeof(kva_attention_attrs), "made by one list");
_Static_assert(sizeof(kva_attention_grad_kv_attrs) == sizeof(kva_attention_attrs), "made by one list");
_Static_assert(sizeof(kva_attention_grad_attrs) == sizeof(kva_attention_attrs), "made by one list");

/* ---- inference --------------------------------------------------------------------------------------------------- */

static int64_t constant(kva_dim d) {
  int64_t v = 0;
  KVA_ASSERT(kva_expr_is_const(d, &v));
  return v;
}

/* The type of the page table; NULL: keys and values are tensors of the sequences. */
static const kva_type *pages_type(const kva_node *n) {
  bool paged = kva_is(n, KVA_OP_attention_cached) && kva_operand(n, KVA_ATTENTION_PAGES);
  return paged ? kva_operand_type(n, KVA_ATTENTION_PAGES) : NULL;
}

static kva_dim keys_of(const kva_node *n, kva_expr_ctx *c) {
  const kva_type *k = kva_operand_type(n, KVA_ATTENTION_K), *pages = pages_type(n);
  return pages ? kva_expr_mul(c, pages->dims[1], k->dims[2]) : k->dims[2];
}

kva_attention kva_attention_get(const kva_node *n, kva_expr_ctx *c) {
  const kva_type *q = kva_operand_type(n, 0), *k = kva_operand_type(n, 1), *v = kva_operand_type(n, 2);
  kva_attention a = {.n = n,
                     .B = q->dims[0],
                     .H = q->dims[1],
                     .T = q->dims[2],
                     .H_kv = k->dims[1],
                     .S = keys_of(n, c),
                     .D = constant(q->dims[3]),
                     .D_v = constant(v->dims[3]),
                     .page_rows = pages_type(n) ? k->dims[2] : NULL};
  memcpy(&a.attrs, n->attrs, sizeof(a.attrs));
  if (a.attrs.scale == 0) a.attrs.scale = 1 / sqrt((double)a.D);
  a.group = a.H == a.H_kv ? kva_expr_const(c, 1) : kva_expr_div(c, a.H, a.H_kv);
  a.offset = a.attrs.offset ? a.attrs.offset : kva_expr_const(c, 0);
  return a;
}

/* Groups: sequences, query heads, rows, keys, sizes of heads, heads of keys, sizes of values. The mask has the first
 * four, aligned from the right. */
int kva_attention_agrees(const void *attrs, const kva_type *t, uint32_t operand, uint32_t axis) {
  static const int groups[][4] = {{0, 1, 2, 4}, {0, 5, 3, 4}, {0, 5, 3, 6}, {0, 1, 2, 3}};
  (void)attrs;
  if (operand > KVA_ATTENTION_MASK) return operand == KVA_ATTENTION_SLOPES ? 1 : -1;
  if (operand < KVA_ATTENTION_MASK) return axis < 4 ? groups[operand][axis] | KVA_AGREES_FULL : -1;
  return t->rank <= 4 ? groups[operand][4 - t->rank + axis] : -1;
}

static kva_status check_heads(kva_module *m, const kva_node *n) {
  kva_dim h = kva_operand_type(n, 0)->dims[1], h_kv = kva_operand_type(n, 1)->dims[1];
  int64_t heads, kv_heads;
  if (h == h_kv) return KVA_OK;
  if (!kva_expr_is_const(h, &heads) || !kva_expr_is_const(h_kv, &kv_heads)) {
    return kva_operand_error(m, n, 1, "the numbers of query heads and key-value heads must be equal or constants");
  }
  if (kv_heads > 0 && heads % kv_heads == 0) return KVA_OK;
  return kva_operand_error(m, n, 1,
                           "expected a number of key-value heads that divides the %lld query heads, found %lld",
                           (long long)heads, (long long)kv_heads);
}

static kva_status check_mask(kva_module *m, const kva_node *n) {
  if (!kva_operand(n, KVA_ATTENTION_MASK)) return KVA_OK;
  const kva_type *q = kva_operand_type(n, 0);
  kva_dtype t = kva_operand_type(n, KVA_ATTENTION_MASK)->dtype;
  if (t != KVA_BOOL) KVA_TRY(kva_check_float(m, n, KVA_ATTENTION_MASK));
  return kva_check_broadcasts_to(m, n, KVA_ATTENTION_MASK, 4,
                                 (kva_dim[]){q->dims[0], q->dims[1], q->dims[2], keys_of(n, m->exprs)});
}

/* Keys and values have the type of queries; caches may be narrower. */
static kva_status check_types(kva_module *m, const kva_node *n) {
  kva_dtype k = kva_operand_type(n, 1)->dtype;
  bool narrow = kva_is(n, KVA_OP_attention_cached) && (k == KVA_F16 || k == KVA_BF16);
  KVA_TRY(kva_check_float(m, n, 0));
  if (!narrow) KVA_TRY(kva_check_same_dtype(m, n, 1, 0));
  return kva_check_same_dtype(m, n, 2, 1);
}

kva_status kva_attention_check(kva_module *m, const kva_node *n) {
  KVA_TRY(check_types(m, n));
  for (uint32_t i = 0; i < 3; i++) KVA_TRY(kva_check_rank(m, n, i, 4));
  const kva_type *q = kva_operand_type(n, 0), *k = kva_operand_type(n, 1), *v = kva_operand_type(n, 2);
  kva_dim first = pages_type(n) ? k->dims[0] : q->dims[0];
  KVA_TRY(kva_check_shape(m, n, 1, 4, (kva_dim[]){first, k->dims[1], k->dims[2], q->dims[3]}));
  KVA_TRY(kva_check_shape(m, n, 2, 4, (kva_dim[]){first, k->dims[1], k->dims[2], v->dims[3]}));
  for (uint32_t i = 0; i < 3; i += 2) {
    if (kva_expr_is_const(kva_operand_type(n, i)->dims[3], NULL)) continue;
    return kva_operand_error(m, n, i, "the size of a head must be a constant; give it a number");
  }
  KVA_TRY(check_heads(m, n));
  KVA_TRY(check_mask(m, n));
  KVA_TRY(kva_check_float(m, n, KVA_ATTENTION_SLOPES));
  return kva_check_shape(m, n, KVA_ATTENTION_SLOPES, 1, &q->dims[1]);
}

kva_status kva_attention_grad_check(kva_module *m, const kva_node *n) {
  KVA_TRY(kva_attention_check(m, n));
  const kva_type *q = kva_operand_type(n, KVA_ATTENTION_Q), *v = kva_operand_type(n, KVA_ATTENTION_V);
  const kva_dim y[4] = {q->dims[0], q->dims[1], q->dims[2], v->dims[3]};
  for (uint32_t i = KVA_ATTENTION_DELTA; i <= KVA_ATTENTION_DY; i++) {
    if (!kva_operand(n, i)) return kva_operand_error(m, n, i, "expected a tensor, found nothing");
    KVA_TRY(kva_check_float(m, n, i));
    KVA_TRY(kva_check_shape(m, n, i, i == KVA_ATTENTION_DY ? 4 : 3, y));
  }
  return kva_check_same_dtype(m, n, KVA_ATTENTION_DY, 0);
}

kva_status kva_attention_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  KVA_TRY(kva_attention_check(m, n));
  const kva_type *q = kva_operand_type(n, 0), *v = kva_operand_type(n, 2);
  out_types[0] = kva_type_tensor(m, q->dtype, 4, (kva_dim[]){q->dims[0], q->dims[1], q->dims[2], v->dims[3]});
  out_types[1] = kva_type_tensor(m, kva_ref_tensor_dtype(q->dtype), 3, q->dims);
  return KVA_OK;
}

/* ---- reference --------------------------------------------------------------------------------------------------- */

kva_status kva_attention_oracle_get(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                    kva_attention_oracle *out) {
  const kva_ref_tensor *q = in[0], *k = in[1], *v = in[2];
  const kva_ref_tensor *all[8] = {0};
  bool cached = kva_is(n, KVA_OP_attention_cached);
  for (uint32_t i = 0; i < n->n_operands; i++) all[i] = in[i];
  *out = (kva_attention_oracle){.B = q->dims[0],
                                .H = q->dims[1],
                                .T = q->dims[2],
                                .D = q->dims[3],
                                .H_kv = k->dims[1],
                                .S = k->dims[2],
                                .D_v = v->dims[3],
                                .q = q,
                                .k = k,
                                .v = v,
                                .mask = all[KVA_ATTENTION_MASK],
                                .slopes = all[KVA_ATTENTION_SLOPES],
                                .position = cached ? all[KVA_ATTENTION_POSITION] : NULL,
                                .pages = cached ? all[KVA_ATTENTION_PAGES] : NULL,
                                .delta = cached ? NULL : all[KVA_ATTENTION_DELTA],
                                .lse = cached ? NULL : all[KVA_ATTENTION_LSE],
                                .dy = all[KVA_ATTENTION_DY]};
  if (out->pages) out->S *= out->pages->dims[1];
  memcpy(&out->attrs, n->attrs, sizeof(out->attrs));
  if (out->attrs.scale == 0) out->attrs.scale = 1 / sqrt((double)out->D);
  return out->attrs.offset ? kva_ref_dim(r, out->attrs.offset, &out->offset) : KVA_OK;
}

int64_t kva_attention_q_row(const kva_attention_oracle *a, kva_attention_at at) {
  return ((at.b * a->H + at.h) * a->T + at.t) * a->D;
}

int64_t kva_attention_y_row(const kva_attention_oracle *a, kva_attention_at at) {
  return ((at.b * a->H + at.h) * a->T + at.t) * a->D_v;
}

static int64_t key_row(const kva_attention_oracle *a, kva_attention_at at) {
  int64_t head = at.h / (a->H / a->H_kv), rows = a->k->dims[2];
  int64_t first = a->pages ? a->pages->i[at.b * a->pages->dims[1] + at.s / rows] : at.b;
  return (first * a->H_kv + head) * rows + at.s % rows;
}

int64_t kva_attention_k_row(const kva_attention_oracle *a, kva_attention_at at) {
  return key_row(a, at) * a->D;
}
int64_t kva_attention_v_row(const kva_attention_oracle *a, kva_attention_at at) {
  return key_row(a, at) * a->D_v;
}

static bool ref_visible(const kva_attention_oracle *a, int64_t position, int64_t s) {
  if ((a->attrs.causal || a->attrs.window > 0) && s > position) return false;
  return a->attrs.window <= 0 || s > position - a->attrs.window;
}

/* The score; -inf if the query does not see the key. out_cap: derivative of the soft cap. */
static double ref_score(const kva_attention_oracle *a, kva_attention_at at, double *out_cap) {
  const double *q = a->q->f + kva_attention_q_row(a, at), *k = a->k->f + kva_attention_k_row(a, at);
  int64_t position = at.t + a->offset + (a->position ? a->position->i[at.b] : 0);
  double x = 0, cap = a->attrs.softcap;
  for (int64_t d = 0; d < a->D; d++) x += q[d] * k[d];
  x *= a->attrs.scale;
  double bent = cap > 0 ? tanh(x / cap) : 0;
  *out_cap = 1 - bent * bent;
  if (cap > 0) x = cap * bent;
  if (a->slopes) x -= a->slopes->f[at.h] * fabs((double)(position - at.s));
  if (!ref_visible(a, position, at.s)) return -INFINITY;
  if (!a->mask) return x;
  int64_t offset = kva_ref_broadcast_offset(a->mask, 4, (int64_t[]){at.b, at.h, at.t, at.s});
  if (a->mask->f) return x + a->mask->f[offset];
  return a->mask->i[offset] ? x : -INFINITY;
}

static void ref_row(const kva_attention_oracle *a, kva_attention_at at, double *scores, double *y, double *lse) {
  double max = -INFINITY, sum = 0, cap;
  for (at.s = 0; at.s < a->S; at.s++) {
    scores[at.s] = ref_score(a, at, &cap);
    if (scores[at.s] > max || isnan(scores[at.s])) max = scores[at.s];
  }
  *lse = -INFINITY;
  if (max == -INFINITY) return;
  for (at.s = 0; at.s < a->S; at.s++) sum += exp(scores[at.s] - max);
  *lse = max + log(sum);
  for (at.s = 0; at.s < a->S; at.s++) {
    double p = exp(scores[at.s] - max) / sum;
    const double *v = a->v->f + kva_attention_v_row(a, at);
    for (int64_t d = 0; d < a->D_v; d++) y[d] += p * v[d];
  }
}

kva_status kva_attention_values(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *y,
                                kva_ref_tensor *lse) {
  kva_attention_oracle a;
  KVA_TRY(kva_attention_oracle_get(r, n, in, &a));
  double *scores = KVA_NEW_ARRAY(r->scratch, double, a.S + 1), unused;
  int64_t dims[3] = {a.B, a.H, a.T}, i[3] = {0}, row = 0;
  if (a.B * a.H * a.T == 0) return KVA_OK;
  do {
    kva_attention_at at = {i[0], i[1], i[2], 0};
    ref_row(&a, at, scores, y->f + kva_attention_y_row(&a, at), lse ? lse->f + row++ : &unused);
  } while (kva_next_index(3, dims, i));
  return KVA_OK;
}

kva_status kva_attention_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                             kva_ref_tensor *const *out) {
  return kva_attention_values(r, n, in, out[0], out[1]);
}

kva_attention_slope kva_attention_grad_at(const kva_attention_oracle *a, kva_attention_at at) {
  const double *v = a->v->f + kva_attention_v_row(a, at);
  const double *dy = a->dy->f + kva_attention_y_row(a, at);
  int64_t row = (at.b * a->H + at.h) * a->T + at.t;
  double lse = a->lse->f[row], delta = a->delta->f[row], cap, dp = 0;
  double score = ref_score(a, at, &cap);
  if (lse == -INFINITY) return (kva_attention_slope){0, 0};
  for (int64_t d = 0; d < a->D_v; d++) dp += dy[d] * v[d];
  double p = exp(score - lse);
  return (kva_attention_slope){p, a->attrs.scale * cap * p * (dp - delta)};
}

/* ---- gradient ---------------------------------------------------------------------------------------------------- */

static kva_status refuse(kva_vjp *c, const kva_node *n, const char *what) {
  return kva_fail(c->b->m->diag, KVA_UNSUPPORTED, &n->loc,
                  "attention has no gradient %s; put stop_gradient before what depends on parameters", what);
}

/* The transposition that dy is the result of, if that leaves the rows whole; NULL: none. */
static const kva_node *moves_rows(const kva_value *dy) {
  const kva_node *n = dy->def;
  return n && kva_is(n, KVA_OP_transpose) && kva_transpose_source_axis(n, 0, 3) == 3 ? n : NULL;
}

/* delta_t = dy_t . y_t, computed once for both gradients, which would otherwise sum it for every tile of keys. Where dy
 * is a transposition of d, y is most likely read transposed alone, as d is: rows are added up as they lie there, so
 * that y need not be kept as it is, too. */
static kva_value *row_delta(kva_vjp *c, kva_node *n) {
  kva_dtype wide = kva_result(n, 1)->type->dtype;
  kva_value *y = kva_result(n, 0), *dy = c->grad_out[0];
  const kva_node *moved = moves_rows(dy);
  int64_t from[4] = {0}, to[4] = {0};
  for (int64_t d = 0; d < 4; d++) from[d] = moved ? kva_transpose_source_axis(moved, 0, (uint32_t)d) : d;
  for (int64_t d = 0; d < 4; d++) to[from[d]] = d;
  if (moved) dy = kva_operand(moved, 0);
  y = kva_cast(c->b, kva_transpose(c->b, y, to), wide);
  kva_value *products = kva_mul(c->b, y, kva_cast(c->b, dy, wide));
  return kva_transpose(c->b, kva_reduce(c->b, KVA_OP_reduce_sum, products, 1, &(int64_t){3}, false), from);
}

kva_status kva_attention_vjp(kva_vjp *c, kva_node *n) {
  for (uint32_t i = KVA_ATTENTION_MASK; i < n->n_operands; i++) {
    if (kva_operand(n, i) && c->wants[i]) return refuse(c, n, "for its mask and its ALiBi slopes");
  }
  if (c->grad_out[1]) return refuse(c, n, "through its log-sum-exp");
  kva_value *delta = row_delta(c, n);
  kva_value *operands[8] = {kva_operand(n, 0), kva_operand(n, 1), kva_operand(n, 2),
                            kva_operand(n, 3), kva_operand(n, 4), delta,
                            kva_result(n, 1),  c->grad_out[0]};
  if (c->wants[0]) c->grad_in[0] = kva_build(c->b, KVA_OP_attention_grad_q, 8, operands, n->attrs);
  if (!c->wants[1] && !c->wants[2]) return KVA_OK;
  kva_node *grad = kva_build_node(c->b, KVA_OP_attention_grad_kv, 8, operands, 2, n->attrs);
  for (uint32_t i = 0; i < 2; i++) {
    if (c->wants[1 + i]) c->grad_in[1 + i] = kva_result(grad, i);
  }
  return KVA_OK;
}

kva_operand_role kva_attention_role(const kva_node *n, uint32_t operand) {
  (void)n;
  return operand == KVA_ATTENTION_MASK ? KVA_MASK : KVA_STREAMED;
}

double kva_attention_products(const kva_node *n, const kva_sizes *s, double products) {
  double pairs = kva_elements_of(s, kva_operand_type(n, KVA_ATTENTION_Q)) *
                 kva_extent_of(s, kva_operand_type(n, KVA_ATTENTION_K)->dims[2]);
  return 2 * products * pairs * (((const kva_attention_attrs *)n->attrs)->causal ? 0.5 : 1);
}

double kva_attention_flops(const kva_node *n, const kva_sizes *s) {
  return kva_attention_products(n, s, 2); /* scores, y */
}

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

/* Sequences and heads are independent, and so are queries, where their place does not say what they see. */
int kva_attention_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  const kva_attention_attrs *a = n->attrs;
  if (axis == 2 && (a->causal || a->window > 0 || kva_operand(n, KVA_ATTENTION_SLOPES))) return KVA_MIXED;
  bool own = axis < 2 || (axis == 2 && operand == KVA_ATTENTION_Q);
  if (operand <= KVA_ATTENTION_V) return !own ? axis == 2 ? KVA_SAME_FOR_ALL : KVA_MIXED : (int)axis;
  if (operand == KVA_ATTENTION_SLOPES) return axis == 1 ? 0 : KVA_SAME_FOR_ALL;
  return axis < 3 ? kva_broadcast_source_axis(n, operand, axis) : KVA_MIXED;
}

static kva_status check_chunks(kva_incremental *c, const kva_node *n) {
  const kva_attention_attrs *a = n->attrs;
  if (!kva_is_time(c, kva_operand(n, KVA_ATTENTION_Q), 2) || !kva_is_time(c, kva_operand(n, KVA_ATTENTION_K), 2))
    return kva_refuse_chunks(c, n, "its queries and keys are not the rows of one sequence");
  if (!a->causal && a->window <= 0)
    return kva_refuse_chunks(c, n, "it is not causal: each row sees rows that come later");
  if (a->offset && !kva_expr_is(a->offset, 0))
    return kva_refuse_chunks(c, n, "its queries are offset from its keys: it has a cache already");
  return n->results[1].uses ? kva_refuse_chunks(c, n, "its log-sum-exp is used") : KVA_OK;
}

/* The cache of the keys or of the values. */
static kva_cache cache_of(kva_incremental *c, const char *what, uint32_t operand, int64_t window) {
  kva_value *x = c->operands[operand];
  if (c->narrow && kva_dtype_bits(x->type->dtype) > kva_dtype_bits(c->narrow)) x = kva_cast(c->b, x, c->narrow);
  return kva_cached(c, what, x, 2, window);
}

kva_status kva_attention_incremental(kva_incremental *c, const kva_node *n) {
  KVA_TRY(check_chunks(c, n));
  kva_attention_cached_attrs attrs;
  memcpy(&attrs, n->attrs, sizeof attrs);
  attrs.causal = true, attrs.offset = NULL;
  int64_t window = attrs.window > 0 ? attrs.window : 0;
  kva_cache keys = cache_of(c, "keys", KVA_ATTENTION_K, window);
  kva_cache values = cache_of(c, "values", KVA_ATTENTION_V, window);
  kva_value *in[7] = {c->operands[KVA_ATTENTION_Q], keys.all, values.all};
  if (kva_operand(n, KVA_ATTENTION_MASK)) {
    in[KVA_ATTENTION_MASK] = c->over_all_rows(c, n, KVA_ATTENTION_MASK);
    if (!in[KVA_ATTENTION_MASK]) return KVA_UNSUPPORTED;
  }
  if (kva_operand(n, KVA_ATTENTION_SLOPES)) in[KVA_ATTENTION_SLOPES] = c->operands[KVA_ATTENTION_SLOPES];
  in[KVA_ATTENTION_POSITION] = c->position, in[KVA_ATTENTION_PAGES] = keys.pages;
  c->results[0] = kva_build(c->b, KVA_OP_attention_cached, keys.pages ? 7 : 6, in, &attrs);
  return KVA_OK;
}

/* ---- rows of sequences in slices --------------------------------------------------------------------------------- */

/* bool[rows of the slice, S]: whether causality and the window let row t, the t-th of this process, see key s. */
static kva_value *visible_keys(kva_partition *p, const kva_attention *a, kva_dim each) {
  kva_builder *b = p->b;
  kva_dim one = kva_expr_const(b->m->exprs, 1), keys[2] = {one, a->S}, rows[2] = {each, one};
  kva_value *key =
      kva_build(b, KVA_OP_iota, 0, NULL, &(kva_iota_attrs){.shape = {2, keys}, .axis = 1, .dtype = KVA_I64});
  kva_value *row =
      kva_build(b, KVA_OP_iota, 0, NULL, &(kva_iota_attrs){.shape = {2, rows}, .axis = 0, .dtype = KVA_I64});
  kva_value *first = kva_mul(b, kva_own_index(p), kva_dim_scalar(b, KVA_I64, each));
  row = kva_add(b, kva_add(b, row, first), kva_dim_scalar(b, KVA_I64, a->offset));
  kva_value *visible = kva_build2(b, KVA_OP_less_equal, key, row);
  if (a->attrs.window <= 0) return visible;
  kva_value *oldest = kva_sub(b, row, kva_const_scalar(b, KVA_I64, (double)a->attrs.window));
  return kva_build2(b, KVA_OP_logical_and, visible, kva_build2(b, KVA_OP_less, oldest, key));
}

static kva_value *mask_of_slice(kva_partition *p, const kva_node *n, kva_value *visible) {
  const kva_value *mask = kva_operand(n, KVA_ATTENTION_MASK);
  if (!mask) return visible;
  int axis = kva_broadcast_source_axis(n, KVA_ATTENTION_MASK, 2);
  kva_value *own = axis >= 0 ? kva_slice_operand(p, n, KVA_ATTENTION_MASK, (uint32_t)axis)
                             : kva_shared_operand(p, n, KVA_ATTENTION_MASK);
  if (own->type->dtype == KVA_BOOL) return kva_build2(p->b, KVA_OP_logical_and, own, visible);
  return kva_build3(p->b, KVA_OP_where, visible, own, kva_scalar_like(p->b, own, -INFINITY));
}

/* If queries are split along rows, each process computes its own, with the keys and values of all. Which keys causality
 * hides depends on the process, so it is a mask here. */
bool kva_attention_partition(kva_partition *p, const kva_node *n) {
  kva_attention a = kva_attention_get(n, p->b->m->exprs);
  kva_dim each;
  if (kva_split_axis(p, n, KVA_ATTENTION_Q) != 2 || !a.attrs.causal || kva_operand(n, KVA_ATTENTION_SLOPES))
    return false;
  if (!kva_divides(p, a.T, &each)) return false;
  kva_attention_attrs attrs = a.attrs;
  attrs.causal = false;
  attrs.window = 0;
  attrs.offset = NULL;
  kva_value *in[4] = {kva_slice_operand(p, n, KVA_ATTENTION_Q, 2), kva_shared_operand(p, n, KVA_ATTENTION_K),
                      kva_shared_operand(p, n, KVA_ATTENTION_V), mask_of_slice(p, n, visible_keys(p, &a, each))};
  kva_node *own = kva_build_node(p->b, KVA_OP_attention, 4, in, 2, &attrs);
  for (uint32_t r = 0; r < 2; r++) p->results[r] = kva_result(own, r), p->axes[r] = 2;
  return true;
}
