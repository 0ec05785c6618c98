/* cache_append(cache, rows, position, pages?): writes rows[b, .., t, ..] to cache[b, .., position[b] + t, ..], where t
 * counts along `axis` (not 0, which numbers the sequences); all other elements stay. cache has room for more rows than
 * are valid: sequence b has position[b] before the call and position[b] + T after it.
 *
 * With pages[B,N] the cache is a number of pages of R rows: row s of sequence b is row s % R of page pages[b, s / R].
 * Two rows at one place are an error of the caller, who shares pages between sequences only where they are full.
 *
 * ONNX calls this TensorScatter (linear), without pages. The result replaces the cache in its memory
 * (KVA_UPDATES_PART): a step costs what its rows cost, however large the cache is. Rows past the end are an error in
 * the reference and are left out in compiled code. Exact: elements are moved. */
#include "ops/cache_append.h"
#include "ops/check.h"
#include "ops/shape.h"

KVA_OP_FUNCTIONS(cache_append)

uint32_t kva_cache_axis(const kva_node *n) {
  return kva_axis(((const kva_cache_append_attrs *)n->attrs)->axis, kva_operand_type(n, KVA_CACHE)->rank);
}

kva_dim kva_cache_capacity(const kva_node *n, kva_expr_ctx *c) {
  kva_dim rows = kva_operand_type(n, KVA_CACHE)->dims[kva_cache_axis(n)];
  return kva_operand(n, KVA_CACHE_PAGES) ? kva_expr_mul(c, kva_operand_type(n, KVA_CACHE_PAGES)->dims[1], rows) : rows;
}

kva_status kva_cache_check_pages(kva_module *m, const kva_node *n, uint32_t operand, kva_dim sequences) {
  const kva_type *t = kva_operand_type(n, operand);
  if (t->dtype != KVA_I32)
    return kva_operand_error(m, n, operand, "expected int32 numbers of pages, found %s", kva_dtype_name(t->dtype));
  KVA_TRY(kva_check_rank(m, n, operand, 2));
  return kva_check_shape(m, n, operand, 2, (kva_dim[]){sequences, t->dims[1]});
}

static kva_status check_position(kva_module *m, const kva_node *n) {
  const kva_type *p = kva_operand_type(n, KVA_CACHE_POSITION);
  if (p->dtype != KVA_I64)
    return kva_operand_error(m, n, KVA_CACHE_POSITION, "expected int64 positions, found %s", kva_dtype_name(p->dtype));
  kva_dim sequences = kva_operand_type(n, KVA_CACHE_ROWS)->dims[0];
  if (kva_operand(n, KVA_CACHE_PAGES)) KVA_TRY(kva_cache_check_pages(m, n, KVA_CACHE_PAGES, sequences));
  return kva_check_shape(m, n, KVA_CACHE_POSITION, 1, &sequences);
}

kva_status kva_cache_append_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_type *cache = kva_operand_type(n, KVA_CACHE);
  uint32_t axis;
  KVA_TRY(kva_check_class(m, n, KVA_CACHE));
  KVA_TRY(kva_check_min_rank(m, n, KVA_CACHE, 2));
  KVA_TRY(kva_check_same_dtype(m, n, KVA_CACHE_ROWS, KVA_CACHE));
  KVA_TRY(kva_check_rank(m, n, KVA_CACHE_ROWS, cache->rank));
  KVA_TRY(kva_normalize_axis(m, n, ((const kva_cache_append_attrs *)n->attrs)->axis, cache->rank, &axis));
  if (!axis)
    return kva_error(m->diag, &n->loc, "kv.cache_append: axis 0 numbers the sequences; rows are along another");
  kva_dim dims[KVA_MAX_RANK];
  memcpy(dims, cache->dims, sizeof *dims * cache->rank);
  dims[axis] = kva_operand_type(n, KVA_CACHE_ROWS)->dims[axis];
  if (kva_operand(n, KVA_CACHE_PAGES)) dims[0] = kva_operand_type(n, KVA_CACHE_ROWS)->dims[0];
  KVA_TRY(kva_check_shape(m, n, KVA_CACHE_ROWS, cache->rank, dims));
  out_types[0] = cache;
  return check_position(m, n);
}

kva_status kva_cache_ref_pages(kva_ref *r, const kva_node *n, const kva_ref_tensor *pages, int64_t n_pages) {
  for (int64_t i = 0; i < pages->n; i++)
    if (pages->i[i] < 0 || pages->i[i] >= n_pages)
      return kva_error(r->diag, &n->loc, "kv.%s: page %lld of a cache of %lld pages", n->op->name,
                       (long long)pages->i[i], (long long)n_pages);
  return KVA_OK;
}

kva_status kva_cache_append_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                kva_ref_tensor *const *out) {
  const kva_ref_tensor *cache = in[KVA_CACHE], *rows = in[KVA_CACHE_ROWS], *position = in[KVA_CACHE_POSITION];
  const kva_ref_tensor *pages = n->n_operands > KVA_CACHE_PAGES ? in[KVA_CACHE_PAGES] : NULL;
  uint32_t axis = kva_cache_axis(n);
  int64_t idx[KVA_MAX_RANK] = {0}, at[KVA_MAX_RANK], extent = cache->dims[axis];
  int64_t capacity = extent * (pages ? pages->dims[1] : 1);
  if (pages) KVA_TRY(kva_cache_ref_pages(r, n, pages, cache->dims[0]));
  for (int64_t i = 0; i < cache->n; i++) kva_ref_copy(cache, i, out[0], i);
  for (int64_t i = 0; i < rows->n; i++, kva_next_index(rows->rank, rows->dims, idx)) {
    memcpy(at, idx, sizeof at);
    at[axis] += position->i[idx[0]];
    if (at[axis] < 0 || at[axis] >= capacity)
      return kva_error(r->diag, &n->loc, "kv.cache_append: row %lld of sequence %lld is outside a cache of %lld rows",
                       (long long)at[axis], (long long)idx[0], (long long)capacity);
    if (pages) at[0] = pages->i[idx[0] * pages->dims[1] + at[axis] / extent], at[axis] %= extent;
    kva_ref_copy(rows, i, out[0], kva_ref_offset(cache, at));
  }
  return KVA_OK;
}
