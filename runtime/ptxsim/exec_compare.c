/* Comparisons of 32 lanes; the result is a lane mask. */
#include "runtime/ptxsim/exec.h"

#define COMPARE(name, T, E)                                                      \
  static uint32_t name##_##T(ptx_warp *w, const ptx_ins *i) {                    \
    const lane_##T *a = PTX_REG(T, w, i->src[0]), *b = PTX_REG(T, w, i->src[1]); \
    uint32_t mask = 0;                                                           \
    for (int l = 0; l < PTX_LANES; l++) {                                        \
      const value_##T x = load_##T(a[l]), y = load_##T(b[l]);                    \
      mask |= (uint32_t)(E) << l;                                                \
    }                                                                            \
    return mask;                                                                 \
  }
#define EQUALITY(T)      \
  COMPARE(eq, T, x == y) \
  COMPARE(ne, T, x != y)
#define ORDER(T)         \
  COMPARE(lt, T, x < y)  \
  COMPARE(le, T, x <= y) \
  COMPARE(gt, T, x > y)  \
  COMPARE(ge, T, x >= y)
/* Float comparisons: with a NaN, ordered ones are false and those that end in u are true. */
#define FLOAT(T)                     \
  COMPARE(eq, T, x == y)             \
  COMPARE(ne, T, x<y || x> y)        \
  ORDER(T)                           \
  COMPARE(equ, T, !(x < y || x > y)) \
  COMPARE(neu, T, x != y)            \
  COMPARE(ltu, T, !(x >= y))         \
  COMPARE(leu, T, !(x > y))          \
  COMPARE(gtu, T, !(x <= y))         \
  COMPARE(geu, T, !(x < y))          \
  COMPARE(num, T, x == x && y == y)  \
  COMPARE(nan, T, x != x || y != y)
EQUALITY(u16)
EQUALITY(u32)
EQUALITY(u64)
ORDER(u16)
ORDER(s16)
ORDER(u32)
ORDER(s32)
ORDER(u64)
ORDER(s64)
FLOAT(f16)
FLOAT(bf16)
FLOAT(f32)
FLOAT(f32z)
FLOAT(f64)

typedef struct row {
  const char *name;
  ptx_type type;
  ptx_compare compare;
} row;
/* Rows without commas. */
/* clang-format off */
#define ROW(name, T, fn)    {name, PTX_##T, fn},
#define ROWS_EQUALITY(T, t) ROW("eq", T, eq_##t) ROW("ne", T, ne_##t)
#define ROWS_ORDER(T, t)    ROW("lt", T, lt_##t) ROW("le", T, le_##t) ROW("gt", T, gt_##t) ROW("ge", T, ge_##t)
#define ROWS_UNSIGNED(T, t) ROW("lo", T, lt_##t) ROW("ls", T, le_##t) ROW("hi", T, gt_##t) ROW("hs", T, ge_##t)
#define ROWS_INTEGER(B, U, S, u, s) \
  ROWS_EQUALITY(B, u) ROWS_EQUALITY(U, u) ROWS_EQUALITY(S, u) ROWS_ORDER(U, u) ROWS_ORDER(S, s) ROWS_UNSIGNED(U, u)
#define ROWS_FLOAT(T, t) \
  ROWS_EQUALITY(T, t)    \
  ROWS_ORDER(T, t)       \
  ROW("equ", T, equ_##t) \
  ROW("neu", T, neu_##t) \
  ROW("ltu", T, ltu_##t) \
  ROW("leu", T, leu_##t) ROW("gtu", T, gtu_##t) ROW("geu", T, geu_##t) ROW("num", T, num_##t) ROW("nan", T, nan_##t)
static const row rows[] = {ROWS_INTEGER(B16, U16, S16, u16, s16) ROWS_INTEGER(B32, U32, S32, u32, s32)
                               ROWS_INTEGER(B64, U64, S64, u64, s64) ROWS_FLOAT(F16, f16) ROWS_FLOAT(BF16, bf16)
                                   ROWS_FLOAT(F32, f32) ROWS_FLOAT(F32Z, f32z) ROWS_FLOAT(F64, f64)};
/* clang-format on */

ptx_compare kva_ptx_find_compare(const char *name, ptx_type type) {
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (rows[i].type == type && !strcmp(rows[i].name, name)) return rows[i].compare;
  return NULL;
}
