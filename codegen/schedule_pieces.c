/* A loop in lanes over joined tensors (concat) selects for every element from all of them: with n tensors it takes n
 * masked loads and n selections. Here it becomes n loops, whose comparisons of the loop's variable are known.
 *
 *   vector i < 96 { x = i < 64 ? a[i] : b[i - 64] }   ->   vector i < 64 { x = a[i] }; vector i < 32 { x = b[i] }
 *
 * Only at borders between pieces of at least a vector's length. Runs after loops have their kinds: what was chosen by
 * the whole loop, its order and its blocks, stays. */
#include "codegen/schedule_internal.h"

enum { MAX_PIECES = 128 };

typedef struct pieces {
  kva_kernel *k;
  int64_t lanes; /* of f32 */
  const kva_kloop *loop;
  int64_t ends[MAX_PIECES]; /* increasing; the last one is the loop's extent */
  uint32_t n;
  bool suits;
} pieces;

/* ---- borders ----------------------------------------------------------------------------------------------------- */

static const kva_expr *compared(const pieces *p, const kva_kinstr *v) {
  if (v->op == KVA_K_INDEX) return v->index;
  return v->op == KVA_K_CONST && v->dtype == KVA_I64 ? kva_expr_const(p->k->exprs, v->imm.i) : NULL;
}

static bool is_comparison(const pieces *p, const kva_kinstr *i) {
  return (i->op == KVA_K_lt || i->op == KVA_K_le) && compared(p, i->args[0]) && compared(p, i->args[1]);
}

static void add_border(pieces *p, int64_t at) {
  uint32_t place = 0;
  if (at <= 0 || at >= p->ends[p->n - 1]) return;
  while (p->ends[place] < at) place++;
  if (p->ends[place] == at) return;
  p->suits &= p->n < MAX_PIECES;
  if (!p->suits) return;
  memmove(&p->ends[place + 1], &p->ends[place], (p->n - place) * sizeof *p->ends);
  p->ends[place] = at;
  p->n++;
}

/* The first iteration in which the comparison has another result than in the one before. */
static void find_border(void *user, kva_kinstr *i) {
  pieces *p = user;
  const kva_expr *factor, *rest;
  int64_t sign, offset, extent = p->ends[p->n - 1];
  if (i->op == KVA_K_LOOP || i->op == KVA_K_IF) p->suits = false;
  if (!p->suits || !is_comparison(p, i)) return;
  const kva_expr *lead = kva_expr_sub(p->k->exprs, compared(p, i->args[1]), compared(p, i->args[0]));
  if (!kva_expr_affine(p->k->exprs, lead, p->loop->var, &factor, &rest)) return;
  if (!kva_expr_is_const(factor, &sign) || !kva_expr_is_const(rest, &offset)) return;
  if (offset < -extent || offset > extent) return; /* borders are outside, and numbers may be the user's */
  int64_t least = i->op == KVA_K_lt ? 1 : 0;       /* of offset + sign * variable, where it is true */
  if (sign == 1) add_border(p, least - offset);
  if (sign == -1) add_border(p, offset - least + 1);
}

static bool find_pieces(pieces *p) {
  if (p->loop->kind != KVA_K_VECTOR || p->loop->carries.len) return false;
  p->n = 1, p->suits = true;
  if (!kva_expr_is_const(p->loop->extent, &p->ends[0]) || p->ends[0] < 2 * p->lanes) return false;
  kva_k_each_instr_in(p->loop->body, find_border, p);
  for (uint32_t i = 0; i < p->n; i++) p->suits &= p->ends[i] - (i ? p->ends[i - 1] : 0) >= p->lanes;
  return p->suits && p->n > 1;
}

/* ---- what a piece knows ------------------------------------------------------------------------------------------ */

static bool is_known(const kva_kinstr *v, bool value) {
  return v->op == KVA_K_CONST && v->dtype == KVA_BOOL && (v->imm.i != 0) == value;
}

static void become_constant(kva_kinstr *i, int64_t v) {
  i->op = KVA_K_CONST;
  i->n_args = 0;
  i->index = NULL;
  i->buf = NULL;
  i->imm.i = v; /* all bits 0 is the number 0 of floats, too */
}

