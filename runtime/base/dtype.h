/* Element types: every ONNX data type as a storage type, with conversion from and to double and int64_t. Codes equal
 * onnx.TensorProto.DataType (ONNX 1.22), so no translation table is needed. */
#ifndef KVA_BASE_DTYPE_H
#define KVA_BASE_DTYPE_H

#include "runtime/base/status.h"

/* X(code, name, NAME, bits, kind): `name` is ONNX's textual spelling. Kinds: f float, i signed, u unsigned, b bool,
 * s string, c complex. */
#define KVA_DTYPES(X)                     \
  X(1, float, F32, 32, f)                 \
  X(2, uint8, U8, 8, u)                   \
  X(3, int8, I8, 8, i)                    \
  X(4, uint16, U16, 16, u)                \
  X(5, int16, I16, 16, i)                 \
  X(6, int32, I32, 32, i)                 \
  X(7, int64, I64, 64, i)                 \
  X(8, string, STRING, 64, s)             \
  X(9, bool, BOOL, 8, b)                  \
  X(10, float16, F16, 16, f)              \
  X(11, double, F64, 64, f)               \
  X(12, uint32, U32, 32, u)               \
  X(13, uint64, U64, 64, u)               \
  X(14, complex64, C64, 64, c)            \
  X(15, complex128, C128, 128, c)         \
  X(16, bfloat16, BF16, 16, f)            \
  X(17, float8e4m3fn, F8E4M3FN, 8, f)     \
  X(18, float8e4m3fnuz, F8E4M3FNUZ, 8, f) \
  X(19, float8e5m2, F8E5M2, 8, f)         \
  X(20, float8e5m2fnuz, F8E5M2FNUZ, 8, f) \
  X(21, uint4, U4, 4, u)                  \
  X(22, int4, I4, 4, i)                   \
  X(23, float4e2m1, F4E2M1, 4, f)         \
  X(24, float8e8m0, F8E8M0, 8, f)         \
  X(25, uint2, U2, 2, u)                  \
  X(26, int2, I2, 2, i)

typedef enum kva_dtype {
  KVA_DTYPE_NONE = 0,
#define KVA_DTYPE_ENUM(code, name, NAME, bits, kind) KVA_##NAME = code,
  KVA_DTYPES(KVA_DTYPE_ENUM)
#undef KVA_DTYPE_ENUM
      KVA_DTYPE_COUNT
} kva_dtype;

const char *kva_dtype_name(kva_dtype t);                /* "float", "bfloat16", ... */
kva_dtype kva_dtype_from_name(const char *s, size_t n); /* KVA_DTYPE_NONE: unknown */
int kva_dtype_bits(kva_dtype t);
bool kva_dtype_is_float(kva_dtype t);
bool kva_dtype_is_int(kva_dtype t); /* signed or unsigned, not bool */
bool kva_dtype_is_unsigned(kva_dtype t);
/* Bytes of n packed elements (4-bit: two a byte, low nibble first; 2-bit: four a byte). False on overflow. */
bool kva_dtype_bytes(kva_dtype t, int64_t n, int64_t *out_bytes);

/* Loads and stores one element. Float types go through double, the others through int64_t (uint64 keeps its bits).
 * Rounding is to nearest even. Stores to float8 and narrower types saturate, as ONNX Cast does by default, except for
 * an infinity that the type can represent. Float to int rounds toward zero; the caller saturates. */
double kva_load_f64(kva_dtype t, const void *data, int64_t i);
void kva_store_f64(kva_dtype t, void *data, int64_t i, double v);
/* Like kva_store_f64, with the other attributes of ONNX Cast: `saturate` (float8 only) and `round_mode` (float8e8m0
 * only; kva_store_f64 rounds up, Cast's default; nearest breaks ties upward). */
typedef enum kva_e8m0_rounding { KVA_E8M0_UP, KVA_E8M0_DOWN, KVA_E8M0_NEAREST } kva_e8m0_rounding;
void kva_store_f64_as(kva_dtype t, void *data, int64_t i, double v, bool saturate, kva_e8m0_rounding rounding);
int64_t kva_load_i64(kva_dtype t, const void *data, int64_t i);
void kva_store_i64(kva_dtype t, void *data, int64_t i, int64_t v);
/* v rounded to a float type t, or wrapped to an integer type. */
double kva_round_f64(kva_dtype t, double v);
int64_t kva_wrap_i64(kva_dtype t, int64_t v);

float kva_f16_to_f32(uint16_t h);
uint16_t kva_f32_to_f16(float f);
float kva_bf16_to_f32(uint16_t h);
uint16_t kva_f32_to_bf16(float f);

#endif
