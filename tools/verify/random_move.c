/* Random cases of operators that move elements, change their type or generate them. */
#include "tools/verify/random.h"
#include "ops/ids.h"

/* Every dtype that compiled code computes with, and storage-only floats. */
static const kva_dtype dtypes[] = {KVA_F32,  KVA_F64,      KVA_F16,        KVA_BF16,   KVA_I8,        KVA_I16,
                                   KVA_I32,  KVA_I64,      KVA_U8,         KVA_U16,    KVA_U32,       KVA_U64,
                                   KVA_BOOL, KVA_F8E4M3FN, KVA_F8E4M3FNUZ, KVA_F8E5M2, KVA_F8E5M2FNUZ};
enum { N_DTYPES = sizeof dtypes / sizeof *dtypes };

static void random_cast(kva_random *r) {
  kva_dtype to = dtypes[r->number % N_DTYPES];
  bool narrow = kva_dtype_is_float(to) && kva_dtype_bits(to) == 8;
  kva_case_operand *o = kva_random_operand(r, kva_random_extents(r, 0, KVA_RANDOM_RANK, true));
  if (kva_dtype_is_float(r->c->dtype)) o->lo = narrow ? -1e3 : -300, o->hi = narrow ? 1e3 : 300;
  r->c->no_gradient = kva_dtype_bits(to) < 64;
  kva_random_attrs(r, "to=%s; saturate=%d", kva_dtype_name(to), (int)kva_random_int(r, 0, 1));
}

static void random_bitcast(kva_random *r) {
  kva_dtype same[N_DTYPES];
  uint32_t n = 0;
  for (uint32_t i = 0; i < N_DTYPES; i++) {
    bool narrow = kva_dtype_is_float(dtypes[i]) && kva_dtype_bits(dtypes[i]) == 8;
    bool fits = kva_dtype_bits(dtypes[i]) == kva_dtype_bits(r->c->dtype);
    if (fits && !narrow && dtypes[i] != KVA_BOOL) same[n++] = dtypes[i];
  }
  kva_random_operand(r, kva_random_extents(r, 0, KVA_RANDOM_RANK, true));
  kva_random_attrs(r, "to=%s", kva_dtype_name(same[r->number % n]));
}

static void random_iota(kva_random *r) {
  kva_extents x = kva_random_extents(r, 1, KVA_RANDOM_RANK, true);
  kva_random_attrs(r, "shape=%s; axis=%d; dtype=%s", kva_extents_text(r, x),
                   (int)kva_random_int(r, -(int64_t)x.rank, (int64_t)x.rank - 1),
                   kva_dtype_name(dtypes[r->number % 12]));
}

static void random_dims(kva_random *r) {
  kva_random_attrs(r, "values=%s", kva_extents_text(r, kva_random_extents(r, 1, KVA_RANDOM_RANK, true)));
}

/* Merges neighbouring extents and inserts ones. */
static void random_reshape(kva_random *r) {
  kva_extents to = kva_random_extents(r, 0, KVA_RANDOM_RANK, true), from = {0};
  for (uint32_t d = 0; d < to.rank; d++) {
    if (from.rank && kva_random_chance(r, 2)) {
      from.v[from.rank - 1] *= to.v[d];
      continue;
    }
    if (from.rank < KVA_RANDOM_RANK - 1 && kva_random_chance(r, 4)) from.v[from.rank++] = 1;
    from.v[from.rank++] = to.v[d];
  }
  bool other_way = kva_random_chance(r, 2);
  kva_random_operand(r, other_way ? to : from);
  kva_random_attrs(r, "shape=%s", kva_extents_text(r, other_way ? from : to));
}

static void random_transpose(kva_random *r) {
  kva_extents x = kva_random_extents(r, 1, KVA_RANDOM_RANK, true), perm = {.rank = x.rank};
  for (uint32_t d = 0; d < x.rank; d++) perm.v[d] = d;
  for (uint32_t d = x.rank; d-- > 1;) {
    int64_t with = kva_random_int(r, 0, d), kept = perm.v[d];
    perm.v[d] = perm.v[with];
    perm.v[with] = kept;
  }
  kva_random_operand(r, x);
  kva_random_attrs(r, "perm=%s", kva_extents_text(r, perm));
}

