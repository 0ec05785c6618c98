/* scatter_elements: work items are lines along the axis. On a CPU they are as many lines side by side as fill a cache
 * line, where memory is not contiguous along the axis itself. */
#include "codegen/kernels/any/scatter/scatter.h"
#include "ops/check.h"
#include "ops/index.h"
#include "ops/shape.h"

static uint32_t axis_of(const kva_node *n) {
  return kva_axis(((const kva_scatter_elements_attrs *)n->attrs)->axis, kva_operand_type(n, 0)->rank);
}

static kva_scatter_mode mode_of(const kva_node *n) {
  return kva_scatter_mode_of(((const kva_scatter_elements_attrs *)n->attrs)->reduction);
}

typedef struct scatter {
  kva_lower *l;
  const kva_node *n;
  const kva_type *x, *indices;
  uint32_t axis, row; /* axes from `row` on are those of lines side by side; the rank: none */
  kva_slice_loop slice;
  const kva_expr *at[KVA_MAX_RANK]; /* the element's index; of the axis, as a loop has it */
} scatter;

/* All axes behind the scatter's, if indices have their extents, else the last one. */
static uint32_t first_of_row(const scatter *s) {
  if (s->l->target->kind == KVA_TARGET_GPU || s->axis + 1 == s->x->rank) return s->x->rank;
  for (uint32_t k = s->axis + 1; k < s->x->rank; k++)
    if (s->indices->dims[k] != s->x->dims[k]) return s->x->rank - 1;
  return s->axis + 1;
}

/* Begins a loop over the lines of a slice; NULL: there is one line. */
static kva_kloop *begin_row(scatter *s) {
  if (s->row == s->x->rank) return NULL;
  kva_kloop *j = kva_k_loop_begin(s->l->kb, KVA_K_PARALLEL, s->slice.width, "j");
  const kva_expr *column = kva_expr_add(s->l->kb->exprs, s->slice.start, j->var);
  kva_shape_split(s->l->kb->exprs, s->x->rank - s->row, s->x->dims + s->row, column, s->at + s->row);
  return j;
}

static const kva_expr *place_of(const scatter *s) {
  return kva_shape_linear(s->l->kb->exprs, s->x->rank, s->x->dims, s->at);
}

static void copy_lines(scatter *s, kva_kbuf *buf) {
  kva_kb *b = s->l->kb;
  kva_kloop *copy = kva_k_loop_begin(b, KVA_K_PARALLEL, s->x->dims[s->axis], "k"), *j = begin_row(s);
  s->at[s->axis] = copy->var;
  kva_k_store(b, buf, place_of(s), s->l->operand(s->l, s->n, 0, s->at));
  if (j) kva_k_loop_end(b, j);
  kva_k_loop_end(b, copy);
}

/* The line has updates. */
static kva_kval is_covered(const scatter *s) {
  kva_kval covered = NULL;
  for (uint32_t k = 0; k < s->x->rank; k++)
    if (k != s->axis && s->indices->dims[k] != s->x->dims[k])
      covered = kva_k_and(s->l->kb, covered, kva_k_index_lt(s->l->kb, s->at[k], s->indices->dims[k]));
  return kva_index_nonempty(s->l, covered, s->x->dims[s->axis]);
}

static void update_lines(scatter *s, kva_kbuf *buf) {
  kva_kb *b = s->l->kb;
  const kva_expr *from[KVA_MAX_RANK];
  kva_kloop *walk = kva_k_loop_begin(b, KVA_K_SERIAL, s->indices->dims[s->axis], "k"), *j = begin_row(s);
  memcpy(from, s->at, sizeof from);
  from[s->axis] = walk->var;
  kva_kval guard = kva_k_guard_begin(b, is_covered(s));
  s->at[s->axis] = kva_index_lower(s->l, s->n, 1, from, s->x->dims[s->axis]);
  kva_scatter_store(s->l, mode_of(s->n), buf, place_of(s), s->l->operand(s->l, s->n, 2, from));
  kva_k_guard_end(b, guard);
  if (j) kva_k_loop_end(b, j);
  kva_k_loop_end(b, walk);
}

void kva_scatter_elements_emit(kva_lower *l, const kva_node *n) {
  kva_kb *b = l->kb;
  scatter s = {.l = l, .n = n, .x = kva_operand_type(n, 0), .indices = kva_operand_type(n, 1), .axis = axis_of(n)};
  s.row = first_of_row(&s);
  kva_kbuf *buf = kva_scatter_result(l, n, 0);
  kva_kloop *lines[KVA_MAX_RANK];
  bool side_by_side = s.row < s.x->rank;
  for (uint32_t k = 0; k < s.row; k++) {
    if (k == s.axis) continue;
    lines[k] = kva_k_loop_begin(b, KVA_K_PARALLEL, s.x->dims[k], "i");
    s.at[k] = lines[k]->var;
  }
  const kva_expr *columns = kva_shape_product(b->exprs, s.x->rank - s.row, s.x->dims + s.row);
  if (side_by_side) s.slice = kva_slices_begin(l, columns);
  copy_lines(&s, buf);
  update_lines(&s, buf);
  if (side_by_side) kva_slices_end(l, &s.slice);
  for (uint32_t k = s.row; k-- > 0;)
    if (k != s.axis) kva_k_loop_end(b, lines[k]);
}
