/* Rows that exceed a block's registers and that several of its loops read (softmax, cross-entropy over a large
 * vocabulary). Each such loop becomes up to three:
 *
 *   the first block_form.bytes  stay in registers: llvm_keep.c keeps what the first loop loads
 *   the next `room` bytes       go to shared memory: the first loop stores them, the others load them. Loops of one
 *                               length deal the same elements to the same threads, so a thread reads its own stores
 *   the rest                    is read again
 *
 * If one block would have to read too much again, two, four or eight blocks share the row, and each keeps a part
 * (kva_kloop.blocks, llvm_blocks.c).
 *
 * A reduction continues from one of these loops to the next. For a maximum m followed by the sum of exp(x - m), the
 * rest is read once for both: each thread keeps the maximum of what it has seen and the sum relative to that maximum
 * (Milakov, Gimelshein: Online normalizer calculation for softmax, 2018), in shared memory until m is known. */
#include "codegen/schedule_gpu.h"

#include <float.h>

enum {
  MAX_LOOPS = 8,
  SHORT = 128 << 10, /* bytes of a row that registers can hold alone */
  READ_AGAIN = 12    /* less than one byte in so many may be read again */
};

/* Threads of a block, and bytes of a row that their registers hold beside what else the loops need. With fewer threads
 * each has more registers, and fewer loads are in flight. */
typedef struct block_form {
  uint32_t threads;
  int64_t bytes;
} block_form;
static const block_form usual = {512, 84 << 10}, few_threads = {256, 136 << 10};

typedef struct long_rows {
  kva_kernel *k;
  kva_kloop *loops[MAX_LOOPS]; /* loops of one length that read the row */
  uint32_t n_loops;
  int64_t length;
  kva_kbuf *buf;         /* the buffer that they read */
  const kva_expr *index; /* its index at element `element` */
  const kva_expr *element;
} long_rows;

static const kva_expr *index_in(const long_rows *s, const kva_kinstr *load, const kva_kloop *l) {
  return kva_expr_substitute(s->k->exprs, load->index, 1, &l->var, &s->element);
}

static bool is_whole(const kva_kinstr *i) {
  return i->op == KVA_K_LOAD && !i->n_args && i->buf->space == KVA_K_PARAM && !i->buf->written &&
         kva_dtype_bits(i->buf->dtype) >= 8;
}

static kva_kinstr *find_load(const long_rows *s, const kva_kloop *l) {
  for (kva_kinstr *i = l->body->first; i; i = i->next)
    if (is_whole(i) && i->buf == s->buf && index_in(s, i, l) == s->index) return i;
  return NULL;
}

static bool suits(const kva_kinstr *i, int64_t *out_length) {
  return i->op == KVA_K_LOOP && i->loop->kind == KVA_K_THREAD && i->loop->subgroup <= 1 && !i->loop->strict_order &&
         kva_expr_is_const(i->loop->extent, out_length);
}

/* Lists `first` and the loops after it in its region that read the same elements. */
static void list_loops(long_rows *s, kva_kloop *first) {
  KVA_ASSERT(first->instr->region && s->buf && s->index);
  int64_t length;
  s->n_loops = 0;
  for (kva_kinstr *i = first->instr; i && s->n_loops < MAX_LOOPS; i = i->next) {
    bool same = suits(i, &length) && length == s->length && i->loop->peel == first->peel;
    if (same && find_load(s, i->loop)) s->loops[s->n_loops++] = i->loop;
  }
}

/* Finds the first loop with a load that another loop repeats. */
static bool find(long_rows *s, const kva_kregion *r) {
  for (kva_kinstr *i = r->first; i; i = i->next) {
    if (!suits(i, &s->length)) continue;
    for (kva_kinstr *load = i->loop->body->first; load; load = load->next) {
      if (!is_whole(load) || !kva_expr_uses(load->index, i->loop->var)) continue;
      s->buf = load->buf;
      s->index = index_in(s, load, i->loop);
      list_loops(s, i->loop);
      if (s->n_loops > 1 && s->length * kva_dtype_bits(load->buf->dtype) / 8 > SHORT) return true;
    }
  }
  return false;
}

/* Cuts l to its first `count` iterations; returns a new loop after it that has the remaining ones and takes over l's
 * results. */
