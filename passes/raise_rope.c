/* Rotary position embedding: pairs of channels (x1, x2) rotated by tabulated angles, spelled as
 *
 *   x * cos + rotate(x) * sin                          rotate: (-x2, x1); tables as long as x hold each angle twice
 *   join(x1 * cos - x2 * sin, x2 * cos + x1 * sin)     tables of half the length
 *
 * with pairs (i, i + D/2), halves joined by concat, or interleaved pairs (2i, 2i + 1), joined by stack and reshape.
 *
 * Tables of full length must provably hold every angle twice: by construction (concat(a, a), possibly moved or mapped
 * element-wise), or, for constants, by content. If only the first channels are rotated, a second step includes the
 * channels that pass through. */
#include "passes/raise.h"
#include "ops/check.h"

enum { TABLE_LIMIT = 1 << 22 }; /* largest constant table that is compared, in elements */

static kva_dim last_dim(const kva_type *t) {
  return t->rank ? t->dims[t->rank - 1] : NULL;
}

static bool joins_last(const kva_node *concat) {
  uint32_t rank = concat->results[0].type->rank;
  return kva_axis(((const kva_concat_attrs *)concat->attrs)->axis, rank) == rank - 1 && concat->n_operands == 2;
}

/* ---- halves of x ------------------------------------------------------------------------------------------------- */

/* Whether v is half of the channels of some x: start, start + step, ... */
static bool is_half(const kva_value *v, int64_t *out_start, int64_t *out_step, kva_value **out_x) {
  const kva_node *n = kva_def_if(v, KVA_OP_slice);
  if (!n) return false;
  const kva_slice_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0);
  int64_t channels, count;
  uint32_t last = x->rank - 1;
  for (uint32_t k = 0; k < last; k++)
    if (!kva_expr_is(a->starts.v[k], 0) || a->shape.v[k] != x->dims[k] || (a->steps.n && a->steps.v[k] != 1))
      return false;
  *out_step = a->steps.n ? a->steps.v[last] : 1;
  *out_x = kva_operand(n, 0);
  return kva_expr_is_const(a->starts.v[last], out_start) && kva_expr_is_const(x->dims[last], &channels) &&
         kva_expr_is_const(a->shape.v[last], &count) && 2 * count == channels;
}

/* reshape(slice(reshape(x, [.., D/2, 2]), i)): the interleaved half i. */
static bool is_unstacked(const kva_value *v, int64_t *out_start, int64_t *out_step, kva_value **out_x) {
  const kva_node *drop = kva_def_if(v, KVA_OP_reshape),
                 *slice = drop ? kva_def_if(kva_operand(drop, 0), KVA_OP_slice) : NULL;
  const kva_node *pairs = slice ? kva_def_if(kva_operand(slice, 0), KVA_OP_reshape) : NULL;
  if (!pairs) return false;
  const kva_type *x = kva_operand_type(pairs, 0), *t = pairs->results[0].type;
  const kva_slice_attrs *a = slice->attrs;
  if (t->rank != x->rank + 1 || !kva_expr_is(last_dim(t), 2) || v->type->rank != x->rank) return false;
  if (memcmp(t->dims, x->dims, (x->rank - 1) * sizeof *x->dims) ||
      memcmp(v->type->dims, t->dims, x->rank * sizeof *x->dims))
    return false;
  for (uint32_t k = 0; k + 1 < t->rank; k++)
    if (a->shape.v[k] != t->dims[k]) return false;
  *out_step = 2;
  *out_x = kva_operand(pairs, 0);
  return kva_expr_is_const(a->starts.v[t->rank - 1], out_start);
}

typedef struct half {
  kva_value *x;
  bool second, interleaved;
} half;

static bool half_of(const kva_value *v, half *out) {
  int64_t start, step, channels;
  if (!is_half(v, &start, &step, &out->x) && !is_unstacked(v, &start, &step, &out->x)) return false;
  if (!kva_expr_is_const(last_dim(out->x->type), &channels)) return false;
  out->interleaved = step == 2;
  out->second = start != 0;
  return step == 1 ? start == 0 || start == channels / 2 : step == 2 && (start == 0 || start == 1);
}

