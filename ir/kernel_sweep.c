/* Dead code elimination in kernels. Live are stores, barriers, intrinsics without a value, and what they need:
 * operands, values used in indices, enclosing loops and ifs. A live loop keeps all of its carries. */
#include "ir/kernel.h"

typedef struct sweep {
  kva_kernel *k;
  kva_arena *scratch;
  bool *live; /* by id */
  KVA_VEC(kva_kinstr *) work;
  kva_map *symbols; /* value symbol or loop variable -> instruction */
  uint32_t next_id;
} sweep;

static void mark(sweep *s, kva_kinstr *i) {
  KVA_ASSERT(i->region && i->id < s->k->next_id); /* operands are linked */
  if (s->live[i->id]) return;
  s->live[i->id] = true;
  KVA_PUSH(s->scratch, &s->work, i);
}

static void mark_symbol(void *user, const kva_expr *symbol) {
  sweep *s = user;
  kva_kinstr *i = kva_map_get(s->symbols, &symbol, sizeof symbol);
  if (i) mark(s, i);
}

static void mark_index(void *user, const kva_expr **e) {
  kva_expr_each_symbol(*e, mark_symbol, user);
}

static void mark_loop(sweep *s, kva_kloop *l) {
  mark(s, l->instr);
  for (uint32_t c = 0; c < l->carries.len; c++) {
    mark(s, l->carries.data[c].init);
    mark(s, l->carries.data[c].yield);
  }
}

static void mark_needed(sweep *s, kva_kinstr *i) {
  for (uint32_t a = 0; a < i->n_args; a++) mark(s, i->args[a]);
  kva_k_each_index(i, mark_index, s);
  if (i->loop) mark_loop(s, i->loop);
  if (i->region->owner) mark(s, i->region->owner);
}

static void visit_root(void *user, kva_kinstr *i) {
  bool effect = i->op == KVA_K_STORE || i->op == KVA_K_BARRIER || i->op == KVA_K_INTRINSIC;
  if (effect && i->dtype == KVA_DTYPE_NONE) mark(user, i);
}

static void visit_remove(void *user, kva_kinstr *i) {
  sweep *s = user;
  if (!s->live[i->id]) kva_k_unlink(i);
}

static void visit_number(void *user, kva_kinstr *i) {
  sweep *s = user;
  i->id = s->next_id++;
}

static void bind_symbols(sweep *s) {
  s->symbols = kva_map_create(s->scratch);
  for (uint32_t i = 0; i < s->k->loops.len; i++) {
    const kva_kloop *l = s->k->loops.data[i];
    kva_map_set(s->symbols, &l->var, sizeof l->var, l->instr);
  }
  for (uint32_t i = 0; i < s->k->values.len; i++) {
    kva_map_set(s->symbols, &s->k->value_symbols.data[i], sizeof(const kva_expr *), s->k->values.data[i]);
  }
}

static void drop_dead_lists(sweep *s) {
  kva_kernel *k = s->k;
  uint32_t kept = 0;
  for (uint32_t i = 0; i < k->loops.len; i++) {
    if (s->live[k->loops.data[i]->instr->id]) k->loops.data[kept++] = k->loops.data[i];
  }
  k->loops.len = kept;
  kept = 0;
  for (uint32_t i = 0; i < k->values.len; i++) {
    if (!s->live[k->values.data[i]->id]) continue;
    k->value_symbols.data[kept] = k->value_symbols.data[i];
    k->values.data[kept++] = k->values.data[i];
  }
  k->value_symbols.len = k->values.len = kept;
}

static void visit_linked(void *user, kva_kinstr *i) {
  ((sweep *)user)->live[i->id] = true;
}

void kva_kernel_forget_unlinked(kva_kernel *k) {
  sweep s = {.k = k, .scratch = kva_arena_create()};
  s.live = KVA_NEW_ARRAY(s.scratch, bool, k->next_id + 1);
  kva_k_each_instr(k, visit_linked, &s);
  drop_dead_lists(&s);
  kva_arena_destroy(s.scratch);
}

void kva_kernel_sweep(kva_kernel *k) {
  sweep s = {.k = k, .scratch = kva_arena_create()};
  s.live = KVA_NEW_ARRAY(s.scratch, bool, k->next_id + 1);
  bind_symbols(&s);
  kva_k_each_instr(k, visit_root, &s);
  while (s.work.len) mark_needed(&s, s.work.data[--s.work.len]);
  kva_k_each_instr(k, visit_remove, &s);
  drop_dead_lists(&s);
  kva_k_each_instr(k, visit_number, &s);
  k->next_id = s.next_id;
  kva_arena_destroy(s.scratch);
}
