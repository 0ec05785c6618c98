/* Attention: softmax(scores) @ v, where scores is q @ kT under any sequence of these layers:
 *
 *   * c, / c                   scale; also on q or k before the product
 *   c * tanh(. / c)            soft cap
 *   + mask, where(m, ., -inf)  masks: bounds on s - t become `causal` and `window`, terms linear in s become ALiBi
 * slopes, the others stay a mask widening casts             attention computes in float and rounds once anyway
 *
 * Keys and values may be repeated over groups of query heads (expand and reshape, or a gather of heads); attention
 * handles groups itself. Algorithm: start at the product with v and peel one layer at a time, outermost first. Ranks 2
 * and 3 get the missing batch and head axes.
 *
 * Probabilities may be where(is_nan(softmax), 0, softmax), as PyTorch exports them: a query without any key gets 0,
 * which attention gives it, too.
 *
 * A finite score of hidden keys, -1e4 or less as softmax gets it, counts as -infinity where a bound replaces it: upper
 * >= 0 ensures that every query sees at least one key. Where a condition with such a score stays, -1e30 is added,
 * beside which scores vanish: a query without any visible key gets the mean of all values, as the model gives it. Added
 * masks that stay keep their values. Limit: where several masks only together hide all keys of a query, which is
 * padding then, the mean may be one of other keys than in the model, and gradients take the probability of each of them
 * for 1; this matters where a loss reads what queries of padding give. */
#include "passes/raise.h"
#include "ops/check.h"
#include "passes/raise_mask.h"

#include <math.h>

enum { MAX_MASKS = 4, MAX_LAYERS = 24 };

/* Of hidden keys: much more than scores and masks, in float. */
#define ABSORBING_SCORE (-1e30)

/* A mask that stays, added (float) or boolean. */
typedef struct kept_mask {
  kva_value *value;
  kva_mask_kind kind;
  double factor; /* scale applied to an added mask by the layers outside of it */
  bool finite;   /* kind VISIBLE or HIDDEN: hidden keys have a finite score, the same one */
} kept_mask;

typedef struct scores {
  kva_builder *b;
  kva_node *product;    /* q @ kT */
  const kva_dim *plane; /* numbers of queries and keys */
  double scale, cap;    /* product of the layers peeled so far; 0: no cap */
  kva_visibility seen;
  kept_mask masks[MAX_MASKS];
  uint32_t n_masks;
} scores;

/* Matches n = v * number or v / number where v has n's type; returns v. */
static kva_value *scaled_operand(const kva_node *n, double *out_factor) {
  double x;
  if (kva_is(n, KVA_OP_div)) {
    *out_factor = kva_number_of(kva_operand(n, 1), &x) ? 1 / x : 0;
    return *out_factor != 0 && kva_operand_type(n, 0) == n->results[0].type ? kva_operand(n, 0) : NULL;
  }
  for (uint32_t i = 0; kva_is(n, KVA_OP_mul) && i < 2; i++) {
    if (!kva_number_of(kva_operand(n, i), out_factor) || kva_operand_type(n, 1 - i) != n->results[0].type) continue;
    return *out_factor != 0 ? kva_operand(n, 1 - i) : NULL;
  }
  return NULL;
}

/* ---- masks ------------------------------------------------------------------------------------------------------- */

static bool keep_mask(scores *s, kept_mask mask) {
  if (s->n_masks == MAX_MASKS) return false;
  s->masks[s->n_masks++] = mask;
  return true;
}

/* Whether `causal` and `window` can express the bounds and every query keeps a visible key. Without one attention gives
 * 0, but a finite mask gives an average. */
static bool are_attributes(kva_expr_ctx *c, const kva_visibility *seen) {
  if (!seen->upper || !kva_expr_provably_le(c, kva_expr_const(c, 0), seen->upper)) return false;
  int64_t window;
  return !seen->lower || (kva_expr_is_const(kva_expr_sub(c, seen->upper, seen->lower), &window) && window > 0);
}