/* Splits v into the two parts that it joins, as halves or interleaved. */
static bool parts_of(const kva_value *v, kva_value **first, kva_value **second, bool *out_interleaved) {
  const kva_node *join = kva_def_if(v, KVA_OP_reshape);
  const kva_node *concat = kva_def_if(join ? kva_operand(join, 0) : v, KVA_OP_concat);
  if (!concat || !joins_last(concat)) return false;
  *out_interleaved = join != NULL;
  kva_value *parts[2];
  for (uint32_t i = 0; i < 2; i++) {
    parts[i] = kva_operand(concat, i);
    if (!join) continue;
    const kva_node *column = kva_def_if(parts[i], KVA_OP_reshape);
    if (!column || !kva_expr_is(last_dim(parts[i]->type), 1)) return false;
    parts[i] = kva_operand(column, 0);
    if (parts[i]->type->rank != v->type->rank) return false;
  }
  if (join && memcmp(v->type->dims, concat->results[0].type->dims, (v->type->rank - 1) * sizeof(kva_dim))) return false;
  *first = parts[0];
  *second = parts[1];
  return true;
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static bool constant_repeats(const kva_tensor_data *t, bool interleaved) {
  int64_t n = kva_tensor_elements(t), row = t->rank ? t->dims[t->rank - 1] : 1;
  if (!kva_dtype_is_float(t->dtype) || row % 2 || n > TABLE_LIMIT) return false;
  for (int64_t i = 0; i < n; i += row) {
    for (int64_t k = 0; k < row / 2; k++) {
      int64_t a = i + (interleaved ? 2 * k : k), b = interleaved ? a + 1 : a + row / 2;
      if (kva_load_f64(t->dtype, t->data, a) != kva_load_f64(t->dtype, t->data, b)) return false;
    }
  }
  return true;
}

static bool repeats(const kva_value *v, bool interleaved, int depth);

/* Whether every operand repeats, or is constant along the last axis. */
static bool operands_repeat(const kva_node *n, bool interleaved, int depth) {
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_value *v = kva_operand(n, i);
    if (v->type->rank == 0 || kva_expr_is(last_dim(v->type), 1)) continue;
    if (!repeats(v, interleaved, depth)) return false;
  }
  return true;
}

/* Whether v is [.., D/2, 2] with equal pairs, built by expand or by a stack. */
static bool pairs_are_equal(const kva_value *v) {
  const kva_node *n = v->def;
  if (!n || !kva_expr_is(last_dim(v->type), 2)) return false;
  if (kva_is(n, KVA_OP_expand))
    return kva_operand_type(n, 0)->rank == v->type->rank && kva_expr_is(last_dim(kva_operand_type(n, 0)), 1);
  return kva_is(n, KVA_OP_concat) && joins_last(n) && kva_operand(n, 0) == kva_operand(n, 1);
}

static bool reshape_repeats(const kva_node *n, bool interleaved, int depth) {
  const kva_type *x = kva_operand_type(n, 0), *y = n->results[0].type;
  if (x->rank && y->rank && last_dim(x) == last_dim(y)) return repeats(kva_operand(n, 0), interleaved, depth);
  bool joins = x->rank == y->rank + 1 && !memcmp(x->dims, y->dims, (y->rank - 1) * sizeof *y->dims);
  return interleaved && joins && pairs_are_equal(kva_operand(n, 0));
}

