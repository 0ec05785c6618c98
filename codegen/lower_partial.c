/* Groups with partial sums (ops/partial_sum.c): loops over blocks of rows add a row's elements to the block's sums as
 * they are computed, next to the group's other outputs for the row:
 *
 *   for each block p
 *     for each subgroup q of n
 *       sums[q, j] = 0
 *       for rows q, q + n, ... of p, in order { the row's outputs;  sums[q, j] += its element j }
 *     y[p, j] = sum over q of sums[q, j]
 *
 * So the gradients of a norm's input and of its scale take one pass over memory. */
#include "codegen/lower_internal.h"
#include "ops/ids.h"
#include "ops/partial_sum.h"

typedef struct partial_sums {
  kva_lowering *w;
  kva_kb *kb;
  kva_partial p; /* the same for all */
  int64_t subgroups;
  const kva_expr *part, *subgroup;
  uint32_t n;
  const kva_lowering_output **outputs;
  kva_kbuf **sums;
} partial_sums;

static bool is_partial(const kva_lowering_output *o, const kva_node *first) {
  (void)first;
  return o->value->def && kva_is(o->value->def, KVA_OP_partial_sum);
}

static int64_t columns_of(const kva_lowering_output *o) {
  KVA_ASSERT(o->value->type->rank >= 1);
  int64_t n = 1, extent = 0;
  for (uint32_t d = 1; d < o->value->type->rank; d++) {
    bool known = kva_expr_is_const(o->value->type->dims[d], &extent);
    KVA_ASSERT(known);
    n *= extent;
  }
  return n;
}

/* Index in `sums` of column `column` of output o. */
static const kva_expr *sum_at(const partial_sums *s, const kva_lowering_output *o, const kva_expr *subgroup,
                              const kva_expr *column) {
  return kva_expr_add(s->kb->exprs, kva_expr_muli(s->kb->exprs, subgroup, columns_of(o)), column);
}

/* Opens loops over the columns of output o, sets idx[1 ..] and returns the column's number. */
static const kva_expr *begin_columns(partial_sums *s, const kva_lowering_output *o, kva_kloop **loops,
                                     const kva_expr **idx) {
  kva_expr_ctx *c = s->kb->exprs;
  const kva_type *t = o->value->type;
  const kva_expr *column = kva_expr_const(c, 0);
  idx[0] = s->part;
  for (uint32_t d = 1; d < t->rank; d++) {
    loops[d] = kva_k_loop_begin(s->kb, KVA_K_PARALLEL, t->dims[d], "j");
    idx[d] = loops[d]->var;
    column = kva_expr_add(c, kva_expr_mul(c, column, t->dims[d]), idx[d]);
  }
  return column;
}

static void end_columns(partial_sums *s, const kva_lowering_output *o, kva_kloop **loops) {
  for (uint32_t d = o->value->type->rank; d-- > 1;) kva_k_loop_end(s->kb, loops[d]);
}

static void create_sums(partial_sums *s) {
  for (uint32_t i = 0; i < s->n; i++) {
    const kva_lowering_output *o = s->outputs[i];
    kva_dtype dtype = kva_k_compute_type(o->value->type->dtype);
    s->sums[i] = kva_k_shared(s->kb, kva_arena_printf(s->w->arena, "sums%u", i), dtype, s->subgroups * columns_of(o));
  }
}

static void start_sums(partial_sums *s) {
  kva_kloop *loops[KVA_MAX_RANK];
  const kva_expr *idx[KVA_MAX_RANK];
  for (uint32_t i = 0; i < s->n; i++) {
    const kva_lowering_output *o = s->outputs[i];
    const kva_expr *column = begin_columns(s, o, loops, idx);
    kva_k_store(s->kb, s->sums[i], sum_at(s, o, s->subgroup, column), kva_k_const(s->kb, s->sums[i]->dtype, 0));
    end_columns(s, o, loops);
  }
}

