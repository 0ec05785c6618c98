/* Matrix products in the form of a GPU's library. */
#include "ops/build.h"
#include "ops/ids.h"
#include "ops/matmul.h"
#include "ops/shape.h"

static bool is_library_dtype(kva_dtype t) {
  return t == KVA_F32 || t == KVA_F16 || t == KVA_BF16;
}

/* The step of an operand through the batch of the result c: a whole matrix, or 0 when all of the batch share one. */
static bool batch_step(kva_module *m, const kva_type *t, const kva_type *c, kva_dim matrix, kva_dim *out_step) {
  uint32_t missing = c->rank - t->rank;
  bool all = true, none = true;
  for (uint32_t d = 0; d + 2 < c->rank; d++) {
    kva_dim here = d < missing ? kva_expr_const(m->exprs, 1) : t->dims[d - missing];
    all &= here == c->dims[d];
    none &= kva_expr_is(here, 1);
  }
  *out_step = all ? matrix : kva_expr_const(m->exprs, 0);
  return all || none;
}

/* So few rows that a kernel which reads b once takes no longer than the library, and what it fuses is left over: on an
 * H100, docs/gpu-results.md. */
static bool is_few_rows(const kva_matmul_plain *p, kva_dtype t) {
  int64_t rows, most = t == KVA_F32 ? 16 : 2;
  return kva_expr_is(p->batch, 1) && kva_expr_is_const(p->m, &rows) && rows <= most;
}

bool kva_matmul_get_plain(kva_module *m, const kva_node *n, kva_matmul_plain *out) {
  const kva_type *a = kva_operand_type(n, 0), *b = kva_operand_type(n, 1), *c = n->results[0].type;
  if (!kva_is(n, KVA_OP_matmul) || !is_library_dtype(a->dtype)) return false;
  kva_matmul_shape s = kva_matmul_get(n);
  kva_dim one = kva_expr_const(m->exprs, 1), zero = kva_expr_const(m->exprs, 0);
  *out = (kva_matmul_plain){one, s.M, s.N, s.K, zero, zero, zero, s.transpose_a, s.transpose_b};
  if (b->rank == 2 && !s.transpose_a) { /* the batch is more rows */
    out->m = kva_shape_product(m->exprs, a->rank - 1, a->dims);
    return !is_few_rows(out, a->dtype);
  }
  out->batch = kva_shape_product(m->exprs, c->rank - 2, c->dims);
  out->step_d = kva_expr_mul(m->exprs, s.M, s.N);
  return batch_step(m, a, c, kva_expr_mul(m->exprs, s.M, s.K), &out->step_a) &&
         batch_step(m, b, c, kva_expr_mul(m->exprs, s.K, s.N), &out->step_b);
}