static bool movement_repeats(const kva_node *n, bool interleaved, int depth) {
  const kva_value *x = kva_operand(n, 0);
  uint32_t last = n->results[0].type->rank - 1;
  switch ((kva_op_id)n->op->id) {
  case KVA_OP_reshape: return reshape_repeats(n, interleaved, depth);
  case KVA_OP_transpose:
    return ((const kva_transpose_attrs *)n->attrs)->perm.v[last] == last && repeats(x, interleaved, depth);
  case KVA_OP_slice: return last_dim(x->type) == last_dim(n->results[0].type) && repeats(x, interleaved, depth);
  case KVA_OP_expand: return operands_repeat(n, interleaved, depth);
  case KVA_OP_gather:
    return kva_axis(((const kva_gather_attrs *)n->attrs)->axis, x->type->rank) + 1 != x->type->rank &&
           repeats(x, interleaved, depth);
  case KVA_OP_concat:
    if (!joins_last(n))
      return kva_axis(((const kva_concat_attrs *)n->attrs)->axis, last + 1) != last &&
             operands_repeat(n, interleaved, depth);
    return !interleaved && kva_operand(n, 0) == kva_operand(n, 1);
  default: return false;
  }
}

/* Proves v[.., i] == v[.., i + D/2] (or v[.., 2i] == v[.., 2i + 1]) for all i. */
static bool repeats(const kva_value *v, bool interleaved, int depth) {
  const kva_tensor_data *t = kva_constant_of(v);
  if (t) return constant_repeats(t, interleaved);
  if (!depth || !v->def) return false;
  if (v->def->op->traits & KVA_ELEMENTWISE) return operands_repeat(v->def, interleaved, depth - 1);
  return movement_repeats(v->def, interleaved, depth - 1);
}

/* Each angle once: the first half of v's last axis, or every second element. */
static kva_value *sliced_angles(kva_builder *b, kva_value *v, bool interleaved) {
  kva_dim starts[KVA_MAX_RANK], shape[KVA_MAX_RANK];
  int64_t steps[KVA_MAX_RANK];
  uint32_t rank = v->type->rank;
  for (uint32_t k = 0; k < rank; k++) {
    starts[k] = kva_expr_const(b->m->exprs, 0);
    shape[k] = v->type->dims[k];
    steps[k] = 1;
  }
  shape[rank - 1] = kva_expr_div(b->m->exprs, shape[rank - 1], kva_expr_const(b->m->exprs, 2));
  steps[rank - 1] = interleaved ? 2 : 1;
  kva_slice_attrs attrs = {.starts = {rank, starts}, .shape = {rank, shape}, .steps = {rank, steps}};
  return kva_build(b, KVA_OP_slice, 1, &v, &attrs);
}

static kva_value *angles_of(kva_builder *b, kva_value *v, bool interleaved);

/* Applies an element-wise operator to the halved operands. */
static kva_value *mapped_angles(kva_builder *b, const kva_node *n, bool interleaved) {
  kva_value *operands[3];
  KVA_ASSERT(n->n_operands <= 3);
  for (uint32_t i = 0; i < n->n_operands; i++) {
    kva_value *v = operands[i] = kva_operand(n, i);
    bool varies = v->type->rank > 0 && !kva_expr_is(last_dim(v->type), 1);
    if (varies) operands[i] = angles_of(b, v, interleaved);
  }
  return kva_build(b, (kva_op_id)n->op->id, n->n_operands, operands, n->attrs);
}

static kva_value *reshaped_angles(kva_builder *b, const kva_node *n, bool interleaved) {
  const kva_type *x = kva_operand_type(n, 0), *y = n->results[0].type;
  kva_value *v;
  if (last_dim(x) == last_dim(y)) {
    v = angles_of(b, kva_operand(n, 0), interleaved);
  } else {
    v = kva_operand(kva_operand(n, 0)->def, 0); /* operand of the expand or stack that makes equal pairs */
  }
  kva_dim shape[KVA_MAX_RANK];
  memcpy(shape, y->dims, y->rank * sizeof *shape);
  shape[y->rank - 1] = kva_expr_div(b->m->exprs, last_dim(y), kva_expr_const(b->m->exprs, 2));
  return kva_reshape(b, v, y->rank, shape);
}

/* The half-length table of v, which repeats. Follows v's construction where possible, so that angles are not computed
 * twice. */