static kva_kloop *split(kva_kernel *k, kva_kloop *l, int64_t length, int64_t count) {
  KVA_ASSERT(count > 0 && count < length && kva_expr_is(l->extent, length));
  kva_kloop *rest = kva_k_copy(k, l->instr, 0, NULL, NULL)->loop;
  const kva_expr *behind = kva_expr_addi(k->exprs, rest->var, count);
  kva_kinstr *next = l->instr->next;
  kva_k_insert(l->instr->region, next, rest->instr);
  kva_k_replace_index(k, 1, &rest->var, &behind);
  kva_sched_retarget(k, l, rest);
  for (uint32_t c = 0; c < l->carries.len; c++) {
    kva_kinstr *so_far = kva_k_instr_create(k, KVA_K_REDUCE, l->carries.data[c].dtype);
    so_far->loop = l;
    so_far->carry = c;
    kva_k_insert(l->instr->region, rest->instr, so_far);
    rest->carries.data[c].init = so_far;
  }
  l->blocks = 0; /* l's result only initialises the reduction of `rest` */
  l->extent = kva_expr_const(k->exprs, count);
  rest->extent = kva_expr_const(k->exprs, length - count);
  return rest;
}

/* ---- blocks that share a row ------------------------------------------------------------------------------------- */

static bool leaves_little(int64_t row_bytes, int64_t kept_bytes) {
  return row_bytes * (READ_AGAIN - 1) < kept_bytes * READ_AGAIN;
}

/* The fewest blocks of the usual form that keep a whole row; 1 if one block leaves little of it, or if eight do not
 * suffice. */
static uint32_t blocks_for(const long_rows *s, int64_t room_bytes) {
  int64_t bytes = s->length * kva_dtype_bits(s->buf->dtype) / 8;
  if (leaves_little(bytes, few_threads.bytes + room_bytes)) return 1;
  for (uint32_t n = 2; n <= KVA_K_MAX_BLOCKS; n *= 2)
    if (bytes <= n * (usual.bytes + room_bytes)) return n;
  return 1;
}

/* Blocks combine only floats. The initial value enters once per block, so it must be neutral or the operation
 * idempotent. */
static bool combines(const kva_kloop *l) {
  for (uint32_t c = 0; c < l->carries.len; c++) {
    const kva_kcarry *carry = &l->carries.data[c];
    bool idempotent = carry->combine == KVA_COMBINE_MAX || carry->combine == KVA_COMBINE_MIN;
    if (carry->dtype != KVA_F32 || !(idempotent || kva_sched_is_neutral(carry->init, carry->combine))) return false;
  }
  return true;
}

static bool is_listed(const long_rows *s, const kva_kloop *l) {
  for (uint32_t i = 0; i < s->n_loops; i++)
    if (s->loops[i] == l) return true;
  return false;
}

static bool is_single(const kva_kloop *l) {
  return kva_expr_is(l->extent, 1) && !l->carries.len;
}

/* Besides the loops over the row, the block has only single stores: a barrier orders accesses within a block, but
 * nothing orders them between blocks. */
static bool may_share(const long_rows *s) {
  const kva_kregion *r = s->loops[0]->instr->region;
  if (!r->owner || r->owner->op != KVA_K_LOOP || r->owner->loop->kind != KVA_K_GRID || r->parent != s->k->body)
    return false;
  for (const kva_kinstr *i = r->first; i; i = i->next) {
    if (i->op == KVA_K_IF || i->op == KVA_K_STORE || i->op == KVA_K_BARRIER) return false;
    if (i->op != KVA_K_LOOP) continue;
    if (is_listed(s, i->loop) ? !combines(i->loop) : !is_single(i->loop)) return false;
  }
  for (const kva_kinstr *i = s->k->body->first; i; i = i->next)
    if (i->op == KVA_K_LOOP && i->loop != r->owner->loop) return false;
  return true;
}

/* Only the block of the first part does the single stores: a second store could overwrite a result while another block
 * still reads it. */
static void store_once(const kva_kregion *r, const kva_expr *is_first) {
  for (const kva_kinstr *i = r->first; i; i = i->next)
    if (i->op == KVA_K_LOOP && is_single(i->loop)) i->loop->extent = is_first;
}

