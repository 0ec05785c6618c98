/* The list of dialects, lookup and creation of their instructions, and helpers of their verifiers. */
#include "ir/dialect.h"
#include "ir/kernel_internal.h"

static const kva_dialect *const dialects[KVA_DIALECT_COUNT] = {[KVA_DIALECT_TILE] = &kva_dialect_tile,
                                                               [KVA_DIALECT_NV] = &kva_dialect_nv,
                                                               [KVA_DIALECT_AMX] = &kva_dialect_amx,
                                                               [KVA_DIALECT_CPU] = &kva_dialect_cpu};

const kva_dialect *kva_intrinsic_dialect(kva_intrinsic_id id) {
  uint32_t number = id / KVA_DIALECT_SIZE;
  return number < KVA_DIALECT_COUNT && id % KVA_DIALECT_SIZE < dialects[number]->n_rows ? dialects[number] : NULL;
}

const kva_intrinsic_info *kva_intrinsic_get(kva_intrinsic_id id) {
  const kva_dialect *d = kva_intrinsic_dialect(id);
  return d ? &d->rows[id % KVA_DIALECT_SIZE] : NULL;
}

static bool find_in(const kva_dialect *d, const char *name, bool value, uint32_t *out_row) {
  for (uint32_t i = 0; i < d->n_rows; i++) {
    if (value != (d->rows[i].type != KVA_DTYPE_NONE) || strcmp(d->rows[i].name, name) != 0) continue;
    *out_row = i;
    return true;
  }
  return false;
}

bool kva_intrinsic_find(const char *name, bool value, kva_intrinsic_id *out_id) {
  for (uint32_t d = 0, row; d < KVA_DIALECT_COUNT; d++) {
    if (!find_in(dialects[d], name, value, &row)) continue;
    *out_id = KVA_DIALECT_FIRST(d) + row;
    return true;
  }
  return false;
}

bool kva_intrinsic_suits(kva_intrinsic_id id, const kva_target *target) {
  return target->kind == kva_intrinsic_dialect(id)->kind && kva_target_has(target, kva_intrinsic_get(id)->features);
}

uint32_t kva_intrinsic_count(const kva_intrinsic_info *info, const char *letters) {
  uint32_t n = 0;
  for (const char *kind = info->operands; *kind; kind++) n += *kind != '+' && strchr(letters, *kind);
  return n;
}

/* ---- creation ---------------------------------------------------------------------------------------------------- */

/* Sets the access flags of the buffers that the letters imply. */
static void mark_accesses(const kva_intrinsic_info *info, const kva_kintrinsic *m) {
  uint32_t p = 0;
  for (const char *kind = info->operands; *kind; kind++) {
    if (!kva_is_place(*kind)) continue;
    kva_kbuf *buf = m->places[p++].buf;
    KVA_ASSERT(buf);
    buf->read |= !strchr("SL", *kind);
    buf->written |= strchr("SLBm", *kind) != NULL;
  }
}

kva_kval kva_k_intrinsic(kva_kb *b, const kva_kintrinsic *m, kva_kval float_value) {
  const kva_intrinsic_info *info = kva_intrinsic_get(m->op);
  KVA_ASSERT(info && (float_value != NULL) == (kva_intrinsic_count(info, "v") == 1));
  kva_kinstr *i = kva_k_instr_create(b->kernel, KVA_K_INTRINSIC, info->type);
  i->intrinsic = kva_arena_memdup(b->arena, m, sizeof *m);
  if (float_value) i->args[i->n_args++] = kva_kb_resolve(float_value);
  mark_accesses(info, m);
  kva_kb_link(b, b->region, i);
  return i->dtype == KVA_DTYPE_NONE ? NULL : i;
}

int32_t kva_k_tensor_map(kva_kb *b, const kva_ktensor_map *map) {
  KVA_ASSERT(map->buf->space == KVA_K_PARAM && map->rank >= 1 && map->rank <= KVA_K_TENSOR_MAP_RANK);
  KVA_PUSH(b->arena, &b->kernel->maps, *map);
  return (int32_t)b->kernel->maps.len - 1;
}

/* ---- for the verifiers of dialects ------------------------------------------------------------------------------- */

static const kva_kloop *thread_loop_around(const kva_kinstr *i) {
  for (const kva_kinstr *o = i->region->owner; o; o = o->region->owner) {
    if (o->op == KVA_K_LOOP && o->loop->kind == KVA_K_THREAD) return o->loop;
  }
  return NULL;
}

uint32_t kva_dialect_threads(const kva_kernel *k, const kva_kinstr *i) {
  const kva_kloop *l = thread_loop_around(i), *outer = l ? thread_loop_around(l->instr) : NULL;
  uint32_t threads = outer ? outer->subgroup : k->threads;
  return l && l->subgroup <= 1 && l->width <= 1 && kva_expr_is(l->extent, threads) ? threads : 0;
}

bool kva_place_is_misaligned(const kva_kplace *p, int64_t n) {
  KVA_ASSERT(n > 0);
  int64_t bits = kva_dtype_bits(p->buf->dtype), period = 8 * n / bits;
  if (p->index->kind != KVA_EXPR_SUM || period < 2) return false;
  for (uint32_t t = 0; t < p->index->n_terms; t++)
    if (p->index->terms[t].coefficient % period) return false;
  return p->index->constant % period != 0;
}

bool kva_place_is_outside(const kva_kplace *p, int64_t n) {
  int64_t first, extent;
  if (!kva_expr_is_const(p->index, &first) || !kva_expr_is_const(p->buf->extent, &extent)) return false;
  return first < 0 || first > extent - n;
}

bool kva_is_half(kva_dtype t) {
  return t == KVA_F16 || t == KVA_BF16;
}
