/* Straight code that reads neighbours: a row and the one before it (KV shifting), an element and its partner in the
 * other half of the row (rotary embeddings), angles that all heads share. A thread for every element would load each of
 * them several times. So a thread takes both halves, ROWS rows that follow each other, and all iterations of a loop
 * that some loads do not depend on:
 *
 *   for each block of ROWS rows c ..., a team    for each j < half the row
 *     if the block is whole:  for each head h { the body for rows ROWS c + 0, 1 ... and both halves, as straight code }
 *     else:                   for each head h, for each row left { the body for both halves }
 *
 * What copies of the body compute alike is computed once. Comparisons of indices that hold, or fail, in a copy are
 * constants there. */
#include "codegen/schedule_gpu.h"

enum { ROWS = 16, MAX_LOOPS = 32, MAX_BODY = 64, LARGE_BODY = 40, ACCESS_BYTES = 8 };

typedef struct neighbours {
  kva_kernel *k;
  uint32_t n;
  kva_kloop **nest;
  kva_kloop *leaf, *time, *heads; /* time, heads: NULL for none */
  kva_kloop *blocks, *lane;       /* of time, of a part of the leaf */
  int64_t halves, half;           /* how many parts the leaf's row has, their length */
  uint32_t width;
  kva_kinstr **copies; /* by id of an instruction of the body: its latest copy */
} neighbours;

/* ---- what there is
 * --------------------------------------------------------------------------------------------------------- */

static uint32_t length_of(const kva_kregion *r) {
  uint32_t n = 0;
  for (const kva_kinstr *i = r->first; i; i = i->next) n++;
  return n;
}

static bool is_straight(const kva_kregion *r) {
  for (const kva_kinstr *i = r->first; i; i = i->next)
    if (i->op == KVA_K_LOOP || i->op == KVA_K_IF || i->op == KVA_K_BARRIER || i->op == KVA_K_CARRY) return false;
  return length_of(r) <= MAX_BODY;
}

static bool is_row_load(const neighbours *s, const kva_kinstr *i) {
  return i->op == KVA_K_LOAD && !i->buf->written && kva_expr_uses(i->index, s->leaf->var);
}

/* Some load is what another one is where the loop's variable is `to`. */
static bool meets(const neighbours *s, const kva_kloop *l, const kva_expr *to) {
  for (const kva_kinstr *i = s->leaf->body->first; i; i = i->next) {
    if (!is_row_load(s, i)) continue;
    const kva_expr *moved = kva_expr_substitute(s->k->exprs, i->index, 1, &l->var, &to);
    for (const kva_kinstr *o = s->leaf->body->first; o && moved != i->index; o = o->next)
      if (is_row_load(s, o) && o->buf == i->buf && o->index == moved) return true;
  }
  return false;
}

static bool is_shared_by(const neighbours *s, const kva_kloop *l) {
  for (const kva_kinstr *i = s->leaf->body->first; i; i = i->next)
    if (is_row_load(s, i) && !kva_expr_uses(i->index, l->var)) return true;
  return false;
}

static void find_halves(neighbours *s, int64_t extent) {
  kva_expr_ctx *c = s->k->exprs;
  const kva_expr *whole = kva_expr_const(c, extent);
  s->halves = 1;
  if (extent % 2 == 0 && meets(s, s->leaf, kva_expr_mod(c, kva_expr_addi(c, s->leaf->var, extent / 2), whole)))
    s->halves = 2;
  s->half = extent / s->halves;
}

static void find_loops(neighbours *s) {
  for (uint32_t d = 0; d + 1 < s->n; d++) {
    kva_kloop *l = s->nest[d];
    if (!s->time && meets(s, l, kva_expr_addi(s->k->exprs, l->var, 1))) s->time = l;
  }
  for (uint32_t d = 0; d + 1 < s->n && s->n > 2; d++)
    if (s->nest[d] != s->time && is_shared_by(s, s->nest[d])) s->heads = s->nest[d];
}

static bool find_team(neighbours *s) {
  int bytes = kva_sched_widest_element(s->leaf->body);
  s->width = kva_sched_width(s->k, s->leaf);
  while (s->width > 1 && (s->half % s->width || s->width * (uint32_t)bytes > ACCESS_BYTES)) s->width /= 2;
  int64_t team = s->half / s->width;
  return s->width > 1 && team > 1 && team <= 32 && !(team & (team - 1));
}

