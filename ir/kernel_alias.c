/* Whether a result of a kernel may lie in the memory of one of its operands.
 *
 * It may if every element is loaded before it is stored, in the iteration that stores it:
 *   - The load and the store have the same index. It contains the variable of every loop around the store that runs it
 *     more than once, so both belong to one iteration and no other iteration accesses the element. A kernel stores an
 *     element of a result once (ir/kernel.h).
 *   - The stored value depends on the load. Data flow then orders the two, even in a code generator that moves loads
 *     across stores. One that may also repeat loads must know both buffers as one (codegen/llvm_emit.c).
 *   - One thread runs the iteration, and no other one the load: not those of a subgroup that run the same code, nor
 *     those that run what is before a loop over work items or threads, or before the condition that picks one of them.
 * At most one arm of an if runs; a load and a store in different arms need no order. */
#include "ir/kernel.h"

typedef struct analysis {
  const kva_kernel *k;
  const kva_kbuf *result, *operand;
  kva_arena *scratch;
  KVA_VEC(const kva_kinstr *) loads;  /* of the operand */
  KVA_VEC(const kva_kinstr *) stores; /* to the result */
  bool opaque;                        /* another kind of access to one of the two */
} analysis;

static void collect(void *user, kva_kinstr *i) {
  analysis *a = user;
  bool loads = i->op == KVA_K_LOAD, stores = i->op == KVA_K_STORE;
  if (loads && i->buf == a->operand) KVA_PUSH(a->scratch, &a->loads, i);
  if (stores && i->buf == a->result) KVA_PUSH(a->scratch, &a->stores, i);
  a->opaque |= (loads && i->buf == a->result) || (stores && i->buf == a->operand);
  if (i->op != KVA_K_INTRINSIC) return;
  for (uint32_t p = 0; p < KVA_K_MAX_PLACES; p++)
    a->opaque |= i->intrinsic->places[p].buf &&
                 (i->intrinsic->places[p].buf == a->operand || i->intrinsic->places[p].buf == a->result);
}

static void collect_maps(analysis *a) {
  for (uint32_t i = 0; i < a->k->maps.len; i++)
    a->opaque |= a->k->maps.data[i].buf == a->operand || a->k->maps.data[i].buf == a->result;
}

/* ---- the iteration of a store ------------------------------------------------------------------------------------ */

static const kva_kloop *loop_around(const kva_kregion *r) {
  while (r && r->owner && r->owner->op != KVA_K_LOOP) r = r->parent;
  return r && r->owner ? r->owner->loop : NULL;
}

static bool runs_on_one_thread(const kva_kernel *k, const kva_kinstr *i) {
  const kva_kloop *l = loop_around(i->region);
  while (l && l->kind != KVA_K_THREAD) l = loop_around(l->instr->region);
  return l ? l->subgroup <= 1 : k->threads <= 1;
}

/* The index with index instructions expanded. */
static const kva_expr *written_out(const kva_kernel *k, const kva_expr *index) {
  for (uint32_t i = k->values.len; i-- > 0;) {
    const kva_kinstr *v = k->values.data[i];
    if (v->op == KVA_K_INDEX) index = kva_expr_substitute(k->exprs, index, 1, &k->value_symbols.data[i], &v->index);
  }
  return index;
}

static bool depends_on_memory(const kva_kernel *k, const kva_expr *index) {
  for (uint32_t i = 0; i < k->value_symbols.len; i++)
    if (kva_expr_uses(index, k->value_symbols.data[i])) return true;
  return false;
}

/* The bound b of a condition `var < b`, or NULL. */
static const kva_expr *bound_of(const kva_kernel *k, const kva_kinstr *condition, const kva_expr *var) {
  if (condition->op != KVA_K_lt) return NULL;
  const kva_kinstr *a = condition->args[0], *b = condition->args[1];
  if (a->op != KVA_K_INDEX || a->index != var) return NULL;
  if (b->op == KVA_K_CONST) return kva_expr_const(k->exprs, b->imm.i);
  return b->op == KVA_K_INDEX ? b->index : NULL;
}

/* The conditions around i leave one iteration of l: nests that share a grid are arms, some for a single item. */
static bool runs_once_in(const kva_kernel *k, const kva_kinstr *i, const kva_kloop *l) {
  const kva_expr *from = NULL, *to = NULL;
  for (const kva_kregion *r = i->region; r != l->body; r = r->parent) {
    const kva_expr *bound = r->owner->op == KVA_K_IF ? bound_of(k, r->owner->args[0], l->var) : NULL;
    if (!bound) continue;
    if (r == r->owner->then && !to) to = bound;
    if (r == r->owner->orelse && !from) from = bound;
  }
  if (!to) to = l->extent;
  return kva_expr_is(from ? kva_expr_sub(k->exprs, to, from) : to, 1);
}

