/* See quantize.h. x ~ (q - zero) * scale with codes q in a range of 2^bits integers. Symmetric codes are signed and
 * have no zero point; else they are unsigned, and 0 is exact. */
#include "passes/quantize.h"
#include "passes/passes_internal.h"

#include <math.h>

/* ---- what may be quantised --------------------------------------------------------------------------------------- */

static bool is_float_matrix(const kva_type *t) {
  return t->rank == 2 && kva_dtype_is_float(t->dtype) && kva_type_is_static(t);
}

/* How u reads a matrix, and the axis along which its readers want blocks: a product's depth, a row. */
static kva_readers reader_of(const kva_use *u, uint32_t *out_axis) {
  kva_node *user = u->user;
  *out_axis = 1;
  if (kva_takes_rows(u)) return KVA_READ_BY_ROWS;
  if (kva_is(user, KVA_OP_matmul) && u->index == 1) {
    *out_axis = ((const kva_matmul_attrs *)user->attrs)->transpose_b;
    return KVA_READ_BY_PRODUCTS;
  }
  uint32_t axis;
  if (!kva_is(user, KVA_OP_transpose) || kva_readers_of(&user->results[0], &axis) != KVA_READ_BY_PRODUCTS) return 0;
  *out_axis = 1 - axis;
  return KVA_READ_BY_PRODUCTS;
}

kva_readers kva_readers_of(const kva_value *v, uint32_t *out_axis) {
  kva_readers all = 0;
  if (!is_float_matrix(v->type)) return 0;
  for (const kva_use *u = v->uses; u; u = u->next) {
    uint32_t axis;
    kva_readers one = reader_of(u, &axis);
    if (!one || (all && axis != *out_axis)) return 0;
    *out_axis = axis;
    all |= one;
  }
  return all;
}

kva_readers kva_readers_of_state(const kva_module *m, const kva_state *s, uint32_t *out_axis) {
  kva_readers all = 0;
  for (uint32_t i = 0; i < m->states.len; i++)
    if (m->states.data[i]->of == s) return 0;
  for (uint32_t f = 0; f < m->functions.len; f++)
    for (kva_node *n = m->functions.data[f]->graph->first; n; n = n->next) {
      uint32_t axis;
      if (kva_state_read_by(n) != s || !n->results[0].uses) continue;
      kva_readers here = kva_readers_of(&n->results[0], &axis);
      if (!here || (all && axis != *out_axis)) return 0;
      *out_axis = axis;
      all |= here;
    }
  return all;
}

/* ---- quantising -------------------------------------------------------------------------------------------------- */

/* A block's elements, and the range of its codes. */
typedef struct block {
  const double *x;
  int64_t n;
  int low, high;
  bool symmetric;
} block;

typedef struct choice {
  double scale, error;
  int zero;
} choice;

static int code_of(const block *b, const choice *c, double x) {
  double q = c->scale > 0 ? nearbyint(x / c->scale) + c->zero : c->zero;
  return (int)fmin(fmax(q, b->low), b->high);
}

static double squared_error(const block *b, const choice *c) {
  double sum = 0;
  for (int64_t i = 0; i < b->n; i++) {
    double d = b->x[i] - (code_of(b, c, b->x[i]) - c->zero) * c->scale;
    sum += d * d;
  }
  return sum;
}

/* Scales are bfloat16: codes are chosen for the rounded scale. */
static choice choose(const block *b) {
  enum { SCALES = 10 };
  double low = 0, high = 0, levels = b->high - b->low;
  for (int64_t i = 0; i < b->n; i++) low = fmin(low, b->x[i]), high = fmax(high, b->x[i]);
  double widest = b->symmetric ? fmax(-low / -b->low, high / b->high) : (high - low) / levels;
  choice best = {.error = INFINITY};
  for (int i = 0; i < (levels > 15 ? 1 : SCALES); i++) {
    choice c = {.scale = kva_round_f64(KVA_BF16, widest * (1 - 0.03 * i))};
    if (!b->symmetric && c.scale > 0) c.zero = (int)fmin(fmax(nearbyint(-low / c.scale), b->low), b->high);
    c.error = squared_error(b, &c);
    if (c.error < best.error) best = c;
  }
  return best;
}

static kva_status make_tensor(kva_arena *arena, kva_dtype t, const int64_t *dims, kva_tensor_data *out) {
  *out = (kva_tensor_data){.dtype = t, .rank = 2, .dims = kva_arena_memdup(arena, dims, 2 * sizeof *dims)};
  if (!kva_dtype_bytes(t, dims[0] * dims[1], &out->bytes)) return KVA_NO_MEMORY;
  void *data = kva_arena_alloc(arena, (size_t)out->bytes + 1);
  memset(data, 0, (size_t)out->bytes);
  out->data = data;
  return KVA_OK;
}

typedef struct quantizer {
  const kva_quantization *how;
  const kva_tensor_data *w;
  const char *name;
  kva_diag *diag;
  uint32_t axis;
  double *x; /* room for a block */
  kva_quantized *out;
} quantizer;

static void *writable(const kva_tensor_data *t) {
  return (void *)(uintptr_t)t->data;
}

