/* The builder's loops. A loop whose body has no effects is a value like any other: at its end it is hoisted to the
 * outermost region that its uses of outside values allow, and an equal loop that is visible there replaces it. Two
 * loops are equal if they match instruction by instruction under a renaming of loop variables. The same lowering code
 * makes both, so their order is the same; values outside the loops are equal only if identical. */
#include "ir/kernel_internal.h"

#include <math.h>

typedef struct loop_results {
  KVA_VEC(kva_kinstr *) carries; /* REDUCE instructions, linked when the loop ends */
} loop_results;

/* ---- beginning, carries ------------------------------------------------------------------------------------------ */

kva_kloop *kva_k_loop_begin(kva_kb *b, kva_kloop_kind kind, const kva_expr *extent, const char *name) {
  KVA_ASSERT(kva_k_encloses(kva_kb_expr_region(b, extent), b->region));
  kva_kloop *l = kva_k_loop_create(b->kernel, kind, extent, name);
  kva_k_insert(b->region, NULL, l->instr);
  kva_kb_set(b->memo->symbol_loops, l->var, l);
  kva_kb_set(b->memo->results, l, KVA_NEW(b->arena, loop_results));
  b->region = l->body;
  return l;
}

static loop_results *results_of(const kva_kb *b, const kva_kloop *l) {
  return kva_kb_get(b->memo->results, l);
}

/* Returns the new carry's result. */
static kva_kinstr *add_carry(kva_kb *b, kva_kloop *l, kva_combine combine, kva_kval init, kva_kval yield) {
  KVA_ASSERT(init->region && kva_k_encloses(init->region, l->instr->region));
  kva_kcarry carry = {.combine = combine, .dtype = init->dtype, .init = init, .yield = yield};
  KVA_PUSH(b->arena, &l->carries, carry);
  kva_kinstr *result = kva_k_instr_create(b->kernel, KVA_K_REDUCE, init->dtype);
  result->loop = l;
  result->carry = l->carries.len - 1;
  KVA_PUSH(b->arena, &results_of(b, l)->carries, result);
  return result;
}

kva_kval kva_k_reduce(kva_kb *b, kva_kloop *l, kva_combine combine, kva_kval init, kva_kval contribution) {
  init = kva_kb_resolve(init);
  contribution = kva_kb_resolve(contribution);
  KVA_ASSERT(combine != KVA_COMBINE_NONE && init->dtype == contribution->dtype);
  KVA_ASSERT(contribution->region && kva_k_encloses(contribution->region, l->body));
  for (uint32_t c = 0; c < l->carries.len; c++) {
    const kva_kcarry *known = &l->carries.data[c];
    if (known->combine != combine || known->init != init || known->yield != contribution) continue;
    return results_of(b, l)->carries.data[c];
  }
  return add_carry(b, l, combine, init, contribution);
}

kva_kval kva_k_carry(kva_kb *b, kva_kloop *l, kva_kval init) {
  KVA_ASSERT(kva_k_encloses(l->body, b->region));
  init = kva_kb_resolve(init);
  kva_kinstr *i = kva_k_instr_create(b->kernel, KVA_K_CARRY, init->dtype);
  i->loop = l;
  i->carry = add_carry(b, l, KVA_COMBINE_NONE, init, NULL)->carry;
  kva_kb_link(b, l->body, i);
  return i;
}

void kva_k_carry_next(kva_kb *b, kva_kloop *l, kva_kval carry, kva_kval next) {
  (void)b;
  next = kva_kb_resolve(next);
  KVA_ASSERT(carry->op == KVA_K_CARRY && carry->loop == l && next->dtype == carry->dtype);
  KVA_ASSERT(next->region && kva_k_encloses(next->region, l->body));
  l->carries.data[carry->carry].yield = next;
}

kva_kval kva_k_carry_result(kva_kb *b, kva_kloop *l, kva_kval carry) {
  KVA_ASSERT(carry->op == KVA_K_CARRY && carry->loop == l);
  return kva_kb_resolve(results_of(b, l)->carries.data[carry->carry]);
}

/* ---- uses of outside values -------------------------------------------------------------------------------------- */

typedef struct loop_scan {
  kva_kb *b;
  const kva_kloop *loop;
  kva_kregion *lowest; /* deepest region outside the loop that it uses */
  bool impure, loads;
} loop_scan;