/* l gets the iterations of its block's part. The first part also takes the row's end, which does not divide into whole
 * sectors for every block. */
static void share_loop(const long_rows *s, kva_kloop *l, uint32_t blocks, const kva_expr *part,
                       const kva_expr *is_first) {
  kva_expr_ctx *c = s->k->exprs;
  int64_t each = s->length / (blocks * KVA_K_PEEL) * KVA_K_PEEL, left = s->length - each * blocks;
  kva_kloop *last = left ? split(s->k, l, s->length, s->length - left) : l;
  if (left) last->extent = kva_expr_muli(c, is_first, left);
  const kva_expr *r = kva_expr_add(c, kva_expr_muli(c, part, each), l->var);
  kva_k_replace_index(s->k, 1, &l->var, &r);
  l->extent = kva_expr_const(c, each);
  if (l->carries.len) last->blocks = blocks;
}

/* Splits each row into parts, one block each, consecutive blocks for one row; returns the body of a block. */
static kva_kregion *share(const long_rows *s, uint32_t blocks) {
  kva_expr_ctx *c = s->k->exprs;
  kva_kloop *rows = s->loops[0]->instr->region->owner->loop;
  kva_kloop *parts = kva_k_loop_create(s->k, KVA_K_GRID, kva_expr_muli(c, rows->extent, blocks), "part");
  kva_k_insert(s->k->body, rows->instr, parts->instr);
  kva_sched_move(rows->body, parts->body);
  kva_k_unlink(rows->instr);
  const kva_expr *n = kva_expr_const(c, blocks), *row = kva_expr_div(c, parts->var, n), *one = kva_expr_const(c, 1);
  const kva_expr *part = kva_expr_mod(c, parts->var, n), *is_first = kva_expr_sub(c, one, kva_expr_min(c, one, part));
  kva_k_replace_index(s->k, 1, &rows->var, &row);
  store_once(parts->body, is_first);
  for (uint32_t i = 0; i < s->n_loops; i++) share_loop(s, s->loops[i], blocks, part, is_first);
  return parts->body;
}

/* ---- rows in shared memory --------------------------------------------------------------------------------------- */

/* Aligned lanes of the row are aligned in shared memory, too. */
static const kva_expr *place_in_room(kva_kernel *k, const kva_kloop *l) {
  if (!l->peel) return l->var;
  return kva_expr_add(k->exprs, l->var, kva_expr_sub(k->exprs, kva_expr_const(k->exprs, KVA_K_PEEL), l->peel));
}

static void keep(long_rows *s, kva_kloop *l, kva_kbuf *room, bool is_first, int64_t start) {
  kva_kernel *k = s->k;
  const kva_expr *index = s->index, *behind = kva_expr_addi(k->exprs, s->element, start);
  s->index = kva_expr_substitute(k->exprs, index, 1, &s->element, &behind);
  kva_kinstr *load = find_load(s, l);
  s->index = index;
  KVA_ASSERT(load);
  if (!is_first) {
    load->buf = room;
    load->index = place_in_room(k, l);
    return;
  }
  kva_kinstr *store = kva_k_instr_create(k, KVA_K_STORE, KVA_DTYPE_NONE);
  store->buf = room;
  store->index = place_in_room(k, l);
  store->args[store->n_args++] = load;
  kva_k_insert(l->body, load->next, store);
}

/* ---- online softmax over the rest -------------------------------------------------------------------------------- */

static kva_kinstr *append(kva_kernel *k, kva_kregion *r, kva_kop op, kva_dtype dtype, uint32_t n, kva_kinstr **args) {
  kva_kinstr *i = kva_k_instr_create(k, op, dtype);
  for (uint32_t a = 0; a < n; a++) i->args[a] = args[a];
  i->n_args = n;
  kva_k_insert(r, NULL, i);
  return i;
}

static kva_kinstr *exp_of_difference(kva_kernel *k, kva_kregion *r, kva_kinstr *x, kva_kinstr *y) {
  kva_kinstr *difference = append(k, r, KVA_K_sub, x->dtype, 2, (kva_kinstr *[]){x, y});
  return append(k, r, KVA_K_exp, x->dtype, 1, &difference);
}

