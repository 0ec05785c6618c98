/* The table of the machine's instructions, and making them. */
#include "ir/kernel_internal.h"

static const struct row {
  const char *name, *operands;
  kva_dtype type;
} rows[] = {
#define ROW(name, type, operands) {#name, operands, type},
    KVA_K_MACHINES(ROW)
#undef ROW
};

const char *kva_kmop_name(kva_kmop op) {
  return rows[op].name;
}

const char *kva_kmop_operands(kva_kmop op) {
  return rows[op].operands;
}

kva_dtype kva_kmop_type(kva_kmop op) {
  return rows[op].type;
}

uint32_t kva_kmop_count(kva_kmop op, const char *letters) {
  uint32_t n = 0;
  for (const char *kind = rows[op].operands; *kind; kind++) n += *kind != '+' && strchr(letters, *kind);
  return n;
}

/* What the letters say of the buffers. */
static void mark_accesses(const kva_kmachine *m) {
  uint32_t p = 0;
  for (const char *kind = rows[m->op].operands; *kind; kind++) {
    if (!strchr(KVA_KMOP_PLACES, *kind)) continue;
    kva_kbuf *buf = m->places[p++].buf;
    buf->read |= !strchr("SL", *kind);
    buf->written |= strchr("SLBm", *kind) != NULL;
  }
}

kva_kval kva_k_machine(kva_kb *b, const kva_kmachine *m, kva_kval float_value) {
  kva_kinstr *i = kva_k_instr_create(b->kernel, KVA_K_MACHINE, rows[m->op].type);
  i->machine = kva_arena_memdup(b->arena, m, sizeof *m);
  if (float_value) i->args[i->n_args++] = kva_kb_resolve(float_value);
  mark_accesses(m);
  kva_kb_link(b, b->region, i);
  return i->dtype == KVA_DTYPE_NONE ? NULL : i;
}

int32_t kva_k_tensor_map(kva_kb *b, const kva_ktensor_map *map) {
  KVA_PUSH(b->arena, &b->kernel->maps, *map);
  return (int32_t)b->kernel->maps.len - 1;
}
