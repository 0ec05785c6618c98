/* Random cases of elementwise operators, reductions, scans and rows, derived from their traits and attributes; also the
 * random draws that all generators share. Numbers come from Philox keyed by the operator's name, so a new operator does
 * not change other operators' cases. */
#include "tools/verify/random.h"

#include <stdarg.h>

/* ---- drawing ----------------------------------------------------------------------------------------------------- */

int64_t kva_random_int(kva_random *r, int64_t lo, int64_t hi) {
  return lo + (int64_t)(kva_case_uniform(r->drawn++, r->stream) * (double)(hi - lo + 1));
}

kva_extents kva_random_extents(kva_random *r, uint32_t lo, uint32_t hi, bool zero) {
  static const int64_t sizes[] = {1, 1, 2, 3, 5, 7, 9, 17};
  kva_extents x = {.rank = (uint32_t)kva_random_int(r, lo, hi)};
  int64_t room = 100;
  for (uint32_t d = 0; d < x.rank; d++) {
    int64_t size = sizes[kva_random_int(r, 0, 7)];
    x.v[d] = size <= room ? size : 1;
    room /= x.v[d];
  }
  if (zero && x.rank && kva_random_chance(r, 5)) x.v[kva_random_int(r, 0, x.rank - 1)] = 0;
  return x;
}

kva_extents kva_extents_join(kva_extents x, kva_extents y) {
  for (uint32_t d = 0; d < y.rank; d++) x.v[x.rank++] = y.v[d];
  return x;
}

kva_extents kva_extents_part(const kva_extents *x, uint32_t from, uint32_t to) {
  kva_extents part = {0};
  for (uint32_t d = from; d < to; d++) part.v[part.rank++] = x->v[d];
  return part;
}

const char *kva_extents_text(kva_random *r, kva_extents x) {
  const char *text = "";
  for (uint32_t d = 0; d < x.rank; d++)
    text = kva_arena_printf(r->arena, "%s%s%lld", text, d ? "," : "", (long long)x.v[d]);
  return text;
}

kva_case_operand *kva_random_operand(kva_random *r, kva_extents x) {
  uint32_t n = 0;
  while (r->c->in[n].shape) n++;
  KVA_ASSERT(n < KVA_CASE_OPERANDS);
  r->c->in[n].shape = kva_extents_text(r, x);
  return &r->c->in[n];
}

void kva_random_indices(kva_random *r, kva_extents x, int64_t extent) {
  kva_case_operand *o = kva_random_operand(r, x);
  o->dtype = kva_random_chance(r, 3) ? KVA_I32 : KVA_I64;
  o->lo = -(double)extent;
  o->hi = (double)extent - 1;
}

void kva_random_attrs(kva_random *r, const char *fmt, ...) {
  va_list args;
  char text[256];
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  r->c->attrs = kva_arena_strdup(r->arena, text);
}

/* ---- elementwise ------------------------------------------------------------------------------------------------- */

/* Replaces some axes of the result by symbols, so that these extents are known late. */
static const char *element_shape(kva_random *r, const kva_extents *result, const kva_extents *x, uint32_t symbols) {
  const char *text = "";
  for (uint32_t d = 0; d < x->rank; d++) {
    uint32_t axis = result->rank - x->rank + d;
    bool symbol = symbols >> axis & 1 && x->v[d] == result->v[axis];
    const char *name = symbol ? kva_arena_printf(r->arena, "%c=", 'A' + (int)axis) : "";
    text = kva_arena_printf(r->arena, "%s%s%s%lld", text, d ? "," : "", name, (long long)x->v[d]);
  }
  return text;
}

static kva_extents broadcastable(kva_random *r, const kva_extents *result) {
  uint32_t dropped = kva_random_chance(r, 3) ? (uint32_t)kva_random_int(r, 0, result->rank) : 0;
  kva_extents x = kva_extents_part(result, dropped, result->rank);
  for (uint32_t d = 0; d < x.rank; d++)
    if (kva_random_chance(r, 4)) x.v[d] = 1;
  return x;
}

/* A listed case that provides ranges and attributes: one with random values in this dtype. */
static const kva_case *template_of(const kva_random *r) {
  const kva_case_table *tables[] = {&kva_cases_core, &kva_cases_nn};
  const kva_case *found[64];
  uint32_t n = 0;
  for (uint32_t i = 0; i < 2; i++) {
    for (uint32_t k = 0; k < tables[i]->n && n < 64; k++) {
      const kva_case *c = &tables[i]->cases[k];
      bool values = false;
      for (uint32_t o = 0; o < KVA_CASE_OPERANDS; o++) values |= c->in[o].values && !c->in[o].dtype;
      if (c->op == r->c->op && !values && kva_dtype_in(kva_case_dtypes(c), r->c->dtype)) found[n++] = c;
    }
  }
  return n ? found[r->number % n] : NULL;
}

