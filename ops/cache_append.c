/* cache_append(cache, rows, position): writes rows[b, .., t, ..] to cache[b, .., position[b] + t, ..], where t counts
 * along `axis` (not 0, which numbers the sequences); all other elements stay. cache has room for more rows than are
 * valid: sequence b has position[b] before the call and position[b] + T after it.
 *
 * ONNX calls this TensorScatter (linear). The result replaces the cache in its memory (KVA_UPDATES_PART): a step costs
 * what its rows cost, however large the cache is. Rows past the end are an error in the reference and are left out in
 * compiled code. Exact: elements are moved. */
#include "ops/cache_append.h"
#include "ops/check.h"
#include "ops/shape.h"

KVA_OP_FUNCTIONS(cache_append)

uint32_t kva_cache_axis(const kva_node *n) {
  return kva_axis(((const kva_cache_append_attrs *)n->attrs)->axis, kva_operand_type(n, KVA_CACHE)->rank);
}

static kva_status check_position(kva_module *m, const kva_node *n) {
  const kva_type *p = kva_operand_type(n, KVA_CACHE_POSITION);
  if (p->dtype != KVA_I64)
    return kva_operand_error(m, n, KVA_CACHE_POSITION, "expected int64 positions, found %s", kva_dtype_name(p->dtype));
  return kva_check_shape(m, n, KVA_CACHE_POSITION, 1, kva_operand_type(n, KVA_CACHE)->dims);
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
  KVA_TRY(kva_check_shape(m, n, KVA_CACHE_ROWS, cache->rank, dims));
  out_types[0] = cache;
  return check_position(m, n);
}

kva_status kva_cache_append_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                kva_ref_tensor *const *out) {
  const kva_ref_tensor *cache = in[KVA_CACHE], *rows = in[KVA_CACHE_ROWS], *position = in[KVA_CACHE_POSITION];
  uint32_t axis = kva_cache_axis(n);
  int64_t idx[KVA_MAX_RANK] = {0}, at[KVA_MAX_RANK];
  for (int64_t i = 0; i < cache->n; i++) kva_ref_copy(cache, i, out[0], i);
  for (int64_t i = 0; i < rows->n; i++, kva_next_index(rows->rank, rows->dims, idx)) {
    memcpy(at, idx, sizeof at);
    at[axis] += position->i[idx[0]];
    if (at[axis] < 0 || at[axis] >= cache->dims[axis])
      return kva_error(r->diag, &n->loc, "kv.cache_append: row %lld of sequence %lld is outside a cache of %lld rows",
                       (long long)at[axis], (long long)idx[0], (long long)cache->dims[axis]);
    kva_ref_copy(rows, i, out[0], kva_ref_offset(cache, at));
  }
  return KVA_OK;
}
