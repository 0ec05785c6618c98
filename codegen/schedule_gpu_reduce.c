/* Merges sum over i of (sum over j of x) into one sum over f = i n + j. Threads then share all of it and combine once.
 */
#include "codegen/schedule_gpu.h"

/* The loop in l's body, if everything else there is pure arithmetic or a result of that loop. */
static kva_kloop *inner_reduction(const kva_kloop *l) {
  kva_kloop *inner = NULL;
  for (const kva_kinstr *i = l->body->first; i; i = i->next) {
    if (i->op == KVA_K_REDUCE) continue;
    if (i->op == KVA_K_STORE || i->op == KVA_K_IF || i->op == KVA_K_BARRIER || i->op == KVA_K_CARRY) return NULL;
    if (i->op != KVA_K_LOOP) continue;
    if (inner) return NULL;
    inner = i->loop;
  }
  return inner;
}

bool kva_sched_is_neutral(const kva_kinstr *v, kva_combine combine) {
  int neutral = combine == KVA_COMBINE_MUL;
  if (v->op != KVA_K_CONST) return false;
  return kva_dtype_is_float(v->dtype) ? v->imm.f == neutral : v->imm.i == neutral;
}

static bool carry_fits(const kva_kloop *outer, const kva_kloop *inner, uint32_t c) {
  const kva_kcarry *a = &outer->carries.data[c];
  if (a->yield->op != KVA_K_REDUCE || a->yield->loop != inner) return false;
  const kva_kcarry *b = &inner->carries.data[a->yield->carry];
  if (a->combine != b->combine || a->dtype != b->dtype || a->combine == KVA_COMBINE_NONE) return false;
  if (a->combine == KVA_COMBINE_ADD || a->combine == KVA_COMBINE_MUL) return kva_sched_is_neutral(b->init, b->combine);
  return a->init == b->init; /* max(a, max(a, b)) = max(a, b), and so on */
}

typedef struct use_count {
  const kva_kloop *inner;
  uint32_t n;
} use_count;

static void count_uses(void *user, kva_kinstr *i) {
  use_count *u = user;
  for (uint32_t a = 0; a < i->n_args; a++) u->n += i->args[a]->op == KVA_K_REDUCE && i->args[a]->loop == u->inner;
}

static bool can_merge(const kva_kloop *outer, const kva_kloop *inner) {
  if (!inner || !outer->carries.len || outer->strict_order || inner->strict_order) return false;
  if (inner->kind != outer->kind || kva_expr_uses(inner->extent, outer->var)) return false;
  for (uint32_t c = 0; c < outer->carries.len; c++) {
    if (!carry_fits(outer, inner, c)) return false;
  }
  use_count u = {inner, 0}; /* results with uses other than the outer sums */
  kva_k_each_instr_in(outer->body, count_uses, &u);
  return !u.n;
}

typedef struct retarget {
  const kva_kloop *from;
  kva_kloop *to;
} retarget;

static void retarget_result(void *user, kva_kinstr *i) {
  const retarget *r = user;
  if (i->op == KVA_K_REDUCE && i->loop == r->from) i->loop = r->to;
}

void kva_sched_retarget(kva_kernel *k, const kva_kloop *from, kva_kloop *to) {
  KVA_ASSERT(from->carries.len == to->carries.len);
  retarget r = {from, to};
  kva_k_each_instr(k, retarget_result, &r);
}

static void drop_results(kva_kregion *r, const kva_kloop *of) {
  for (kva_kinstr *i = r->first, *next; i; i = next) {
    next = i->next;
    if (i->op == KVA_K_REDUCE && i->loop == of) kva_k_unlink(i);
  }
}

/* Indices of both loops stand in outer's body. */
static kva_kloop *merge(kva_kernel *k, kva_kloop *outer, kva_kloop *inner, bool divide) {
  KVA_ASSERT(inner->instr->region == outer->body && outer->carries.len == inner->carries.len);
  const kva_expr *extent = kva_expr_mul(k->exprs, outer->extent, inner->extent);
  const kva_expr *f = kva_expr_fresh(k->exprs, "r", 0, extent);
  if (!kva_sched_rejoin(k, outer->body, outer, inner, f, divide)) return NULL;
  kva_kloop *l = kva_k_loop_create(k, outer->kind, extent, "r");
  kva_k_replace_index(k, 1, &f, &l->var);
  for (uint32_t c = 0; c < outer->carries.len; c++) {
    kva_kcarry carry = outer->carries.data[c];
    carry.yield = inner->carries.data[carry.yield->carry].yield;
    KVA_PUSH(k->arena, &l->carries, carry);
  }
  drop_results(outer->body, inner);
  kva_k_insert(outer->instr->region, outer->instr, l->instr);
  kva_k_unlink(inner->instr);
  kva_sched_move(outer->body, l->body);
  kva_sched_move(inner->body, l->body);
  kva_k_unlink(outer->instr);
  kva_sched_retarget(k, outer, l);
  return l;
}

kva_kloop *kva_sched_merge_reductions(kva_kernel *k, kva_kloop *l, bool divide) {
  kva_kloop *inner = inner_reduction(l);
  if (inner) inner = kva_sched_merge_reductions(k, inner, divide);
  if (!can_merge(l, inner)) return l;
  kva_kloop *merged = merge(k, l, inner, divide);
  return merged ? merged : l;
}
