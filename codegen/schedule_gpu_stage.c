/* Stages in shared memory what the subgroups of a block would each load again, for THREAD loops that ask for it
 * (kva_kloop.stage):
 *
 *   thread pair < P subgroup 32 stage {
 *     thread d < 64 width 4 { ... cos[...] ... document[... pair ...] [... + 1] ... }
 *   }
 * =>
 *   thread d < 64 width 4 { staged[d], cos[...]  staged[d + 64], cos[...] ... }
 *   thread i < 17 * P { numbers[i], document[... i / 17 ... + i % 17] }
 *   barrier
 *   thread pair < P subgroup 32 { thread d < 64 width 4 { ... staged[d] ... numbers[17 * pair] ... } }
 *
 * Two kinds of loads are staged. Loads by lane are the same for all subgroups (angles of a rotary embedding, for all
 * heads and sequences); their copies are adjacent, so that all loads are in flight at once. Numbers are consecutive
 * elements that a subgroup would load one by one, each a whole sector (the documents of the rows). Loads whose index
 * varies within a subgroup's work are not staged. */
#include "codegen/schedule_gpu.h"

enum {
  MAX_BYTES = 32 << 10,
  FEW = 4,     /* consecutive loads that a subgroup may do itself */
  MAX_RUN = 64 /* elements of one run */
};

typedef struct slot {
  kva_kinstr *load;      /* the first of several equal ones */
  const kva_expr *index; /* at lane `lane` of the staging loop */
} slot;

/* Elements base + least, ... base + most of a buffer. */
typedef struct run {
  kva_kbuf *buf;
  const kva_expr *base;
  int64_t least, most;
  uint32_t n_loads;
} run;

/* A load that reads slot `at`, or element `offset` of run `at`. */
typedef struct staged_load {
  kva_kinstr *load;
  uint32_t at;
  int64_t offset;
} staged_load;

typedef struct staging {
  kva_kernel *k;
  kva_kloop *subgroups, *like; /* like: the loop over lanes whose form all others must have */
  kva_kloop *lane;             /* variable of the staging loop */
  KVA_VEC(slot) slots;
  KVA_VEC(staged_load) by_lane;
  KVA_VEC(run) runs;
  KVA_VEC(staged_load) numbers;
  int64_t bytes;      /* of shared memory in use */
  const kva_expr *of; /* the loop variable that the index may depend on */
  bool varies;
} staging;

static bool is_plain_load(const kva_kinstr *i) {
  bool load = i->op == KVA_K_LOAD && !i->buf->written && i->buf->space == KVA_K_PARAM;
  return load && kva_dtype_bits(i->buf->dtype) >= 8;
}

static kva_kloop *lanes_around(const kva_kinstr *i) {
  const kva_kinstr *owner = i->region->owner;
  bool lanes = owner && owner->op == KVA_K_LOOP && owner->loop->kind == KVA_K_THREAD && owner->loop->subgroup <= 1;
  return lanes ? owner->loop : NULL;
}

static bool is_like(const kva_kloop *a, const kva_kloop *b) {
  return a->extent == b->extent && a->width == b->width && !a->peel && !b->peel;
}

static void look(void *user, const kva_expr *symbol) {
  staging *s = user;
  const kva_kregion *r = kva_k_symbol_region(s->k, symbol);
  s->varies |= r && kva_k_encloses(s->subgroups->body, r) && symbol != s->of;
}

/* Of all variables inside the loop over subgroups, the index depends at most on `of`. */
static bool depends_on(staging *s, const kva_expr *index, const kva_expr *of) {
  s->of = of;
  s->varies = false;
  kva_expr_each_symbol(index, look, s);
  return !s->varies;
}

/* Every iteration over subgroups reaches r: no branch stands between. */
static bool is_certain(const staging *s, const kva_kregion *r) {
  while (r != s->subgroups->body && r->owner && r->owner->op == KVA_K_LOOP) r = r->owner->region;
  return r == s->subgroups->body;
}

