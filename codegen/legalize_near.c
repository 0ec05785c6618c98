/* Exponentials and quotients on GPUs, which have an instruction for each that errs by 2 units in the last place of f32,
 * instead of some twenty that err by one.
 *
 * Chosen where a value reaches only results of 16 bits, half a unit of which is 2^15 units of f32 for bf16 and 2^12 for
 * f16. Scaling an exponential's argument by log2(e) adds up to |x| units: fewer than 104, as e^x is 0 or infinite
 * beyond, and than 18 in the range of f16. So 8 bits must cancel (7) before a result is off by one unit, and exact
 * arithmetic in f32 is off where 15 (12) do.
 *
 * A sum of e^(x - m), m the largest x of 16 bits, is off by the mean of 2 + |x - m| units that its terms weigh, less
 * than 2 + log n for n terms. So are softmax's divisor and the logarithm of cross-entropy, which is a float: an x is
 * off by 2^15 units itself.
 *
 * Exact remains what something else depends on: results of other types, comparisons, conversions to integers, functions
 * that jump, what memory of the kernel or an intrinsic takes, and e^x - 1, which near 0 all bits cancel of. */
#include "codegen/legalize.h"

static const double LOG2E = 1.4426950408889634;

typedef struct reach {
  kva_kernel *k;
  bool *exact; /* by id */
} reach;

static bool is_short(kva_dtype t) {
  return t == KVA_F16 || t == KVA_BF16;
}

static bool is_element(const kva_kinstr *v) {
  return v->op == KVA_K_LOAD && is_short(v->buf->dtype);
}

static bool is_largest(const kva_kinstr *v) {
  if (v->op != KVA_K_REDUCE) return false;
  const kva_kcarry *c = &v->loop->carries.data[v->carry];
  return c->combine == KVA_COMBINE_MAX && is_element(c->yield);
}

/* e^(x - m) */
static bool is_term(const kva_kinstr *v) {
  if (v->op != KVA_K_exp || v->args[0]->op != KVA_K_sub) return false;
  return is_element(v->args[0]->args[0]) && is_largest(v->args[0]->args[1]);
}

static void demand(reach *r, kva_kval v) {
  if (r->exact[v->id]) return;
  r->exact[v->id] = true;
  for (uint32_t a = 0; a < v->n_args; a++) demand(r, v->args[a]);
  if (v->op != KVA_K_REDUCE && v->op != KVA_K_CARRY) return;
  const kva_kcarry *c = &v->loop->carries.data[v->carry];
  demand(r, c->init);
  demand(r, c->combine == KVA_COMBINE_ADD && is_term(c->yield) ? c->yield->args[0] : c->yield);
}

/* Small changes of f32 operands change the value little. */
static bool is_smooth(kva_kop op) {
  bool jumps = op == KVA_K_rem || (op >= KVA_K_floor && op <= KVA_K_trunc);
  return op < KVA_K_CONST && !jumps;
}

/* Operand `a` is an exponential from which i subtracts a number, as ELU does, or which it subtracts from one. */
static bool cancels(const kva_kinstr *i, uint32_t a) {
  if ((i->op != KVA_K_add && i->op != KVA_K_sub) || i->args[a]->op != KVA_K_exp) return false;
  const kva_kinstr *other = i->args[1 - a];
  return other->op == KVA_K_CONST && (i->op == KVA_K_sub ? other->imm.f > 0 : other->imm.f < 0);
}

/* Whether operand `a` need not be exact for i's sake. */
static bool tolerates(const kva_kinstr *i, uint32_t a) {
  if (cancels(i, a)) return false;
  if (i->op == KVA_K_STORE) return a == 0 && i->buf->space == KVA_K_PARAM && is_short(i->buf->dtype);
  if (i->op == KVA_K_NARROW) return is_short((kva_dtype)i->imm.i);
  if (i->op == KVA_K_select) return a > 0;
  return i->dtype == KVA_F32 && is_smooth(i->op);
}

static void demand_operands(void *user, kva_kinstr *i) {
  for (uint32_t a = 0; a < i->n_args; a++)
    if (!tolerates(i, a)) demand(user, i->args[a]);
}

static kva_kval scaled(kva_mb *b, kva_kval x) {
  return mb_mul(b, x, kva_mb_f32(b, LOG2E));
}

/* x of 1 + e^x; NULL: v is something else. */
static kva_kval logistic_of(const kva_kinstr *v) {
  if (v->op != KVA_K_add) return NULL;
  bool first = v->args[0]->op == KVA_K_CONST;
  const kva_kinstr *constant = v->args[first ? 0 : 1], *other = v->args[first ? 1 : 0];
  bool is = constant->op == KVA_K_CONST && constant->imm.f == 1 && other->op == KVA_K_exp;
  return is ? other->args[0] : NULL;
}

static bool is_inexact(const reach *r, const kva_kinstr *i, kva_kop op) {
  return i->op == op && i->dtype == KVA_F32 && !r->exact[i->id];
}

static void replace_div(void *user, kva_kinstr *i) {
  const reach *r = user;
  if (!is_inexact(r, i, KVA_K_div)) return;
  kva_mb b = {r->k, i};
  kva_kval x = logistic_of(i->args[1]);
  i->op = x ? KVA_K_mul : KVA_K_near_div;
  if (x) i->args[1] = mb_near_logistic(&b, scaled(&b, x));
}

static void replace_exp(void *user, kva_kinstr *i) {
  const reach *r = user;
  if (!is_inexact(r, i, KVA_K_exp)) return;
  kva_mb b = {r->k, i};
  i->args[0] = scaled(&b, i->args[0]);
  i->op = KVA_K_near_exp2;
}

void kva_legalize_near(kva_kernel *k) {
  reach r = {.k = k, .exact = KVA_NEW_ARRAY(k->arena, bool, k->next_id)};
  kva_k_each_instr(k, demand_operands, &r);
  kva_k_each_instr(k, replace_div, &r); /* looks for exponentials */
  kva_k_each_instr(k, replace_exp, &r);
}
