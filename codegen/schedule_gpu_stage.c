/* What all teams of a block load alike (angles of a rotary embedding, of all heads and sequences) goes through shared
 * memory, for THREAD loops that ask for it (kva_kloop.stage):
 *
 *   thread pair < P team 32 stage {               thread d < 64 width 4 { staged[d], cos[…]  staged[d + 64], cos[…] … }
 *     thread d < 64 width 4 { … cos[…] … }   =>   barrier
 *   }                                             thread pair < P team 32 { thread d < 64 width 4 { … staged[d] … } }
 *
 * The loads that are staged stand side by side, so that all are on their way at once. Loads with a predicate, or whose
 * index changes within a thread's work, stay. */
#include "codegen/schedule_gpu.h"

enum { MOST_BYTES = 32 << 10 };

typedef struct slot {
  kva_kinstr *load;      /* the first of those that are alike */
  const kva_expr *index; /* for lane `lane` of the staging loop */
} slot;

typedef struct staging {
  kva_kernel *k;
  kva_kloop *teams, *like; /* like: the loop over lanes that the others have to be like */
  kva_kloop *lane;         /* of the staging loop */
  KVA_VEC(slot) slots;
  KVA_VEC(kva_kinstr *) loads;
  KVA_VEC(uint32_t) slot_of; /* by load */
  bool varies;
} staging;

static kva_kloop *lanes_around(const kva_kinstr *i) {
  const kva_kinstr *owner = i->region->owner;
  bool lanes = owner && owner->op == KVA_K_LOOP && owner->loop->kind == KVA_K_THREAD && owner->loop->team <= 1;
  return lanes ? owner->loop : NULL;
}

static bool is_like(const kva_kloop *a, const kva_kloop *b) {
  return a->extent == b->extent && a->width == b->width && !a->head && !b->head;
}

static void look(void *user, const kva_expr *symbol) {
  staging *s = user;
  const kva_kregion *r = kva_k_symbol_region(s->k, symbol);
  s->varies |= r && kva_k_encloses(s->teams->body, r) && symbol != s->lane->var;
}

static void collect(void *user, kva_kinstr *i) {
  staging *s = user;
  kva_kloop *lanes = lanes_around(i);
  if (!lanes || i->op != KVA_K_LOAD || i->n_args || i->buf->written || i->buf->space != KVA_K_PARAM) return;
  if (!kva_expr_is_const(lanes->extent, NULL) || kva_dtype_bits(i->buf->dtype) < 8) return;
  if (!s->like) {
    s->like = lanes;
    s->lane = kva_k_loop_create(s->k, KVA_K_THREAD, lanes->extent, lanes->var->name);
    s->lane->width = lanes->width;
  }
  if (!is_like(lanes, s->like) || !kva_expr_uses(i->index, lanes->var)) return;
  const kva_expr *index = kva_expr_substitute(s->k->exprs, i->index, 1, &lanes->var, &s->lane->var);
  s->varies = false;
  kva_expr_each_symbol(index, look, s);
  if (s->varies) return;
  uint32_t n = 0;
  while (n < s->slots.len && (s->slots.data[n].load->buf != i->buf || s->slots.data[n].index != index)) n++;
  if (n == s->slots.len) KVA_PUSH(s->k->arena, &s->slots, ((slot){i, index}));
  KVA_PUSH(s->k->arena, &s->loads, i);
  KVA_PUSH(s->k->arena, &s->slot_of, n);
}

static int64_t lane_count(const staging *s) {
  int64_t n = 0;
  kva_expr_is_const(s->lane->extent, &n);
  return n;
}

static int64_t bytes_of(const staging *s) {
  int64_t bits = 0;
  for (uint32_t i = 0; i < s->slots.len; i++) bits += kva_dtype_bits(s->slots.data[i].load->buf->dtype);
  return bits / 8 * lane_count(s);
}

/* Room for all slots of one type. */
static kva_kbuf *room_for(const staging *s, kva_dtype dtype) {
  int64_t n = 0;
  for (uint32_t i = 0; i < s->slots.len; i++) n += s->slots.data[i].load->buf->dtype == dtype;
  return kva_sched_shared(s->k, "staged", dtype, n * lane_count(s));
}

typedef struct room {
  kva_kbuf *buf;
  int64_t first;
} room;

static void fill(const staging *s, room to, const slot *from) {
  kva_kinstr *load = kva_k_instr_create(s->k, KVA_K_LOAD, from->load->dtype),
             *store = kva_k_instr_create(s->k, KVA_K_STORE, KVA_DTYPE_NONE);
  load->buf = from->load->buf;
  load->index = from->index;
  store->buf = to.buf;
  store->index = kva_expr_addi(s->k->exprs, s->lane->var, to.first);
  store->args[store->n_args++] = load;
  kva_k_insert(s->lane->body, NULL, load);
  kva_k_insert(s->lane->body, NULL, store);
}

static void rewrite(staging *s) {
  kva_kernel *k = s->k;
  room *rooms = KVA_NEW_ARRAY(k->arena, room, s->slots.len), by_type[KVA_DTYPE_COUNT] = {{NULL, 0}};
  for (uint32_t i = 0; i < s->slots.len; i++) {
    room *here = &by_type[s->slots.data[i].load->buf->dtype];
    if (!here->buf) here->buf = room_for(s, s->slots.data[i].load->buf->dtype);
    rooms[i] = *here;
    here->first += lane_count(s);
    fill(s, rooms[i], &s->slots.data[i]);
  }
  for (uint32_t i = 0; i < s->loads.len; i++) {
    kva_kinstr *load = s->loads.data[i];
    room from = rooms[s->slot_of.data[i]];
    load->buf = from.buf;
    load->index = kva_expr_addi(k->exprs, lanes_around(load)->var, from.first);
  }
  kva_kregion *r = s->teams->instr->region;
  kva_k_insert(r, s->teams->instr, s->lane->instr);
  kva_k_insert(r, s->teams->instr, kva_k_instr_create(k, KVA_K_BARRIER, KVA_DTYPE_NONE));
}

void kva_sched_stage(kva_kernel *k) {
  for (uint32_t l = 0, n = k->loops.len; l < n; l++) {
    staging s = {.k = k, .teams = k->loops.data[l]};
    if (!s.teams->stage) continue;
    s.teams->stage = false;
    kva_k_each_instr_in(s.teams->body, collect, &s);
    if (s.slots.len && bytes_of(&s) <= MOST_BYTES) rewrite(&s);
  }
}
