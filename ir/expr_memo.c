/* Memoised results of the algebra. Expressions are immutable, so a result stays valid; only results that depend on a
 * proof that ran out of steps are not kept. */
#include "ir/expr_internal.h"

typedef struct memo {
  kva_expr_kind kind;
  const kva_expr *a, *b, *result;
} memo;

static bool same_memo(const void *item, const void *key) {
  const memo *x = item, *y = key;
  return x->kind == y->kind && x->a == y->a && x->b == y->b;
}

static uint64_t memo_hash(const memo *m) {
  uint64_t h = ((uint64_t)m->a->id << 32 | m->b->id) * 0x9e3779b97f4a7c15u + m->kind;
  return h ^ h >> 31;
}

const kva_expr *kva_expr_recall(kva_expr_ctx *c, kva_expr_kind kind, const kva_expr *a, const kva_expr *b) {
  memo key = {.kind = kind, .a = a, .b = b};
  const memo *m = kva_expr_table_find(&c->memo, memo_hash(&key), same_memo, &key);
  return m ? m->result : NULL;
}

void kva_expr_remember(kva_expr_ctx *c, kva_expr_kind kind, const kva_expr *a, const kva_expr *b,
                       const kva_expr *result) {
  memo m = {.kind = kind, .a = a, .b = b, .result = result};
  kva_expr_table_add(c->arena, &c->memo, memo_hash(&m), kva_arena_memdup(c->arena, &m, sizeof m));
}

const kva_expr *kva_expr_memoised(kva_expr_ctx *c, kva_expr_kind kind, const kva_expr *a, const kva_expr *b,
                                  kva_expr_simplifier compute) {
  if (kva_expr_is_overflow(a) || kva_expr_is_overflow(b)) return c->overflow;
  const kva_expr *found = kva_expr_recall(c, kind, a, b);
  if (found) return found;
  bool outer = c->gave_up;
  c->gave_up = false;
  const kva_expr *result = compute(c, kind, a, b);
  /* compute may have stored the same result. */
  if (!c->gave_up && !kva_expr_recall(c, kind, a, b)) kva_expr_remember(c, kind, a, b, result);
  c->gave_up |= outer;
  return result;
}