static bool take_bounds(scores *s, const kva_value *mask, kva_mask_kind kind) {
  kva_expr_ctx *c = s->b->m->exprs;
  kva_visibility seen = s->seen;
  if (kind == KVA_MASK_ADDED && s->scale < 1) return false; /* what is scaled down might hide no more */
  if (!kva_visibility_of(c, mask, kind, s->plane, &seen) || !are_attributes(c, &seen)) return false;
  s->seen = seen;
  return true;
}

static bool take_added(scores *s, kva_value *mask) {
  const kva_node *add = kva_def_if(mask, KVA_OP_add);
  if (take_bounds(s, mask, KVA_MASK_ADDED)) return true;
  kva_visibility saved = s->seen;
  if (add && mask->type->rank >= 2 && take_bounds(s, kva_operand(add, 0), KVA_MASK_ADDED))
    return take_added(s, kva_operand(add, 1));
  if (add && mask->type->rank >= 2 && take_bounds(s, kva_operand(add, 1), KVA_MASK_ADDED))
    return take_added(s, kva_operand(add, 0));
  s->seen = saved;
  return keep_mask(s, (kept_mask){mask, KVA_MASK_ADDED, s->scale, false});
}

/* Splits conjunctions of VISIBLE and disjunctions of HIDDEN conditions, where hidden keys have weight 0 in any case:
 * one part may be a bound. */
static bool take_condition(scores *s, kva_value *cond, kva_mask_kind kind, bool finite) {
  if (take_bounds(s, cond, kind)) return true;
  const kva_node *parts = kva_def_if(cond, kind == KVA_MASK_VISIBLE ? KVA_OP_logical_and : KVA_OP_logical_or);
  const kva_node *flip = kva_def_if(cond, KVA_OP_logical_not);
  if (flip)
    return take_condition(s, kva_operand(flip, 0), kind == KVA_MASK_VISIBLE ? KVA_MASK_HIDDEN : KVA_MASK_VISIBLE,
                          finite);
  if (parts && !finite)
    return take_condition(s, kva_operand(parts, 0), kind, finite) &&
           take_condition(s, kva_operand(parts, 1), kind, finite);
  return keep_mask(s, (kept_mask){cond, kind, s->scale, finite});
}

/* ---- layers ------------------------------------------------------------------------------------------------------ */

static bool peel(scores *s, kva_value *v, int depth);

static bool peel_add(scores *s, const kva_node *n, int depth) {
  for (uint32_t i = 0; i < 2; i++) {
    scores trial = *s;
    if (kva_operand_type(n, i) != n->results[0].type || !take_added(&trial, kva_operand(n, 1 - i))) continue;
    if (!peel(&trial, kva_operand(n, i), depth)) continue;
    *s = trial;
    return true;
  }
  return false;
}

/* Whether the score of hidden keys, which masks outside are added to, may be any much smaller one instead. */
static bool is_absorbed(const scores *s, double hidden) {
  for (uint32_t i = 0; i < s->n_masks; i++)
    if (s->masks[i].kind == KVA_MASK_ADDED && hidden * s->scale > ABSORBING_SCORE) return false;
  return true;
}

static bool peel_where(scores *s, const kva_node *n, int depth) {
  for (uint32_t i = 1; i <= 2; i++) {
    scores trial = *s;
    double hidden;
    if (kva_operand_type(n, i) != n->results[0].type || !kva_number_of(kva_operand(n, 3 - i), &hidden)) continue;
    if (!(hidden * s->scale <= KVA_HIDDEN_SCORE) || !is_absorbed(s, hidden)) continue;
    kva_mask_kind kind = i == 1 ? KVA_MASK_VISIBLE : KVA_MASK_HIDDEN;
    if (!take_condition(&trial, kva_operand(n, 0), kind, !isinf(hidden))) continue;
    if (!peel(&trial, kva_operand(n, i), depth)) continue;
    *s = trial;
    return true;
  }
  return false;
}