static kva_value *angles_of(kva_builder *b, kva_value *v, bool interleaved) {
  const kva_node *n = v->def;
  if (kva_is(n, KVA_OP_reshape)) return reshaped_angles(b, n, interleaved);
  if (kva_is(n, KVA_OP_concat) && joins_last(n)) return kva_operand(n, 0);
  if (n->op->traits & KVA_ELEMENTWISE) return mapped_angles(b, n, interleaved);
  return sliced_angles(b, v, interleaved);
}

/* Angles that train stay spelled out: their gradient through rope turns x a second time, in kernels of its own. */
static bool may_be_angles(const kva_builder *b, const kva_value *v) {
  return !b->m->train || !kva_depends_on_parameters(v);
}

static kva_value *build_rope(kva_builder *b, kva_value *x, kva_value *cosine, kva_value *sine, bool interleaved) {
  kva_rope_attrs attrs = {.interleaved = interleaved};
  return kva_build(b, KVA_OP_rope, 3, (kva_value *[]){x, cosine, sine}, &attrs);
}

/* ---- x * cos + rotate(x) * sin ----------------------------------------------------------------------------------- */

/* Whether v joins -x2 and x1 of some x. */
static bool is_rotated(const kva_value *v, kva_value **out_x, bool *out_interleaved) {
  kva_value *first, *second;
  half low, high;
  if (!parts_of(v, &first, &second, out_interleaved)) return false;
  const kva_node *minus = kva_def_if(first, KVA_OP_neg);
  if (!minus || !half_of(kva_operand(minus, 0), &high) || !half_of(second, &low)) return false;
  *out_x = low.x;
  return low.x == high.x && !low.second && high.second && low.interleaved == *out_interleaved &&
         high.interleaved == *out_interleaved;
}

/* product = v * table: returns the table. */
static kva_value *factor_beside(const kva_node *product, const kva_value *v) {
  for (uint32_t i = 0; i < 2; i++)
    if (kva_operand(product, i) == v) return kva_operand(product, 1 - i);
  return NULL;
}

static kva_value *raise_rotation(kva_builder *b, const kva_node *plain, const kva_node *turned) {
  for (uint32_t i = 0; plain && turned && i < 2; i++) {
    kva_value *x, *sine = kva_operand(turned, 1 - i);
    bool interleaved;
    if (!is_rotated(kva_operand(turned, i), &x, &interleaved)) continue;
    kva_value *cosine = factor_beside(plain, x);
    if (!cosine || last_dim(cosine->type) != last_dim(x->type) || last_dim(sine->type) != last_dim(x->type))
      return NULL;
    if (!repeats(cosine, interleaved, 16) || !repeats(sine, interleaved, 16)) return NULL;
    if (!may_be_angles(b, cosine) || !may_be_angles(b, sine)) return NULL;
    kva_attempt attempt = kva_attempt_begin(b);
    kva_value *c = angles_of(b, cosine, interleaved), *s = angles_of(b, sine, interleaved);
    return kva_attempt_end(b, attempt, build_rope(b, x, c, s, interleaved));
  }
  return NULL;
}

/* ---- join(x1 * cos - x2 * sin, x2 * cos + x1 * sin) -------------------------------------------------------------- */

typedef struct turned {
  half plain, other;
  kva_value *cosine, *sine;
} turned;

/* product = half * table. The caller tries both orders through `swap`. */
static bool read_product(const kva_value *v, bool swap, half *out, kva_value **table) {
  const kva_node *n = kva_def_if(v, KVA_OP_mul);
  if (!n || !half_of(kva_operand(n, swap), out)) return false;
  *table = kva_operand(n, !swap);
  return true;
}

static bool read_either(const kva_value *v, half *out, kva_value **table) {
  return read_product(v, false, out, table) || read_product(v, true, out, table);
}

static bool read_first(const kva_value *v, turned *out) {
  const kva_node *n = kva_def_if(v, KVA_OP_sub);
  return n && read_either(kva_operand(n, 0), &out->plain, &out->cosine) &&
         read_either(kva_operand(n, 1), &out->other, &out->sine) && !out->plain.second && out->other.second;
}

