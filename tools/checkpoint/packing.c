/* How elements are packed in files. Blocks of GGUF's quantised types lie in one row; their scales are halves:
 *
 *   Q8_0   w = d q                      d, 32 bytes q
 *   Q4_0   w = d (q - 8)                d, 16 bytes: low nibbles are elements 0 to 15, high ones 16 to 31
 *   Q4_1   w = d q + m                  d, m, as Q4_0
 *   Q5_0   w = d (q - 16)               d, the fifth bits of all elements, as Q4_0
 *   Q5_1   w = d q + m                  d, m, the fifth bits, as Q4_0
 *   Q2_K   w = d s q - m t              16 groups of 16 with 4-bit s and t
 *   Q3_K   w = d (s - 32) (q - 4)       16 groups of 16 with 6-bit s
 *   Q4_K   w = d s q - m t              8 groups of 32 with 6-bit s and t
 *   Q5_K   w = d s q - m t              as Q4_K
 *   Q6_K   w = d s (q - 32)             16 groups of 16 with 8-bit s */
#include "tools/checkpoint/checkpoint.h"

#include <math.h>
#include <strings.h>

enum { SMALL = 32, LARGE = 256 };

static uint16_t load16(const unsigned char *p) {
  return (uint16_t)(p[0] | p[1] << 8);
}

static void store16(unsigned char *p, uint16_t v) {
  p[0] = (unsigned char)v;
  p[1] = (unsigned char)(v >> 8);
}