/* The result of a carry, or its previous value inside the loop. */
static kva_kinstr *carried(kva_kernel *k, kva_kregion *r, kva_kop op, kva_kloop *l, uint32_t carry) {
  kva_kinstr *i = append(k, r, op, l->carries.data[carry].dtype, 0, NULL);
  i->loop = l;
  i->carry = carry;
  return i;
}

static kva_kinstr *access(kva_kernel *k, kva_kregion *r, kva_kbuf *buf, const kva_expr *index, kva_kinstr *stored,
                          kva_dtype dtype) {
  kva_kinstr *i =
      append(k, r, stored ? KVA_K_STORE : KVA_K_LOAD, stored ? KVA_DTYPE_NONE : dtype, stored ? 1 : 0, &stored);
  i->buf = buf;
  i->index = index;
  return i;
}

/* max reduces over a load, sum over exp(the same load - max's result), and neither does anything else. */
static bool is_softmax(const long_rows *s, const kva_kloop *max, const kva_kloop *sum) {
  if (max->carries.len != 1 || sum->carries.len != 1) return false;
  if (kva_sched_has_effects(max->instr) || kva_sched_has_effects(sum->instr)) return false;
  const kva_kinstr *x = max->carries.data[0].yield, *e = sum->carries.data[0].yield;
  bool combine = max->carries.data[0].combine == KVA_COMBINE_MAX && sum->carries.data[0].combine == KVA_COMBINE_ADD;
  if (!combine || !is_whole(x) || e->op != KVA_K_exp || e->args[0]->op != KVA_K_sub) return false;
  const kva_kinstr *same = e->args[0]->args[0], *m = e->args[0]->args[1];
  if (!is_whole(same) || same->buf != x->buf || index_in(s, same, sum) != index_in(s, x, max)) return false;
  return m->op == KVA_K_REDUCE && m->loop == max;
}

/* One thread's share of the rest: the running maximum, and the sum relative to it. */
static kva_kloop *share_of_rest(kva_kernel *k, kva_kloop *t, const kva_kloop *max, int64_t length) {
  kva_expr_ctx *c = k->exprs;
  const kva_kinstr *from = max->carries.data[0].yield;
  kva_dtype type = from->dtype;
  const kva_expr *threads = kva_expr_const(c, k->threads), *left = kva_expr_sub(c, kva_expr_const(c, length), t->var);
  kva_kinstr *lowest = append(k, t->body, KVA_K_CONST, type, 0, NULL),
             *zero = append(k, t->body, KVA_K_CONST, type, 0, NULL);
  lowest->imm.f = type == KVA_F64 ? -DBL_MAX : -FLT_MAX;
  zero->imm.f = 0;
  kva_kloop *l = kva_k_loop_create(k, KVA_K_SERIAL, kva_expr_ceildiv(c, left, threads), "j");
  kva_k_insert(t->body, NULL, l->instr);
  KVA_PUSH(k->arena, &l->carries, ((kva_kcarry){KVA_COMBINE_NONE, type, lowest, NULL}));
  KVA_PUSH(k->arena, &l->carries, ((kva_kcarry){KVA_COMBINE_NONE, type, zero, NULL}));
  const kva_expr *at = kva_expr_add(c, kva_expr_mul(c, l->var, threads), t->var);
  kva_kinstr *x = access(k, l->body, from->buf, kva_expr_substitute(c, from->index, 1, &max->var, &at), NULL, type);
  kva_kinstr *before = carried(k, l->body, KVA_K_CARRY, l, 0), *sum = carried(k, l->body, KVA_K_CARRY, l, 1);
  kva_kinstr *most = append(k, l->body, KVA_K_max, type, 2, (kva_kinstr *[]){before, x});
  kva_kinstr *scale = exp_of_difference(k, l->body, before, most), *term = exp_of_difference(k, l->body, x, most);
  l->carries.data[0].yield = most;
  l->carries.data[1].yield = append(k, l->body, KVA_K_fma, type, 3, (kva_kinstr *[]){sum, scale, term});
  return l;
}

