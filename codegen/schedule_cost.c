/* Cost estimates for schedules: cycles of a region, and strides of accesses along a loop. Rough on purpose: they decide
 * work item sizes within a small factor, and loop directions by majority. */
#include "codegen/schedule_internal.h"

enum { SYMBOL_GUESS = 64 };

static bool guess(void *user, const kva_expr *symbol, int64_t *out_v) {
  (void)user;
  int64_t n = SYMBOL_GUESS;
  if (symbol->extent && kva_expr_is_const(symbol->extent, &n)) n = n > 1 ? n / 2 : 0;
  *out_v = n;
  return true;
}

double kva_cost_extent(const kva_expr *extent) {
  int64_t v;
  if (!kva_expr_eval(extent, guess, NULL, &v)) return SYMBOL_GUESS;
  return v < 1 ? 1 : (double)v;
}

static double instr_cost(const kva_kinstr *i) {
  switch (i->op) {
  case KVA_K_LOAD:
  case KVA_K_STORE: return 8; /* a vector from beyond L2 */
  case KVA_K_CONST:
  case KVA_K_INDEX:
  case KVA_K_REDUCE:
  case KVA_K_CARRY:
  case KVA_K_LOOP:
  case KVA_K_BARRIER:
  case KVA_K_IF: return 0;
  case KVA_K_div:
  case KVA_K_rem:
  case KVA_K_sqrt: return 8;
  default: return i->op >= KVA_K_exp && i->op <= KVA_K_expm1 ? 24 : 1;
  }
}

double kva_cost_region(const kva_kregion *r, int lanes) {
  double sum = 0;
  for (const kva_kinstr *i = r ? r->first : NULL; i; i = i->next) {
    sum += instr_cost(i);
    if (i->then) sum += kva_cost_region(i->then, lanes);
    if (i->orelse) sum += kva_cost_region(i->orelse, lanes);
    if (i->op != KVA_K_LOOP) continue;
    double trips = kva_cost_extent(i->loop->extent);
    if (i->loop->kind == KVA_K_VECTOR) trips = (trips + lanes - 1) / lanes;
    sum += trips * (2 + kva_cost_region(i->loop->body, lanes));
  }
  return sum;
}

typedef struct stride_scan {
  kva_kernel *k;
  const kva_kloop *l;
  kva_strides s;
} stride_scan;

static double weight_of(const kva_kloop *l, const kva_kinstr *i) {
  double weight = i->op == KVA_K_STORE ? 2 : 1;
  for (const kva_kregion *r = i->region; r != l->body; r = r->parent) {
    if (r->owner->op == KVA_K_LOOP) weight *= 8;
  }
  return weight;
}

/* var / n, for a small n: as many lanes read an element. */
static bool is_shared(const stride_scan *c, const kva_expr *atom) {
  const kva_expr *coefficient, *rest;
  int64_t n;
  if (atom->kind != KVA_EXPR_DIV || !kva_expr_is_const(atom->b, &n) || n > KVA_NEAR_STRIDE) return false;
  return kva_expr_affine(c->k->exprs, atom->a, c->l->var, &coefficient, &rest) && kva_expr_is(coefficient, 1);
}

/* Lanes read consecutive elements, a few lanes each (llvm_memory.c). */
static bool reads_shared(const stride_scan *c, const kva_kinstr *i) {
  uint32_t shared = 0;
  if (i->op != KVA_K_LOAD || i->index->kind != KVA_EXPR_SUM || kva_dtype_bits(i->buf->dtype) < 8) return false;
  for (uint32_t t = 0; t < i->index->n_terms; t++) {
    const kva_expr_term *term = &i->index->terms[t];
    bool alone = term->n_factors == 1 && term->coefficient == 1;
    if (alone && is_shared(c, term->factors[0]))
      shared++;
    else
      for (uint32_t f = 0; f < term->n_factors; f++)
        if (kva_expr_uses(term->factors[f], c->l->var)) return false;
  }
  return shared == 1;
}

static void scan(void *user, kva_kinstr *i) {
  stride_scan *c = user;
  const kva_expr *coefficient, *rest;
  if (i->op == KVA_K_LOOP && kva_expr_uses(i->loop->extent, c->l->var)) c->s.legal = false;
  if (i->op != KVA_K_LOAD && i->op != KVA_K_STORE) return;
  if (i->op == KVA_K_STORE && c->l->kind != KVA_K_PARALLEL) c->s.legal = false; /* sequential loops also order memory */
  bool affine = kva_expr_affine(c->k->exprs, i->index, c->l->var, &coefficient, &rest);
  if (affine && kva_expr_is(coefficient, 0)) return;
  int64_t stride = 0;
  if (affine) kva_expr_is_const(coefficient, &stride);
  bool near = stride > 1 && stride <= KVA_NEAR_STRIDE && i->op == KVA_K_LOAD && kva_dtype_bits(i->buf->dtype) >= 8;
  near |= !affine && reads_shared(c, i);
  *(stride == 1 ? &c->s.unit : near ? &c->s.near : &c->s.strided) += weight_of(c->l, i);
}

kva_strides kva_strides_of(kva_kernel *k, const kva_kloop *l) {
  stride_scan c = {k, l, {.legal = true}};
  for (uint32_t i = 0; i < l->carries.len; i++) {
    if (l->carries.data[i].combine == KVA_COMBINE_NONE || l->strict_order) c.s.legal = false;
  }
  kva_k_each_instr_in(l->body, scan, &c);
  return c.s;
}