static float half(const unsigned char *p) {
  return kva_f16_to_f32(load16(p));
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static void decode_f32(const unsigned char *blocks, int64_t n, float *out) {
  memcpy(out, blocks, (size_t)n * sizeof *out);
}
static void encode_f32(const float *in, int64_t n, unsigned char *blocks) {
  memcpy(blocks, in, (size_t)n * sizeof *in);
}
static void decode_f16(const unsigned char *blocks, int64_t n, float *out) {
  for (int64_t i = 0; i < n; i++) out[i] = half(blocks + 2 * i);
}
static void encode_f16(const float *in, int64_t n, unsigned char *blocks) {
  for (int64_t i = 0; i < n; i++) store16(blocks + 2 * i, kva_f32_to_f16(in[i]));
}
static void decode_bf16(const unsigned char *blocks, int64_t n, float *out) {
  for (int64_t i = 0; i < n; i++) out[i] = kva_bf16_to_f32(load16(blocks + 2 * i));
}
static void encode_bf16(const float *in, int64_t n, unsigned char *blocks) {
  for (int64_t i = 0; i < n; i++) store16(blocks + 2 * i, kva_f32_to_bf16(in[i]));
}

/* ---- blocks of 32 ------------------------------------------------------------------------------------------------ */

static void decode_q8_0(const unsigned char *blocks, int64_t n, float *out) {
  for (; n > 0; n--, blocks += 2 + SMALL, out += SMALL) {
    float d = half(blocks);
    for (int i = 0; i < SMALL; i++) out[i] = d * (float)(int8_t)blocks[2 + i];
  }
}

static void codes_q8_0(const unsigned char *block, int8_t *out) {
  memcpy(out, block + 2, SMALL);
}

/* d is the largest magnitude / 127; quotients are by d before it is rounded to a half. */
static void encode_q8_0(const float *in, int64_t n, unsigned char *blocks) {
  for (; n > 0; n--, blocks += 2 + SMALL, in += SMALL) {
    float largest = 0;
    for (int i = 0; i < SMALL; i++) largest = fmaxf(largest, fabsf(in[i]));
    float d = largest / 127, inverse = d > 0 ? 1 / d : 0;
    store16(blocks, kva_f32_to_f16(d));
    for (int i = 0; i < SMALL; i++) blocks[2 + i] = (unsigned char)(int8_t)roundf(in[i] * inverse);
  }
}

static void decode_q4_0(const unsigned char *blocks, int64_t n, float *out) {
  for (; n > 0; n--, blocks += 2 + SMALL / 2, out += SMALL) {
    float d = half(blocks);
    for (int i = 0; i < SMALL / 2; i++) {
      out[i] = d * (float)((blocks[2 + i] & 15) - 8);
      out[i + SMALL / 2] = d * (float)((blocks[2 + i] >> 4) - 8);
    }
  }
}

static void decode_q4_1(const unsigned char *blocks, int64_t n, float *out) {
  for (; n > 0; n--, blocks += 4 + SMALL / 2, out += SMALL) {
    float d = half(blocks), m = half(blocks + 2);
    for (int i = 0; i < SMALL; i++) out[i] = d * (float)(blocks[4 + i % 16] >> 4 * (i / 16) & 15) + m;
  }
}

/* Element i of 5 bits; the fifth ones lie before the others. */
static int five_bits(const unsigned char *bits, int i) {
  int high = bits[i / 8] >> i % 8 & 1;
  return (bits[4 + i % 16] >> 4 * (i / 16) & 15) | high << 4;
}

static void decode_q5_0(const unsigned char *blocks, int64_t n, float *out) {
  for (; n > 0; n--, blocks += 6 + SMALL / 2, out += SMALL) {
    float d = half(blocks);
    for (int i = 0; i < SMALL; i++) out[i] = d * (float)(five_bits(blocks + 2, i) - 16);
  }
}

static void decode_q5_1(const unsigned char *blocks, int64_t n, float *out) {
  for (; n > 0; n--, blocks += 8 + SMALL / 2, out += SMALL) {
    float d = half(blocks), m = half(blocks + 2);
    for (int i = 0; i < SMALL; i++) out[i] = d * (float)five_bits(blocks + 4, i) + m;
  }
}

static void codes_q4_0(const unsigned char *block, int8_t *out) {
  for (int i = 0; i < SMALL / 2; i++) {
    out[i] = (int8_t)((block[2 + i] & 15) - 8);
    out[i + SMALL / 2] = (int8_t)((block[2 + i] >> 4) - 8);
  }
}

/* ---- blocks of 256 ----------------------------------------------------------------------------------------------- */

enum { Q2_K_BYTES = 84, Q3_K_BYTES = 110, Q4_K_BYTES = 144, Q5_K_BYTES = 176, Q6_K_BYTES = 210 };

/* Element i of 2 bits: each half of 128 elements has 32 bytes, each quarter of it two bits of them. */
static int two_bits(const unsigned char *q, int i) {
  return q[32 * (i / 128) + i % 32] >> 2 * (i % 128 / 32) & 3;
}

/* Scales and minima, 2 bits, d, m. */
static void decode_q2_k(const unsigned char *blocks, int64_t n, float *out) {
  for (; n > 0; n--, blocks += Q2_K_BYTES, out += LARGE) {
    float d = half(blocks + 80), m = half(blocks + 82);
    for (int i = 0; i < LARGE; i++) {
      int s = blocks[i / 16];
      out[i] = d * (float)(s & 15) * (float)two_bits(blocks + 16, i) - m * (float)(s >> 4);
    }
  }
}

/* High bits, which are set where 4 is not subtracted; low 2 bits; scales, 4 low bits of each, then 2 high ones; d. */
static void decode_q3_k(const unsigned char *blocks, int64_t n, float *out) {
  for (; n > 0; n--, blocks += Q3_K_BYTES, out += LARGE) {
    const unsigned char *scales = blocks + 96;
    float d = half(blocks + 108);
    for (int i = 0; i < LARGE; i++) {
      int g = i / 16, scale = (scales[g % 8] >> 4 * (g / 8) & 15) | (scales[8 + g % 4] >> 2 * (g / 4) & 3) << 4;
      int q = two_bits(blocks + 32, i) - (blocks[i % 32] >> i / 32 & 1 ? 0 : 4);
      out[i] = d * (float)(scale - 32) * (float)q;
    }
  }
}

/* Scale and minimum of group s: 6 bits each, those of the last four groups with their high bits beside the first four.
 */
static void q4_k_scales(const unsigned char *b, int s, int *scale, int *minimum) {
  if (s < 4) {
    *scale = b[s] & 63;
    *minimum = b[s + 4] & 63;
    return;
  }
  *scale = (b[s + 4] & 15) | (b[s - 4] >> 6) << 4;
  *minimum = b[s + 4] >> 4 | (b[s] >> 6) << 4;
}

static void decode_q4_k(const unsigned char *blocks, int64_t n, float *out) {
  for (; n > 0; n--, blocks += Q4_K_BYTES, out += LARGE) {
    float d = half(blocks), m = half(blocks + 2);
    for (int s = 0; s < 8; s++) {
      int scale, minimum;
      q4_k_scales(blocks + 4, s, &scale, &minimum);
      const unsigned char *q = blocks + 16 + 32 * (s / 2);
      for (int i = 0; i < 32; i++)
        out[32 * s + i] = d * (float)scale * (float)(q[i] >> 4 * (s % 2) & 15) - m * (float)minimum;
    }
  }
}

/* As Q4_K, with the fifth bits before the others. */
static void decode_q5_k(const unsigned char *blocks, int64_t n, float *out) {
  for (; n > 0; n--, blocks += Q5_K_BYTES, out += LARGE) {
    float d = half(blocks), m = half(blocks + 2);
    for (int i = 0; i < LARGE; i++) {
      int s = i / 32, l = i % 32, scale, minimum;
      q4_k_scales(blocks + 4, s, &scale, &minimum);
      int q = (blocks[48 + 32 * (s / 2) + l] >> 4 * (s % 2) & 15) | (blocks[16 + l] >> s & 1) << 4;
      out[i] = d * (float)scale * (float)q - m * (float)minimum;
    }
  }
}

/* Low 4 bits, high 2 bits, scales, d. Each half of 128 elements has its own 64, 32 and 8 bytes of these. */
static void decode_q6_k(const unsigned char *blocks, int64_t n, float *out) {
  for (; n > 0; n--, blocks += Q6_K_BYTES, out += LARGE) {
    float d = half(blocks + 208);
    for (int i = 0; i < LARGE; i++) {
      int h = i / 128, quarter = i % 128 / 32, l = i % 32;
      int low = blocks[64 * h + l + 32 * (quarter % 2)] >> 4 * (quarter / 2) & 15;
      int high = blocks[128 + 32 * h + l] >> 2 * quarter & 3;
      out[i] = d * (float)(int8_t)blocks[192 + i / 16] * (float)((low | high << 4) - 32);
    }
  }
}

/* ---- table ------------------------------------------------------------------------------------------------------- */

static const kva_packing packings[] = {
    {"F32", KVA_F32, 0, 1, 4, decode_f32, encode_f32, NULL, 0},
    {"F16", KVA_F16, 1, 1, 2, decode_f16, encode_f16, NULL, 0},
    {"BF16", KVA_BF16, 30, 1, 2, decode_bf16, encode_bf16, NULL, 0},
    {"Q8_0", KVA_DTYPE_NONE, 8, SMALL, 2 + SMALL, decode_q8_0, encode_q8_0, codes_q8_0, 8},
    {"Q4_0", KVA_DTYPE_NONE, 2, SMALL, 2 + SMALL / 2, decode_q4_0, NULL, codes_q4_0, 4},
    {"Q4_1", KVA_DTYPE_NONE, 3, SMALL, 4 + SMALL / 2, decode_q4_1, NULL, NULL, 0},
    {"Q5_0", KVA_DTYPE_NONE, 6, SMALL, 6 + SMALL / 2, decode_q5_0, NULL, NULL, 0},
    {"Q5_1", KVA_DTYPE_NONE, 7, SMALL, 8 + SMALL / 2, decode_q5_1, NULL, NULL, 0},
    {"Q2_K", KVA_DTYPE_NONE, 10, LARGE, Q2_K_BYTES, decode_q2_k, NULL, NULL, 0},
    {"Q3_K", KVA_DTYPE_NONE, 11, LARGE, Q3_K_BYTES, decode_q3_k, NULL, NULL, 0},
    {"Q4_K", KVA_DTYPE_NONE, 12, LARGE, Q4_K_BYTES, decode_q4_k, NULL, NULL, 0},
    {"Q5_K", KVA_DTYPE_NONE, 13, LARGE, Q5_K_BYTES, decode_q5_k, NULL, NULL, 0},
    {"Q6_K", KVA_DTYPE_NONE, 14, LARGE, Q6_K_BYTES, decode_q6_k, NULL, NULL, 0},
};
enum { N_PACKINGS = sizeof packings / sizeof *packings };

const kva_packing *kva_packing_of_dtype(kva_dtype t) {
  for (int i = 0; i < N_PACKINGS; i++)
    if (packings[i].dtype == t && t != KVA_DTYPE_NONE) return &packings[i];
  return NULL;
}

const kva_packing *kva_packing_of_ggml(uint32_t type) {
  for (int i = 0; i < N_PACKINGS; i++)
    if ((uint32_t)packings[i].ggml == type) return &packings[i];
  return NULL;
}

const kva_packing *kva_packing_named(const char *name) {
  for (int i = 0; i < N_PACKINGS; i++)
    if (!strcasecmp(packings[i].name, name)) return &packings[i];
  return NULL;
}
