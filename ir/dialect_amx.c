/* The dialect of CPUs with AMX. */
#include "ir/dialect_amx.h"
#include "ir/dialect.h"

static const kva_intrinsic_info rows[] = {
#define ROW(name, type, features, operands) {#name, operands, type, features},
    KVA_AMX_ROWS(ROW)
#undef ROW
};

static const char *check_step(const kva_kplace *p, int32_t kind) {
  if (kind < 0 || kind >= KVA_AMX_KINDS) return "no factors are of this kind";
  bool is_float = kind == KVA_AMX_BF16 || kind == KVA_AMX_FLOAT;
  kva_dtype type = is_float ? KVA_F32 : KVA_I32;
  if (p[0].buf->dtype != type || p[1].buf->dtype != type) return "words have another type than the sums";
  int64_t n = KVA_AMX_BLOCK * KVA_AMX_WORDS * (kind == KVA_AMX_FLOAT ? KVA_AMX_PARTS : 1);
  return kva_place_is_outside(&p[0], n) || kva_place_is_outside(&p[1], n) ? "words exceed their buffer" : NULL;
}

static const char *check_sums(const kva_kplace *p) {
  if (kva_dtype_bits(p->buf->dtype) != 32) return "sums have another type";
  return kva_place_is_outside(p, KVA_AMX_BLOCK * KVA_AMX_BLOCK) ? "sums exceed their buffer" : NULL;
}

static const char *check(const kva_kernel *k, const kva_kinstr *i) {
  (void)k;
  const kva_kintrinsic *m = i->intrinsic;
  switch (m->op) {
  case KVA_AMX_amx_load:
  case KVA_AMX_amx_store: return check_sums(m->places);
  case KVA_AMX_amx_step: return check_step(m->places, m->numbers[0]);
  default: return NULL;
  }
}

const kva_dialect kva_dialect_amx = {"amx", KVA_TARGET_CPU, rows, sizeof rows / sizeof *rows, check};