static void uses_region(loop_scan *s, kva_kregion *r) {
  if (!kva_k_encloses(s->loop->body, r)) s->lowest = kva_kb_deeper(s->lowest, r);
}

static void uses_symbol(void *user, const kva_expr *symbol) {
  loop_scan *s = user;
  uses_region(s, kva_kb_symbol_region(s->b, symbol));
}

static void scan_loop(loop_scan *s, const kva_kloop *l) {
  for (uint32_t c = 0; c < l->carries.len; c++) {
    uses_region(s, l->carries.data[c].init->region);
    uses_region(s, l->carries.data[c].yield->region);
  }
  if (l->kind == KVA_K_GRID || l->kind == KVA_K_THREAD) s->impure = true;
}

static void scan_index(void *user, const kva_expr **e) {
  kva_expr_each_symbol(*e, uses_symbol, user);
}

static void scan_instr(void *user, kva_kinstr *i) {
  loop_scan *s = user;
  for (uint32_t a = 0; a < i->n_args; a++) uses_region(s, i->args[a]->region);
  kva_k_each_index(i, scan_index, s);
  if (i->op == KVA_K_LOOP) scan_loop(s, i->loop);
  if (i->op == KVA_K_LOAD) s->loads = true;
  bool effect = i->op == KVA_K_STORE || i->op == KVA_K_BARRIER || i->op == KVA_K_IF || i->op == KVA_K_INTRINSIC;
  if (effect || (i->op == KVA_K_LOAD && kva_kb_is_ordered(i->buf))) s->impure = true;
}

static loop_scan scan(kva_kb *b, kva_kloop *l) {
  loop_scan s = {.b = b, .loop = l, .lowest = b->kernel->body, .impure = !l->carries.len};
  scan_index(&s, &l->extent);
  scan_loop(&s, l);
  kva_k_each_instr_in(l->body, scan_instr, &s);
  return s;
}

/* ---- equality ---------------------------------------------------------------------------------------------------- */

/* Correspondence between two loops during their comparison. */
typedef struct matching {
  kva_kb *b;
  kva_arena *arena;
  kva_map *instrs; /* instruction of the new loop -> of the old one */
  KVA_VEC(const kva_expr *) from;
  KVA_VEC(const kva_expr *) to;
} matching;

static void match_symbol(matching *m, const kva_expr *from, const kva_expr *to) {
  KVA_PUSH(m->arena, &m->from, from);
  KVA_PUSH(m->arena, &m->to, to);
}

static bool same_value(const matching *m, const kva_kinstr *x, const kva_kinstr *y) {
  const kva_kinstr *mapped = kva_kb_get(m->instrs, x);
  return (mapped ? mapped : x) == y;
}

static bool same_expr(const matching *m, const kva_expr *x, const kva_expr *y) {
  if (!x || !y) return x == y;
  return kva_expr_substitute(m->b->exprs, x, m->from.len, m->from.data, m->to.data) == y;
}

static bool same_loop(matching *m, const kva_kloop *x, const kva_kloop *y);

/* If indices use a value, they must use its counterpart, too. */
static bool match_value(matching *m, const kva_kinstr *x, const kva_kinstr *y) {
  kva_kb_set(m->instrs, x, y);
  const kva_expr *from = kva_kb_get(m->b->memo->value_symbols, x);
  const kva_expr *to = kva_kb_get(m->b->memo->value_symbols, y);
  if (from && to) match_symbol(m, from, to);
  return !from || to;
}

static bool same_instr(matching *m, const kva_kinstr *x, const kva_kinstr *y) {
  if (x->op != y->op || x->dtype != y->dtype || x->n_args != y->n_args) return false;
  if (x->imm.i != y->imm.i || x->buf != y->buf || x->carry != y->carry) return false;
  for (uint32_t a = 0; a < x->n_args; a++) {
    if (!same_value(m, x->args[a], y->args[a])) return false;
  }
  if (!same_expr(m, x->index, y->index)) return false;
  if (x->op == KVA_K_LOOP) return same_loop(m, x->loop, y->loop);
  if (x->loop && !same_value(m, x->loop->instr, y->loop->instr)) return false;
  return match_value(m, x, y);
}