static bool read_second(const kva_value *v, turned *out) {
  const kva_node *n = kva_def_if(v, KVA_OP_add);
  for (uint32_t i = 0; n && i < 2; i++) {
    if (!read_either(kva_operand(n, i), &out->plain, &out->cosine) ||
        !read_either(kva_operand(n, 1 - i), &out->other, &out->sine))
      return false;
    if (out->plain.second && !out->other.second) return true;
  }
  return false;
}

static kva_value *raise_joined(kva_builder *b) {
  kva_value *first, *second;
  turned p, q;
  bool interleaved;
  if (!parts_of(kva_result(b->before, 0), &first, &second, &interleaved)) return NULL;
  if (!read_first(first, &p) || !read_second(second, &q)) return NULL;
  const half *all[4] = {&p.plain, &p.other, &q.plain, &q.other};
  for (int i = 0; i < 4; i++)
    if (all[i]->x != p.plain.x || all[i]->interleaved != interleaved) return NULL;
  kva_dim pairs = last_dim(first->type); /* a table of one column would be broadcast */
  if (last_dim(p.cosine->type) != pairs || last_dim(p.sine->type) != pairs) return NULL;
  if (p.cosine != q.cosine || p.sine != q.sine || !may_be_angles(b, p.cosine) || !may_be_angles(b, p.sine)) return NULL;
  kva_attempt attempt = kva_attempt_begin(b);
  return kva_attempt_end(b, attempt, build_rope(b, p.plain.x, p.cosine, p.sine, interleaved));
}

/* concat(rope(x[:R]), x[R:]) = rope(x): rope passes channels beyond the tables. */
static kva_value *raise_partial(kva_builder *b) {
  const kva_node *concat = b->before;
  if (!joins_last(concat)) return NULL;
  kva_node *rope = kva_def_if(kva_operand(concat, 0), KVA_OP_rope),
           *rest = kva_def_if(kva_operand(concat, 1), KVA_OP_slice);
  kva_node *head = rope ? kva_def_if(kva_operand(rope, 0), KVA_OP_slice) : NULL;
  if (!head || !rest || kva_value_use_count(&rope->results[0]) != 1) return NULL;
  kva_value *x = kva_operand(head, 0);
  const kva_slice_attrs *h = head->attrs, *r = rest->attrs;
  uint32_t last = x->type->rank - 1;
  if (kva_operand(rest, 0) != x || x->type != concat->results[0].type || r->starts.v[last] != h->shape.v[last])
    return NULL;
  for (uint32_t k = 0; k <= last; k++) {
    bool straight = (!h->steps.n || h->steps.v[k] == 1) && (!r->steps.n || r->steps.v[k] == 1);
    if (!straight || !kva_expr_is(h->starts.v[k], 0) || (k < last && !kva_expr_is(r->starts.v[k], 0))) return NULL;
  }
  kva_value *cosine = kva_operand(rope, 1);
  if (kva_expr_muli(b->m->exprs, last_dim(cosine->type), 2) != h->shape.v[last]) return NULL;
  kva_attempt attempt = kva_attempt_begin(b);
  bool interleaved = ((const kva_rope_attrs *)rope->attrs)->interleaved;
  return kva_attempt_end(b, attempt, build_rope(b, x, cosine, kva_operand(rope, 2), interleaved));
}

kva_value *kva_raise_rope(kva_builder *b) {
  const kva_node *n = b->before;
  if (kva_is(n, KVA_OP_reshape)) return raise_joined(b);
  if (kva_is(n, KVA_OP_concat)) {
    kva_value *y = raise_joined(b);
    return y ? y : raise_partial(b);
  }
  if (!kva_is(n, KVA_OP_add)) return NULL;
  const kva_node *x = kva_def_if(kva_operand(n, 0), KVA_OP_mul), *y = kva_def_if(kva_operand(n, 1), KVA_OP_mul);
  kva_value *v = raise_rotation(b, x, y);
  return v ? v : raise_rotation(b, y, x);
}
