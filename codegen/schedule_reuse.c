/* Values that two loops over one row both compute are computed once: softmax needs exp(x - max) for the sum and for the
 * result. The first loop stores them in a local row, the second loads them. Only for costly functions, and for rows
 * that fit a fraction of the L1 cache: reading the row back costs less than recomputing.
 *
 * Runs after loops have their kinds, before functions are expanded. */
#include "codegen/schedule_internal.h"

enum { MAX_ROW = 8192, MAX_ROWS = 2 };

typedef struct loop_pair {
  kva_kernel *k;
  const kva_kloop *first, *second;
} loop_pair;

static bool is_costly(const kva_kinstr *i) {
  return i->op >= KVA_K_exp && i->op <= KVA_K_expm1;
}

static bool same_index(const loop_pair *p, const kva_expr *x, const kva_expr *y) {
  return kva_expr_substitute(p->k->exprs, x, 1, &p->first->var, &p->second->var) == y;
}

static bool same_leaf(const loop_pair *p, const kva_kinstr *x, const kva_kinstr *y) {
  switch (x->op) {
  case KVA_K_CONST:
  case KVA_K_NARROW: return x->imm.i == y->imm.i;
  case KVA_K_INDEX: return same_index(p, x->index, y->index);
  case KVA_K_LOAD:
    return x->buf == y->buf && x->buf->space == KVA_K_PARAM && !x->buf->written && same_index(p, x->index, y->index);
  case KVA_K_CONVERT:
  case KVA_K_BITCAST: return true;
  default: return x->op < KVA_K_CONST;
  }
}

/* x in the first loop's body computes the same as y in the second's, iteration by iteration. */
static bool same_value(const loop_pair *p, const kva_kinstr *x, const kva_kinstr *y) {
  if (x == y) return true;
  if (x->region != p->first->body || y->region != p->second->body) return false;
  if (x->op != y->op || x->dtype != y->dtype || x->n_args != y->n_args || !same_leaf(p, x, y)) return false;
  for (uint32_t a = 0; a < x->n_args; a++) {
    if (!same_value(p, x->args[a], y->args[a])) return false;
  }
  return true;
}

static kva_kbuf *create_row(kva_kernel *k, kva_dtype dtype, const kva_expr *extent) {
  kva_kbuf *buf = KVA_NEW(k->arena, kva_kbuf);
  *buf = (kva_kbuf){.space = KVA_K_LOCAL,
                    .dtype = dtype,
                    .extent = extent,
                    .read = true,
                    .written = true,
                    .id = k->bufs.len,
                    .name = "row"};
  KVA_PUSH(k->arena, &k->bufs, buf);
  return buf;
}

static kva_kinstr *access(const loop_pair *p, kva_kop op, kva_kbuf *row, const kva_kloop *l) {
  kva_kinstr *i = kva_k_instr_create(p->k, op, op == KVA_K_LOAD ? row->dtype : KVA_DTYPE_NONE);
  i->buf = row;
  i->index = l->var;
  return i;
}

typedef struct replacement {
  const kva_kinstr *from;
  kva_kinstr *to;
} replacement;

static void replace_in(void *user, kva_kinstr *i) {
  const replacement *r = user;
  for (uint32_t a = 0; a < i->n_args; a++) {
    if (i->args[a] == r->from) i->args[a] = r->to;
  }
}

static void keep_in_row(const loop_pair *p, kva_kinstr *x, kva_kinstr *y) {
  kva_kbuf *row = create_row(p->k, x->dtype, p->first->extent);
  kva_kinstr *store = access(p, KVA_K_STORE, row, p->first), *load = access(p, KVA_K_LOAD, row, p->second);
  store->args[store->n_args++] = x;
  kva_k_insert(x->region, x->next, store);
  kva_k_insert(y->region, y, load);
  replacement r = {y, load};
  kva_k_each_instr_in(p->second->body, replace_in, &r);
  for (uint32_t c = 0; c < p->second->carries.len; c++) {
    kva_kcarry *carry = &p->second->carries.data[c];
    if (carry->yield == y) carry->yield = load;
  }
}

static kva_kinstr *find_same(const loop_pair *p, const kva_kinstr *x) {
  for (kva_kinstr *y = p->second->body->first; y; y = y->next) {
    if (is_costly(y) && same_value(p, x, y)) return y;
  }
  return NULL;
}

static void reuse_between(const loop_pair *p, uint32_t *rows) {
  for (kva_kinstr *x = p->first->body->first; x && *rows < MAX_ROWS; x = x->next) {
    kva_kinstr *y = is_costly(x) ? find_same(p, x) : NULL;
    if (!y) continue;
    keep_in_row(p, x, y);
    ++*rows;
  }
}

static bool are_alike(const kva_kloop *a, const kva_kloop *b) {
  int64_t n;
  return a->kind == KVA_K_VECTOR && b->kind == KVA_K_VECTOR && a->extent == b->extent &&
         kva_expr_is_const(a->extent, &n) && n <= MAX_ROW;
}

static void reuse_in(kva_kernel *k, const kva_kregion *r, uint32_t *rows) {
  for (const kva_kinstr *i = r ? r->first : NULL; i; i = i->next) {
    reuse_in(k, i->then, rows);
    reuse_in(k, i->orelse, rows);
    if (i->op != KVA_K_LOOP) continue;
    reuse_in(k, i->loop->body, rows);
    for (const kva_kinstr *j = i->next; j; j = j->next) {
      if (j->op == KVA_K_LOOP && are_alike(i->loop, j->loop)) reuse_between(&(loop_pair){k, i->loop, j->loop}, rows);
    }
  }
}

void kva_sched_reuse_rows(kva_kernel *k) {
  uint32_t rows = 0;
  reuse_in(k, k->body, &rows);
}
