/* attention_cached(q[B,H,T,D], k[B,Hkv,C,D], v[B,Hkv,C,Dv], mask?, slopes?, position[B], pages?[B,N]) -> y[B,H,T,Dv]:
 * causal attention of the last T rows of every sequence over caches of keys and values.
 *
 * With `pages` caches are k[P,Hkv,R,D], v[P,Hkv,R,Dv]: row s of sequence b is row s % R of page pages[b, s / R], and C
 * is N * R. Several sequences may name one page. What stands for pages that no query sees does not matter.
 *
 * Caches may be float16 or bfloat16 whatever type queries have: half the memory of float, and half of what a token
 * reads. Their elements are converted as they are read; products and sums are those of the queries' type.
 *
 * Query t of sequence b stands at position[b] + t and sees keys 0 .. position[b] + t, or the last `window` of them; for
 * the rest attention.c holds, with position[b] as offset. So a cache may have room for any number of rows: rows after
 * position[b] + T - 1 are not read, and time grows with the positions, not with C. Every query has the bits that it has
 * in one attention over the whole sequence, because keys are taken in blocks that begin at multiples of one number,
 * each query on its own.
 *
 * Positions outside [0, C - T] and pages outside [0, P) are an error in the reference; compiled code reads inside of
 * the caches. Tolerance: as
 * attention. */
#include "ops/attention.h"
#include "ops/cache_append.h"
#include "ops/check.h"
#include "ops/facts.h"

KVA_OP_FUNCTIONS(attention_cached)

_Static_assert(sizeof(kva_attention_cached_attrs) == sizeof(kva_attention_attrs), "made by one list");

kva_status kva_attention_cached_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_attention_cached_attrs *a = n->attrs;
  if (!a->causal || a->offset)
    return kva_error(m->diag, &n->loc,
                     "kv.attention_cached: expected causal = true and no offset: positions say where queries stand");
  KVA_TRY(kva_attention_check(m, n));
  if (!kva_operand(n, KVA_ATTENTION_POSITION))
    return kva_operand_error(m, n, KVA_ATTENTION_POSITION, "expected the positions of the sequences, found nothing");
  const kva_type *q = kva_operand_type(n, 0), *p = kva_operand_type(n, KVA_ATTENTION_POSITION);
  if (p->dtype != KVA_I64)
    return kva_operand_error(m, n, KVA_ATTENTION_POSITION, "expected int64 positions, found %s",
                             kva_dtype_name(p->dtype));
  KVA_TRY(kva_check_shape(m, n, KVA_ATTENTION_POSITION, 1, q->dims));
  if (kva_operand(n, KVA_ATTENTION_PAGES)) KVA_TRY(kva_cache_check_pages(m, n, KVA_ATTENTION_PAGES, q->dims[0]));
  kva_dim dims[4] = {q->dims[0], q->dims[1], q->dims[2], kva_operand_type(n, 2)->dims[3]};
  out_types[0] = kva_type_tensor(m, q->dtype, 4, dims);
  return KVA_OK;
}

kva_status kva_attention_cached_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                    kva_ref_tensor *const *out) {
  const kva_ref_tensor *position = in[KVA_ATTENTION_POSITION];
  const kva_ref_tensor *pages = n->n_operands > KVA_ATTENTION_PAGES ? in[KVA_ATTENTION_PAGES] : NULL;
  int64_t rows = in[KVA_ATTENTION_K]->dims[2] * (pages ? pages->dims[1] : 1), queries = in[KVA_ATTENTION_Q]->dims[2];
  for (int64_t b = 0; b < position->n; b++) {
    if (position->i[b] >= 0 && position->i[b] <= rows - queries) continue;
    return kva_error(r->diag, &n->loc,
                     "kv.attention_cached: %lld queries of sequence %lld at position %lld, but the cache has %lld rows",
                     (long long)queries, (long long)b, (long long)position->i[b], (long long)rows);
  }
  if (pages) KVA_TRY(kva_cache_ref_pages(r, n, pages, in[KVA_ATTENTION_K]->dims[0]));
  return kva_attention_values(r, n, in, out[0], NULL);
}

double kva_attention_cached_flops(const kva_node *n, const kva_sizes *s) {
  return kva_attention_products(n, s, 2);
}