static void collect_by_lane(void *user, kva_kinstr *i) {
  staging *s = user;
  kva_kloop *lanes = lanes_around(i);
  if (!lanes || !is_plain_load(i) || i->n_args || !kva_expr_is_const(lanes->extent, NULL)) return;
  if (!is_certain(s, i->region)) return;
  if (!s->like) {
    s->like = lanes;
    s->lane = kva_k_loop_create(s->k, KVA_K_THREAD, lanes->extent, lanes->var->name);
    s->lane->width = lanes->width;
  }
  if (!is_like(lanes, s->like) || !kva_expr_uses(i->index, lanes->var)) return;
  const kva_expr *index = kva_expr_substitute(s->k->exprs, i->index, 1, &lanes->var, &s->lane->var);
  if (!depends_on(s, index, s->lane->var)) return;
  uint32_t n = 0;
  while (n < s->slots.len && (s->slots.data[n].load->buf != i->buf || s->slots.data[n].index != index)) n++;
  if (n == s->slots.len) KVA_PUSH(s->k->arena, &s->slots, ((slot){i, index}));
  KVA_PUSH(s->k->arena, &s->by_lane, ((staged_load){i, n, 0}));
}

static bool joins(const staging *s, run *r, const kva_kinstr *i, int64_t *out_offset) {
  const kva_expr *by = kva_expr_sub(s->k->exprs, i->index, r->base);
  if (r->buf != i->buf || !kva_expr_is_const(by, out_offset)) return false;
  int64_t least = *out_offset < r->least ? *out_offset : r->least, most = *out_offset > r->most ? *out_offset : r->most;
  if (most - least >= MAX_RUN) return false;
  r->least = least;
  r->most = most;
  return true;
}

static void collect_number(void *user, kva_kinstr *i) {
  staging *s = user;
  int64_t offset;
  uint32_t n = 0;
  if (!is_plain_load(i) || !depends_on(s, i->index, s->subgroups->var)) return;
  while (n < s->runs.len && !joins(s, &s->runs.data[n], i, &offset)) n++;
  if (n == s->runs.len) {
    KVA_PUSH(s->k->arena, &s->runs, ((run){i->buf, i->index, 0, 0, 0}));
    offset = 0;
  }
  s->runs.data[n].n_loads++;
  KVA_PUSH(s->k->arena, &s->numbers, ((staged_load){i, n, offset}));
}

/* ---- staging by lane --------------------------------------------------------------------------------------------- */

static int64_t lane_count(const staging *s) {
  int64_t n = 0;
  kva_expr_is_const(s->lane->extent, &n);
  return n;
}

static int64_t lane_bytes(const staging *s) {
  int64_t bits = 0;
  for (uint32_t i = 0; i < s->slots.len; i++) bits += kva_dtype_bits(s->slots.data[i].load->buf->dtype);
  return bits / 8 * lane_count(s);
}

/* Shared memory for all slots of one type. */
static kva_kbuf *room_for(const staging *s, kva_dtype dtype) {
  KVA_ASSERT(kva_dtype_bits(dtype) >= 8);
  int64_t n = 0;
  for (uint32_t i = 0; i < s->slots.len; i++) n += s->slots.data[i].load->buf->dtype == dtype;
  return kva_sched_shared(s->k, "staged", dtype, n * lane_count(s));
}

typedef struct room {
  kva_kbuf *buf;
  int64_t first;
} room;

static void fill(const staging *s, kva_kloop *l, kva_kbuf *from, const kva_expr *index, kva_kbuf *to,
                 const kva_expr *at) {
  kva_kinstr *load = kva_k_instr_create(s->k, KVA_K_LOAD, kva_k_compute_type(from->dtype)),
             *store = kva_k_instr_create(s->k, KVA_K_STORE, KVA_DTYPE_NONE);
  load->buf = from;
  load->index = index;
  store->buf = to;
  store->index = at;
  store->args[store->n_args++] = load;
  kva_k_insert(l->body, NULL, load);
  kva_k_insert(l->body, NULL, store);
}

static void stage_by_lane(staging *s) {
  kva_kernel *k = s->k;
  room *rooms = KVA_NEW_ARRAY(k->arena, room, s->slots.len), by_type[KVA_DTYPE_COUNT] = {{NULL, 0}};
  for (uint32_t i = 0; i < s->slots.len; i++) {
    const slot *from = &s->slots.data[i];
    room *here = &by_type[from->load->buf->dtype];
    if (!here->buf) here->buf = room_for(s, from->load->buf->dtype);
    rooms[i] = *here;
    fill(s, s->lane, from->load->buf, from->index, here->buf, kva_expr_addi(k->exprs, s->lane->var, here->first));
    here->first += lane_count(s);
  }
  for (uint32_t i = 0; i < s->by_lane.len; i++) {
    kva_kinstr *load = s->by_lane.data[i].load;
    room from = rooms[s->by_lane.data[i].at];
    load->buf = from.buf;
    load->index = kva_expr_addi(k->exprs, lanes_around(load)->var, from.first);
  }
  kva_k_insert(s->subgroups->instr->region, s->subgroups->instr, s->lane->instr);
}

