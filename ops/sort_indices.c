/* sort_indices(indices) -> keys, bounds: indices into `extent` rows, in chunks of C neighbours, each sorted by who owns
 * the row. Of P indices in row-major order, with B = max(1, min(owners, extent)) owners and R = ceil(extent / B):
 *
 *   key of index v at position p:  ((v mod B) R + floor(v / B)) C + p mod C
 *   keys [ceil(P / C), C]          those of each chunk, ascending; the last one is filled up with B R C + p mod C
 *   bounds [ceil(P / C), B + 1]    how many keys of a chunk belong to owners below b: are less than b R C
 *
 * So an owner finds its keys in one place of every chunk, by row and then by position. Owner b has every B-th row:
 * frequent indices, which often are neighbours, have different owners. C is 2048, less where fewer indices are known to
 * be there. passes/opt_split.c makes this operator for GPUs, for what gather_grad does (there): no gradient. */
#include "ops/sort_indices.h"

#include "ops/gpu_sort.h"
#include "ops/index.h"
#include "ops/scatter_common.h"
#include "ops/shape.h"

#include <stdlib.h>

KVA_OP_FUNCTIONS(sort_indices)

enum {
  MIN_CHUNK = 32,
  MAX_CHUNK = 2048,
  MAX_THREADS = 512,
  MANY_ROWS = 1 << 19 /* too many for keys of 32 bits */
};

static int64_t chunk_of(const kva_expr *positions) {
  int64_t chunk = MIN_CHUNK, known;
  if (!kva_expr_is_const(positions, &known)) return MAX_CHUNK;
  while (chunk < MAX_CHUNK && chunk < known) chunk *= 2;
  return chunk;
}

kva_sorted kva_sorted_of(kva_expr_ctx *c, const kva_type *indices, kva_dim rows, kva_dim owners) {
  kva_sorted s = {.rows = rows, .owners = owners, .positions = kva_shape_product(c, indices->rank, indices->dims)};
  int64_t known;
  s.chunk = chunk_of(s.positions);
  s.chunks = kva_expr_ceildiv(c, s.positions, kva_expr_const(c, s.chunk));
  s.each = kva_expr_ceildiv(c, rows, s.owners);
  s.dtype = kva_expr_is_const(rows, &known) && known < MANY_ROWS ? KVA_I32 : KVA_I64;
  return s;
}

static kva_sorted sorted_of(kva_expr_ctx *c, const kva_node *n) {
  const kva_sort_indices_attrs *a = n->attrs;
  kva_dim owners = kva_expr_max(c, kva_expr_const(c, 1), kva_expr_min(c, kva_expr_const(c, a->owners), a->extent));
  return kva_sorted_of(c, kva_operand_type(n, 0), a->extent, owners);
}

kva_status kva_sort_indices_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_sort_indices_attrs *a = n->attrs;
  KVA_TRY(kva_index_check(m, n, 0));
  if (!a->extent) return kva_error(m->diag, &n->loc, "kv.%s: attribute extent is missing", n->op->name);
  if (a->owners < 1)
    return kva_error(m->diag, &n->loc, "kv.%s: owners = %lld must be positive", n->op->name, (long long)a->owners);
  kva_sorted s = sorted_of(m->exprs, n);
  out_types[0] = kva_type_tensor(m, s.dtype, 2, (kva_dim[]){s.chunks, kva_expr_const(m->exprs, s.chunk)});
  out_types[1] = kva_type_tensor(m, KVA_I32, 2, (kva_dim[]){s.chunks, kva_expr_addi(m->exprs, s.owners, 1)});
  return KVA_OK;
}

/* ---- reference --------------------------------------------------------------------------------------------------- */

static int by_value(const void *x, const void *y) {
  int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
  return (a > b) - (a < b);
}

static void ref_bounds(const int64_t *keys, int64_t chunk, int64_t step, int64_t n, int64_t *bounds) {
  for (int64_t b = 0; b < n; b++)
    for (int64_t i = 0; i < chunk; i++) bounds[b] += keys[i] < b * step;
}