/* Scalar operands of the template stay scalars (step number, learning rate). State updates do not broadcast. */
static bool elementwise(kva_random *r) {
  const kva_op_info *op = kva_ops.ops[r->c->op];
  const kva_case *from = template_of(r);
  kva_dtype dtype = r->c->dtype;
  kva_case plain = {.op = r->c->op};
  for (int i = 0; i < op->min_operands; i++) plain.in[i].shape = "0";
  *r->c = from ? *from : plain;
  r->c->dtype = dtype;
  kva_extents result = kva_random_extents(r, 0, KVA_RANDOM_RANK, true);
  if (r->number % 4 == 3) result = (kva_extents){.rank = 1, .v = {kva_random_int(r, 100, 700)}};
  r->c->no_gradient |= r->number % 4 == 3; /* too many differences to compute */
  uint32_t symbols = (uint32_t)kva_random_int(r, 0, 31);
  for (uint32_t i = 0; i < KVA_CASE_OPERANDS && r->c->in[i].shape; i++) {
    kva_case_operand *o = &r->c->in[i];
    bool updates = op->traits & KVA_UPDATES, scalar = updates && !*o->shape;
    kva_extents x = updates || op->max_operands == 1 ? result : broadcastable(r, &result);
    if (!scalar) o->shape = element_shape(r, &result, &x, symbols);
  }
  return true;
}

/* ---- along axes -------------------------------------------------------------------------------------------------- */

bool kva_random_has_attr(const kva_random *r, const char *name) {
  const kva_attr_desc *attrs = kva_ops.ops[r->c->op]->attrs;
  return attrs && kva_attrs_find(attrs, name, strlen(name));
}

static bool over_axes(kva_random *r) {
  kva_extents x = kva_random_extents(r, 1, KVA_RANDOM_RANK, true);
  kva_extents axes = {0};
  for (uint32_t d = 0; d < x.rank; d++)
    if (kva_random_chance(r, 2)) axes.v[axes.rank++] = (int64_t)d - (kva_random_chance(r, 2) ? x.rank : 0);
  kva_random_operand(r, x);
  kva_random_attrs(r, "axes=%s; keepdims=%d", kva_extents_text(r, axes), (int)kva_random_int(r, 0, 1));
  return true;
}

static bool over_rows(kva_random *r) {
  kva_extents x = kva_random_extents(r, 1, KVA_RANDOM_RANK, true);
  kva_random_operand(r, x);
  kva_random_attrs(r, "leading=%d; rows=%d; blocks=%d", (int)kva_random_int(r, 1, x.rank), (int)kva_random_int(r, 1, 4),
                   (int)kva_random_int(r, 1, 5));
  return true;
}

static int64_t random_axis(kva_random *r, const kva_extents *x) {
  return kva_random_int(r, -(int64_t)x->rank, (int64_t)x->rank - 1);
}

/* Requires a non-empty axis. */
static bool along_axis(kva_random *r) {
  kva_extents x = kva_random_extents(r, 1, KVA_RANDOM_RANK, true);
  int64_t axis = random_axis(r, &x), *extent = &x.v[axis < 0 ? axis + x.rank : axis];
  if (*extent == 0 && kva_random_has_attr(r, "select_last")) *extent = 3;
  int a = (int)kva_random_int(r, 0, 1), b = (int)kva_random_int(r, 0, 1);
  kva_random_operand(r, x);
  if (kva_random_has_attr(r, "select_last"))
    kva_random_attrs(r, "axis=%d; keepdims=%d; select_last=%d", (int)axis, a, b);
  else if (kva_random_has_attr(r, "exclusive"))
    kva_random_attrs(r, "axis=%d; exclusive=%d; reverse=%d", (int)axis, a, b);
  else
    kva_random_attrs(r, "axis=%d", (int)axis);
  return true;
}

bool kva_case_random(kva_arena *arena, kva_op_id op, kva_dtype dtype, uint32_t number, kva_case *out_case) {
  const kva_op_info *info = kva_ops.ops[op];
  uint64_t key = kva_hash(0, info->name, strlen(info->name));
  kva_random r = {arena, out_case, number, key ^ ((uint64_t)dtype << 32 | number), 0};
  *out_case = (kva_case){.op = op, .dtype = dtype};
  kva_random_fn own = kva_random_move(op) ? kva_random_move(op) : kva_random_nn(op);
  if (own) {
    own(&r);
    return true;
  }
  if (info->traits & KVA_ELEMENTWISE) return elementwise(&r);
  if (!kva_op_has_code(info) || info->max_operands != 1) return false;
  if (kva_random_has_attr(&r, "axes")) return over_axes(&r);
  if (kva_random_has_attr(&r, "leading")) return over_rows(&r);
  return kva_random_has_attr(&r, "axis") && along_axis(&r);
}
