/* Column reductions: y[j] = sum over i of x[i, j]. Threads along j make coalesced loads, but columns alone rarely fill
 * a GPU. So a block takes 32 columns, each of its n warps every n-th row, and their sums are combined in shared memory:
 *
 *   for each part p of n, a warp    for each column c, a lane    partial[p, c] = sum over f of x[f n + p, c]
 *   barrier
 *   for each column c               epilogue of sum over p of partial[p, c] */
#include "codegen/schedule_gpu.h"

enum { COLUMNS = 32 };

/* The only loop of r if it is a reduction preceded by nothing but constants; else NULL. */
static kva_kloop *sole_reduction(const kva_kregion *r) {
  kva_kloop *l = NULL;
  for (const kva_kinstr *i = r->first; i; i = i->next) {
    if (i->op == KVA_K_IF || (i->op == KVA_K_LOOP && l) || (!l && i->op != KVA_K_CONST && i->op != KVA_K_LOOP))
      return NULL;
    if (i->op == KVA_K_LOOP) l = i->loop;
  }
  if (!l || !l->carries.len || l->strict_order) return NULL;
  for (uint32_t c = 0; c < l->carries.len; c++) {
    const kva_kcarry *carry = &l->carries.data[c];
    bool counted = carry->combine == KVA_COMBINE_ADD || carry->combine == KVA_COMBINE_MUL;
    if (carry->combine == KVA_COMBINE_NONE || (counted && !kva_sched_is_neutral(carry->init, carry->combine)))
      return NULL;
  }
  return l;
}

typedef struct substitution {
  kva_kernel *k;
  const kva_expr *from, *to;
} substitution;

static void substitute(void *user, kva_kinstr *i) {
  const substitution *s = user;
  if (i->index) i->index = kva_expr_substitute(s->k->exprs, i->index, 1, &s->from, &s->to);
  if (i->op == KVA_K_LOOP) i->loop->extent = kva_expr_substitute(s->k->exprs, i->loop->extent, 1, &s->from, &s->to);
}

static kva_kinstr *access(kva_kernel *k, kva_kop op, kva_kbuf *buf, const kva_expr *part, const kva_expr *column) {
  KVA_ASSERT((op == KVA_K_LOAD || op == KVA_K_STORE) && buf->space == KVA_K_SHARED);
  kva_kinstr *i = kva_k_instr_create(k, op, op == KVA_K_LOAD ? buf->dtype : KVA_DTYPE_NONE);
  i->buf = buf;
  i->index = kva_expr_add(k->exprs, kva_expr_muli(k->exprs, part, COLUMNS), column);
  return i;
}

/* for column: partial[part, column] = l's values over rows part, part + n, ... Moves l's body. */
static void sum_part(kva_kernel *k, kva_kloop *l, const kva_kloop *part, kva_kloop *column, kva_kbuf **partial,
                     int64_t n) {
  kva_expr_ctx *c = k->exprs;
  const kva_expr *count = kva_expr_ceildiv(c, kva_expr_sub(c, l->extent, part->var), kva_expr_const(c, n));
  kva_kloop *rows = kva_k_loop_create(k, KVA_K_SERIAL, count, l->var->name);
  substitution s = {k, l->var, kva_expr_add(c, kva_expr_muli(c, rows->var, n), part->var)};
  kva_k_insert(column->body, NULL, rows->instr);
  kva_sched_move(l->body, rows->body);
  kva_k_each_instr_in(rows->body, substitute, &s);
  for (uint32_t i = 0; i < l->carries.len; i++) {
    KVA_PUSH(k->arena, &rows->carries, l->carries.data[i]);
    kva_kinstr *sum = kva_k_instr_create(k, KVA_K_REDUCE, l->carries.data[i].dtype);
    sum->loop = rows;
    sum->carry = i;
    kva_k_insert(column->body, NULL, sum);
    kva_kinstr *store = access(k, KVA_K_STORE, partial[i], part->var, column->var);
    store->args[0] = sum;
    store->n_args = 1;
    kva_k_insert(column->body, NULL, store);
  }
}

/* Replaces l, now empty, by the sum over the parts of a column. */
static void sum_parts(kva_kernel *k, kva_kloop *l, const kva_expr *column, kva_kbuf **partial, int64_t n) {
  KVA_ASSERT(!l->body->first && l->carries.len);
  kva_kloop *parts = kva_k_loop_create(k, KVA_K_SERIAL, kva_expr_const(k->exprs, n), "part");
  kva_k_insert(l->instr->region, l->instr, parts->instr);
  for (uint32_t i = 0; i < l->carries.len; i++) {
    kva_kcarry carry = l->carries.data[i];
    carry.yield = access(k, KVA_K_LOAD, partial[i], parts->var, column);
    kva_k_insert(parts->body, NULL, carry.yield);
    KVA_PUSH(k->arena, &parts->carries, carry);
  }
  kva_k_unlink(l->instr);
  kva_sched_retarget(k, l, parts);
}

bool kva_sched_columns(kva_kernel *k, kva_kloop **leaf, int64_t threads) {
  kva_kloop *l = sole_reduction((*leaf)->body);
  if (!l || kva_expr_uses(l->extent, (*leaf)->var)) return false;
  int64_t n = threads / COLUMNS;
  kva_kloop *blocks = kva_sched_split(k, *leaf, COLUMNS), *column = blocks->body->first->loop;
  kva_kloop *part = kva_k_loop_create(k, KVA_K_THREAD, kva_expr_const(k->exprs, n), "part");
  kva_kloop *lane = kva_k_loop_create(k, KVA_K_THREAD, column->extent, column->var->name);
  kva_kbuf **partial = KVA_NEW_ARRAY(k->arena, kva_kbuf *, l->carries.len);
  for (uint32_t i = 0; i < l->carries.len; i++)
    partial[i] = kva_sched_shared(k, "partial", l->carries.data[i].dtype, n * COLUMNS);
  part->subgroup = COLUMNS;
  column->kind = KVA_K_THREAD;
  kva_k_insert(blocks->body, column->instr, part->instr);
  kva_k_insert(part->body, NULL, lane->instr);
  kva_k_insert(blocks->body, column->instr, kva_k_instr_create(k, KVA_K_BARRIER, KVA_DTYPE_NONE));
  while (column->body->first->op == KVA_K_CONST) { /* both halves use them */
    kva_kinstr *constant = column->body->first;
    kva_k_unlink(constant);
    kva_k_insert(k->body, k->body->first, constant);
  }
  sum_part(k, l, part, lane, partial, n);
  substitution s = {k, column->var, lane->var};
  kva_k_each_instr_in(lane->body, substitute, &s);
  sum_parts(k, l, column->var, partial, n);
  *leaf = blocks;
  return true;
}
