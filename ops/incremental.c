/* See incremental.h. */
#include "ops/incremental.h"
#include "ops/facts.h"
#include "ops/ids.h"

#include <stdarg.h>

int kva_broadcast_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  const kva_type *x = kva_operand_type(n, operand);
  uint32_t added = n->results[0].type->rank - x->rank;
  return axis < added || kva_expr_is(x->dims[axis - added], 1) ? KVA_SAME_FOR_ALL : (int)(axis - added);
}

int kva_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  if (n->op->source_axis) return n->op->source_axis(n, operand, axis);
  return n->op->traits & KVA_ELEMENTWISE ? kva_broadcast_source_axis(n, operand, axis) : KVA_MIXED;
}

const kva_attr_field *kva_shape_field(const kva_node *n) {
  const kva_attr_field *f = n->attrs ? kva_attrs_find(n->op->attrs, "shape", strlen("shape")) : NULL;
  return f && f->kind == KVA_ATTR_DIMS ? f : NULL;
}

const void *kva_resized_shape(kva_arena *scratch, const kva_node *n, uint32_t axis, kva_dim extent) {
  const kva_attr_field *f = kva_shape_field(n);
  if (!f) return n->attrs;
  char *copy = kva_arena_memdup(scratch, n->attrs, n->op->attrs->size);
  kva_dims *shape = (kva_dims *)(void *)(copy + f->offset);
  if (shape->n != n->results[0].type->rank) return n->attrs;
  kva_dim *dims = kva_arena_memdup(scratch, shape->v, shape->n * sizeof *dims);
  dims[axis] = extent;
  shape->v = dims;
  return copy;
}

/* ---- state ------------------------------------------------------------------------------------------------------- */

static bool is_taken(const kva_graph *g, const char *name) {
  for (uint32_t i = 0; i < g->inputs.len; i++)
    if (g->inputs.data[i]->name && strcmp(g->inputs.data[i]->name, name) == 0) return true;
  return false;
}

kva_value *kva_carried_state(kva_incremental *c, const char *what, const kva_type *type) {
  kva_module *m = c->b->m;
  uint32_t number = 0;
  const char *name = kva_arena_printf(m->arena, "%s_0", what);
  while (is_taken(c->b->graph, name)) name = kva_arena_printf(m->arena, "%s_%u", what, (unsigned)++number);
  kva_carried state = {kva_graph_add_input(c->b->graph, type, name), NULL};
  KVA_PUSH(m->arena, &c->carried, state);
  return state.old;
}

void kva_carry(kva_incremental *c, const kva_value *state, kva_value *next) {
  uint32_t i = 0;
  while (c->carried.data[i].old != state) i++;
  c->carried.data[i].next = next;
}

/* The runtime finds the rows of a page and the window in the table's name, and the pages of a table's caches by their
 * number, the first extent (runtime/sequences.c). */
static const kva_page_table *page_table(kva_incremental *c, int64_t window) {
  for (uint32_t i = 0; i < c->tables.len; i++)
    if (c->tables.data[i].window == window) return &c->tables.data[i];
  kva_module *m = c->b->m;
  kva_dim rows = kva_expr_const(m->exprs, KVA_PAGE_ROWS),
          dims[2] = {c->batch, kva_expr_div(m->exprs, c->capacity, rows)};
  const char *name = window ? kva_arena_printf(m->arena, "pages_%d_%lld", KVA_PAGE_ROWS, (long long)window)
                            : kva_arena_printf(m->arena, "pages_%d", KVA_PAGE_ROWS);
  kva_page_table t = {window, kva_graph_add_input(c->b->graph, kva_type_tensor(m, KVA_I32, 2, dims), name),
                      kva_expr_new_symbol(m->exprs, "P")};
  KVA_PUSH(m->arena, &c->tables, t);
  return &c->tables.data[c->tables.len - 1];
}

kva_cache kva_cached(kva_incremental *c, const char *what, kva_value *x, uint32_t axis, int64_t window) {
  const kva_page_table *t = c->whole ? NULL : page_table(c, window);
  kva_dim dims[KVA_MAX_RANK];
  memcpy(dims, x->type->dims, sizeof *dims * x->type->rank);
  if (t) dims[0] = t->pages;
  dims[axis] = t ? kva_expr_const(c->b->m->exprs, KVA_PAGE_ROWS) : c->capacity;
  kva_value *cache = kva_carried_state(c, what, kva_type_tensor(c->b->m, x->type->dtype, x->type->rank, dims));
  kva_value *in[4] = {cache, x, c->position, t ? t->table : NULL};
  kva_value *all = kva_build(c->b, KVA_OP_cache_append, t ? 4 : 3, in, &(kva_cache_append_attrs){.axis = axis});
  kva_carry(c, cache, all);
  return (kva_cache){all, in[3]};
}

/* [P, .., R, ..] by pages[B, N]: [B, N, .., R, ..], then N before R, then both in one. */
kva_value *kva_all_rows(kva_incremental *c, kva_cache cache, uint32_t axis) {
  if (!cache.pages) return cache.all;
  kva_value *v = kva_build2(c->b, KVA_OP_gather, cache.all, cache.pages);
  uint32_t rank = cache.all->type->rank;
  int64_t perm[KVA_MAX_RANK + 1];
  for (uint32_t i = 0; i <= rank; i++) perm[i] = i == 0 || i > axis ? i : i < axis ? i + 1 : 1;
  kva_dim dims[KVA_MAX_RANK];
  memcpy(dims, cache.all->type->dims, sizeof *dims * rank);
  dims[0] = c->batch, dims[axis] = c->capacity;
  return kva_reshape(c->b, kva_transpose(c->b, v, perm), rank, dims);
}