static bool find(neighbours *s) {
  int64_t extent;
  if (s->n < 2 || s->n > MAX_LOOPS || !kva_expr_is_const(s->leaf->extent, &extent)) return false;
  if (!is_straight(s->leaf->body) || !kva_sched_is_rectangular(s->k, s->n, s->nest)) return false;
  find_halves(s, extent);
  find_loops(s);
  return (s->halves > 1 || s->time) && find_team(s);
}

/* ---- copies of the body
 * ------------------------------------------------------------------------------------------------- */

static const kva_expr *index_of(const neighbours *s, const kva_kinstr *i) {
  if (i->op == KVA_K_INDEX) return i->index;
  return i->op == KVA_K_CONST && !kva_dtype_is_float(i->dtype) ? kva_expr_const(s->k->exprs, i->imm.i) : NULL;
}

/* A comparison of indices that is the same for all threads becomes a constant. */
static void decide(neighbours *s, kva_kinstr *i) {
  if (i->op != KVA_K_lt && i->op != KVA_K_le) return;
  const kva_expr *x = index_of(s, i->args[0]), *y = index_of(s, i->args[1]);
  if (!x || !y) return;
  kva_expr_ctx *c = s->k->exprs;
  bool less = i->op == KVA_K_lt;
  bool holds = less ? kva_expr_provably_less(c, x, y) : kva_expr_provably_le(c, x, y);
  bool fails = less ? kva_expr_provably_le(c, y, x) : kva_expr_provably_less(c, y, x);
  if (!holds && !fails) return;
  i->op = KVA_K_CONST;
  i->n_args = 0;
  i->args[0] = i->args[1] = NULL;
  i->imm.i = holds;
}

static void decide_load(kva_kinstr *i) {
  if (i->op != KVA_K_LOAD || !i->n_args || i->args[0]->op != KVA_K_CONST || !i->args[0]->imm.i) return;
  i->n_args = 0;
  i->args[0] = NULL;
}

/* A selection by a constant is one of its values. */
static kva_kinstr *chosen(kva_kinstr *i) {
  if (i->op != KVA_K_select || i->args[0]->op != KVA_K_CONST) return NULL;
  return i->args[0]->imm.i ? i->args[1] : i->args[2];
}

/* An instruction of r that computes what i does; NULL: none. */
static kva_kinstr *find_same(const kva_kregion *r, const kva_kinstr *i) {
  if (i->op == KVA_K_STORE || (i->op == KVA_K_LOAD && i->buf->written)) return NULL;
  for (kva_kinstr *o = r->first; o; o = o->next) {
    bool same = o->op == i->op && o->dtype == i->dtype && o->n_args == i->n_args && o->index == i->index &&
                o->buf == i->buf && o->imm.i == i->imm.i;
    for (uint32_t a = 0; same && a < i->n_args; a++) same = o->args[a] == i->args[a];
    if (same) return o;
  }
  return NULL;
}

static void copy_body(neighbours *s, kva_kregion *to, const kva_expr *row, int64_t part, const kva_expr *head) {
  kva_expr_ctx *c = s->k->exprs;
  const kva_expr *from[3] = {s->leaf->var}, *with[3] = {kva_expr_addi(c, s->lane->var, part * s->half)};
  uint32_t n = 1;
  if (row) from[n] = s->time->var, with[n++] = row;
  if (head) from[n] = s->heads->var, with[n++] = head;
  for (const kva_kinstr *i = s->leaf->body->first; i; i = i->next) {
    kva_kinstr *copy = kva_k_instr_create(s->k, i->op, i->dtype);
    copy->n_args = i->n_args;
    for (uint32_t a = 0; a < i->n_args; a++)
      copy->args[a] = i->args[a]->region == i->region ? s->copies[i->args[a]->id] : i->args[a];
    copy->imm = i->imm;
    copy->buf = i->buf;
    if (i->index) copy->index = kva_expr_substitute(c, i->index, n, from, with);
    decide(s, copy);
    decide_load(copy);
    kva_kinstr *same = chosen(copy);
    if (!same) same = find_same(to, copy);
    if (!same) kva_k_insert(to, NULL, copy);
    s->copies[i->id] = same ? same : copy;
  }
}

static kva_kregion *in_loop(neighbours *s, kva_kregion *r, const kva_expr *extent, const char *name,
                            const kva_expr **out_var) {
  kva_kloop *l = kva_k_loop_create(s->k, KVA_K_SERIAL, extent, name);
  kva_k_insert(r, NULL, l->instr);
  *out_var = l->var;
  return l->body;
}