/* Replaces l by a loop over threads. */
static kva_kloop *threads_instead(kva_kernel *k, kva_kloop *l, kva_combine combine, kva_dtype type) {
  kva_kloop *t = kva_k_loop_create(k, KVA_K_THREAD, kva_expr_const(k->exprs, k->threads), "t");
  KVA_PUSH(k->arena, &t->carries, ((kva_kcarry){combine, type, l->carries.data[0].init, NULL}));
  kva_k_insert(l->instr->region, l->instr, t->instr);
  kva_sched_retarget(k, l, t);
  kva_k_unlink(l->instr);
  return t;
}

static void read_rest_once(kva_kernel *k, kva_kloop *max, kva_kloop *sum, int64_t length) {
  kva_dtype type = max->carries.data[0].dtype;
  kva_kbuf *maxima = kva_sched_shared(k, "kept", type, k->threads),
           *sums = kva_sched_shared(k, "kept", type, k->threads);
  kva_kinstr *m = sum->carries.data[0].yield->args[0]->args[1];
  kva_kloop *t = threads_instead(k, max, KVA_COMBINE_MAX, type), *share = share_of_rest(k, t, max, length);
  t->carries.data[0].yield = carried(k, t->body, KVA_K_REDUCE, share, 0);
  access(k, t->body, maxima, t->var, t->carries.data[0].yield, type);
  access(k, t->body, sums, t->var, carried(k, t->body, KVA_K_REDUCE, share, 1), type);
  t = threads_instead(k, sum, KVA_COMBINE_ADD, type);
  kva_kinstr *own = access(k, t->body, sums, t->var, NULL, type),
             *most = access(k, t->body, maxima, t->var, NULL, type);
  kva_kinstr *scale = exp_of_difference(k, t->body, most, m);
  t->carries.data[0].yield = append(k, t->body, KVA_K_mul, type, 2, (kva_kinstr *[]){own, scale});
}

/* The form with more threads, if it leaves little of a row to be read again. */
static block_form choose_form(int64_t row_bytes, int64_t room_bytes) {
  return leaves_little(row_bytes, usual.bytes + room_bytes) ? usual : few_threads;
}

static void keep_rows(long_rows *s, int64_t room_bytes) {
  kva_kernel *k = s->k;
  int64_t bytes = kva_dtype_bits(s->buf->dtype) / 8;
  block_form form = choose_form(s->length * bytes, room_bytes);
  int64_t registers = form.bytes / bytes, left = s->length - registers;
  int64_t kept = left < room_bytes / bytes ? left : room_bytes / bytes;
  k->threads = form.threads;
  k->blocks = 1;
  kva_kbuf *room = kva_sched_shared(k, "kept", s->buf->dtype, kept + (s->loops[0]->peel ? KVA_K_PEEL : 0));
  kva_kloop *rest[MAX_LOOPS] = {NULL};
  for (uint32_t i = 0; i < s->n_loops; i++) {
    kva_kloop *l = split(k, s->loops[i], s->length, registers);
    if (kept < left) rest[i] = split(k, l, left, kept);
    keep(s, l, room, i == 0, registers);
  }
  if (kept < left && is_softmax(s, rest[0], rest[1])) read_rest_once(k, rest[0], rest[1], left - kept);
}

static bool keep_in(kva_kernel *k, kva_kregion *r, int64_t room_bytes) {
  long_rows s = {.k = k, .element = kva_expr_fresh(k->exprs, "element", 0, NULL)};
  if (find(&s, r)) {
    uint32_t blocks = blocks_for(&s, room_bytes);
    bool shared = blocks > 1 && may_share(&s);
    if (shared && !find(&s, share(&s, blocks))) return true; /* registers alone hold a part */
    keep_rows(&s, room_bytes);
    return true;
  }
  for (kva_kinstr *i = r->first; i; i = i->next) {
    bool block = i->op == KVA_K_LOOP && i->loop->kind != KVA_K_THREAD;
    if (block && keep_in(k, i->loop->body, room_bytes)) return true;
    if (i->op == KVA_K_IF && (keep_in(k, i->then, room_bytes) || keep_in(k, i->orelse, room_bytes))) return true;
  }
  return false;
}

void kva_sched_keep_long(kva_kernel *k, const kva_target *target) {
  keep_in(k, k->body, target->row_bytes);
}