kva_status kva_sort_indices_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                kva_ref_tensor *const *out) {
  int64_t rows, chunk = out[0]->dims[1], owners = out[1]->dims[1] - 1;
  KVA_TRY(kva_ref_dim(r, ((const kva_sort_indices_attrs *)n->attrs)->extent, &rows));
  int64_t each = (rows + owners - 1) / owners, *keys = out[0]->i;
  for (int64_t i = 0; i < out[0]->n; i++) {
    int64_t v, row = owners * each;
    if (i < in[0]->n) {
      KVA_TRY(kva_index_ref(r, n, in[0]->i[i], 0, rows, &v));
      row = v % owners * each + v / owners;
    }
    keys[i] = row * chunk + i % chunk;
  }
  for (int64_t c = 0; c < out[0]->dims[0]; c++) {
    qsort(keys + c * chunk, (size_t)chunk, sizeof *keys, by_value);
    ref_bounds(keys + c * chunk, chunk, each * chunk, owners + 1, out[1]->i + c * (owners + 1));
  }
  return KVA_OK;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

typedef struct sorting {
  kva_lower *l;
  kva_kb *b;
  kva_expr_ctx *e;
  const kva_node *n;
  kva_sorted s;
  kva_kbuf *keys, *bounds;
} sorting;

static const kva_expr *num(const sorting *s, int64_t v) {
  return kva_expr_const(s->e, v);
}

static const kva_expr *key_place(const sorting *s, const kva_expr *chunk, const kva_expr *i) {
  return kva_expr_add(s->e, kva_expr_muli(s->e, chunk, s->s.chunk), i);
}

/* The first key that owner b may have. */
static const kva_expr *first_key(const sorting *s, const kva_expr *b) {
  return kva_expr_muli(s->e, kva_expr_mul(s->e, b, s->s.each), s->s.chunk);
}

static void store_bound(const sorting *s, const kva_expr *chunk, const kva_expr *owner, kva_kval below) {
  const kva_expr *row = kva_expr_mul(s->e, chunk, kva_expr_addi(s->e, s->s.owners, 1));
  kva_k_store(s->b, s->bounds, kva_expr_add(s->e, row, owner), below);
}

static kva_kval key_at(const sorting *s, const kva_expr *chunk, const kva_expr *i) {
  const kva_expr *position = key_place(s, chunk, i), *at[KVA_MAX_RANK];
  const kva_type *indices = kva_operand_type(s->n, 0);
  kva_kval exists = kva_k_index_lt(s->b, position, s->s.positions), guard = kva_k_guard_begin(s->b, exists);
  kva_shape_split(s->e, indices->rank, indices->dims, position, at);
  const kva_expr *v = kva_index_lower(s->l, s->n, 0, at, s->s.rows);
  kva_k_guard_end(s->b, guard);
  const kva_expr *row = kva_expr_mul(s->e, kva_expr_mod(s->e, v, s->s.owners), s->s.each);
  row = kva_expr_add(s->e, row, kva_expr_div(s->e, v, s->s.owners));
  kva_kval key = kva_k_index(s->b, kva_expr_add(s->e, kva_expr_muli(s->e, row, s->s.chunk), i));
  return kva_k_select(s->b, exists, key, kva_k_index(s->b, kva_expr_add(s->e, first_key(s, s->s.owners), i)));
}

/* Keys of the chunk below `limit`. */
static kva_kval count_below(const sorting *s, const kva_expr *chunk, kva_kval limit) {
  kva_kval zero = kva_k_const_i(s->b, KVA_I64, 0), one = kva_k_const_i(s->b, KVA_I64, 1);
  kva_kloop *other = kva_k_loop_begin(s->b, KVA_K_SERIAL, num(s, s->s.chunk), "j");
  kva_kval below = kva_k2(s->b, KVA_K_lt, key_at(s, chunk, other->var), limit);
  kva_kval sum = kva_k_reduce(s->b, other, KVA_COMBINE_ADD, zero, kva_k_select(s->b, below, one, zero));
  kva_k_loop_end(s->b, other);
  return sum;
}

/* A key's place is the number of smaller ones. */
static void by_counting(const sorting *s) {
  kva_kloop *chunk = kva_k_loop_begin(s->b, KVA_K_PARALLEL, s->s.chunks, "chunk");
  kva_kloop *i = kva_k_loop_begin(s->b, KVA_K_PARALLEL, num(s, s->s.chunk), "i");
  kva_kval key = key_at(s, chunk->var, i->var), place = count_below(s, chunk->var, key);
  kva_k_store(s->b, s->keys, key_place(s, chunk->var, kva_k_symbol(s->b, place)), key);
  kva_k_loop_end(s->b, i);
  kva_kloop *owner = kva_k_loop_begin(s->b, KVA_K_PARALLEL, kva_expr_addi(s->e, s->s.owners, 1), "owner");
  kva_kval limit = kva_k_index(s->b, first_key(s, owner->var));
  store_bound(s, chunk->var, owner->var, count_below(s, chunk->var, limit));
  kva_k_loop_end(s->b, owner);
  kva_k_loop_end(s->b, chunk);
}

/* A block sorts a chunk in shared memory. */
static void by_blocks(const sorting *s) {
  kva_kbuf *buf = kva_k_shared(s->b, "sorted", s->s.dtype, 2 * s->s.chunk);
  kva_kloop *chunk = kva_k_loop_begin(s->b, KVA_K_GRID, s->s.chunks, "chunk");
  kva_gpu_list list = kva_gpu_list_begin(s->b, buf, s->s.chunk, num(s, s->s.chunk));
  s->b->kernel->threads = (uint32_t)(s->s.chunk < MAX_THREADS ? s->s.chunk : MAX_THREADS);
  kva_kloop *i = kva_k_loop_begin(s->b, KVA_K_THREAD, num(s, s->s.chunk), "i");
  kva_k_store(s->b, buf, i->var, key_at(s, chunk->var, i->var));
  kva_k_loop_end(s->b, i);
  kva_gpu_list_sort(s->b, &list);
  i = kva_k_loop_begin(s->b, KVA_K_THREAD, num(s, s->s.chunk), "i");
  kva_kval key = kva_k_load(s->b, buf, kva_expr_add(s->e, list.first, i->var));
  kva_k_store(s->b, s->keys, key_place(s, chunk->var, i->var), key);
  kva_k_loop_end(s->b, i);
  kva_kloop *owner = kva_k_loop_begin(s->b, KVA_K_THREAD, kva_expr_addi(s->e, s->s.owners, 1), "owner");
  store_bound(s, chunk->var, owner->var, kva_gpu_list_below(s->b, &list, first_key(s, owner->var)));
  kva_k_loop_end(s->b, owner);
  kva_k_loop_end(s->b, chunk);
}

void kva_sort_indices_kernel(kva_lower *l, const kva_node *n) {
  sorting s = {.l = l, .b = l->kb, .e = l->kb->exprs, .n = n, .s = sorted_of(l->kb->exprs, n)};
  s.keys = kva_scatter_result(l, n, 0);
  s.bounds = kva_scatter_result(l, n, 1);
  (kva_lower_for_gpu(l) ? by_blocks : by_counting)(&s);
}