static void store_sums(partial_sums *s) {
  kva_kloop *loops[KVA_MAX_RANK];
  const kva_expr *idx[KVA_MAX_RANK];
  for (uint32_t i = 0; i < s->n; i++) {
    const kva_lowering_output *o = s->outputs[i];
    const kva_expr *column = begin_columns(s, o, loops, idx);
    kva_kval sum = NULL;
    for (int64_t q = 0; q < s->subgroups; q++) {
      kva_kval x = kva_k_load(s->kb, s->sums[i], sum_at(s, o, kva_expr_const(s->kb->exprs, q), column));
      sum = sum ? kva_k2(s->kb, KVA_K_add, sum, x) : x;
    }
    kva_lowering_write(s->w, o, idx, sum);
    end_columns(s, o, loops);
  }
}

/* row: its indices in the operand's leading axes. */
static void add_row(partial_sums *s, const kva_expr *const *row) {
  kva_kloop *loops[KVA_MAX_RANK];
  const kva_expr *idx[KVA_MAX_RANK], *at[KVA_MAX_RANK];
  for (uint32_t i = 0; i < s->n; i++) {
    const kva_value *y = s->outputs[i]->value;
    const kva_expr *at_sum = sum_at(s, s->outputs[i], s->subgroup, begin_columns(s, s->outputs[i], loops, idx));
    memcpy(at, row, s->p.axes * sizeof *at);
    for (uint32_t d = 1; d < y->type->rank; d++) at[s->p.axes + d - 1] = idx[d];
    kva_kval x = kva_lowering_value(s->w, y->def->operands[0].value, at);
    kva_k_store(s->kb, s->sums[i], at_sum, kva_k2(s->kb, KVA_K_add, kva_k_load(s->kb, s->sums[i], at_sum), x));
    end_columns(s, s->outputs[i], loops);
  }
}

/* The subgroup's rows of the block, with the group's other outputs for each row. */
static void each_row(partial_sums *s, const kva_lowering_output **others) {
  kva_expr_ctx *c = s->kb->exprs;
  const kva_node *n = s->outputs[0]->value->def;
  const kva_expr *row[KVA_MAX_RANK], *count = kva_expr_sub(c, kva_partial_count(c, &s->p, s->part), s->subgroup);
  count = kva_expr_max(c, kva_expr_const(c, 0), kva_expr_ceildiv(c, count, kva_expr_const(c, s->subgroups)));
  kva_kloop *r = kva_k_loop_begin(s->kb, KVA_K_SERIAL, count, "r");
  const kva_expr *number = kva_expr_add(c, kva_expr_muli(c, r->var, s->subgroups), s->subgroup);
  kva_partial_row(c, &s->p, kva_operand_type(n, 0), s->part, number, row);
  kva_lowering_outputs(s->w, s->w->n_outputs - s->n, others, s->p.axes, row);
  add_row(s, row);
  kva_k_loop_end(s->kb, r);
}

static void each_subgroup(partial_sums *s, const kva_lowering_output **others) {
  kva_expr_ctx *c = s->kb->exprs;
  kva_kloop *subgroup = NULL;
  if (s->subgroups > 1) subgroup = kva_k_loop_begin(s->kb, KVA_K_PARALLEL, kva_expr_const(c, s->subgroups), "subgroup");
  if (subgroup) subgroup->subgroup = (uint32_t)(KVA_PARTIAL_BLOCK / s->subgroups);
  s->subgroup = subgroup ? subgroup->var : kva_expr_const(c, 0);
  start_sums(s);
  each_row(s, others);
  if (subgroup) kva_k_loop_end(s->kb, subgroup);
}

bool kva_lowering_partial_sums(kva_lowering *w, const kva_lowering_output **outputs) {
  partial_sums s = {.w = w, .kb = w->l.kb, .outputs = outputs};
  if (!w->group || !w->n_outputs) return false;
  s.n = kva_lowering_put_first(w->n_outputs, outputs, is_partial);
  if (!s.n) return false;
  s.p = kva_partial_of(w->l.module, outputs[0]->value->def);
  s.subgroups =
      w->l.target->kind == KVA_TARGET_GPU ? KVA_PARTIAL_BLOCK / kva_partial_subgroup(columns_of(outputs[0])) : 1;
  s.sums = KVA_NEW_ARRAY(w->arena, kva_kbuf *, s.n);
  create_sums(&s);
  kva_kloop *part = kva_k_loop_begin(s.kb, KVA_K_PARALLEL, s.p.parts, "part");
  s.part = part->var;
  each_subgroup(&s, outputs + s.n);
  store_sums(&s);
  kva_k_loop_end(s.kb, part);
  return true;
}