static void random_slice(kva_random *r) {
  kva_extents x = kva_random_extents(r, 1, KVA_RANDOM_RANK, true), starts = x, shape = x, steps = x;
  for (uint32_t d = 0; d < x.rank; d++) {
    steps.v[d] = 1;
    if (x.v[d] == 0) continue;
    steps.v[d] = kva_random_int(r, 1, 3) * (kva_random_chance(r, 2) ? -1 : 1);
    starts.v[d] = kva_random_int(r, 0, x.v[d] - 1);
    int64_t room = steps.v[d] > 0 ? x.v[d] - 1 - starts.v[d] : starts.v[d];
    int64_t most = room / (steps.v[d] > 0 ? steps.v[d] : -steps.v[d]) + 1;
    shape.v[d] = kva_random_int(r, kva_random_chance(r, 8) ? 0 : 1, most);
  }
  kva_random_operand(r, x);
  kva_random_attrs(r, "starts=%s; shape=%s; steps=%s", kva_extents_text(r, starts), kva_extents_text(r, shape),
                   kva_extents_text(r, steps));
}

static void random_expand(kva_random *r) {
  kva_extents to = kva_random_extents(r, 0, KVA_RANDOM_RANK, true);
  kva_extents x = kva_extents_part(&to, (uint32_t)kva_random_int(r, 0, to.rank), to.rank);
  for (uint32_t d = 0; d < x.rank; d++)
    if (kva_random_chance(r, 2)) x.v[d] = 1;
  kva_random_operand(r, x);
  kva_random_attrs(r, "shape=%s", kva_extents_text(r, to));
}

static void random_pad(kva_random *r) {
  static const char *const modes[] = {"constant", "edge", "reflect", "wrap"};
  const char *mode = modes[r->number % 4];
  bool constant = r->number % 4 == 0;
  kva_extents x = kva_random_extents(r, 1, 4, constant), before = x, after = x;
  for (uint32_t d = 0; d < x.rank; d++) {
    before.v[d] = kva_random_int(r, x.v[d] > 1 ? -1 : 0, 3);
    after.v[d] = kva_random_int(r, x.v[d] > 1 ? -1 : 0, 3);
  }
  kva_random_operand(r, x);
  if (constant && kva_random_chance(r, 2)) kva_random_operand(r, (kva_extents){0});
  kva_random_attrs(r, "before=%s; after=%s; mode=%s", kva_extents_text(r, before), kva_extents_text(r, after), mode);
}

static void random_concat(kva_random *r) {
  kva_extents x = kva_random_extents(r, 1, 4, true);
  int64_t axis = kva_random_int(r, 0, x.rank - 1), parts = kva_random_int(r, 1, 4);
  for (int64_t i = 0; i < parts; i++) {
    x.v[axis] = kva_random_int(r, 0, 5);
    kva_random_operand(r, x);
  }
  kva_random_attrs(r, "axis=%d", (int)(kva_random_chance(r, 2) ? axis - x.rank : axis));
}

/* ---- at indices -------------------------------------------------------------------------------------------------- */

static void random_gather(kva_random *r) {
  bool grad = kva_random_has_attr(r, "extent");
  kva_extents x = kva_random_extents(r, 1, 3, false), at = kva_random_extents(r, 0, 2, true);
  uint32_t axis = (uint32_t)kva_random_int(r, 0, x.rank - 1);
  kva_extents y = kva_extents_join(kva_extents_part(&x, 0, axis), at);
  y = kva_extents_join(y, kva_extents_part(&x, axis + 1, x.rank));
  kva_random_operand(r, grad ? y : x);
  kva_random_indices(r, at, x.v[axis]);
  if (grad)
    kva_random_attrs(r, "axis=%d; extent=%lld", (int)axis, (long long)x.v[axis]);
  else
    kva_random_attrs(r, "axis=%d", (int)axis);
}

static void random_sort_indices(kva_random *r) {
  int64_t extent = kva_random_int(r, 1, 400);
  kva_random_indices(r, kva_random_extents(r, 0, 2, true), extent);
  kva_random_attrs(r, "extent=%lld", (long long)extent);
}

static void random_top_k(kva_random *r) {
  kva_extents x = kva_random_extents(r, 1, 3, false);
  uint32_t axis = (uint32_t)kva_random_int(r, 0, x.rank - 1);
  kva_random_operand(r, x);
  kva_random_attrs(r, "axis=%d; count=%lld; smallest=%d", (int)axis, (long long)kva_random_int(r, 0, x.v[axis]),
                   (int)kva_random_chance(r, 2));
}