static bool same_carries(const matching *m, const kva_kloop *x, const kva_kloop *y) {
  if (x->carries.len != y->carries.len) return false;
  for (uint32_t c = 0; c < x->carries.len; c++) {
    const kva_kcarry *p = &x->carries.data[c], *q = &y->carries.data[c];
    if (p->combine != q->combine || !same_value(m, p->init, q->init) || !same_value(m, p->yield, q->yield))
      return false;
  }
  return true;
}

static bool same_loop(matching *m, const kva_kloop *x, const kva_kloop *y) {
  if (x->kind != y->kind || x->strict_order != y->strict_order || !same_expr(m, x->extent, y->extent)) return false;
  kva_kb_set(m->instrs, x->instr, y->instr);
  match_symbol(m, x->var, y->var);
  const kva_kinstr *i = x->body->first, *j = y->body->first;
  for (; i && j; i = i->next, j = j->next) {
    if (!same_instr(m, i, j)) return false;
  }
  return !i && !j && same_carries(m, x, y);
}

static bool loops_equal(kva_kb *b, const kva_kloop *x, const kva_kloop *y) {
  kva_arena *arena = kva_arena_create();
  matching m = {.b = b, .arena = arena, .instrs = kva_map_create(arena)};
  bool equal = same_loop(&m, x, y);
  kva_arena_destroy(arena);
  return equal;
}

/* Filters candidates: equal loops have equal hashes. Excludes everything that depends on numbering inside the loop. */
static void hash_instr(void *user, kva_kinstr *i) {
  uint64_t *h = user;
  uint64_t words[] = {(uint64_t)i->op, (uint64_t)i->dtype, (uint64_t)i->imm.i, i->buf ? i->buf->id + 1u : 0};
  *h = kva_hash(*h, words, sizeof words);
}

static uint64_t hash_loop(const kva_kloop *l) {
  uint64_t h = kva_hash(0, &l->kind, sizeof l->kind);
  for (uint32_t c = 0; c < l->carries.len; c++) {
    h = kva_hash(h, &l->carries.data[c].combine, sizeof(kva_combine));
    h = kva_hash(h, &l->carries.data[c].init->id, sizeof(uint32_t));
  }
  kva_k_each_instr_in(l->body, hash_instr, &h);
  return h;
}

/* ---- end of a loop: hoisting and sharing ------------------------------------------------------------------------- */

typedef struct loop_key {
  const kva_kregion *region;
  uint64_t hash;
} loop_key;

typedef struct loop_chain {
  kva_kloop *loop;
  struct loop_chain *next;
} loop_chain;

static kva_kloop *find_equal(kva_kb *b, const kva_kloop *l, kva_kregion *place, const kva_kregion *lowest,
                             uint64_t hash) {
  for (kva_kregion *r = place;; r = r->parent) {
    loop_key key = {r, hash};
    for (const loop_chain *c = kva_map_get(b->memo->loops, &key, sizeof key); c; c = c->next) {
      if (loops_equal(b, l, c->loop)) return c->loop;
    }
    if (r == lowest) return NULL;
  }
}

static void remember(kva_kb *b, kva_kloop *l, uint64_t hash) {
  KVA_ASSERT(l->instr->region);
  loop_key key = {l->instr->region, hash};
  loop_chain *c = KVA_NEW(b->arena, loop_chain);
  c->loop = l;
  c->next = kva_map_get(b->memo->loops, &key, sizeof key);
  kva_map_set(b->memo->loops, &key, sizeof key, c);
}

/* Removes the contents of the dropped loop l from the kernel's lists. */
static void forget(kva_kernel *k, const kva_kloop *l) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < k->loops.len; i++) {
    kva_kloop *other = k->loops.data[i];
    if (!kva_k_encloses(l->body, other->body)) k->loops.data[kept++] = other;
  }
  k->loops.len = kept;
  kept = 0;
  for (uint32_t i = 0; i < k->values.len; i++) {
    if (kva_k_encloses(l->body, k->values.data[i]->region)) continue;
    k->value_symbols.data[kept] = k->value_symbols.data[i];
    k->values.data[kept++] = k->values.data[i];
  }
  k->value_symbols.len = k->values.len = kept;
}

