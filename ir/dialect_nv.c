/* NVIDIA's dialect: its table and its verifier. Limits are those of the PTX ISA. */
#include "ir/dialect_nv.h"
#include "ir/dialect.h"

static const kva_intrinsic_info rows[] = {
#define NV(name, type, features, operands) {#name, operands, type, features},
#include "ir/dialect_nv.def"
#undef NV
};

enum {
  COPY_BYTES = 16,           /* of copy_async; alignment of its places */
  BULK_ALIGNMENT = 128,      /* of the destination of tensor_load */
  MAX_COUNT = (1 << 20) - 1, /* of arrivals, or bytes, of an mbarrier */
  MAX_GROUPS = 7,            /* that a wait may leave pending */
  MAX_BARRIERS = 16,         /* of a block; block_barrier is number 0 */
  WARP = 32,
  WARPGROUP = 128,
  MAX_LEADING = 1 << 18, /* bytes: 14 bits of a matrix descriptor, in units of 16 */
};

static bool is_flag(int32_t n) {
  return n == 0 || n == 1;
}

static const char *check_copy(const kva_kplace *p) {
  if (kva_dtype_bits(p[0].buf->dtype) != kva_dtype_bits(p[1].buf->dtype)) return "elements are not of one size";
  bool misaligned = kva_place_is_misaligned(&p[0], COPY_BYTES) || kva_place_is_misaligned(&p[1], COPY_BYTES);
  return misaligned ? "a place is not at a multiple of 16 bytes" : NULL;
}

static const char *check_named(const kva_kernel *k, const int32_t *n) {
  if (n[0] < 1 || n[0] >= MAX_BARRIERS) return "the barrier's number is not 1 to 15";
  bool whole = n[1] > 0 && n[1] % WARP == 0 && (uint32_t)n[1] <= k->threads;
  return whole ? NULL : "the number of threads is not whole warps of the block";
}

static const char *check_count(int32_t n) {
  return n > 0 && n <= MAX_COUNT ? NULL : "the count is not 1 to 2^20 - 1";
}

static uint32_t coordinates(const kva_kintrinsic *m) {
  uint32_t n = 0;
  while (n < KVA_K_MAX_INDICES && m->indices[n]) n++;
  return n;
}

static const char *check_tensor_load(const kva_kernel *k, const kva_kintrinsic *m) {
  if ((uint32_t)m->numbers[0] >= k->maps.len) return "the kernel has no such tensor map";
  const kva_ktensor_map *map = &k->maps.data[m->numbers[0]];
  int64_t elements = 1;
  for (uint32_t d = 0; d < map->rank; d++) elements *= map->box[d];
  if (coordinates(m) != map->rank) return "the tensor map has another number of dimensions";
  if (m->places[0].buf->dtype != map->buf->dtype) return "the tensor map is of another type";
  if (kva_place_is_misaligned(&m->places[0], BULK_ALIGNMENT)) return "the box is not at a multiple of 128 bytes";
  return kva_place_is_outside(&m->places[0], elements) ? "the box exceeds its buffer" : NULL;
}

/* ---- warpgroups -------------------------------------------------------------------------------------------------- */

static const char *check_shape(const kva_kintrinsic *m) {
  int32_t n = m->numbers[0];
  const kva_kplace *p = m->places;
  if (n < 8 || n > 256 || n % 8) return "n is not a multiple of 8 up to 256";
  if (p[0].buf->dtype != KVA_F32) return "sums are not float";
  if (!kva_is_half(p[1].buf->dtype) || p[1].buf->dtype != p[2].buf->dtype)
    return "factors are neither both float16 nor both bfloat16";
  return kva_place_is_outside(&p[0], n / 2) ? "its registers exceed their buffer" : NULL;
}

/* A factor in shared memory: whether its rows are contiguous, and bytes between groups of 64 of them. */
static const char *check_factor(const kva_kplace *p, int32_t transposed, int32_t leading) {
  if (!is_flag(transposed)) return "a flag is neither 0 nor 1";
  if (leading < 0 || leading >= MAX_LEADING || leading % 16) return "a distance is not a multiple of 16 below 2^18";
  return kva_place_is_misaligned(p, 16) ? "a factor does not lie at a multiple of 16 bytes" : NULL;
}

static const char *check_wgmma(const kva_kintrinsic *m) {
  const int32_t *n = m->numbers;
  const char *wrong = check_shape(m);
  if (!wrong) wrong = check_factor(&m->places[1], n[1], n[3]);
  return wrong ? wrong : check_factor(&m->places[2], n[2], n[4]);
}

static const char *check_wgmma_registers(const kva_kintrinsic *m) {
  const char *wrong = check_shape(m);
  if (!wrong && kva_place_is_outside(&m->places[1], 8)) wrong = "its registers exceed their buffer";
  return wrong ? wrong : check_factor(&m->places[2], m->numbers[1], m->numbers[2]);
}

/* Registers that pass through an instruction: floats, or pairs of 16 bits. */
static const char *check_registers(const kva_kplace *p, int32_t n) {
  int64_t elements = p->buf->dtype == KVA_F32 ? 1 : 2;
  if (elements == 2 && !kva_is_half(p->buf->dtype)) return "registers are neither floats nor pairs of 16 bits";
  return n < 1 || kva_place_is_outside(p, n * elements) ? "its registers exceed their buffer" : NULL;
}

static const char *check_two(const kva_kplace *p, const int32_t *n) {
  const char *wrong = check_registers(&p[0], n[0]);
  return wrong ? wrong : check_registers(&p[1], n[1]);
}

static const char *check_wait(int32_t groups, const char *wrong) {
  return groups < 0 || groups > MAX_GROUPS ? "more groups under way than there may be" : wrong;
}

static const char *check_warpgroup(const kva_kintrinsic *m) {
  const kva_kplace *p = m->places;
  const int32_t *n = m->numbers;
  switch (m->op) {
  case KVA_NV_wgmma: return check_wgmma(m);
  case KVA_NV_wgmma_registers: return check_wgmma_registers(m);
  case KVA_NV_wgmma_fence: return check_registers(&p[0], n[0]);
  case KVA_NV_wgmma_fence2: return check_two(p, n);
  case KVA_NV_wgmma_wait: return check_wait(n[0], check_registers(&p[0], n[1]));
  case KVA_NV_wgmma_wait2: return check_wait(n[0], check_two(p, n + 1));
  default: return NULL;
  }
}

static const char *check(const kva_kernel *k, const kva_kinstr *i) {
  const kva_kintrinsic *m = i->intrinsic;
  if (!k->threads || kva_dialect_threads(k, i) != k->threads)
    return "does not stand in a loop over the block's threads";
  if (kva_intrinsic_get(m->op)->features & KVA_TARGET_WARPGROUP_MMA)
    return k->threads < WARPGROUP ? "the block has no whole warpgroup" : check_warpgroup(m);
  switch (m->op) {
  case KVA_NV_copy_async: return check_copy(m->places);
  case KVA_NV_copy_wait: return m->numbers[0] < 0 ? "a number of groups is negative" : NULL;
  case KVA_NV_named_barrier:
  case KVA_NV_named_arrive: return check_named(k, m->numbers);
  case KVA_NV_mbarrier_init:
  case KVA_NV_mbarrier_expect: return check_count(m->numbers[0]);
  case KVA_NV_tensor_load: return check_tensor_load(k, m);
  default: return NULL;
  }
}

const kva_dialect kva_dialect_nv = {"nv", KVA_TARGET_GPU, rows, sizeof rows / sizeof *rows, check};
