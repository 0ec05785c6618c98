/* Several loop nests in one kernel: whether they are independent, and their merge into one grid. */
#include "codegen/schedule_internal.h"

static void find_effect(void *user, kva_kinstr *i) {
  *(bool *)user |= i->op == KVA_K_STORE || i->op == KVA_K_BARRIER;
}

bool kva_sched_has_effects(kva_kinstr *i) {
  bool found = i->op == KVA_K_STORE || i->op == KVA_K_BARRIER;
  if (i->op == KVA_K_LOOP) kva_k_each_instr_in(i->loop->body, find_effect, &found);
  if (i->then) kva_k_each_instr_in(i->then, find_effect, &found);
  if (i->orelse) kva_k_each_instr_in(i->orelse, find_effect, &found);
  return found;
}

typedef struct touched {
  bool *read, *written; /* by buffer */
} touched;

static void touch(void *user, kva_kinstr *i) {
  touched *t = user;
  if (i->op == KVA_K_LOAD) t->read[i->buf->id] = true;
  if (i->op == KVA_K_STORE) t->written[i->buf->id] = true;
}

static touched touched_by(const kva_kernel *k, kva_kinstr *i) {
  KVA_ASSERT(i->region);
  uint32_t n = k->bufs.len + 1;
  touched t = {KVA_NEW_ARRAY(k->arena, bool, n), KVA_NEW_ARRAY(k->arena, bool, n)};
  touch(&t, i);
  if (i->op == KVA_K_LOOP) kva_k_each_instr_in(i->loop->body, touch, &t);
  if (i->then) kva_k_each_instr_in(i->then, touch, &t);
  if (i->orelse) kva_k_each_instr_in(i->orelse, touch, &t);
  return t;
}

bool kva_sched_independent(const kva_kernel *k) {
  touched so_far = {KVA_NEW_ARRAY(k->arena, bool, k->bufs.len + 1), KVA_NEW_ARRAY(k->arena, bool, k->bufs.len + 1)};
  for (kva_kinstr *i = k->body->first; i; i = i->next) {
    touched t = touched_by(k, i);
    for (uint32_t b = 0; b < k->bufs.len; b++) {
      if ((t.written[b] && (so_far.read[b] || so_far.written[b])) || (t.read[b] && so_far.written[b])) return false;
      so_far.read[b] |= t.read[b];
      so_far.written[b] |= t.written[b];
    }
  }
  return true;
}

bool kva_sched_is_grid(const kva_kinstr *i) {
  return i->op == KVA_K_LOOP && i->loop->kind == KVA_K_GRID;
}

kva_kinstr *kva_sched_index_value(kva_kernel *k, kva_kregion *r, const kva_expr *x) {
  KVA_ASSERT(x && x->kind != KVA_EXPR_OVERFLOW);
  kva_kinstr *i = kva_k_instr_create(k, KVA_K_INDEX, KVA_I64);
  i->index = x;
  kva_k_insert(r, NULL, i);
  return i;
}

/* Appends if (item < limit) { then } else { returned region } to r. */
static kva_kregion *branch(kva_kernel *k, kva_kregion *r, const kva_expr *item, const kva_expr *limit,
                           kva_kregion **out_then) {
  kva_kinstr *less = kva_k_instr_create(k, KVA_K_lt, KVA_BOOL), *test = kva_k_instr_create(k, KVA_K_IF, KVA_DTYPE_NONE);
  less->args[0] = kva_sched_index_value(k, r, item);
  less->args[1] = kva_sched_index_value(k, r, limit);
  less->n_args = 2;
  kva_k_insert(r, NULL, less);
  test->args[0] = less;
  test->n_args = 1;
  test->then = kva_k_region_create(k, test);
  test->orelse = kva_k_region_create(k, test);
  kva_k_insert(r, NULL, test);
  *out_then = test->then;
  return test->orelse;
}

/* Moves one nest into `to`; its items begin at `first` in the shared grid. */
static void move_nest(kva_kernel *k, kva_kinstr *nest, kva_kregion *to, const kva_expr *item, const kva_expr *first) {
  kva_k_unlink(nest);
  if (!kva_sched_is_grid(nest)) {
    kva_k_insert(to, NULL, nest);
    return;
  }
  kva_sched_move(nest->loop->body, to);
  const kva_expr *own = kva_expr_sub(k->exprs, item, first);
  kva_k_replace_index(k, 1, &nest->loop->var, &own);
}

static const kva_expr *items_of(kva_kernel *k, const kva_kinstr *nest) {
  return kva_sched_is_grid(nest) ? nest->loop->extent : kva_expr_const(k->exprs, 1);
}

void kva_sched_share_grid(kva_kernel *k, uint32_t n, kva_kinstr **nests) {
  KVA_ASSERT(n > 1);
  for (uint32_t i = 0; i < n; i++) KVA_ASSERT(nests[i]->region == k->body);
  const kva_expr *total = items_of(k, nests[0]);
  for (uint32_t i = 1; i < n; i++) total = kva_expr_add(k->exprs, total, items_of(k, nests[i]));
  kva_kloop *grid = kva_k_loop_create(k, KVA_K_GRID, total, "item");
  kva_k_insert(k->body, NULL, grid->instr);
  kva_kregion *r = grid->body;
  const kva_expr *first = kva_expr_const(k->exprs, 0);
  for (uint32_t i = 0; i + 1 < n; i++) {
    const kva_expr *limit = kva_expr_add(k->exprs, first, items_of(k, nests[i]));
    kva_kregion *then, *orelse = branch(k, r, grid->var, limit, &then);
    move_nest(k, nests[i], then, grid->var, first);
    first = limit;
    r = orelse;
  }
  move_nest(k, nests[n - 1], r, grid->var, first);
}