/* Extents of indices: at most x's except along the axis; sometimes none. */
static kva_extents within(kva_random *r, kva_extents x, uint32_t axis) {
  bool none = kva_random_chance(r, 8);
  for (uint32_t d = 0; d < x.rank; d++) x.v[d] = none ? 0 : kva_random_int(r, 1, d == axis ? 9 : x.v[d]);
  return x;
}

static void random_gather_elements(kva_random *r) {
  kva_extents x = kva_random_extents(r, 1, 3, false);
  uint32_t axis = (uint32_t)kva_random_int(r, 0, x.rank - 1);
  kva_random_operand(r, x);
  kva_random_indices(r, within(r, x, axis), x.v[axis]);
  kva_random_attrs(r, "axis=%d", (int)axis);
}

/* Without a reduction no element may be written twice: one index along the axis. */
static void random_scatter_elements(kva_random *r) {
  static const char *const reductions[] = {"add", "none", "mul", "max", "min"};
  uint32_t reduction = r->c->dtype == KVA_BOOL ? 1 : r->number % 5;
  kva_extents x = kva_random_extents(r, 1, 3, false);
  uint32_t axis = (uint32_t)kva_random_int(r, 0, x.rank - 1);
  kva_extents at = within(r, x, axis);
  if (reduction == 1) at.v[axis] = 1;
  kva_random_operand(r, x);
  kva_random_indices(r, at, x.v[axis]);
  kva_random_operand(r, at);
  r->c->no_gradient = reduction > 1;
  kva_random_attrs(r, "axis=%d; reduction=%s", (int)axis, reductions[reduction]);
}

/* Makes the extents of axes [batch, batch + length) equal, so that indices have one range. */
static kva_extents nd_operand(kva_random *r, uint32_t batch, uint32_t length) {
  kva_extents x = kva_random_extents(r, batch + length, 4, false);
  for (uint32_t k = 1; k < length; k++) x.v[batch + k] = x.v[batch];
  return x;
}

static void random_gather_nd(kva_random *r) {
  uint32_t batch = (uint32_t)kva_random_int(r, 0, 1), length = (uint32_t)kva_random_int(r, 1, 2);
  kva_extents x = nd_operand(r, batch, length), at = kva_extents_part(&x, 0, batch);
  at = kva_extents_join(at, kva_random_extents(r, 0, 1, true));
  at.v[at.rank++] = length;
  kva_random_operand(r, x);
  kva_random_indices(r, at, x.v[batch]);
  kva_random_attrs(r, "batch_dims=%u", batch);
}

static void random_scatter_nd(kva_random *r) {
  static const char *const reductions[] = {"add", "none", "mul", "max", "min"};
  uint32_t reduction = r->c->dtype == KVA_BOOL ? 1 : r->number % 5, length = (uint32_t)kva_random_int(r, 1, 2);
  kva_extents x = nd_operand(r, 0, length), at = {.rank = 1, .v = {reduction == 1 ? 1 : kva_random_int(r, 0, 9)}};
  kva_extents updates = kva_extents_join(at, kva_extents_part(&x, length, x.rank));
  at.v[at.rank++] = length;
  kva_random_operand(r, x);
  kva_random_indices(r, at, x.v[0]);
  kva_random_operand(r, updates);
  r->c->no_gradient = reduction > 1;
  kva_random_attrs(r, "reduction=%s", reductions[reduction]);
}

static const kva_random_fn generators[KVA_OP_COUNT] = {
    [KVA_OP_cast] = random_cast,
    [KVA_OP_bitcast] = random_bitcast,
    [KVA_OP_iota] = random_iota,
    [KVA_OP_dims] = random_dims,
    [KVA_OP_reshape] = random_reshape,
    [KVA_OP_transpose] = random_transpose,
    [KVA_OP_slice] = random_slice,
    [KVA_OP_expand] = random_expand,
    [KVA_OP_pad] = random_pad,
    [KVA_OP_concat] = random_concat,
    [KVA_OP_gather] = random_gather,
    [KVA_OP_gather_grad] = random_gather,
    [KVA_OP_sort_indices] = random_sort_indices,
    [KVA_OP_top_k] = random_top_k,
    [KVA_OP_gather_elements] = random_gather_elements,
    [KVA_OP_gather_nd] = random_gather_nd,
    [KVA_OP_scatter_elements] = random_scatter_elements,
    [KVA_OP_scatter_nd] = random_scatter_nd,
};

kva_random_fn kva_random_move(kva_op_id op) {
  return generators[op];
}

/* A cast goes to any dtype. */
uint32_t kva_case_random_least(kva_op_id op) {
  return generators[op] == random_cast ? N_DTYPES : 1;
}
