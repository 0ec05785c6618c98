/* Element types. Every float narrower than 32 bits is a row of `formats`; one encoder and one decoder read the rows.
 * Sources: ONNX 1.22 Cast (tables of special values), OCP MX 1.0 (e2m1, e8m0). */
#include "runtime/base/dtype.h"

#include "runtime/base/memory.h"

#include <math.h>

typedef struct type_info {
  const char *name;
  int bits;
  char kind;
} type_info;

static const type_info infos[KVA_DTYPE_COUNT] = {[KVA_DTYPE_NONE] = {"none", 0, 'n'},
#define INFO(code, name, NAME, bits, kind) [code] = {#name, bits, (#kind)[0]},
                                                 KVA_DTYPES(INFO)
#undef INFO
};

static const type_info *info(kva_dtype t) {
  KVA_ASSERT((unsigned)t < KVA_DTYPE_COUNT);
  return &infos[t];
}

const char *kva_dtype_name(kva_dtype t) {
  return info(t)->name;
}

kva_dtype kva_dtype_from_name(const char *s, size_t n) {
  for (int t = KVA_DTYPE_NONE + 1; t < KVA_DTYPE_COUNT; t++) {
    if (strlen(infos[t].name) == n && !memcmp(infos[t].name, s, n)) return (kva_dtype)t;
  }
  return KVA_DTYPE_NONE;
}

int kva_dtype_bits(kva_dtype t) {
  return info(t)->bits;
}

bool kva_dtype_is_float(kva_dtype t) {
  return info(t)->kind == 'f';
}

bool kva_dtype_is_int(kva_dtype t) {
  return info(t)->kind == 'i' || info(t)->kind == 'u';
}

bool kva_dtype_is_unsigned(kva_dtype t) {
  return info(t)->kind == 'u';
}

bool kva_dtype_bytes(kva_dtype t, int64_t n, int64_t *out_bytes) {
  int bits = kva_dtype_bits(t);
  if (bits >= 8) return kva_mul_size(n, bits / 8, out_bytes);
  if (n < 0 || !bits) return false;
  int64_t per_byte = 8 / bits;
  *out_bytes = n / per_byte + (n % per_byte != 0);
  return true;
}

/* Codes without the sign. The NaN of the UZ types is the code of their missing -0. e2m1 has no NaN and yields -0, like
 * ml_dtypes, the source of ONNX's test data. */
typedef struct format {
  int mantissa_bits, bias, sign_shift;
  uint16_t max; /* largest finite value */
  uint16_t inf; /* 0: none */
  uint16_t nan;
  bool unsigned_zero;
} format;

static const format formats[KVA_DTYPE_COUNT] = {
    [KVA_F16] = {10, 15, 15, 0x7BFF, 0x7C00, 0x7E00, false},
    [KVA_BF16] = {7, 127, 15, 0x7F7F, 0x7F80, 0x7FC0, false},
    [KVA_F8E4M3FN] = {3, 7, 7, 0x7E, 0, 0x7F, false},
    [KVA_F8E4M3FNUZ] = {3, 8, 7, 0x7F, 0, 0x80, true},
    [KVA_F8E5M2] = {2, 15, 7, 0x7B, 0x7C, 0x7E, false},
    [KVA_F8E5M2FNUZ] = {2, 16, 7, 0x7F, 0, 0x80, true},
    [KVA_F4E2M1] = {1, 1, 3, 0x7, 0, 0x8, false},
};

static const format *format_of(kva_dtype t) {
  return formats[t].max ? &formats[t] : NULL;
}

static uint64_t bits_of(double v) {
  uint64_t bits;
  memcpy(&bits, &v, sizeof bits);
  return bits;
}

static double double_of(uint64_t bits) {
  double v;
  memcpy(&v, &bits, sizeof v);
  return v;
}

/* Rounds |v| to nearest even in units in the last place of its binade (or of the subnormals); returns the code. A carry
 * out of the mantissa moves into the exponent by itself. Codes above `max` mean overflow. */
static inline uint64_t round_magnitude(const format *f, double v) {
  uint64_t bits = bits_of(v) & INT64_MAX;
  int exponent = (int)(bits >> 52) - 1023;
  int least = 1 - f->bias;
  int shift = 52 - f->mantissa_bits + (exponent < least ? least - exponent : 0);
  if (shift > 54) return 0;
  uint64_t significand = (bits & 0xFFFFFFFFFFFFF) | (uint64_t)1 << 52;
  uint64_t quotient = significand >> shift;
  uint64_t rest = significand & (((uint64_t)1 << shift) - 1);
  uint64_t half = (uint64_t)1 << (shift - 1);
  quotient += rest > half || (rest == half && (quotient & 1));
  return exponent < least ? quotient : ((uint64_t)(exponent - least) << f->mantissa_bits) + quotient;
}

