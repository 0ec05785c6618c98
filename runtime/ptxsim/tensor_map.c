/* The simulator's encoding of tensor maps. */
#include "runtime/ptxsim/exec.h"

static const char magic[8] = "KVATMAP";

static kva_status check_rank(const kva_ptxsim_map *m, kva_diag *diag) {
  if (m->rank < 1 || m->rank > KVA_PTXSIM_MAP_RANK)
    return kva_error(diag, NULL, "tensor map of rank %u; 1 to %d are possible", m->rank, KVA_PTXSIM_MAP_RANK);
  if (kva_dtype_bits(m->dtype) < 8 || kva_dtype_bits(m->dtype) > 64)
    return kva_error(diag, NULL, "tensor map of %s; elements of 1 to 8 bytes are possible", kva_dtype_name(m->dtype));
  if ((uintptr_t)m->address & 15) return kva_error(diag, NULL, "tensor map of memory that is not aligned to 16 bytes");
  return KVA_OK;
}

static kva_status check_dims(const kva_ptxsim_map *m, kva_diag *diag) {
  for (uint32_t d = 0; d < m->rank; d++) {
    if (m->dims[d] < 1 || m->dims[d] > 1ull << 32)
      return kva_error(diag, NULL, "tensor map: dimension %u has %llu elements; 1 to 2^32 are possible", d,
                       (unsigned long long)m->dims[d]);
    if (m->box[d] < 1 || m->box[d] > 256)
      return kva_error(diag, NULL, "tensor map: the box has %u elements in dimension %u; 1 to 256 are possible",
                       m->box[d], d);
    if (d && m->strides[d] < m->dims[0] * (uint64_t)kva_dtype_bits(m->dtype) / 8)
      return kva_error(diag, NULL,
                       "tensor map: dimension %u has a stride of %llu bytes; rows of %llu elements of %s would overlap",
                       d, (unsigned long long)m->strides[d], (unsigned long long)m->dims[0], kva_dtype_name(m->dtype));
    if (d && (m->strides[d] % 16 || m->strides[d] >= 1ull << 40))
      return kva_error(diag, NULL, "tensor map: dimension %u has a stride of %llu bytes; a multiple of 16 is needed", d,
                       (unsigned long long)m->strides[d]);
  }
  return KVA_OK;
}

static kva_status check_box(const kva_ptxsim_map *m, kva_diag *diag) {
  uint32_t inner = m->box[0] * (uint32_t)kva_dtype_bits(m->dtype) / 8;
  if (inner % 16)
    return kva_error(diag, NULL, "tensor map: the box is %u bytes wide; a multiple of 16 is needed", inner);
  if (m->swizzle != 0 && m->swizzle != 32 && m->swizzle != 64 && m->swizzle != 128)
    return kva_error(diag, NULL, "tensor map: a swizzle of %u bytes; 0, 32, 64, 128 are possible", m->swizzle);
  if (m->swizzle && inner != m->swizzle)
    return kva_fail(diag, KVA_UNSUPPORTED, NULL, "tensor map: a box %u bytes wide with a swizzle of %u bytes", inner,
                    m->swizzle);
  return KVA_OK;
}

kva_status kva_ptxsim_encode_map(const kva_ptxsim_map *m, kva_diag *diag, unsigned char out[KVA_PTXSIM_MAP_BYTES]) {
  KVA_TRY(check_rank(m, diag));
  KVA_TRY(check_dims(m, diag));
  KVA_TRY(check_box(m, diag));
  ptx_tensor_map t = {.address = (uintptr_t)m->address,
                      .dtype = (uint8_t)m->dtype,
                      .element = (uint8_t)(kva_dtype_bits(m->dtype) / 8),
                      .rank = (uint8_t)m->rank,
                      .swizzle = (uint8_t)m->swizzle};
  memcpy(t.magic, magic, sizeof magic);
  for (uint32_t d = 0; d < KVA_PTXSIM_MAP_RANK; d++) {
    t.dims[d] = d < m->rank ? m->dims[d] : 1;
    t.box[d] = d < m->rank ? (uint16_t)m->box[d] : 1;
    if (d && d < m->rank) t.strides[d - 1] = m->strides[d];
  }
  memcpy(out, &t, sizeof t);
  return KVA_OK;
}

bool kva_ptx_tensor_map_valid(const ptx_tensor_map *map) {
  return !memcmp(map->magic, magic, sizeof magic) && map->rank >= 1 && map->rank <= KVA_PTXSIM_MAP_RANK;
}
