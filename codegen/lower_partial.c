/* Groups with partial sums (ops/partial_sum.c): the loops go over blocks of rows, and a row's elements are added to the
 * block's sums where they are computed, beside what else the group makes of the row:
 *
 *   for each block p
 *     sums[j] = 0
 *     for each row of p, in order { the row's outputs;  sums[j] += its element j }
 *     y[p, j] = sums[j]
 *
 * So the gradient of a norm by its input and that by its scale are one pass over memory. */
#include "codegen/lower_internal.h"
#include "ops/partial_sum.h"

typedef struct partial_sums {
  kva_lowering *w;
  kva_kb *kb;
  kva_partial p; /* the same for all */
  const kva_expr *part;
  uint32_t n;
  const kva_lowering_output **outputs;
  kva_kbuf **sums;
} partial_sums;

static bool is_partial(const kva_lowering_output *o) {
  return o->value->def && kva_is(o->value->def, KVA_OP_partial_sum);
}

/* Puts the partial sums first; how many there are. */
static uint32_t gather_partials(uint32_t n, const kva_lowering_output **outputs) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < n; i++) {
    if (!is_partial(outputs[i])) continue;
    const kva_lowering_output *o = outputs[i];
    outputs[i] = outputs[found];
    outputs[found++] = o;
  }
  return found;
}

static int64_t columns_of(const kva_lowering_output *o) {
  int64_t n = 1, extent = 0;
  for (uint32_t d = 1; d < o->value->type->rank; d++) {
    bool known = kva_expr_is_const(o->value->type->dims[d], &extent);
    KVA_ASSERT(known);
    n *= extent;
  }
  return n;
}

/* Loops over the columns of output o: idx[1 ..], and their number. */
static const kva_expr *begin_columns(partial_sums *s, const kva_lowering_output *o, kva_kloop **loops,
                                     const kva_expr **idx) {
  kva_expr_ctx *c = s->kb->exprs;
  const kva_type *t = o->value->type;
  const kva_expr *column = kva_expr_const(c, 0);
  idx[0] = s->part;
  for (uint32_t d = 1; d < t->rank; d++) {
    loops[d] = kva_k_loop_begin(s->kb, KVA_K_MAP, t->dims[d], "j");
    idx[d] = loops[d]->var;
    column = kva_expr_add(c, kva_expr_mul(c, column, t->dims[d]), idx[d]);
  }
  return column;
}

static void end_columns(partial_sums *s, const kva_lowering_output *o, kva_kloop **loops) {
  for (uint32_t d = o->value->type->rank; d-- > 1;) kva_k_loop_end(s->kb, loops[d]);
}

static void start_sums(partial_sums *s) {
  kva_kloop *loops[KVA_MAX_RANK];
  const kva_expr *idx[KVA_MAX_RANK];
  for (uint32_t i = 0; i < s->n; i++) {
    const kva_lowering_output *o = s->outputs[i];
    kva_dtype dtype = kva_k_compute_type(o->value->type->dtype);
    s->sums[i] = kva_k_shared(s->kb, kva_arena_printf(s->w->arena, "sums%u", i), dtype, columns_of(o));
    const kva_expr *column = begin_columns(s, o, loops, idx);
    kva_k_store(s->kb, s->sums[i], column, kva_k_const(s->kb, dtype, 0));
    end_columns(s, o, loops);
  }
}

static void store_sums(partial_sums *s) {
  kva_kloop *loops[KVA_MAX_RANK];
  const kva_expr *idx[KVA_MAX_RANK];
  for (uint32_t i = 0; i < s->n; i++) {
    const kva_expr *column = begin_columns(s, s->outputs[i], loops, idx);
    kva_lowering_write(s->w, s->outputs[i], idx, kva_k_load(s->kb, s->sums[i], column));
    end_columns(s, s->outputs[i], loops);
  }
}

/* row: its indices in operand and domain. */
static void add_row(partial_sums *s, const kva_expr *const *row) {
  kva_kloop *loops[KVA_MAX_RANK];
  const kva_expr *idx[KVA_MAX_RANK], *at[KVA_MAX_RANK];
  for (uint32_t i = 0; i < s->n; i++) {
    const kva_value *y = s->outputs[i]->value;
    const kva_expr *column = begin_columns(s, s->outputs[i], loops, idx);
    memcpy(at, row, s->p.axes * sizeof *at);
    for (uint32_t d = 1; d < y->type->rank; d++) at[s->p.axes + d - 1] = idx[d];
    kva_kval x = kva_lowering_value(s->w, y->def->operands[0].value, at);
    kva_k_store(s->kb, s->sums[i], column, kva_k2(s->kb, KVA_K_add, kva_k_load(s->kb, s->sums[i], column), x));
    end_columns(s, s->outputs[i], loops);
  }
}

bool kva_lowering_partial_sums(kva_lowering *w, const kva_lowering_output **outputs) {
  partial_sums s = {.w = w, .kb = w->l.kb, .n = gather_partials(w->n_outputs, outputs), .outputs = outputs};
  if (!w->group || !s.n) return false;
  kva_expr_ctx *c = s.kb->exprs;
  const kva_node *n = outputs[0]->value->def;
  const kva_expr *row[KVA_MAX_RANK];
  s.p = kva_partial_of(w->l.module, n);
  s.sums = KVA_NEW_ARRAY(w->arena, kva_kbuf *, s.n);
  kva_kloop *part = kva_k_loop_begin(s.kb, KVA_K_MAP, s.p.parts, "part");
  s.part = part->var;
  start_sums(&s);
  kva_kloop *r = kva_k_loop_begin(s.kb, KVA_K_SERIAL, kva_partial_count(c, &s.p, s.part), "r");
  kva_partial_row(c, &s.p, kva_operand_type(n, 0), s.part, r->var, row);
  kva_lowering_outputs(w, w->n_outputs - s.n, outputs + s.n, s.p.axes, row);
  add_row(&s, row);
  kva_k_loop_end(s.kb, r);
  store_sums(&s);
  kva_k_loop_end(s.kb, part);
  return true;
}