static kva_value *add_past(kva_incremental *c, const char *what, kva_value *x, uint32_t axis, int64_t rows) {
  kva_module *m = c->b->m;
  kva_dim dims[KVA_MAX_RANK], n = kva_expr_const(m->exprs, rows);
  memcpy(dims, x->type->dims, sizeof *dims * x->type->rank);
  dims[axis] = n;
  kva_value *past = kva_carried_state(c, what, kva_type_tensor(m, x->type->dtype, x->type->rank, dims));
  kva_value *all = kva_build(c->b, KVA_OP_concat, 2, (kva_value *[]){past, x}, &(kva_concat_attrs){.axis = axis});
  kva_carry(c, past, kva_slice_rows(c->b, all, axis, c->time, n));
  return all;
}

kva_value *kva_behind_past(kva_incremental *c, const char *what, kva_value *x, uint32_t axis, int64_t rows) {
  for (uint32_t i = 0; i < c->with_past.len; i++) {
    const kva_with_past *p = &c->with_past.data[i];
    if (p->x == x && p->axis == axis && p->rows == rows) return p->all;
  }
  kva_with_past p = {x, axis, rows, add_past(c, what, x, axis, rows)};
  KVA_PUSH(c->b->m->arena, &c->with_past, p);
  return p.all;
}

/* ---- positions --------------------------------------------------------------------------------------------------- */

kva_value *kva_positions(kva_incremental *c, uint32_t rank) {
  kva_dim shape[KVA_MAX_RANK];
  for (uint32_t i = 0; i < rank; i++) shape[i] = i ? kva_expr_const(c->b->m->exprs, 1) : c->batch;
  return kva_reshape(c->b, c->position, rank, shape);
}

kva_value *kva_row_positions(kva_incremental *c, uint32_t rank, uint32_t axis) {
  kva_dim shape[KVA_MAX_RANK];
  for (uint32_t i = 0; i < rank; i++) shape[i] = i == axis ? c->time : kva_expr_const(c->b->m->exprs, 1);
  kva_iota_attrs attrs = {.shape = {rank, shape}, .axis = axis, .dtype = KVA_I64};
  return kva_add(c->b, kva_build(c->b, KVA_OP_iota, 0, NULL, &attrs), kva_positions(c, rank));
}

kva_value *kva_slice_rows(kva_builder *b, kva_value *x, uint32_t axis, kva_dim first, kva_dim n) {
  kva_dim starts[KVA_MAX_RANK], shape[KVA_MAX_RANK];
  int64_t steps[KVA_MAX_RANK];
  uint32_t rank = x->type->rank;
  for (uint32_t i = 0; i < rank; i++) {
    starts[i] = i == axis ? first : kva_expr_const(b->m->exprs, 0);
    shape[i] = i == axis ? n : x->type->dims[i];
    steps[i] = 1;
  }
  kva_slice_attrs attrs = {.starts = {rank, starts}, .shape = {rank, shape}, .steps = {rank, steps}};
  return kva_build(b, KVA_OP_slice, 1, &x, &attrs);
}

/* ---- lifted values ----------------------------------------------------------------------------------------------- */

bool kva_is_lifted(const kva_node *n, uint32_t operand, kva_value *const *operands) {
  return operands[operand] && operands[operand]->type->rank > kva_operand_type(n, operand)->rank;
}

kva_dims kva_dims_behind(const kva_incremental *c, kva_dim before, kva_dims dims) {
  kva_dim *v = KVA_NEW_ARRAY(c->scratch, kva_dim, dims.n + 1);
  v[0] = before;
  for (uint32_t i = 0; i < dims.n; i++) v[i + 1] = dims.v[i];
  return (kva_dims){dims.n + 1, v};
}

kva_value *kva_align_lifted(kva_incremental *c, kva_value *v, uint32_t rank) {
  const kva_type *t = v->type;
  bool drops_one = rank + 1 == t->rank && kva_expr_is(t->dims[1], 1);
  if (rank < t->rank && !drops_one) return NULL;
  kva_dim shape[KVA_MAX_RANK];
  for (uint32_t i = 0; i < rank; i++) {
    uint32_t from_right = rank - i;
    shape[i] = i == 0                 ? c->batch
               : from_right < t->rank ? t->dims[t->rank - from_right]
                                      : kva_expr_const(c->b->m->exprs, 1);
  }
  return kva_reshape(c->b, v, rank, shape);
}

kva_value *kva_broadcast_lifted(kva_incremental *c, const kva_node *n, kva_value *const *operands, const void *attrs,
                                uint32_t rank) {
  kva_value **in = KVA_NEW_ARRAY(c->scratch, kva_value *, n->n_operands + 1);
  for (uint32_t i = 0; i < n->n_operands; i++) {
    in[i] = kva_is_lifted(n, i, operands) ? kva_align_lifted(c, operands[i], rank) : operands[i];
    if (operands[i] && !in[i]) return NULL;
  }
  return kva_build(c->b, n->op->id, n->n_operands, in, attrs);
}

kva_status kva_refuse_chunks(kva_incremental *c, const kva_node *n, const char *fmt, ...) {
  char text[512];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  return kva_fail(c->b->m->diag, KVA_UNSUPPORTED, &n->loc, "kv.%s: no function over chunks of rows can be made: %s",
                  n->op->name, text);
}
