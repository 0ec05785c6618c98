/* The dialect of targets that multiply tiles of matrices held in the registers of a subgroup (ir/kernel.h). */
#include "ir/dialect.h"

static const kva_intrinsic_info rows[] = {
#define ROW(name, type, features, operands) {#name, operands, type, features},
    KVA_K_TILES(ROW)
#undef ROW
};

enum { ROW_BYTES = 16 /* of an 8 x 8 matrix of 16 bits */, SUBGROUP = 32 };

/* n matrices, moved between registers and rows in shared memory. */
static const char *check_matrices(const kva_kplace *registers, const kva_kplace *row, const int32_t *n) {
  if (n[0] != 1 && n[0] != 2 && n[0] != 4) return "1, 2 or 4 matrices can be moved";
  if (n[1] != 0 && n[1] != 1) return "a flag is neither 0 nor 1";
  if (kva_dtype_bits(registers->buf->dtype) != 16 || registers->buf->dtype != row->buf->dtype)
    return "elements are not of one type of 16 bits";
  if (kva_place_is_misaligned(row, ROW_BYTES)) return "a row does not lie at a multiple of 16 bytes";
  return kva_place_is_outside(registers, 2 * n[0]) ? "its registers exceed their buffer" : NULL;
}

static const char *check_mma(const kva_kplace *p) {
  if (p[0].buf->dtype != KVA_F32) return "sums are not float";
  if (!kva_is_half(p[1].buf->dtype) || p[1].buf->dtype != p[2].buf->dtype)
    return "factors are neither both float16 nor both bfloat16";
  bool outside = kva_place_is_outside(&p[0], 4) || kva_place_is_outside(&p[1], 8) || kva_place_is_outside(&p[2], 4);
  return outside ? "its registers exceed their buffer" : NULL;
}

static const char *check_round_pair(const kva_kplace *p) {
  if (!kva_is_half(p[0].buf->dtype) || p[1].buf->dtype != KVA_F32) return "does not round float to 16 bits";
  return kva_place_is_outside(&p[0], 2) || kva_place_is_outside(&p[1], 2) ? "its registers exceed their buffer" : NULL;
}

static const char *check(const kva_kernel *k, const kva_kinstr *i) {
  const kva_kintrinsic *m = i->intrinsic;
  const kva_kplace *p = m->places;
  const int32_t *n = m->numbers;
  uint32_t threads = kva_dialect_threads(k, i);
  if (!threads || threads % SUBGROUP) return "does not stand in a loop over threads of whole subgroups";
  switch (m->op) {
  case KVA_TILE_block_barrier:
    return threads == k->threads ? NULL : "does not stand in a loop over the block's threads";
  case KVA_TILE_load_matrix: return check_matrices(&p[0], &p[1], n);
  case KVA_TILE_store_matrix: return check_matrices(&p[1], &p[0], n);
  case KVA_TILE_mma: return check_mma(p);
  case KVA_TILE_shuffle_xor: return n[0] > 0 && n[0] < SUBGROUP ? NULL : "the lane is not of the subgroup";
  case KVA_TILE_round_pair: return check_round_pair(p);
  default: return NULL;
  }
}

const kva_dialect kva_dialect_tile = {"tile", KVA_TARGET_GPU, rows, sizeof rows / sizeof *rows, check};
