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

bool kva_matmul_get_plain(kva_module *m, const kva_node *n, kva_matmul_plain *out) {
  const kva_type *a = kva_operand_type(n, 0), *b = kva_operand_type(n, 1), *c = n->results[0].type;
  if (!kva_is(n, KVA_OP_matmul) || !is_library_dtype(a->dtype)) return false;
  kva_matmul_shape s = kva_matmul_get(n);
  kva_dim one = kva_expr_const(m->exprs, 1), zero = kva_expr_const(m->exprs, 0);
  *out = (kva_matmul_plain){one, s.M, s.N, s.K, zero, zero, zero, s.transpose_a, s.transpose_b};
  if (b->rank == 2 && !s.transpose_a) { /* the batch is more rows */
    out->m = kva_shape_product(m->exprs, a->rank - 1, a->dims);
    return true;
  }
  out->batch = kva_shape_product(m->exprs, c->rank - 2, c->dims);
  out->step_d = kva_expr_mul(m->exprs, s.M, s.N);
  return batch_step(m, a, c, kva_expr_mul(m->exprs, s.M, s.K), &out->step_a) &&
         batch_step(m, b, c, kva_expr_mul(m->exprs, s.K, s.N), &out->step_b);
}

bool kva_matmul_is_for_library(const kva_target *t, const kva_node *n) {
  kva_matmul_plain plain;
  int64_t rows;
  if (!t->library_gemm || !kva_is(n, KVA_OP_matmul) || !kva_matmul_get_plain(n->graph->module, n, &plain)) return false;
  int64_t generated = kva_operand_type(n, 0)->dtype == KVA_F32 ? t->generated_rows : t->generated_rows_16;
  bool one = kva_expr_is(plain.batch, 1) && !plain.transpose_a;
  return !(one && kva_expr_is_const(plain.m, &rows) && rows <= generated);
}