static void replace_by(kva_kb *b, kva_kloop *l, const kva_kloop *equal) {
  forget(b->kernel, l);
  kva_k_unlink(l->instr);
  loop_results *mine = results_of(b, l), *other = results_of(b, equal);
  KVA_ASSERT(mine->carries.len == other->carries.len);
  for (uint32_t c = 0; c < mine->carries.len; c++) mine->carries.data[c]->args[0] = other->carries.data[c];
}

static void link_results(kva_kb *b, const kva_kloop *l) {
  const loop_results *results = results_of(b, l);
  for (uint32_t c = 0; c < results->carries.len; c++) kva_kb_link(b, l->instr->region, results->carries.data[c]);
}

void kva_k_loop_end(kva_kb *b, kva_kloop *l) {
  KVA_ASSERT(b->region == l->body);
  for (uint32_t c = 0; c < l->carries.len; c++) KVA_ASSERT(l->carries.data[c].yield);
  kva_kregion *from = b->region = l->instr->region;
  loop_scan s = scan(b, l);
  if (s.impure) {
    link_results(b, l);
    return;
  }
  kva_khoist hoist = {.exprs = b->exprs, .loop = s.loads ? l : NULL};
  kva_kregion *place = kva_kb_hoist(&hoist, from, s.lowest);
  uint64_t hash = hash_loop(l);
  const kva_kloop *equal = find_equal(b, l, place, s.lowest, hash);
  if (equal) {
    replace_by(b, l, equal);
    return;
  }
  if (place != from) {
    kva_k_unlink(l->instr);
    kva_kb_link(b, place, l->instr);
  }
  link_results(b, l);
  remember(b, l, hash);
}

/* ---- reductions as values ---------------------------------------------------------------------------------------- */

static int64_t int_limit(kva_dtype t, bool greatest) {
  int bits = kva_dtype_bits(t);
  if (t == KVA_BOOL) return greatest;
  if (kva_dtype_is_unsigned(t)) return greatest ? kva_wrap_i64(t, -1) : 0;
  int64_t max = (int64_t)(UINT64_MAX >> (65 - bits));
  return greatest ? max : -max - 1;
}

static kva_kval neutral(kva_kb *b, kva_combine combine, kva_dtype t) {
  bool is_float = kva_dtype_is_float(t);
  switch (combine) {
  case KVA_COMBINE_ADD:
  case KVA_COMBINE_OR: return kva_k_const(b, t, 0);
  case KVA_COMBINE_MUL: return kva_k_const(b, t, 1);
  case KVA_COMBINE_MAX: return is_float ? kva_k_const_f(b, t, -INFINITY) : kva_k_const_i(b, t, int_limit(t, false));
  case KVA_COMBINE_MIN: return is_float ? kva_k_const_f(b, t, INFINITY) : kva_k_const_i(b, t, int_limit(t, true));
  case KVA_COMBINE_AND: return kva_k_const_i(b, t, t == KVA_BOOL ? 1 : -1);
  case KVA_COMBINE_NONE: break;
  }
  KVA_ASSERT(!"a combination with a neutral element");
  return NULL;
}

kva_kval kva_k_reduce_over(kva_kb *b, kva_combine combine, kva_dtype dtype, uint32_t n, const kva_expr *const *extents,
                           kva_k_body body, void *user) {
  kva_kval start = neutral(b, combine, dtype);
  for (uint32_t i = 0; i < n; i++) {
    if (kva_expr_is(extents[i], 0)) return start;
  }
  kva_kloop **loops = KVA_NEW_ARRAY(b->arena, kva_kloop *, n ? n : 1);
  const kva_expr **vars = KVA_NEW_ARRAY(b->arena, const kva_expr *, n ? n : 1);
  for (uint32_t i = 0; i < n; i++) {
    if (!kva_expr_is(extents[i], 1)) loops[i] = kva_k_loop_begin(b, KVA_K_SERIAL, extents[i], "r");
    vars[i] = loops[i] ? loops[i]->var : kva_expr_const(b->exprs, 0);
  }
  kva_kval v = kva_k_convert(b, body(b, user, vars), dtype);
  for (uint32_t i = n; i-- > 0;) {
    if (!loops[i]) continue;
    v = kva_k_reduce(b, loops[i], combine, start, v);
    kva_k_loop_end(b, loops[i]);
    v = kva_kb_resolve(v);
  }
  return v;
}