static bool has_own_element(const kva_kernel *k, const kva_kinstr *store) {
  const kva_expr *index = written_out(k, store->index);
  for (const kva_kloop *l = loop_around(store->region); l; l = loop_around(l->instr->region))
    if (!kva_expr_uses(index, l->var) && !runs_once_in(k, store, l)) return false;
  return !depends_on_memory(k, index) && runs_on_one_thread(k, store);
}

/* ---- order of loads and stores ----------------------------------------------------------------------------------- */

/* The arm of `branch` that contains i, or NULL. */
static const kva_kregion *arm_of(const kva_kinstr *i, const kva_kinstr *branch) {
  return kva_k_encloses(branch->then, i->region)     ? branch->then
         : kva_k_encloses(branch->orelse, i->region) ? branch->orelse
                                                     : NULL;
}

static bool are_exclusive(const kva_kinstr *a, const kva_kinstr *b) {
  for (const kva_kregion *r = a->region; r && r->owner; r = r->parent) {
    if (r->owner->op != KVA_K_IF) continue;
    const kva_kregion *other = arm_of(b, r->owner);
    if (other && other != r) return true;
  }
  return false;
}

/* What a loop carries into an iteration is of earlier ones: of the load's own iteration it may know nothing yet. */
static bool depends(const kva_kinstr *value, const kva_kinstr *load, bool *seen) {
  if (value == load) return true;
  if (!value || seen[value->id]) return false;
  seen[value->id] = true;
  for (uint32_t i = 0; i < value->n_args; i++)
    if (depends(value->args[i], load, seen)) return true;
  if (value->op != KVA_K_REDUCE && value->op != KVA_K_CARRY) return false;
  const kva_kcarry *c = &value->loop->carries.data[value->carry];
  return depends(c->init, load, seen) || (value->op == KVA_K_REDUCE && depends(c->yield, load, seen));
}

static bool is_parallel(const kva_kloop *l) {
  return l->kind == KVA_K_GRID || l->kind == KVA_K_THREAD;
}

/* Where the index has no variable of a parallel loop around the store, what is around the store there is around the
 * load, too. */
static bool is_of_same_thread(const analysis *a, const kva_kinstr *load, const kva_kinstr *store) {
  const kva_expr *index = written_out(a->k, store->index);
  const kva_kregion *inner = store->region; /* the innermost region that the load must be in */
  for (const kva_kloop *l = loop_around(store->region); l; l = loop_around(l->instr->region)) {
    if (is_parallel(l) && !kva_expr_uses(index, l->var)) return kva_k_encloses(inner, load->region);
    inner = l->instr->region;
  }
  return true;
}

static bool is_ordered(const analysis *a, const kva_kinstr *load, const kva_kinstr *store) {
  if (written_out(a->k, load->index) != written_out(a->k, store->index)) return false;
  if (!is_of_same_thread(a, load, store)) return false;
  return depends(store->args[0], load, KVA_NEW_ARRAY(a->scratch, bool, a->k->next_id + 1));
}

/* At least one store must overwrite the loaded element itself. */
static bool precedes_stores(const analysis *a, const kva_kinstr *load) {
  bool any = false;
  for (uint32_t i = 0; i < a->stores.len; i++) {
    bool ordered = is_ordered(a, load, a->stores.data[i]);
    if (!ordered && !are_exclusive(load, a->stores.data[i])) return false;
    any |= ordered;
  }
  return any;
}

static bool is_safe(analysis *a) {
  kva_k_each_instr(a->k, collect, a);
  collect_maps(a);
  if (a->opaque) return false;
  if (!a->loads.len) return true;
  for (uint32_t i = 0; i < a->stores.len; i++)
    if (!has_own_element(a->k, a->stores.data[i])) return false;
  for (uint32_t i = 0; i < a->loads.len; i++)
    if (!precedes_stores(a, a->loads.data[i])) return false;
  return true;
}

bool kva_kernel_in_place(const kva_kernel *k, const kva_kbuf *result, const kva_kbuf *operand) {
  analysis a = {.k = k, .result = result, .operand = operand, .scratch = kva_arena_create()};
  bool safe = is_safe(&a);
  kva_arena_destroy(a.scratch);
  return safe;
}
