/* A loop in lanes over joined tensors (concat) selects for every element from all of them: with n tensors it takes n
 * masked loads and n selections. Here it becomes n loops, whose comparisons of the loop's variable are known.
 *
 *   vector i < 96 { x = i < 64 ? a[i] : b[i - 64] }   ->   vector i < 64 { x = a[i] }; vector i < 32 { x = b[i] }
 *
 * Only at borders between pieces of at least a vector's length. Runs after loops have their kinds: what was chosen by
 * the whole loop, its order and its blocks, stays.
 *
 * Loops around those in lanes become several where many tensors are joined along their axis, before anything is chosen:
 * what a row of one does not read is not there then. */
#include "codegen/schedule_internal.h"

enum {
  MAX_PIECES = 128,
  MANY_PIECES = 8,      /* fewer cost rows less than the code for each */
  MAX_INSTRS = 1 << 15, /* of all copies before they are folded */
};

typedef struct pieces {
  kva_kernel *k;
  int64_t lanes; /* of f32 */
  const kva_kloop *loop;
  int64_t ends[MAX_PIECES]; /* increasing; the last one is the loop's extent */
  uint32_t n;
  uint32_t instrs; /* in the loop */
  bool suits;
} pieces;

/* ---- borders ----------------------------------------------------------------------------------------------------- */

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
  const kva_expr *x, *y, *factor, *rest;
  int64_t sign, offset, extent = p->ends[p->n - 1];
  if ((i->op == KVA_K_LOOP && p->loop->kind == KVA_K_VECTOR) || i->op == KVA_K_IF) p->suits = false;
  p->instrs++;
  if (!p->suits || !kva_sched_compares(p->k, i, &x, &y)) return;
  const kva_expr *lead = kva_expr_sub(p->k->exprs, y, x);
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

static void fold_comparison(const pieces *p, kva_kinstr *i) {
  kva_expr_ctx *e = p->k->exprs;
  const kva_expr *x, *y;
  if (!kva_sched_compares(p->k, i, &x, &y)) return;
  bool less = i->op == KVA_K_lt;
  bool holds = less ? kva_expr_provably_less(e, x, y) : kva_expr_provably_le(e, x, y);
  bool fails = less ? kva_expr_provably_le(e, y, x) : kva_expr_provably_less(e, y, x);
  if (holds || fails) kva_sched_become_constant(i, holds);
}

static void fold_in(const pieces *p, kva_map *same, kva_kregion *r) {
  for (kva_kinstr *i = r->first; i; i = i->next) {
    for (uint32_t a = 0; a < i->n_args; a++) {
      kva_kinstr *v = kva_map_get(same, &i->args[a], sizeof i->args[a]);
      if (v) i->args[a] = v;
    }
    if (i->op == KVA_K_LOOP) fold_in(p, same, i->loop->body);
    fold_comparison(p, i);
    kva_sched_fold_predicate(i);
    kva_kinstr *v = kva_sched_same_operand(i);
    if (v) kva_map_set(same, &i, sizeof i, v);
  }
}

static void fold(const pieces *p, const kva_kloop *piece) {
  kva_arena *scratch = kva_arena_create();
  fold_in(p, kva_map_create(scratch), piece->body);
  kva_arena_destroy(scratch);
}

/* ---- loops ------------------------------------------------------------------------------------------------------- */

/* Iterations first .. end - 1 of the loop, before it. */
static void add_piece(const pieces *p, int64_t first, int64_t end) {
  kva_kernel *k = p->k;
  kva_kloop *piece = kva_k_loop_create(k, p->loop->kind, kva_expr_const(k->exprs, end - first), p->loop->var->name);
  const kva_expr *i = kva_expr_addi(k->exprs, piece->var, first);
  kva_k_insert(p->loop->instr->region, p->loop->instr, piece->instr);
  kva_sched_move(kva_k_copy(k, p->loop->instr, 1, &p->loop->var, &i)->loop->body, piece->body);
  fold(p, piece);
}

static void split(const pieces *p) {
  for (uint32_t n = 0; n < p->n; n++) add_piece(p, n ? p->ends[n - 1] : 0, p->ends[n]);
  kva_k_unlink(p->loop->instr);
}

static void split_in(pieces *p, kva_kregion *r) {
  for (kva_kinstr *i = r ? r->first : NULL, *next; i; i = next) {
    next = i->next;
    split_in(p, i->then);
    split_in(p, i->orelse);
    if (i->op != KVA_K_LOOP) continue;
    split_in(p, i->loop->body);
    p->loop = i->loop;
    if (find_pieces(p)) split(p);
  }
}

uint32_t kva_sched_count_pieces(kva_kernel *k, const kva_kloop *l, int64_t lanes) {
  pieces p = {.k = k, .lanes = lanes, .loop = l};
  return find_pieces(&p) ? p.n : 1;
}

void kva_sched_pieces(kva_kernel *k, const kva_target *target) {
  split_in(&(pieces){.k = k, .lanes = target->vector_bytes / 4}, k->body);
}

/* NULL: there are several, or something else has effects. */
static kva_kloop *only_nest(const kva_kernel *k) {
  kva_kloop *found = NULL;
  for (kva_kinstr *i = k->body->first; i; i = i->next) {
    if (i->op != KVA_K_LOOP && !kva_sched_has_effects(i)) continue;
    if (found || i->op != KVA_K_LOOP) return NULL;
    found = i->loop;
  }
  return found;
}

bool kva_sched_cut_rows(kva_kernel *k) {
  for (kva_kloop *l = only_nest(k); l && l->kind == KVA_K_PARALLEL && !l->carries.len; l = kva_sched_sole_map(k, l)) {
    pieces p = {.k = k, .loop = l, .n = 1, .suits = true};
    if (!kva_expr_is_const(l->extent, &p.ends[0])) continue;
    kva_k_each_instr_in(l->body, find_border, &p);
    bool is_leaf = !kva_sched_sole_map(k, l);
    if (is_leaf || !p.suits || p.n < MANY_PIECES || p.n * p.instrs > MAX_INSTRS) continue;
    split(&p);
    return true;
  }
  return false;
}
