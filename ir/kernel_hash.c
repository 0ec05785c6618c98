/* Structural hash of a kernel. Names of buffers, variables and the kernel, ids and the place of constants play no
 * part: loop variables and values count by position, constants by value, shape symbols by name. */
#include "ir/kernel.h"

typedef struct hasher {
  uint64_t h;
  kva_map *numbers; /* instruction or loop variable -> position */
  kva_map *values;  /* value symbol -> the instruction that it stands for */
  uint32_t next;
} hasher;

static uint64_t mix(uint64_t h, uint64_t v) {
  return kva_hash(h, &v, sizeof v);
}

/* For hashes that are added up: kva_hash is nearly linear in its last bytes, so that sums of plain ones collide
 * (h(a, 1) + h(b, 16) often is h(a, 16) + h(b, 1)). The finaliser of MurmurHash3. */
static uint64_t scramble(uint64_t h) {
  h = (h ^ h >> 33) * 0xff51afd7ed558ccdull;
  h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53ull;
  return h ^ h >> 33;
}

static void add(hasher *s, uint64_t v) {
  s->h = mix(s->h, v);
}

static void number(hasher *s, const void *what) {
  kva_map_set(s->numbers, &what, sizeof what, (void *)(uintptr_t)++s->next);
}

static uint64_t number_of(const hasher *s, const void *what) {
  return (uintptr_t)kva_map_get(s->numbers, &what, sizeof what);
}

static uint64_t hash_expr(const hasher *s, const kva_expr *e);

static uint64_t hash_symbol(const hasher *s, const kva_expr *e) {
  const kva_kinstr *value = kva_map_get(s->values, &e, sizeof e);
  uint64_t n = number_of(s, value ? (const void *)value : e);
  return n ? mix(1, n) : kva_hash(2, e->name, strlen(e->name));
}

/* Terms and factors are sorted by ids, which differ between equal kernels: they combine by addition. */
static uint64_t hash_sum(const hasher *s, const kva_expr *e) {
  uint64_t terms = 0;
  for (uint32_t t = 0; t < e->n_terms; t++) {
    uint64_t factors = 0;
    for (uint32_t f = 0; f < e->terms[t].n_factors; f++) factors += scramble(hash_expr(s, e->terms[t].factors[f]));
    terms += scramble(mix(factors, (uint64_t)e->terms[t].coefficient));
  }
  return mix(mix(4, (uint64_t)e->constant), terms);
}

static uint64_t hash_expr(const hasher *s, const kva_expr *e) {
  if (e->kind == KVA_EXPR_SYMBOL) return hash_symbol(s, e);
  if (e->kind == KVA_EXPR_SUM) return hash_sum(s, e);
  if (e->kind == KVA_EXPR_OVERFLOW) return 5;
  uint64_t a = hash_expr(s, e->a), b = hash_expr(s, e->b);
  bool symmetric = e->kind == KVA_EXPR_MIN || e->kind == KVA_EXPR_MAX;
  return mix((uint64_t)e->kind + 6, symmetric ? scramble(a) + scramble(b) : mix(a, b));
}

static void add_value(hasher *s, const kva_kinstr *v) {
  if (v->op != KVA_K_CONST) {
    add(s, number_of(s, v));
    return;
  }
  add(s, (uint64_t)v->dtype << 32 | 0xffff);
  add(s, (uint64_t)v->imm.i);
}

static void add_loop(hasher *s, const kva_kloop *l) {
  add(s, (uint64_t)l->kind << 8 | (uint64_t)l->stage << 1 | l->strict_order);
  if (l->kind == KVA_K_THREAD || l->subgroup) add(s, (uint64_t)l->subgroup << 32 | l->width);
  if (l->peel) add(s, hash_expr(s, l->peel));
  if (l->blocks > 1) add(s, l->blocks);
  add(s, hash_expr(s, l->extent));
  number(s, l->var);
  for (uint32_t c = 0; c < l->carries.len; c++) {
    add(s, (uint64_t)l->carries.data[c].combine << 8 | (uint64_t)l->carries.data[c].dtype);
    add_value(s, l->carries.data[c].init);
  }
}

static void add_machine(hasher *s, const kva_kmachine *m) {
  add(s, m->op);
  for (uint32_t p = 0; p < KVA_K_MAX_PLACES && m->places[p].buf; p++) {
    add(s, m->places[p].buf->id);
    add(s, hash_expr(s, m->places[p].index));
  }
  for (uint32_t x = 0; x < KVA_K_MAX_INDICES && m->indices[x]; x++) add(s, hash_expr(s, m->indices[x]));
  for (uint32_t n = 0; n < KVA_K_MAX_NUMBERS; n++) add(s, (uint64_t)m->numbers[n]);
}

static void add_map(hasher *s, const kva_ktensor_map *m) {
  add(s, (uint64_t)m->buf->id << 32 | (uint64_t)m->rank << 16 | (uint64_t)m->swizzle);
  for (uint32_t d = 0; d < m->rank; d++) {
    add(s, hash_expr(s, m->dims[d]));
    if (d) add(s, hash_expr(s, m->strides[d]));
    add(s, (uint64_t)m->box[d]);
  }
}

static void add_region(hasher *s, const kva_kregion *r);

static void add_instr(hasher *s, const kva_kinstr *i) {
  add(s, (uint64_t)i->op << 32 | (uint64_t)i->dtype << 8 | i->n_args);
  for (uint32_t a = 0; a < i->n_args; a++) add_value(s, i->args[a]);
  if (i->index) add(s, hash_expr(s, i->index));
  if (i->buf) add(s, i->buf->id);
  if (i->op == KVA_K_LOOP) add_loop(s, i->loop);
  if (i->op == KVA_K_MACHINE) add_machine(s, i->machine);
  if (i->op == KVA_K_REDUCE || i->op == KVA_K_CARRY) add(s, mix(number_of(s, i->loop->var), i->carry));
  number(s, i);
  if (i->op == KVA_K_LOOP) {
    add_region(s, i->loop->body);
    for (uint32_t c = 0; c < i->loop->carries.len; c++) add_value(s, i->loop->carries.data[c].yield);
  }
  if (i->then) add_region(s, i->then);
  if (i->orelse) add_region(s, i->orelse);
}

static void add_region(hasher *s, const kva_kregion *r) {
  for (const kva_kinstr *i = r->first; i; i = i->next) {
    if (i->op != KVA_K_CONST) add_instr(s, i);
  }
  add(s, 0xe0d);
}

uint64_t kva_kernel_hash(const kva_kernel *k) {
  kva_arena *scratch = kva_arena_create();
  hasher s = {.numbers = kva_map_create(scratch), .values = kva_map_create(scratch)};
  for (uint32_t i = 0; i < k->values.len; i++) {
    kva_map_set(s.values, &k->value_symbols.data[i], sizeof(const kva_expr *), k->values.data[i]);
  }
  for (uint32_t i = 0; i < k->bufs.len; i++) {
    const kva_kbuf *buf = k->bufs.data[i];
    add(&s, (uint64_t)buf->space << 32 | (uint64_t)buf->dtype << 8 | (uint64_t)buf->read << 1 | buf->written);
    add(&s, hash_expr(&s, buf->extent));
    if (buf->over) add(&s, buf->over->id);
  }
  for (uint32_t i = 0; i < k->maps.len; i++) add_map(&s, &k->maps.data[i]);
  if (k->threads) add(&s, k->threads);
  if (k->blocks) add(&s, k->blocks);
  add_region(&s, k->body);
  kva_arena_destroy(scratch);
  return s.h;
}