/* Block number k of line `line`, which are the columns of axis 0, or the rows of axis 1. */
static kva_status quantize_block(quantizer *q, int64_t line, int64_t k) {
  int64_t columns = q->w->dims[1], first = k * q->how->block, rest = q->w->dims[q->axis] - first;
  int64_t step = q->axis ? 1 : columns, at = q->axis ? line * columns + first : first * columns + line;
  int half = 1 << (q->how->bits - 1);
  block b = {.x = q->x, .n = rest < q->how->block ? rest : q->how->block, .symmetric = q->how->symmetric};
  b.low = b.symmetric ? -half : 0, b.high = b.symmetric ? half - 1 : 2 * half - 1;
  for (int64_t i = 0; i < b.n; i++) {
    q->x[i] = kva_load_f64(q->w->dtype, q->w->data, at + i * step);
    if (!isfinite(q->x[i]))
      return kva_error(q->diag, NULL, "quantising '%s': element %lld is %g", q->name, (long long)(at + i * step),
                       q->x[i]);
  }
  choice c = choose(&b);
  const kva_tensor_data *codes = &q->out->codes, *scale = &q->out->scale, *zero = &q->out->zero;
  int64_t place = q->axis ? line * scale->dims[1] + k : k * columns + line;
  for (int64_t i = 0; i < b.n; i++)
    kva_store_i64(codes->dtype, writable(codes), at + i * step, code_of(&b, &c, q->x[i]));
  kva_store_f64(scale->dtype, writable(scale), place, c.scale);
  if (!b.symmetric) kva_store_i64(zero->dtype, writable(zero), place, c.zero);
  return KVA_OK;
}

kva_status kva_quantize_matrix(const kva_quantization *how, const kva_tensor_data *w, uint32_t axis, const char *name,
                               kva_arena *arena, kva_diag *diag, kva_quantized *out) {
  kva_dtype type = how->bits == 4 ? (how->symmetric ? KVA_I4 : KVA_U4) : how->symmetric ? KVA_I8 : KVA_U8;
  int64_t blocks[] = {w->dims[0], w->dims[1]};
  blocks[axis] = (blocks[axis] + how->block - 1) / how->block;
  *out = (kva_quantized){0};
  KVA_TRY(make_tensor(arena, type, w->dims, &out->codes));
  KVA_TRY(make_tensor(arena, KVA_BF16, blocks, &out->scale));
  if (!how->symmetric) KVA_TRY(make_tensor(arena, type, blocks, &out->zero));
  quantizer q = {how, w, name, diag, axis, KVA_NEW_ARRAY(arena, double, how->block), out};
  for (int64_t line = 0; line < w->dims[!axis]; line++)
    for (int64_t k = 0; k < blocks[axis]; k++) KVA_TRY(quantize_block(&q, line, k));
  return KVA_OK;
}

/* ---- quantised tensors as nodes ---------------------------------------------------------------------------------- */

/* t as a tensor [rows, columns] of 8-bit codes, or of bytes with two 4-bit codes of type `half`; false: neither. */
static bool as_codes(kva_arena *arena, const kva_tensor_data *t, kva_dtype half, const int64_t *dims,
                     kva_tensor_data *out) {
  int64_t bytes;
  *out = *t;
  out->rank = 2;
  out->dims = kva_arena_memdup(arena, dims, 2 * sizeof *dims);
  if (t->rank == 2) return (t->dtype == KVA_I8 || t->dtype == KVA_U8) && !memcmp(t->dims, dims, 2 * sizeof *dims);
  out->dtype = half;
  return t->rank == 1 && t->dtype == KVA_U8 && kva_dtype_bytes(half, dims[0] * dims[1], &bytes) && bytes == t->bytes;
}

static kva_value *constant(kva_builder *b, const kva_tensor_data *t) {
  kva_arena *arena = b->m->arena;
  kva_tensor_data *copy = kva_arena_memdup(arena, t, sizeof *t);
  copy->dims = kva_arena_memdup(arena, t->dims, t->rank * sizeof *t->dims);
  return kva_const_tensor(b, copy);
}

/* The power of two whose blocks are so many; a single block may be of any length. */
static int64_t block_length(int64_t extent, int64_t blocks) {
  int64_t length = 1;
  while (length * blocks < extent) length *= 2;
  return length;
}

kva_value *kva_build_quantized(kva_builder *b, const char *name, const kva_type *type, uint32_t axis,
                               const kva_tensor_data *codes, const kva_tensor_data *scale,
                               const kva_tensor_data *zero) {
  int64_t dims[2] = {0};
  kva_tensor_data q = {0}, z = {0};
  KVA_ASSERT(type->rank == 2);
  for (uint32_t d = 0; d < 2; d++) kva_expr_is_const(type->dims[d], &dims[d]);
  kva_dtype half = zero ? KVA_U4 : KVA_I4;
  bool fits = as_codes(b->m->arena, codes, half, dims, &q) && scale->rank == 2 && kva_dtype_is_float(scale->dtype) &&
              scale->dims[!axis] == dims[!axis] && scale->dims[axis] > 0 && scale->dims[axis] <= dims[axis];
  if (fits && zero) fits = as_codes(b->m->arena, zero, half, scale->dims, &z) && z.dtype == q.dtype;
  kva_dequantize_attrs attrs = {.axis = axis, .to = type->dtype};
  if (fits) attrs.block = block_length(dims[axis], scale->dims[axis]);
  if (!fits || (dims[axis] + attrs.block - 1) / attrs.block != scale->dims[axis]) {
    kva_error(b->m->diag, NULL,
              "weights: the quantised tensor '%s' does not fit the model's parameter [%lld, %lld]: expected codes of "
              "this shape (4 bits: two in a byte) and a scale%s for each block along axis %u",
              name, (long long)dims[0], (long long)dims[1], zero ? " and a zero point" : "", axis);
    return NULL;
  }
  kva_value *operands[] = {constant(b, &q), constant(b, scale), zero ? constant(b, &z) : NULL};
  kva_value *y = kva_build(b, KVA_OP_dequantize, zero ? 3 : 2, operands, &attrs);
  y->name = name;
  return y;
}