/* Inlined, so that the types of 16 bits, most of all, have their numbers as constants. */
static inline __attribute__((always_inline)) uint16_t encode(const format *f, double v, bool saturate) {
  unsigned sign = signbit(v) ? 1u << f->sign_shift : 0;
  if (isnan(v)) return (uint16_t)(f->nan | sign);
  uint64_t code = isinf(v) ? UINT64_MAX : round_magnitude(f, v);
  if (code == 0 && f->unsigned_zero) return 0;
  if (code <= f->max) return (uint16_t)(code | sign);
  if (saturate) return (uint16_t)(f->max | sign);
  return (uint16_t)((f->inf ? f->inf : f->nan) | sign);
}

static inline __attribute__((always_inline)) double decode(const format *f, unsigned code) {
  unsigned sign_bit = 1u << f->sign_shift;
  unsigned magnitude = code & (sign_bit - 1);
  double sign = code & sign_bit ? -1.0 : 1.0;
  if (magnitude > f->max) return magnitude == f->inf ? sign * (double)INFINITY : copysign((double)NAN, sign);
  if (f->unsigned_zero && code == sign_bit) return (double)NAN;
  unsigned exponent = magnitude >> f->mantissa_bits;
  unsigned mantissa = magnitude & ((1u << f->mantissa_bits) - 1);
  if (!exponent) return sign * mantissa * double_of((uint64_t)(1024 - f->bias - f->mantissa_bits) << 52);
  uint64_t bits = (uint64_t)(exponent + 1023 - (unsigned)f->bias) << 52 | (uint64_t)mantissa << (52 - f->mantissa_bits);
  return sign * double_of(bits);
}

/* e8m0 is a power of two, 2^(code - 127), without sign or zero; 255 is NaN. ONNX does not define negative values; they
 * become NaN. */
static uint8_t encode_e8m0(double v, bool saturate, kva_e8m0_rounding rounding) {
  enum { LARGEST = 0xFE, NOT_A_NUMBER = 0xFF };
  if (isnan(v) || v < 0) return NOT_A_NUMBER;
  if (isinf(v)) return saturate ? LARGEST : NOT_A_NUMBER;
  int exponent;
  double m = frexp(v, &exponent); /* v = 2m * 2^(exponent-1), 2m in [1, 2) */
  if (rounding == KVA_E8M0_UP && m > 0.5) exponent++;
  if (rounding == KVA_E8M0_NEAREST && m >= 0.75) exponent++;
  int code = exponent - 1 + 127;
  if (m != 0 && code >= 0 && code <= LARGEST) return (uint8_t)code;
  if (!saturate) return NOT_A_NUMBER;
  return m != 0 && code > 0 ? LARGEST : 0;
}

static double decode_e8m0(uint8_t code) {
  return code == 0xFF ? (double)NAN : ldexp(1.0, code - 127);
}

/* The bits of element i, for types of at most 64 bits. */
static uint64_t load_bits(kva_dtype t, const void *data, int64_t i) {
  const unsigned char *p = data;
  int bits = kva_dtype_bits(t);
  KVA_ASSERT(bits > 0 && bits <= 64 && infos[t].kind != 'c');
  if (bits < 8) {
    int per_byte = 8 / bits;
    return p[i / per_byte] >> (i % per_byte * bits) & ((1u << bits) - 1);
  }
  uint64_t value = 0;
  p += i * (bits / 8);
  switch (bits) { /* little-endian hosts only, as is raw_data of ONNX; constant sizes need no call */
  case 8: return *p;
  case 16: memcpy(&value, p, 2); break;
  case 32: memcpy(&value, p, 4); break;
  default: memcpy(&value, p, 8); break;
  }
  return value;
}

/* Packed neighbours share a byte: two threads must not store to the same byte. */
static void store_bits(kva_dtype t, void *data, int64_t i, uint64_t value) {
  unsigned char *p = data;
  int bits = kva_dtype_bits(t);
  KVA_ASSERT(bits > 0 && bits <= 64 && infos[t].kind != 'c');
  if (bits >= 8) {
    p += i * (bits / 8);
    switch (bits) {
    case 8: *p = (unsigned char)value; break;
    case 16: memcpy(p, &value, 2); break;
    case 32: memcpy(p, &value, 4); break;
    default: memcpy(p, &value, 8); break;
    }
    return;
  }
  int per_byte = 8 / bits;
  int shift = (int)(i % per_byte) * bits;
  unsigned mask = ((1u << bits) - 1) << shift;
  p[i / per_byte] = (unsigned char)((p[i / per_byte] & ~mask) | ((unsigned)value << shift & mask));
}

/* Rounds toward zero and clamps to the range of int64_t; NaN becomes 0. */
static int64_t toward_zero(double v) {
  if (isnan(v)) return 0;
  if (v >= 0x1p63) return INT64_MAX;
  if (v < -0x1p63) return INT64_MIN;
  return (int64_t)v;
}