static void decide_comparison(const pieces *p, kva_kinstr *i) {
  kva_expr_ctx *e = p->k->exprs;
  const kva_expr *x = compared(p, i->args[0]), *y = compared(p, i->args[1]);
  bool strict = i->op == KVA_K_lt;
  if (strict ? kva_expr_provably_less(e, x, y) : kva_expr_provably_le(e, x, y))
    become_constant(i, 1);
  else if (strict ? kva_expr_provably_le(e, y, x) : kva_expr_provably_less(e, y, x))
    become_constant(i, 0);
}

/* A load that is not made has the value 0. */
static void decide_guard(kva_kinstr *i) {
  uint32_t guard = i->op == KVA_K_STORE ? 1 : 0;
  if (i->n_args <= guard) return;
  if (is_known(i->args[guard], true))
    i->n_args = guard;
  else if (is_known(i->args[guard], false) && i->op == KVA_K_STORE)
    kva_k_unlink(i);
  else if (is_known(i->args[guard], false))
    become_constant(i, 0);
}

/* The operand that i equals; NULL: another value. */
static kva_kinstr *same_as(const kva_kinstr *i) {
  if (i->op == KVA_K_select && is_known(i->args[0], true)) return i->args[1];
  if (i->op == KVA_K_select && is_known(i->args[0], false)) return i->args[2];
  if (i->op != KVA_K_and || i->dtype != KVA_BOOL) return NULL;
  for (uint32_t a = 0; a < 2; a++) {
    if (is_known(i->args[a], false)) return i->args[a];
    if (is_known(i->args[a], true)) return i->args[1 - a];
  }
  return NULL;
}

static void simplify(const pieces *p, const kva_kloop *piece) {
  kva_arena *scratch = kva_arena_create();
  kva_map *same = kva_map_create(scratch);
  for (kva_kinstr *i = piece->body->first, *next; i; i = next) {
    next = i->next;
    for (uint32_t a = 0; a < i->n_args; a++) {
      kva_kinstr *v = kva_map_get(same, &i->args[a], sizeof i->args[a]);
      if (v) i->args[a] = v;
    }
    if (is_comparison(p, i)) decide_comparison(p, i);
    if (i->op == KVA_K_LOAD || i->op == KVA_K_STORE) decide_guard(i);
    kva_kinstr *v = same_as(i);
    if (v) kva_map_set(same, &i, sizeof i, v);
  }
  kva_arena_destroy(scratch);
}

/* ---- loops ------------------------------------------------------------------------------------------------------- */

/* Iterations first .. end - 1 of the loop, before it. */
static void add_piece(const pieces *p, int64_t first, int64_t end) {
  kva_kernel *k = p->k;
  kva_kloop *copy = kva_k_copy(k, p->loop->instr, 0, NULL, NULL)->loop;
  kva_kloop *piece = kva_k_loop_create(k, KVA_K_VECTOR, kva_expr_const(k->exprs, end - first), copy->var->name);
  kva_k_insert(p->loop->instr->region, p->loop->instr, piece->instr);
  kva_sched_move(copy->body, piece->body);
  const kva_expr *from = copy->var, *to = kva_expr_addi(k->exprs, piece->var, first);
  kva_k_replace_index_in(k, piece->body, 1, &from, &to);
  simplify(p, piece);
}

static void split_in(pieces *p, kva_kregion *r) {
  for (kva_kinstr *i = r ? r->first : NULL, *next; i; i = next) {
    next = i->next;
    split_in(p, i->then);
    split_in(p, i->orelse);
    if (i->op != KVA_K_LOOP) continue;
    split_in(p, i->loop->body);
    p->loop = i->loop;
    if (!find_pieces(p)) continue;
    for (uint32_t n = 0; n < p->n; n++) add_piece(p, n ? p->ends[n - 1] : 0, p->ends[n]);
    kva_k_unlink(i);
  }
}

void kva_sched_pieces(kva_kernel *k, const kva_target *target) {
  split_in(&(pieces){.k = k, .lanes = target->vector_bytes / 4}, k->body);
}