static void whole_block(neighbours *s, kva_kregion *r) {
  kva_expr_ctx *c = s->k->exprs;
  const kva_expr *head = NULL;
  if (s->heads) r = in_loop(s, r, s->heads->extent, "head", &head);
  for (int64_t i = 0; i < (s->time ? ROWS : 1); i++) {
    const kva_expr *row = s->time ? kva_expr_addi(c, kva_expr_muli(c, s->blocks->var, ROWS), i) : NULL;
    for (int64_t part = 0; part < s->halves; part++) copy_body(s, r, row, part, head);
  }
}

static void rest_of_block(neighbours *s, kva_kregion *r) {
  kva_expr_ctx *c = s->k->exprs;
  const kva_expr *head = NULL, *row, *first = kva_expr_muli(c, s->blocks->var, ROWS);
  if (s->heads) r = in_loop(s, r, s->heads->extent, "head", &head);
  r = in_loop(s, r, kva_expr_sub(c, s->time->extent, first), "left", &row);
  for (int64_t part = 0; part < s->halves; part++) copy_body(s, r, kva_expr_add(c, first, row), part, head);
}

static void body_of_block(neighbours *s, kva_kregion *r) {
  kva_expr_ctx *c = s->k->exprs;
  if (!s->time || kva_expr_is(kva_expr_mod(c, s->time->extent, kva_expr_const(c, ROWS)), 0)) {
    whole_block(s, r);
    return;
  }
  const kva_expr *end = kva_expr_addi(c, kva_expr_muli(c, s->blocks->var, ROWS), ROWS);
  kva_kinstr *test = kva_k_instr_create(s->k, KVA_K_le, KVA_BOOL),
             *branch = kva_k_instr_create(s->k, KVA_K_IF, KVA_DTYPE_NONE);
  test->args[0] = kva_sched_index_value(s->k, r, end);
  test->args[1] = kva_sched_index_value(s->k, r, s->time->extent);
  test->n_args = 2;
  kva_k_insert(r, NULL, test);
  branch->args[0] = test;
  branch->n_args = 1;
  branch->then = kva_k_region_create(s->k, branch);
  branch->orelse = kva_k_region_create(s->k, branch);
  kva_k_insert(r, NULL, branch);
  whole_block(s, branch->then);
  rest_of_block(s, branch->orelse);
}

/* ---- the nest
 * -------------------------------------------------------------------------------------------------------------- */

/* The rows that teams take; of the loops that stay only extent and variable count. */
static uint32_t list_rows(neighbours *s, kva_kloop **rows) {
  uint32_t n = 0;
  for (uint32_t d = 0; d + 1 < s->n; d++)
    if (s->nest[d] != s->heads) rows[n++] = s->nest[d] == s->time ? s->blocks : s->nest[d];
  return n;
}

static void rewrite(neighbours *s, int64_t threads) {
  kva_kernel *k = s->k;
  const kva_expr *side = kva_expr_const(k->exprs, ROWS);
  if (s->time) s->blocks = kva_k_loop_create(k, KVA_K_MAP, kva_expr_ceildiv(k->exprs, s->time->extent, side), "block");
  s->lane = kva_k_loop_create(k, KVA_K_THREAD, kva_expr_const(k->exprs, s->half), s->leaf->var->name);
  s->lane->width = s->width;
  kva_kloop *rows[MAX_LOOPS];
  uint32_t n = list_rows(s, rows);
  kva_kinstr *old = s->nest[0]->instr;
  for (uint32_t d = 1; d < s->n; d++) kva_k_unlink(s->nest[d]->instr);
  if (rows[0]->instr != old) kva_k_insert(old->region, old, rows[0]->instr);
  if (rows[0]->instr != old) kva_k_unlink(old);
  kva_k_insert(rows[n - 1]->body, NULL, s->lane->instr);
  body_of_block(s, s->lane->body);
  int64_t team = s->half / s->width;
  kva_kloop *grid = kva_sched_grid(k, n, rows, rows, kva_expr_const(k->exprs, threads / team));
  kva_kloop *row = grid->body->first->loop;
  row->kind = KVA_K_THREAD;
  row->team = (uint32_t)team;
}

bool kva_sched_neighbours(kva_kernel *k, uint32_t n, kva_kloop **nest, int64_t threads) {
  neighbours s = {.k = k, .n = n, .nest = nest, .leaf = nest[n - 1]};
  if (!find(&s)) return false;
  if (length_of(s.leaf->body) > LARGE_BODY) k->blocks = 1; /* with registers for all rows of many taps */
  s.copies = KVA_NEW_ARRAY(k->arena, kva_kinstr *, k->next_id + 1);
  rewrite(&s, threads);
  return true;
}