/* c * tanh(z): soft cap, z = scale / c * q.k. */
static bool peel_cap(scores *s, const kva_node *tanh_node, double cap, int depth) {
  bool fits = s->cap == 0 && s->scale == 1 && cap > 0 && kva_value_use_count(&tanh_node->results[0]) == 1;
  if (!fits) return false;
  s->cap = cap;
  return peel(s, kva_operand(tanh_node, 0), depth);
}

static bool peel_scale(scores *s, const kva_node *n, int depth) {
  double factor;
  kva_value *v = scaled_operand(n, &factor);
  if (!v) return false;
  const kva_node *tanh_node = kva_def_if(v, KVA_OP_tanh);
  if (tanh_node) return peel_cap(s, tanh_node, factor, depth);
  s->scale *= factor;
  return peel(s, v, depth);
}

/* Peels one layer. Intermediate scores must have no other use. Attention has no masks inside the cap. */
static bool peel(scores *s, kva_value *v, int depth) {
  kva_node *n = v->def;
  if (!n || !depth || v->index != 0 || kva_value_use_count(v) != 1) return false;
  switch ((kva_op_id)n->op->id) {
  case KVA_OP_matmul: {
    const kva_matmul_attrs *a = n->attrs;
    s->product = n;
    return !a->transpose_a && !a->to;
  }
  case KVA_OP_cast: return kva_is_widening(n) && peel(s, kva_operand(n, 0), depth - 1);
  case KVA_OP_add: return s->cap == 0 && peel_add(s, n, depth - 1);
  case KVA_OP_where: return s->cap == 0 && peel_where(s, n, depth - 1);
  case KVA_OP_mul:
  case KVA_OP_div: return peel_scale(s, n, depth - 1);
  default: return false;
  }
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

static const int64_t swap_heads[4] = {0, 2, 1, 3}, swap_last[4] = {0, 1, 3, 2};

static bool has_perm(const kva_node *n, const int64_t *perm) {
  return !memcmp(((const kva_transpose_attrs *)n->attrs)->perm.v, perm, 4 * sizeof *perm);
}

/* v = reshape(expand([.., 1, ..])), which repeats each index of axis `heads`: returns the tensor before the expansion,
 * or NULL. */
static kva_value *before_repeat(kva_builder *b, const kva_value *v, uint32_t heads) {
  const kva_node *join = kva_def_if(v, KVA_OP_reshape),
                 *expand = join ? kva_def_if(kva_operand(join, 0), KVA_OP_expand) : NULL;
  if (!expand || v->type->rank != 4) return NULL;
  const kva_type *from = kva_operand_type(expand, 0), *to = expand->results[0].type;
  if (from->rank != 5 || to->rank != 5 || !kva_expr_is(from->dims[heads + 1], 1)) return NULL;
  kva_dim shape[4];
  for (uint32_t k = 0; k < 5; k++) {
    if (k != heads + 1 && from->dims[k] != to->dims[k]) return NULL;
    if (k != heads + 1) shape[k > heads ? k - 1 : k] = from->dims[k];
  }
  for (uint32_t k = 0; k < 4; k++)
    if (k != heads && v->type->dims[k] != shape[k]) return NULL;
  return kva_reshape(b, kva_operand(expand, 0), 4, shape);
}

/* v = gather(x, [0, 0, 1, 1, ..]) along `heads`: returns x, or NULL. */
static kva_value *before_gather(const kva_value *v, uint32_t heads) {
  const kva_node *n = kva_def_if(v, KVA_OP_gather);
  const kva_tensor_data *t = n ? kva_constant_of(kva_operand(n, 1)) : NULL;
  int64_t count;
  if (!t || t->rank != 1 || v->type->rank != 4) return NULL;
  if (kva_axis(((const kva_gather_attrs *)n->attrs)->axis, 4) != heads) return NULL;
  if (!kva_expr_is_const(kva_operand_type(n, 0)->dims[heads], &count) || count < 1 || t->dims[0] % count) return NULL;
  for (int64_t i = 0; i < t->dims[0]; i++)
    if (kva_load_i64(t->dtype, t->data, i) != i / (t->dims[0] / count)) return NULL;
  return kva_operand(n, 0);
}

static kva_value *unrepeated(kva_builder *b, kva_value *v, uint32_t heads) {
  kva_value *x = before_repeat(b, v, heads);
  return x ? x : before_gather(v, heads);
}

/* v as [B,H,S,D] without repeated key-value heads; v itself if none are repeated. */
static kva_value *shared_heads(kva_builder *b, kva_value *v) {
  kva_value *x = unrepeated(b, v, 1);
  if (x) return x;
  kva_node *t = kva_def_if(v, KVA_OP_transpose);
  if (!t || v->type->rank != 4) return v;
  if (has_perm(t, swap_heads) && (x = unrepeated(b, kva_operand(t, 0), 2))) return kva_transpose(b, x, swap_heads);
  if (has_perm(t, swap_last) && (x = unrepeated(b, kva_operand(t, 0), 1))) return kva_transpose(b, x, swap_last);
  return v;
}

/* Swaps the last two axes to get [.., S, D] from kT. Merges with a transpose, as in q @ transpose(k, (0, 2, 3, 1)). */
static kva_value *transposed(kva_builder *b, kva_value *v) {
  int64_t perm[KVA_MAX_RANK];
  uint32_t rank = v->type->rank;
  for (uint32_t k = 0; k < rank; k++) perm[k] = k;
  perm[rank - 2] = rank - 1;
  perm[rank - 1] = rank - 2;
  kva_node *t = kva_def_if(v, KVA_OP_transpose);
  if (!t) return kva_transpose(b, v, perm);
  const int64_t *inner = ((const kva_transpose_attrs *)t->attrs)->perm.v;
  int64_t both[KVA_MAX_RANK];
  for (uint32_t k = 0; k < rank; k++) both[k] = inner[perm[k]];
  return kva_transpose(b, kva_operand(t, 0), both);
}

/* [.., T, D] as [B,H,T,D]: missing axes get extent 1; rank 3 has a batch axis. */
static kva_value *with_heads(kva_builder *b, kva_value *v) {
  kva_dim one = kva_expr_const(b->m->exprs, 1), shape[4] = {one, one};
  uint32_t rank = v->type->rank;
  if (rank == 4) return v;
  if (rank == 3) shape[0] = v->type->dims[0];
  shape[2] = v->type->dims[rank - 2];
  shape[3] = v->type->dims[rank - 1];
  return kva_reshape(b, v, 4, shape);
}

/* Moves scales from an operand of the product to the scores. */
static kva_value *unscaled(kva_value *v, double *scale) {
  double factor;
  for (int i = 0; i < 2 && v->def; i++) {
    kva_value *x = scaled_operand(v->def, &factor);
    if (!x) return v;
    *scale *= factor;
    v = x;
  }
  return v;
}

/* ---- building the node ------------------------------------------------------------------------------------------- */

/* *sum op v; v if *sum is NULL. */
static void add_to(kva_builder *b, kva_value **sum, kva_value *v, kva_op_id op) {
  *sum = *sum ? kva_build2(b, op, *sum, v) : v;
}

static kva_value *visible(kva_builder *b, const kept_mask *m) {
  return m->kind == KVA_MASK_VISIBLE ? m->value : kva_build1(b, KVA_OP_logical_not, m->value);
}

/* 0 where cond is true, else `score`. */
static kva_value *added_where(kva_builder *b, kva_value *cond, kva_dtype t, double score) {
  return kva_build3(b, KVA_OP_where, cond, kva_const_scalar(b, t, 0), kva_const_scalar(b, t, score));
}

static kva_value *added(kva_builder *b, const kept_mask *m, kva_dtype t) {
  kva_value *mask = kva_cast(b, m->value, t);
  return m->factor == 1 ? mask : kva_mul(b, mask, kva_const_scalar(b, t, m->factor));
}

/* ALiBi slopes of an added mask slope * (s - t), per head. Softmax is invariant to terms that are constant along the
 * keys, so under a causal mask any slope * (s + c t + d) qualifies: attention subtracts slope * (t + offset - s) for
 * visible keys. */
static kva_value *slopes_of(scores *s, const kept_mask *m) {
  kva_builder *b = s->b;
  const kva_node *n = m->value->def;
  kva_dim heads = kva_operand_type(s->product, 0)->dims[1];
  kva_line line;
  if (m->kind != KVA_MASK_ADDED || !s->seen.upper || !n || !kva_is(n, KVA_OP_mul)) return NULL;
  for (uint32_t i = 0; i < 2; i++) {
    kva_value *slopes = kva_operand(n, i);
    const kva_type *t = slopes->type;
    if (!kva_line_of(b->m->exprs, kva_operand(n, 1 - i), &line) || line.c[0] * line.c[0] != 1) continue;
    bool per_head = t->rank >= 3 && t->dims[t->rank - 3] == heads && kva_type_elements(b->m, t) == heads;
    bool only_keys = true;
    for (uint32_t k = 2; k < KVA_MAX_RANK; k++) only_keys &= line.c[k] == 0;
    if (!per_head || !only_keys) continue;
    slopes = kva_reshape(b, slopes, 1, &heads);
    double factor = m->factor * (double)line.c[0];
    return factor == 1 ? slopes : kva_mul(b, slopes, kva_scalar_like(b, slopes, factor));
  }
  return NULL;
}

/* Removes the first mask that is ALiBi from the list and returns its slopes. */
static kva_value *take_slopes(scores *s) {
  for (uint32_t i = 0; i < s->n_masks; i++) {
    kva_value *slopes = s->product->results[0].type->rank == 4 ? slopes_of(s, &s->masks[i]) : NULL;
    if (!slopes) continue;
    s->n_masks--;
    memmove(&s->masks[i], &s->masks[i + 1], (s->n_masks - i) * sizeof *s->masks);
    return slopes;
  }
  return NULL;
}

/* The conditions of those whose hidden keys have a finite score, or of the others; NULL: there are none. */
static kva_value *condition(const scores *s, bool finite) {
  kva_value *all = NULL;
  for (uint32_t i = 0; i < s->n_masks; i++) {
    const kept_mask *m = &s->masks[i];
    if (m->kind != KVA_MASK_ADDED && m->finite == finite) add_to(s->b, &all, visible(s->b, m), KVA_OP_logical_and);
  }
  return all;
}

/* Merges the masks: boolean if hidden keys have weight 0 in all, else one to be added; NULL if there are none. */
static kva_value *one_mask(const scores *s, kva_dtype t) {
  kva_builder *b = s->b;
  kva_value *sure = condition(s, false), *absorbed = condition(s, true), *mask = NULL;
  bool adds = absorbed;
  for (uint32_t i = 0; i < s->n_masks; i++) {
    if (s->masks[i].kind != KVA_MASK_ADDED) continue;
    t = s->masks[i].value->type->dtype;
    adds = true;
  }
  if (!adds) return sure;
  if (absorbed && t == KVA_F16) t = KVA_F32; /* f16 ends at 65504 */
  if (sure) add_to(b, &mask, added_where(b, sure, t, -INFINITY), KVA_OP_add);
  if (absorbed) add_to(b, &mask, added_where(b, absorbed, t, ABSORBING_SCORE), KVA_OP_add);
  for (uint32_t i = 0; i < s->n_masks; i++)
    if (s->masks[i].kind == KVA_MASK_ADDED) add_to(b, &mask, added(b, &s->masks[i], t), KVA_OP_add);
  return mask;
}

/* Adds the head axis that masks of rank 3 scores lack. */
static kva_value *mask_with_heads(kva_builder *b, kva_value *mask, uint32_t rank) {
  if (!mask || rank != 3 || mask->type->rank != 3) return mask;
  const kva_dim *d = mask->type->dims;
  return kva_reshape(b, mask, 4, (kva_dim[]){d[0], kva_expr_const(b->m->exprs, 1), d[1], d[2]});
}

static void set_bounds(const scores *s, kva_attention_attrs *a) {
  const kva_visibility *seen = &s->seen;
  if (!seen->upper) return;
  a->causal = true;
  if (!kva_expr_is(seen->upper, 0)) a->offset = seen->upper;
  if (seen->lower) KVA_ASSERT(kva_expr_is_const(kva_expr_sub(s->b->m->exprs, seen->upper, seen->lower), &a->window));
}

/* The default scale, 1 / sqrt(head size), is written as 0. */
static double scale_attr(double scale, kva_dim head_size) {
  int64_t d;
  if (!kva_expr_is_const(head_size, &d)) return scale;
  return fabs(scale * sqrt((double)d) - 1) < 1e-7 ? 0 : scale;
}

/* Some row of w, times factor, has no score of a visible key. */
static bool has_hidden_row(const kva_tensor_data *w, double factor) {
  int64_t keys = w->dims[w->rank - 1], n = 1;
  if (w->dtype != KVA_F32) return true;
  for (uint32_t d = 0; d < w->rank; d++) n *= w->dims[d];
  for (int64_t row = 0; row < n; row += keys) {
    const float *added = (const float *)w->data + row;
    int64_t k = 0;
    while (k < keys && !(added[k] * factor > KVA_HIDDEN_SCORE)) k++;
    if (k == keys) return true;
  }
  return false;
}

/* A query may have nothing but hidden keys with a finite score, as queries of padding have. In float their lse is that
 * score, without the logarithm of their number, so that gradients would take 1 for every probability. Masks of keys,
 * the same for all queries, hide all of them in an empty sequence alone. */
static bool may_hide_all(const kept_mask *mask) {
  const kva_type *t = mask->value->type;
  const kva_tensor_data *w = kva_constant_of(mask->value);
  if (t->rank < 2 || kva_expr_is(t->dims[t->rank - 2], 1)) return false;
  return mask->kind == KVA_MASK_ADDED ? !w || has_hidden_row(w, mask->factor) : mask->finite;
}

static bool may_be_mask(const scores *s) {
  for (uint32_t i = 0; s->b->m->train && i < s->n_masks; i++)
    if (kva_depends_on_parameters(s->masks[i].value) || may_hide_all(&s->masks[i])) return false;
  return true;
}

static kva_value *build_attention(scores *s, kva_value *v) {
  kva_builder *b = s->b;
  const kva_type *y = b->before->results[0].type;
  uint32_t rank = y->rank;
  kva_attention_attrs attrs = {.softcap = s->cap};
  bool stored_by_rows = ((const kva_matmul_attrs *)s->product->attrs)->transpose_b;
  kva_value *q = unscaled(kva_operand(s->product, 0), &s->scale), *k = unscaled(kva_operand(s->product, 1), &s->scale);
  if (q->type->rank != rank || k->type->rank != rank || v->type->rank != rank) return NULL;
  if (!stored_by_rows) k = transposed(b, k);
  k = shared_heads(b, unscaled(k, &s->scale));
  v = shared_heads(b, v);
  attrs.scale = scale_attr(s->cap != 0 ? s->scale * s->cap : s->scale, q->type->dims[rank - 1]);
  set_bounds(s, &attrs);
  if (!may_be_mask(s)) return NULL;
  kva_value *slopes = take_slopes(s), *mask = mask_with_heads(b, one_mask(s, q->type->dtype), rank);
  kva_dtype t = v->type->dtype; /* wider than q's if the model computes scores in the narrow type */
  kva_value *operands[5] = {with_heads(b, kva_cast(b, q, t)), with_heads(b, kva_cast(b, k, t)), with_heads(b, v), mask,
                            slopes};
  uint32_t n_operands = slopes ? 5 : mask ? 4 : 3;
  return kva_reshape_like(b, kva_build(b, KVA_OP_attention, n_operands, operands, &attrs), y);
}

/* cast(attention(cast q, cast k, cast v)): removing the casts saves memory and leaves results unchanged. */
static kva_value *raise_narrowed(kva_builder *b) {
  kva_node *n = kva_def_if(kva_operand(b->before, 0), KVA_OP_attention);
  if (!n || kva_value_use_count(&n->results[0]) != 1 || n->results[1].uses) return NULL;
  if (kva_is_cast_again(&b->before->results[0])) return NULL;
  kva_value *operands[5] = {NULL, NULL, NULL, kva_operand(n, 3), kva_operand(n, 4)};
  for (uint32_t i = 0; i < 3; i++) {
    kva_node *widen = kva_def_if(kva_operand(n, i), KVA_OP_cast);
    if (!widen || !kva_is_widening(widen)) return NULL;
    operands[i] = kva_operand(widen, 0);
  }
  kva_attempt attempt = kva_attempt_begin(b);
  return kva_attempt_end(b, attempt, kva_build(b, KVA_OP_attention, n->n_operands, operands, n->attrs));
}

/* The softmax that p is, or NULL: p and nothing else is made of it. */
static kva_node *softmax_of(const kva_value *p) {
  const kva_node *zeroed = kva_def_if(p, KVA_OP_where);
  if (kva_value_use_count(p) != 1) return NULL;
  if (!zeroed) {
    kva_node *softmax = kva_def_if(p, KVA_OP_softmax);
    return softmax && kva_value_use_count(&softmax->results[0]) == 1 ? softmax : NULL;
  }
  kva_node *softmax = kva_def_if(kva_operand(zeroed, 2), KVA_OP_softmax);
  const kva_node *nan = kva_def_if(kva_operand(zeroed, 0), KVA_OP_is_nan);
  if (!softmax || !nan || kva_operand(nan, 0) != &softmax->results[0] || softmax->results[0].type != p->type)
    return NULL;
  bool only = kva_value_use_count(&softmax->results[0]) == 2 && kva_value_use_count(&nan->results[0]) == 1;
  return only && kva_is_splat(kva_operand(zeroed, 1), 0) ? softmax : NULL;
}

kva_value *kva_raise_attention(kva_builder *b) {
  const kva_node *n = b->before;
  if (kva_is(n, KVA_OP_cast)) return raise_narrowed(b);
  if (!kva_is(n, KVA_OP_matmul)) return NULL;
  const kva_matmul_attrs *a = n->attrs;
  kva_value *p = kva_operand(n, 0);
  uint32_t rank = p->type->rank;
  kva_node *narrow = kva_def_if(p, KVA_OP_cast);
  kva_node *softmax = softmax_of(narrow ? kva_operand(narrow, 0) : p);
  if (!softmax || a->transpose_a || a->to || rank < 2 || rank > 4 || n->results[0].type->rank != rank) return NULL;
  if (kva_axis(((const kva_softmax_attrs *)softmax->attrs)->axis, rank) != rank - 1) return NULL;
  if (kva_value_use_count(p) != 1) return NULL;
  scores s = {.b = b, .scale = 1, .plane = softmax->results[0].type->dims + rank - 2};
  if (!peel(&s, kva_operand(softmax, 0), MAX_LAYERS)) return NULL;
  kva_attempt attempt = kva_attempt_begin(b);
  kva_value *v = a->transpose_b ? transposed(b, kva_operand(n, 1)) : kva_operand(n, 1);
  return kva_attempt_end(b, attempt, build_attention(&s, v));
}