int64_t kva_wrap_i64(kva_dtype t, int64_t v) {
  if (t == KVA_BOOL) return v != 0;
  if (t == KVA_STRING) return v; /* an address */
  KVA_ASSERT(kva_dtype_is_int(t));
  int unused = 64 - kva_dtype_bits(t);
  uint64_t top = (uint64_t)v << unused;
  return kva_dtype_is_unsigned(t) ? (int64_t)(top >> unused) : (int64_t)top >> unused;
}

static double float_from_bits(kva_dtype t, uint64_t bits) {
  if (t == KVA_F64) return double_of(bits);
  if (t == KVA_BF16) return decode(&formats[KVA_BF16], (unsigned)bits);
  if (t == KVA_F16) return decode(&formats[KVA_F16], (unsigned)bits);
  if (t == KVA_F8E8M0) return decode_e8m0((uint8_t)bits);
  if (t != KVA_F32) return decode(format_of(t), (unsigned)bits);
  uint32_t narrow = (uint32_t)bits;
  float f;
  memcpy(&f, &narrow, sizeof f);
  return (double)f;
}

static uint64_t float_to_bits(kva_dtype t, double v, bool saturate, kva_e8m0_rounding rounding) {
  if (t == KVA_F64) return bits_of(v);
  if (t == KVA_BF16) return encode(&formats[KVA_BF16], v, false);
  if (t == KVA_F16) return encode(&formats[KVA_F16], v, false);
  if (t == KVA_F8E8M0) return encode_e8m0(v, saturate, rounding);
  if (t == KVA_F4E2M1) return encode(format_of(t), v, true);
  if (t != KVA_F32) return encode(format_of(t), v, saturate && kva_dtype_bits(t) <= 8);
  float f = (float)v;
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  return bits;
}

double kva_load_f64(kva_dtype t, const void *data, int64_t i) {
  if (kva_dtype_is_float(t)) return float_from_bits(t, load_bits(t, data, i));
  int64_t v = kva_load_i64(t, data, i);
  return t == KVA_U64 ? (double)(uint64_t)v : (double)v;
}

void kva_store_f64_as(kva_dtype t, void *data, int64_t i, double v, bool saturate, kva_e8m0_rounding rounding) {
  if (kva_dtype_is_float(t)) {
    store_bits(t, data, i, float_to_bits(t, v, saturate, rounding));
  } else if (t == KVA_BOOL) {
    store_bits(t, data, i, v != 0);
  } else if (t == KVA_U64 && v >= 0x1p63) {
    store_bits(t, data, i, v < 0x1p64 ? (uint64_t)v : UINT64_MAX);
  } else {
    store_bits(t, data, i, (uint64_t)toward_zero(v));
  }
}

/* Whether ONNX Cast's default saturates v: always, except for an infinity in float8e5m2, the only 8-bit type with one
 * that is kept. */
static bool saturates(kva_dtype t, double v) {
  return t != KVA_F8E5M2 || !isinf(v);
}

void kva_store_f64(kva_dtype t, void *data, int64_t i, double v) {
  kva_store_f64_as(t, data, i, v, saturates(t, v), KVA_E8M0_UP);
}

int64_t kva_load_i64(kva_dtype t, const void *data, int64_t i) {
  uint64_t bits = load_bits(t, data, i);
  return kva_dtype_is_float(t) ? toward_zero(float_from_bits(t, bits)) : kva_wrap_i64(t, (int64_t)bits);
}

/* A double that rounds to every narrower float as v would: bits beyond a double's precision become one sticky bit
 * (round to odd). */
static double sticky_double(int64_t v) {
  if (v >= -((int64_t)1 << 53) && v <= (int64_t)1 << 53) return (double)v;
  int64_t lost = v & 0x7FF;
  return (double)((v - lost) | (lost ? 0x800 : 0));
}

void kva_store_i64(kva_dtype t, void *data, int64_t i, int64_t v) {
  if (t == KVA_F64) {
    kva_store_f64(t, data, i, (double)v);
  } else if (kva_dtype_is_float(t)) {
    kva_store_f64(t, data, i, sticky_double(v));
  } else {
    store_bits(t, data, i, (uint64_t)kva_wrap_i64(t, v));
  }
}

double kva_round_f64(kva_dtype t, double v) {
  KVA_ASSERT(kva_dtype_is_float(t));
  return float_from_bits(t, float_to_bits(t, v, saturates(t, v), KVA_E8M0_UP));
}

float kva_f16_to_f32(uint16_t h) {
  return (float)decode(&formats[KVA_F16], h);
}

uint16_t kva_f32_to_f16(float f) {
  return encode(&formats[KVA_F16], (double)f, false);
}

float kva_bf16_to_f32(uint16_t h) {
  return (float)decode(&formats[KVA_BF16], h);
}

uint16_t kva_f32_to_bf16(float f) {
  return encode(&formats[KVA_BF16], (double)f, false);
}
