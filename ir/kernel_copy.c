/* Copies of code. A copy has its own definitions: values, loops with their variables, symbols for values in indices. It
 * shares everything else with the original. */
#include "ir/kernel.h"

typedef struct copy {
  kva_kernel *k;
  kva_kinstr **made; /* by id of an original: its copy; NULL: not copied */
  uint32_t n_ids;
  KVA_VEC(const kva_expr *) from, to; /* symbols and their replacements */
} copy;

static void copy_region(copy *c, const kva_kregion *from, kva_kregion *to);

static kva_kinstr *copy_of(const copy *c, kva_kinstr *i) {
  return i && i->id < c->n_ids && c->made[i->id] ? c->made[i->id] : i;
}

static void map_symbol(copy *c, const kva_expr *from, const kva_expr *to) {
  KVA_PUSH(c->k->arena, &c->from, from);
  KVA_PUSH(c->k->arena, &c->to, to);
}

static void rename_index(void *user, const kva_expr **e) {
  copy *c = user;
  *e = kva_expr_substitute(c->k->exprs, *e, c->from.len, c->from.data, c->to.data);
}

/* Defines, for symbols that stand for `from`, new ones that stand for its copy. */
static void copy_symbols(copy *c, const kva_kinstr *from, kva_kinstr *to) {
  kva_kernel *k = c->k;
  for (uint32_t s = 0, n = k->values.len; s < n; s++) {
    if (k->values.data[s] != from) continue;
    const kva_expr *old = k->value_symbols.data[s], *symbol = kva_expr_fresh(k->exprs, old->name, old->lo, old->extent);
    KVA_PUSH(k->arena, &k->value_symbols, symbol);
    KVA_PUSH(k->arena, &k->values, to);
    map_symbol(c, old, symbol);
  }
}

static kva_kinstr *copy_loop(copy *c, const kva_kinstr *i) {
  const kva_kloop *l = i->loop;
  const kva_expr *extent = l->extent, *peel = l->peel;
  rename_index(c, &extent);
  if (peel) rename_index(c, &peel);
  kva_kloop *made = kva_k_loop_create(c->k, l->kind, extent, l->var->name);
  made->strict_order = l->strict_order;
  made->subgroup = l->subgroup;
  made->width = l->width;
  made->blocks = l->blocks;
  made->peel = peel;
  made->stage = l->stage;
  c->made[i->id] = made->instr;
  map_symbol(c, l->var, made->var);
  copy_region(c, l->body, made->body);
  for (uint32_t r = 0; r < l->carries.len; r++) {
    kva_kcarry carry = l->carries.data[r];
    carry.init = copy_of(c, carry.init);
    carry.yield = copy_of(c, carry.yield);
    KVA_PUSH(c->k->arena, &made->carries, carry);
  }
  return made->instr;
}

static kva_kregion *copy_arm(copy *c, const kva_kregion *arm, kva_kinstr *owner) {
  if (!arm) return NULL;
  kva_kregion *made = kva_k_region_create(c->k, owner);
  copy_region(c, arm, made);
  return made;
}

static kva_kinstr *copy_instr(copy *c, kva_kinstr *i) {
  KVA_ASSERT(i->id < c->n_ids && !c->made[i->id]);
  if (i->op == KVA_K_LOOP) return copy_loop(c, i);
  kva_kinstr *made = kva_k_instr_create(c->k, i->op, i->dtype);
  c->made[i->id] = made;
  made->n_args = i->n_args;
  for (uint32_t a = 0; a < i->n_args; a++) made->args[a] = copy_of(c, i->args[a]);
  made->imm = i->imm;
  made->index = i->index;
  made->buf = i->buf;
  if (i->loop) made->loop = copy_of(c, i->loop->instr)->loop;
  made->carry = i->carry;
  if (i->intrinsic) made->intrinsic = kva_arena_memdup(c->k->arena, i->intrinsic, sizeof *i->intrinsic);
  kva_k_each_index(made, rename_index, c);
  made->then = copy_arm(c, i->then, made);
  made->orelse = copy_arm(c, i->orelse, made);
  copy_symbols(c, i, made);
  return made;
}

static void copy_region(copy *c, const kva_kregion *from, kva_kregion *to) {
  for (kva_kinstr *i = from->first; i; i = i->next) kva_k_insert(to, NULL, copy_instr(c, i));
}

kva_kinstr *kva_k_copy(kva_kernel *k, kva_kinstr *i, uint32_t n, const kva_expr *const *from,
                       const kva_expr *const *to) {
  copy c = {.k = k, .n_ids = k->next_id};
  c.made = KVA_NEW_ARRAY(k->arena, kva_kinstr *, c.n_ids + 1);
  for (uint32_t s = 0; s < n; s++) map_symbol(&c, from[s], to[s]);
  return copy_instr(&c, i);
}
