/* Prefix sums and products. */
#include "ops/scan_common.h"

#include "ops/check.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/incremental.h"

static const kva_scan_attrs *attrs_of(const kva_node *n) {
  return n->attrs;
}

kva_status kva_scan_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  KVA_TRY(kva_check_class(m, n, 0));
  uint32_t axis;
  KVA_TRY(kva_normalize_axis(m, n, attrs_of(n)->axis, kva_operand_type(n, 0)->rank, &axis));
  out_types[0] = kva_operand_type(n, 0);
  return KVA_OK;
}

static void step(const kva_ref_tensor *x, int64_t at, bool product, double *f, uint64_t *i) {
  if (x->f)
    *f = product ? *f * x->f[at] : *f + x->f[at];
  else
    *i = product ? *i * (uint64_t)x->i[at] : *i + (uint64_t)x->i[at];
}

void kva_scan_ref(const kva_node *n, const kva_ref_tensor *x, kva_ref_tensor *y, bool product) {
  const kva_scan_attrs *a = attrs_of(n);
  uint32_t axis = kva_axis(a->axis, x->rank);
  int64_t extent = x->dims[axis], inner = 1;
  for (uint32_t k = axis + 1; k < x->rank; k++) inner *= x->dims[k];
  for (int64_t line = 0; extent && line < x->n / extent; line++) {
    int64_t base = line / inner * extent * inner + line % inner;
    double f = product;
    uint64_t i = product;
    for (int64_t k = 0; k < extent; k++) {
      int64_t at = base + (a->reverse ? extent - 1 - k : k) * inner;
      if (!a->exclusive) step(x, at, product, &f, &i);
      if (y->f)
        y->f[at] = f;
      else
        y->i[at] = (int64_t)i;
      if (a->exclusive) step(x, at, product, &f, &i);
    }
  }
}

int kva_scan_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  return axis == kva_axis(attrs_of(n)->axis, kva_operand_type(n, operand)->rank) ? KVA_MIXED : (int)axis;
}

/* The carry is the first element of a line, so that sums are in the order of one run. */
kva_status kva_scan_incremental(kva_incremental *c, const kva_node *n) {
  kva_value *x = c->operands[0];
  uint32_t rank = x->type->rank, axis = kva_axis(attrs_of(n)->axis, rank);
  kva_expr_ctx *e = c->b->m->exprs;
  if (attrs_of(n)->reverse) return kva_refuse_chunks(c, n, "it runs from the last row to the first");
  if (x->type->dims[0] != c->batch || !axis) return kva_refuse_chunks(c, n, "its operand has no axis for sequences");
  kva_dim dims[KVA_MAX_RANK];
  memcpy(dims, x->type->dims, sizeof *dims * rank);
  dims[axis] = kva_expr_const(e, 1);
  kva_value *carry = kva_carried_state(c, n->op->name, kva_type_tensor(c->b->m, x->type->dtype, rank, dims));
  kva_value *first = carry;
  if (kva_is(n, KVA_OP_cumprod)) {
    kva_value *is_new = kva_build2(c->b, KVA_OP_equal, kva_positions(c, rank), kva_const_scalar(c->b, KVA_I64, 0));
    first = kva_build3(c->b, KVA_OP_where, is_new, kva_scalar_like(c->b, x, 1), carry);
  }
  kva_value *line =
      kva_build(c->b, KVA_OP_concat, 2, (kva_value *[]){first, x}, &(kva_concat_attrs){.axis = (int64_t)axis});
  kva_value *sums = kva_build(c->b, n->op->id, 1, &line, &(kva_scan_attrs){.axis = (int64_t)axis});
  kva_dim start = kva_expr_const(e, attrs_of(n)->exclusive ? 0 : 1);
  c->results[0] = kva_slice_rows(c->b, sums, axis, start, c->time);
  kva_carry(c, carry, kva_slice_rows(c->b, sums, axis, c->time, dims[axis]));
  return KVA_OK;
}
