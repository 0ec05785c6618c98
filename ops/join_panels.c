/* join_panels: x [panels, rows, width] holds the columns of a matrix y [rows, columns] in panels of `width`, one after
 * the other: y[r, c] = x[c / width, r, c mod width]. What the last panel has beyond the columns is not read. With x
 * [panels, rows / word, width, word] some rows of a column lie side by side: y[r, c] = x[c / width, r / word, c mod
 * width, r mod word].
 *
 * A product of few rows then reads the memory of each panel in order, page after page; rows of the matrix itself would
 * be `columns` apart. Exact: moves elements. Gradient: none is needed, since a pass makes it of constants. */
#include "ops/check.h"
#include "ops/facts.h"
#include "ops/incremental.h"
#include "ops/shape.h"

KVA_OP_FUNCTIONS(join_panels)

static int64_t width_of(const kva_node *n) {
  int64_t width = 0;
  kva_expr_is_const(kva_operand_type(n, 0)->dims[2], &width);
  return width;
}

static kva_dim rows_of(kva_module *m, const kva_type *x) {
  return x->rank == 3 ? x->dims[1] : kva_expr_mul(m->exprs, x->dims[1], x->dims[3]);
}

int64_t kva_join_panels_word(const kva_node *n) {
  int64_t word = 1;
  const kva_type *x = kva_operand_type(n, 0);
  if (x->rank > 3) kva_expr_is_const(x->dims[3], &word);
  return word;
}

kva_status kva_join_panels_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  kva_dim columns = ((const kva_join_panels_attrs *)n->attrs)->columns;
  KVA_TRY(kva_check_class(m, n, 0));
  const kva_type *x = kva_operand_type(n, 0);
  if (x->rank != 4) KVA_TRY(kva_check_rank(m, n, 0, 3));
  if (!columns) return kva_error(m->diag, &n->loc, "kv.join_panels: attribute columns is missing");
  if (width_of(n) < 1 || x->dims[0] != kva_expr_ceildiv(m->exprs, columns, x->dims[2]))
    return kva_operand_error(m, n, 0, "expected as many panels, of a constant width, as the columns need");
  out_types[0] = kva_type_tensor(m, x->dtype, 2, (kva_dim[]){rows_of(m, x), columns});
  return KVA_OK;
}

kva_status kva_join_panels_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                               kva_ref_tensor *const *out) {
  (void)r;
  int64_t width = width_of(n), word = kva_join_panels_word(n), rows = out[0]->dims[0], columns = out[0]->dims[1];
  for (int64_t i = 0; i < rows; i++)
    for (int64_t c = 0; c < columns; c++)
      kva_ref_copy(in[0], ((c / width * (rows / word) + i / word) * width + c % width) * word + i % word, out[0],
                   i * columns + c);
  return KVA_OK;
}

kva_kval kva_join_panels_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  kva_expr_ctx *e = l->kb->exprs;
  const kva_expr *width = kva_operand_type(n, 0)->dims[2], *word = kva_expr_const(e, kva_join_panels_word(n));
  const kva_expr *at[] = {kva_expr_div(e, idx[1], width), kva_expr_div(e, idx[0], word), kva_expr_mod(e, idx[1], width),
                          kva_expr_mod(e, idx[0], word)};
  return l->operand(l, n, 0, at);
}

int kva_join_panels_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  (void)operand;
  return axis == 0 && kva_join_panels_word(n) == 1 ? 1 : KVA_MIXED;
}

int64_t kva_panel_of_operand(const kva_node *n) {
  return kva_panel_of(kva_operand(n, 0));
}

int64_t kva_join_panels_panel(const kva_node *n) {
  return width_of(n);
}
