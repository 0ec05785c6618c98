/* The dialect of CPUs with AMX. */
#include "ir/dialect_amx.h"
#include "ir/dialect.h"

static const kva_intrinsic_info rows[] = {
#define ROW(name, type, features, operands) {#name, operands, type, features},
    KVA_AMX_ROWS(ROW)
#undef ROW
};

/* Words, or the bytes that they are made of. */
static bool holds_words(const kva_kplace *p, kva_dtype sums) {
  kva_dtype t = p->buf->dtype;
  return t == sums || (sums == KVA_I32 && (t == KVA_I8 || t == KVA_U8));
}

static bool exceeds(const kva_kplace *p, int32_t kind) {
  int64_t words = KVA_AMX_PART * (kind == KVA_AMX_FLOAT ? KVA_AMX_PARTS : 1);
  return kva_place_is_outside(p, words * 32 / kva_dtype_bits(p->buf->dtype));
}

static const char *check_step(const kva_kplace *p, int32_t kind) {
  if (kind < 0 || kind >= KVA_AMX_KINDS) return "no factors are of this kind";
  bool is_float = kind == KVA_AMX_BF16 || kind == KVA_AMX_FLOAT;
  kva_dtype type = is_float ? KVA_F32 : KVA_I32;
  if (!holds_words(&p[0], type) || !holds_words(&p[1], type)) return "words have another type than the sums";
  return exceeds(&p[0], kind) || exceeds(&p[1], kind) ? "words exceed their buffer" : NULL;
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