/* ---- staging runs of numbers ------------------------------------------------------------------------------------- */

static int64_t length_of(const run *r) {
  return r->most - r->least + 1;
}

static bool is_by_subgroup(const staging *s, const run *r) {
  return kva_expr_uses(r->base, s->subgroups->var);
}

/* Elements of the run for all subgroups, rounded up to whole rounds of the block if it needs several; 0: unknown. */
static int64_t number_count(const staging *s, const run *r) {
  int64_t subgroups = 1, threads = s->k->threads;
  if (is_by_subgroup(s, r) && !kva_expr_upper_bound(s->subgroups->extent, &subgroups)) return 0;
  int64_t n = subgroups * length_of(r);
  return n <= threads ? n : (n + threads - 1) / threads * threads;
}

static bool is_worth_it(const run *r) {
  return r->n_loads > FEW && length_of(r) <= 2 * (int64_t)r->n_loads;
}

/* The index of element i of the run, over all subgroups. Elements beyond the last subgroup, or of rows that a branch
 * leaves out, are clamped to the buffer: a block with work has no empty buffers. */
static const kva_expr *index_of_number(const staging *s, const run *r, const kva_expr *i) {
  kva_expr_ctx *c = s->k->exprs;
  const kva_expr *length = kva_expr_const(c, length_of(r)), *subgroup = kva_expr_div(c, i, length);
  const kva_expr *base = kva_expr_substitute(c, r->base, 1, &s->subgroups->var, &subgroup), *last = r->buf->extent;
  const kva_expr *index = kva_expr_addi(c, kva_expr_add(c, base, kva_expr_mod(c, i, length)), r->least);
  return kva_expr_max(c, kva_expr_const(c, 0), kva_expr_min(c, index, kva_expr_addi(c, last, -1)));
}

static void stage_run(staging *s, uint32_t n, int64_t count) {
  kva_expr_ctx *c = s->k->exprs;
  const run *r = &s->runs.data[n];
  kva_kbuf *to = kva_sched_shared(s->k, "numbers", r->buf->dtype, count);
  kva_kloop *l = kva_k_loop_create(s->k, KVA_K_THREAD, kva_expr_const(c, count), "i");
  fill(s, l, r->buf, index_of_number(s, r, l->var), to, l->var);
  kva_k_insert(s->subgroups->instr->region, s->subgroups->instr, l->instr);
  const kva_expr *first = kva_expr_const(c, -r->least);
  if (is_by_subgroup(s, r)) first = kva_expr_add(c, first, kva_expr_muli(c, s->subgroups->var, length_of(r)));
  for (uint32_t i = 0; i < s->numbers.len; i++) {
    const staged_load *number = &s->numbers.data[i];
    if (number->at != n) continue;
    number->load->buf = to;
    number->load->index = kva_expr_addi(c, first, number->offset);
  }
}

static bool has_room(staging *s, int64_t bytes) {
  if (!bytes || s->bytes + bytes > MAX_BYTES) return false;
  s->bytes += bytes;
  return true;
}

static void stage_loop(kva_kernel *k, kva_kloop *subgroups) {
  staging s = {.k = k, .subgroups = subgroups};
  kva_k_each_instr_in(subgroups->body, collect_by_lane, &s);
  kva_k_each_instr_in(subgroups->body, collect_number, &s);
  if (s.slots.len && has_room(&s, lane_bytes(&s))) stage_by_lane(&s);
  for (uint32_t i = 0; i < s.runs.len; i++) {
    const run *r = &s.runs.data[i];
    int64_t count = is_worth_it(r) ? number_count(&s, r) : 0;
    if (has_room(&s, count * kva_dtype_bits(r->buf->dtype) / 8)) stage_run(&s, i, count);
  }
  if (s.bytes)
    kva_k_insert(subgroups->instr->region, subgroups->instr, kva_k_instr_create(k, KVA_K_BARRIER, KVA_DTYPE_NONE));
}

void kva_sched_stage(kva_kernel *k) {
  for (uint32_t l = 0, n = k->loops.len; l < n; l++) {
    kva_kloop *subgroups = k->loops.data[l];
    if (!subgroups->stage) continue;
    subgroups->stage = false;
    stage_loop(k, subgroups);
  }
}
