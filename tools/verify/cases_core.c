/* Cases of elementwise operators, reductions, scans and movement: at least three each, among them odd sizes, size 1,
 * broadcasting, symbolic extents and, where it is legal, size 0. */
#include "tools/verify/cases.h"
#include "ops/ids.h"

/* The formatter would take these lists for blocks. */
/* clang-format off */
/* Shapes for elementwise operators of one operand; ranges where the function is smooth. */
#define UNARY(name, lo_, hi_)                                  \
  {.op = KVA_OP_##name, .in = {{"", lo_, hi_}}},               \
  {.op = KVA_OP_##name, .in = {{"N=7,3", lo_, hi_}}},          \
  {.op = KVA_OP_##name, .in = {{"2,1,B=5,2", lo_, hi_}}},      \
  {.op = KVA_OP_##name, .in = {{"N=0,4", lo_, hi_}}}
#define UNARY_OF(name, type)                                                  \
  {.op = KVA_OP_##name, .dtype = type, .in = {{"N=17"}}},                     \
  {.op = KVA_OP_##name, .dtype = type, .in = {{"3,1,5"}}},                    \
  {.op = KVA_OP_##name, .dtype = type, .in = {{"2,0"}}},                      \
  {.op = KVA_OP_##name, .dtype = type, .in = {{""}}}
#define SPECIAL(name, list) {.op = KVA_OP_##name, .no_gradient = true, .in = {{"16", 0, 0, 0, list}}}

#define BINARY(name, xlo, xhi, ylo, yhi)                                              \
  {.op = KVA_OP_##name, .in = {{"N=5,3", xlo, xhi}, {"N,3", ylo, yhi}}},              \
  {.op = KVA_OP_##name, .in = {{"2,1,3", xlo, xhi}, {"M=4,1", ylo, yhi}}},            \
  {.op = KVA_OP_##name, .in = {{"", xlo, xhi}, {"B=7", ylo, yhi}}},                   \
  {.op = KVA_OP_##name, .in = {{"N=0,3", xlo, xhi}, {"3", ylo, yhi}}}
#define BINARY_OF(name, attrs_, type)                                                        \
  {.op = KVA_OP_##name, .attrs = attrs_, .dtype = type, .in = {{"N=17"}, {"N"}}},            \
  {.op = KVA_OP_##name, .attrs = attrs_, .dtype = type, .in = {{"3,1"}, {"1,5"}}},           \
  {.op = KVA_OP_##name, .attrs = attrs_, .dtype = type, .in = {{"N=0,3"}, {"1"}}},           \
  {.op = KVA_OP_##name, .attrs = attrs_, .dtype = type, .in = {{""}, {"2,3"}}}
#define SPECIAL2(name, a, b) {.op = KVA_OP_##name, .no_gradient = true, .in = {{"16", 0, 0, 0, a}, {"16", 0, 0, 0, b}}}

#define REDUCE(name, lo_, hi_)                                                                \
  {.op = KVA_OP_##name, .in = {{"N=5,3", lo_, hi_}}},                                         \
  {.op = KVA_OP_##name, .attrs = "axes=-1; keepdims=0", .in = {{"2,B=3,7", lo_, hi_}}},       \
  {.op = KVA_OP_##name, .attrs = "axes=0,2", .in = {{"4,1,3,2", lo_, hi_}}},                  \
  {.op = KVA_OP_##name, .attrs = "axes=1; keepdims=0", .in = {{"3,1", lo_, hi_}}},            \
  {.op = KVA_OP_##name, .attrs = "axes=0", .in = {{"N=0,3", lo_, hi_}}}
#define ARG(name)                                                                                              \
  {.op = KVA_OP_##name, .attrs = "axis=1", .in = {{"3,N=7"}}},                                                 \
  {.op = KVA_OP_##name, .attrs = "axis=-2; keepdims=0", .dtype = KVA_I32, .in = {{"4,5,2", -2, 2}}},            \
  {.op = KVA_OP_##name, .attrs = "axis=0; select_last=1", .dtype = KVA_I32, .in = {{"9,2", -1, 1}}},            \
  {.op = KVA_OP_##name, .attrs = "axis=0", .in = {{"8", 0, 0, 0, "1,nan,3,-inf,nan,inf,0,0"}}},                \
  {.op = KVA_OP_##name, .attrs = "axis=0", .dtype = KVA_U64, .in = {{"4", 0, 0, 0, "5,-1,0,-2"}}},              \
  {.op = KVA_OP_##name, .attrs = "axis=0", .in = {{"1,3"}}}
#define SCAN(name)                                                                                    \
  {.op = KVA_OP_##name, .in = {{"N=9"}}},                                                             \
  {.op = KVA_OP_##name, .attrs = "axis=1; exclusive=1", .in = {{"2,B=5,3"}}},                         \
  {.op = KVA_OP_##name, .attrs = "axis=-1; reverse=1", .in = {{"3,1"}}},                              \
  {.op = KVA_OP_##name, .attrs = "axis=0; exclusive=1; reverse=1", .in = {{"4,2"}}},                  \
  {.op = KVA_OP_##name, .dtype = KVA_I8, .in = {{"12", 100, 120}}},                                   \
  {.op = KVA_OP_##name, .in = {{"N=0,2"}}}
/* clang-format on */

#define I64 KVA_I64
/* Around the largest float8 numbers: ties, overflow, infinities. */
#define F8_VALUES \
  { "20", .values = "0,-0,240,-248,256,448,464,-465,480,57344,61439,-61440,65504,1e9,-1e9,nan,inf,-inf,1e-3" }

static const kva_case cases[] = {
    {.op = KVA_OP_dims, .attrs = "values=3,5,8"},
    {.op = KVA_OP_dims, .attrs = "values=7; scalar=1"},
    {.op = KVA_OP_dims, .attrs = "values=1"},
    {.op = KVA_OP_iota, .attrs = "shape=3,5; axis=1"},
    {.op = KVA_OP_iota, .attrs = "shape=4,1,2; axis=0; dtype=float"},
    {.op = KVA_OP_iota, .attrs = "shape=9; axis=-1; dtype=uint8"},

    UNARY(neg, -2, 2),
    UNARY_OF(neg, KVA_I32),
    UNARY_OF(neg, KVA_U8),
    UNARY(abs, -2, 2),
    UNARY_OF(abs, KVA_I64),
    SPECIAL(abs, "0,-0,nan,inf,-inf"),
    UNARY(sign, -2, 2),
    UNARY_OF(sign, KVA_I32),
    SPECIAL(sign, "0,-3,nan,inf,-inf"),
    UNARY(reciprocal, 0.5, 3),
    UNARY(sqrt, 0.5, 4),
    SPECIAL(sqrt, "0,-1,nan,inf,1e-20,1e20"),
    UNARY(exp, -4, 4),
    SPECIAL(exp, "0,-200,200,nan,inf,-inf,88.5,-87"),
    UNARY(log, 0.1, 5),
    SPECIAL(log, "0,-1,nan,inf,1,1e-30,1e30,0.999"),
    UNARY(sin, -7, 7),
    UNARY(cos, -7, 7),
    UNARY(tan, -1.2, 1.2),
    UNARY(asin, -0.9, 0.9),
    UNARY(acos, -0.9, 0.9),
    UNARY(atan, -5, 5),
    UNARY(sinh, -3, 3),
    UNARY(cosh, -3, 3),
    UNARY(tanh, -3, 3),
    SPECIAL(tanh, "0,-50,50,nan,inf,-inf,1e-6"),
    UNARY(asinh, -4, 4),
    UNARY(acosh, 1.2, 5),
    UNARY(atanh, -0.9, 0.9),
    UNARY(erf, -2.5, 2.5),
    SPECIAL(erf, "0,-10,10,inf,-inf,1e-6"),
    UNARY(sigmoid, -6, 6),
    SPECIAL(sigmoid, "0,-200,200,nan,inf,-inf"),
    UNARY(softplus, -6, 6),
    SPECIAL(softplus, "0,-200,200,inf,-inf"),
    UNARY(relu, -2, 2),
    UNARY_OF(relu, KVA_I32),
    {.op = KVA_OP_relu, .dtype = KVA_U64, .in = {{"3", 0, 0, 0, "-1,0,5"}}},
    UNARY(gelu, -3, 3),
    {.op = KVA_OP_gelu, .attrs = "tanh=1", .in = {{"N=11", -3, 3}}},
    UNARY(silu, -6, 6),
    UNARY(floor, -4, 4),
    UNARY(ceil, -4, 4),
    UNARY(round, -4, 4),
    SPECIAL(round, "0.5,1.5,2.5,-0.5,-1.5,nan,inf,-inf,1e9"),
    UNARY(is_nan, -2, 2),
    SPECIAL(is_nan, "nan,1,inf,-inf,0"),
    UNARY(is_inf, -2, 2),
    SPECIAL(is_inf, "nan,1,inf,-inf,0"),
    {.op = KVA_OP_is_inf, .attrs = "detect_negative=0", .in = {{"4", 0, 0, 0, "inf,-inf,nan,0"}}},
    UNARY_OF(logical_not, KVA_BOOL),
    UNARY_OF(bit_not, KVA_U8),
    UNARY_OF(bit_not, KVA_I32),
    {.op = KVA_OP_cast, .attrs = "to=double", .in = {{"N=9"}}},
    {.op = KVA_OP_cast, .attrs = "to=float16", .no_gradient = true, .in = {{"3,5", -9, 9}}},
    {.op = KVA_OP_cast, .attrs = "to=bfloat16", .no_gradient = true, .in = {{"3,5", -9, 9}}},
    {.op = KVA_OP_cast,
     .attrs = "to=int32",
     .no_gradient = true,
     .in = {{"8", 0, 0, 0, "-1.9,1.9,nan,1e12,-1e12,0,7,-8"}}},
    {.op = KVA_OP_cast,
     .attrs = "to=uint8",
     .no_gradient = true,
     .in = {{"8", 0, 0, 0, "-1.9,1.9,nan,300,-300,0,255,8"}}},
    {.op = KVA_OP_cast, .attrs = "to=bool", .no_gradient = true, .in = {{"5", 0, 0, 0, "0,-0,0.25,nan,-3"}}},
    {.op = KVA_OP_cast, .attrs = "to=float8e4m3fn; saturate=0", .no_gradient = true, .in = {F8_VALUES}},
    {.op = KVA_OP_cast, .attrs = "to=float8e4m3fnuz; saturate=0", .no_gradient = true, .in = {F8_VALUES}},
    {.op = KVA_OP_cast, .attrs = "to=float8e5m2; saturate=0", .no_gradient = true, .in = {F8_VALUES}},
    {.op = KVA_OP_cast, .attrs = "to=float8e5m2", .no_gradient = true, .in = {F8_VALUES}},
    {.op = KVA_OP_cast, .attrs = "to=float8e5m2fnuz; saturate=0", .no_gradient = true, .in = {F8_VALUES}},
    {.op = KVA_OP_cast, .attrs = "to=float", .dtype = KVA_BOOL, .in = {{"2,3"}}},
    {.op = KVA_OP_cast, .attrs = "to=int8", .dtype = KVA_I64, .in = {{"4", 0, 0, 0, "-129,127,128,300"}}},
    {.op = KVA_OP_cast, .attrs = "to=float", .dtype = KVA_U64, .in = {{"3", 0, 0, 0, "1,-1,7"}}},
    {.op = KVA_OP_bitcast, .attrs = "to=int32", .dtype = KVA_F32, .in = {{"N=5"}}},
    {.op = KVA_OP_bitcast, .attrs = "to=float", .dtype = KVA_U32, .in = {{"3", 0, 0, 0, "0,1065353216,3221225472"}}},
    {.op = KVA_OP_bitcast,
     .attrs = "to=float16",
     .dtype = KVA_U16,
     .in = {{"9", .values = "0,1,1023,1024,15360,31743,31744,33024,64512"}}},
    {.op = KVA_OP_bitcast,
     .attrs = "to=uint16",
     .dtype = KVA_F16,
     .in = {{"9", .values = "0,-0,1,6e-8,6.1e-5,-65504,inf,-inf,nan"}}},
    {.op = KVA_OP_bitcast, .attrs = "to=int16", .dtype = KVA_BF16, .in = {{"5", .values = "1,-0,3e38,-inf,nan"}}},
    {.op = KVA_OP_bitcast, .attrs = "to=int8", .dtype = KVA_U8, .in = {{"3", 0, 0, 0, "0,200,127"}}},
    UNARY(stop_gradient, -2, 2),
    UNARY(share, -2, 2),
    UNARY_OF(share, KVA_I32),
    UNARY(dropout, -2, 2),

    BINARY(add, -2, 2, -2, 2),
    BINARY_OF(add, NULL, KVA_I32),
    BINARY_OF(add, NULL, KVA_U8),
    BINARY(sub, -2, 2, -2, 2),
    BINARY_OF(sub, NULL, KVA_I32),
    BINARY(mul, -2, 2, -2, 2),
    BINARY_OF(mul, NULL, KVA_I8),
    BINARY(div, -2, 2, 0.5, 3),
    BINARY_OF(div, NULL, KVA_I32),
    SPECIAL2(div, "1,-1,0,nan,inf", "0,0,0,1,inf"),
    BINARY(mod, -2, 2, 0.7, 0.9),
    BINARY_OF(mod, NULL, KVA_I32),
    BINARY_OF(mod, "fmod=1", KVA_I32),
    {.op = KVA_OP_mod, .attrs = "fmod=1", .in = {{"N=9", -3, 3}, {"N", 0.7, 0.9}}},
    BINARY(pow, 0.5, 3, -2, 2),
    {.op = KVA_OP_pow, .dtype = KVA_I32, .in = {{"5,1", -3, 3}, {"9", -2, 6}}},
    SPECIAL2(pow, "0,0,-2,-2,1,inf,2", "0,2,3,0.5,nan,-1,-200"),
    BINARY(min, -2, 2, -2, 2),
    BINARY_OF(min, NULL, KVA_U64),
    SPECIAL2(min, "nan,1,inf,-0", "1,nan,-inf,0"),
    BINARY(max, -2, 2, -2, 2),
    BINARY_OF(max, NULL, KVA_I32),
    SPECIAL2(max, "nan,1,inf", "1,nan,-inf"),
    BINARY(equal, -2, 2, -2, 2),
    BINARY_OF(equal, NULL, KVA_BOOL),
    SPECIAL2(equal, "nan,1,inf,0", "nan,1,inf,-0"),
    BINARY(less, -2, 2, -2, 2),
    {.op = KVA_OP_less, .dtype = KVA_U64, .in = {{"4", 0, 0, 0, "1,-1"}, {"4", 0, 0, 0, "-1,1,2"}}},
    SPECIAL2(less, "nan,1,inf,0", "nan,2,-inf,-0"),
    BINARY(less_equal, -2, 2, -2, 2),
    SPECIAL2(less_equal, "nan,1,inf,0", "nan,2,-inf,-0"),
    BINARY_OF(logical_and, NULL, KVA_BOOL),
    BINARY_OF(logical_or, NULL, KVA_BOOL),
    BINARY_OF(logical_xor, NULL, KVA_BOOL),
    BINARY_OF(bit_and, NULL, KVA_U8),
    BINARY_OF(bit_or, NULL, KVA_I32),
    BINARY_OF(bit_xor, NULL, KVA_I64),
    {.op = KVA_OP_bit_shift, .dtype = KVA_U8, .in = {{"N=11", 0, 255}, {"N", 0, 9}}},
    {.op = KVA_OP_bit_shift, .attrs = "left=0", .dtype = KVA_U32, .in = {{"3,1", 0, 1e9}, {"5", 0, 33}}},
    {.op = KVA_OP_bit_shift, .attrs = "left=0", .dtype = KVA_I32, .in = {{"4", 0, 0, 0, "-1,-8,8,1"}, {"", 1, 1}}},
    {.op = KVA_OP_bit_shift, .attrs = "left=0", .dtype = KVA_I8, .in = {{"3,1", -128, 127}, {"5", -1, 9}}},
    {.op = KVA_OP_where, .in = {{"N=5,3", 0, 0, KVA_BOOL}, {"N,3"}, {"N,3"}}},
    {.op = KVA_OP_where, .in = {{"4,1", 0, 0, KVA_BOOL}, {"3"}, {""}}},
    {.op = KVA_OP_where, .dtype = KVA_I64, .in = {{"1", 0, 0, KVA_BOOL}, {"B=6"}, {"2,1"}}},

    REDUCE(reduce_sum, -2, 2),
    {.op = KVA_OP_reduce_sum, .dtype = KVA_U8, .attrs = "axes=0", .in = {{"9,2", 100, 200}}},
    {.op = KVA_OP_reduce_sum, .in = {{""}}},
    {.op = KVA_OP_reduce_mean, .in = {{"N=5,3"}}},
    {.op = KVA_OP_reduce_mean, .attrs = "axes=-1; keepdims=0", .in = {{"2,B=3,7"}}},
    {.op = KVA_OP_reduce_mean, .attrs = "axes=0,2", .in = {{"N=4,1,M=3,2"}}},
    REDUCE(reduce_max, -2, 2),
    {.op = KVA_OP_reduce_max, .dtype = KVA_BOOL, .attrs = "axes=1", .in = {{"5,3"}}},
    {.op = KVA_OP_reduce_max, .dtype = KVA_I8, .attrs = "axes=1", .in = {{"5,N=0"}}},
    {.op = KVA_OP_reduce_max, .no_gradient = true, .in = {{"5", 0, 0, 0, "1,nan,3"}}},
    REDUCE(reduce_min, -2, 2),
    {.op = KVA_OP_reduce_min, .dtype = KVA_BOOL, .attrs = "axes=1", .in = {{"5,3"}}},
    {.op = KVA_OP_reduce_min, .dtype = KVA_U8, .attrs = "axes=1", .in = {{"5,N=0"}}},
    {.op = KVA_OP_reduce_min, .dtype = KVA_U64, .in = {{"3", 0, 0, 0, "-1,5,7"}}},
    REDUCE(reduce_prod, -2, 2),
    {.op = KVA_OP_reduce_prod, .attrs = "axes=1", .in = {{"3,4", 0, 0, 0, "1,2,0,3,0,2,0,1,2,3,4,5"}}},
    ARG(argmax),
    ARG(argmin),
    {.op = KVA_OP_top_k, .attrs = "count=3", .in = {{"2,N=9"}}},
    {.op = KVA_OP_top_k, .attrs = "count=17; axis=1", .in = {{"B=3,40,2"}}},
    {.op = KVA_OP_top_k, .attrs = "count=N; smallest=1", .in = {{"3,N=33", -2, 2}}},
    {.op = KVA_OP_top_k, .attrs = "count=5", .dtype = KVA_I32, .in = {{"200", 0, 3}}},
    {.op = KVA_OP_top_k, .attrs = "count=1; smallest=1", .dtype = KVA_U64, .in = {{"4", 0, 0, 0, "5,-1,3,3"}}},
    {.op = KVA_OP_top_k, .attrs = "count=4", .in = {{"6", 0, 0, 0, "1,nan,inf,nan,2,1"}}},
    {.op = KVA_OP_top_k, .attrs = "count=4; smallest=1", .in = {{"6", 0, 0, 0, "nan,0,-0,nan,-inf,0"}}},
    {.op = KVA_OP_top_k, .attrs = "count=0", .in = {{"3,5"}}},
    {.op = KVA_OP_top_k, .attrs = "count=N", .in = {{"3,N=0"}}},
    {.op = KVA_OP_partial_sum, .attrs = "leading=1; rows=2; blocks=3", .in = {{"N=5,3"}}},
    {.op = KVA_OP_partial_sum, .attrs = "leading=2; rows=2; blocks=2", .in = {{"B=3,5,2,2"}}},
    {.op = KVA_OP_partial_sum, .attrs = "leading=1; rows=4; blocks=9", .in = {{"N=0,3"}}},
    {.op = KVA_OP_partial_sum, .attrs = "leading=1; rows=16; blocks=2", .in = {{"3,1"}}},
    SCAN(cumsum),
    SCAN(cumprod),

    {.op = KVA_OP_reshape, .attrs = "shape=B,2,6", .in = {{"B=3,4,3"}}},
    {.op = KVA_OP_reshape, .attrs = "shape=B*T,4", .in = {{"B=2,T=3,4"}}},
    {.op = KVA_OP_reshape, .attrs = "shape=1,7,1", .in = {{"7"}}},
    {.op = KVA_OP_reshape, .attrs = "shape=", .in = {{"1,1"}}},
    {.op = KVA_OP_reshape, .attrs = "shape=6,4", .in = {{"4,2,3"}}},
    {.op = KVA_OP_reshape, .attrs = "shape=3,N,0", .in = {{"0,N=2"}}},
    {.op = KVA_OP_assume, .attrs = "shape=3,4", .in = {{"B=3,4"}}},
    {.op = KVA_OP_assume, .attrs = "shape=B,B", .in = {{"B=5,T=5"}}},
    {.op = KVA_OP_assume, .attrs = "shape=B,1,T", .in = {{"T=2,1,B=2"}}},
    {.op = KVA_OP_assume, .attrs = "shape=0,7", .in = {{"N=0,7"}}},
    {.op = KVA_OP_transpose, .in = {{"N=3,5"}}},
    {.op = KVA_OP_transpose, .attrs = "perm=0,2,1,3", .in = {{"2,T=3,2,5"}}},
    {.op = KVA_OP_transpose, .attrs = "perm=2,0,1", .dtype = KVA_I32, .in = {{"1,4,3"}}},
    {.op = KVA_OP_transpose, .attrs = "perm=1,2,0", .in = {{"2,3,4"}}},
    {.op = KVA_OP_slice, .attrs = "starts=1,0; shape=3,2", .in = {{"5,4"}}},
    {.op = KVA_OP_slice, .attrs = "starts=0,T-2; shape=B,2", .in = {{"B=3,T=7"}}},
    {.op = KVA_OP_slice, .attrs = "starts=1,9; shape=3,4; steps=2,-3", .in = {{"7,10"}}},
    {.op = KVA_OP_slice, .attrs = "starts=0,1; shape=T,T; steps=1,2", .in = {{"T=3,2*T"}}},
    {.op = KVA_OP_slice, .attrs = "starts=T-1,2*T-1; shape=T,T; steps=-1,-2", .in = {{"T=3,2*T"}}},
    {.op = KVA_OP_slice, .attrs = "starts=6; shape=7; steps=-1", .in = {{"7"}}},
    {.op = KVA_OP_slice, .attrs = "starts=2,0; shape=0,3", .in = {{"5,3"}}},
    {.op = KVA_OP_expand, .attrs = "shape=4,3", .in = {{"3"}}},
    {.op = KVA_OP_expand, .attrs = "shape=2,B,5", .in = {{"B=3,1"}}},
    {.op = KVA_OP_expand, .attrs = "shape=2,3", .in = {{""}}},
    {.op = KVA_OP_expand, .attrs = "shape=0,3", .in = {{"1,3"}}},
    {.op = KVA_OP_pad, .attrs = "before=1,0; after=0,2", .in = {{"N=3,5"}}},
    {.op = KVA_OP_pad, .attrs = "before=2,-1; after=-1,3", .in = {{"4,5"}, {""}}},
    {.op = KVA_OP_pad, .attrs = "before=5; after=6; mode=reflect", .in = {{"N=4"}}},
    {.op = KVA_OP_pad, .attrs = "before=1,2; after=2,1; mode=edge", .in = {{"3,N=4"}}},
    {.op = KVA_OP_pad, .attrs = "before=3,0; after=4,1; mode=wrap", .in = {{"2,N=3"}}},
    {.op = KVA_OP_pad, .attrs = "before=2; after=2; mode=reflect", .in = {{"1"}}},
    {.op = KVA_OP_pad, .attrs = "before=T,0; after=-1,T", .in = {{"T=3,N=4"}, {""}}},
    {.op = KVA_OP_pad, .attrs = "before=2; after=1", .in = {{"N=0"}, {""}}},
    {.op = KVA_OP_concat, .attrs = "axis=1", .in = {{"B=2,3"}, {"B,1"}, {"B,4"}}},
    {.op = KVA_OP_concat, .attrs = "axis=-2", .in = {{"2,T=3,2"}, {"2,P=1,2"}}},
    {.op = KVA_OP_concat, .attrs = "axis=0", .in = {{"3"}}},
    {.op = KVA_OP_concat, .attrs = "axis=0", .in = {{"N=0,2"}, {"3,2"}}},
    {.op = KVA_OP_gather, .in = {{"6,3"}, {"B=2,T=5", -6, 5, I64}}},
    {.op = KVA_OP_gather, .attrs = "axis=1", .in = {{"2,N=4,3"}, {"", 2, 2, I64}}},
    {.op = KVA_OP_gather, .attrs = "axis=-1", .in = {{"3,5"}, {"7", 0, 4, KVA_I32}}},
    {.op = KVA_OP_gather, .in = {{"4,2"}, {"N=0", 0, 0, I64}}},
    {.op = KVA_OP_gather_grad, .attrs = "extent=6", .in = {{"B=2,5,3"}, {"B,5", -6, 5, I64}}},
    {.op = KVA_OP_gather_grad, .attrs = "axis=1; extent=4", .in = {{"2,7,33"}, {"7", 0, 3, I64}}},
    {.op = KVA_OP_gather_grad, .attrs = "axis=1; extent=5", .in = {{"3,9"}, {"9", 0, 4, KVA_I32}}},
    {.op = KVA_OP_gather_grad, .attrs = "extent=3", .in = {{"N=0,2"}, {"N", 0, 2, I64}}},
    {.op = KVA_OP_sort_indices, .attrs = "extent=300; owners=132", .in = {{"B=3,57", -300, 299, I64}}},
    {.op = KVA_OP_sort_indices, .attrs = "extent=7", .in = {{"133", 0, 6, KVA_I32}}},
    {.op = KVA_OP_sort_indices, .attrs = "extent=90*N; owners=132", .in = {{"N=7,5", 0, 629, I64}}},
    {.op = KVA_OP_sort_indices, .attrs = "extent=1", .in = {{"", 0, 0, KVA_I32}}},
    {.op = KVA_OP_sort_indices, .attrs = "extent=3", .in = {{"N=0", 0, 2, I64}}},
    {.op = KVA_OP_gather_elements, .attrs = "axis=1", .in = {{"3,N=5"}, {"3,4", -5, 4, I64}}},
    {.op = KVA_OP_gather_elements, .attrs = "axis=0", .in = {{"4,3"}, {"2,2", 0, 3, I64}}},
    {.op = KVA_OP_gather_elements, .attrs = "axis=-1", .dtype = KVA_I32, .in = {{"2,1,6"}, {"2,1,9", 0, 5, KVA_I32}}},
    {.op = KVA_OP_gather_nd, .in = {{"4,3,2"}, {"5,2", 0, 2, I64}}},
    {.op = KVA_OP_gather_nd, .attrs = "batch_dims=1", .in = {{"B=3,5,2"}, {"B,4,1", -5, 4, I64}}},
    {.op = KVA_OP_gather_nd, .attrs = "batch_dims=2", .in = {{"2,3,4"}, {"2,3,1", 0, 3, I64}}},
    {.op = KVA_OP_gather_nd, .in = {{"4"}, {"1", 2, 2, I64}}},
    {.op = KVA_OP_scatter_elements, .attrs = "axis=1", .in = {{"3,5"}, {"3,2", 0, 0, I64, "4,-4,0,1,2,3"}, {"3,2"}}},
    {.op = KVA_OP_scatter_elements, .attrs = "reduction=add", .in = {{"4,N=3"}, {"6,N", -4, 3, I64}, {"6,N"}}},
    {.op = KVA_OP_scatter_elements, .attrs = "axis=0; reduction=add", .in = {{"4,3"}, {"2,2", 0, 3, I64}, {"2,2"}}},
    {.op = KVA_OP_scatter_elements,
     .attrs = "axis=1; reduction=add",
     .in = {{"2,5,3,B=7"}, {"2,4,3,B", -5, 4, I64}, {"2,4,3,B"}}},
    {.op = KVA_OP_scatter_elements,
     .attrs = "axis=0; reduction=add",
     .in = {{"4,3,40"}, {"5,2,39", -4, 3, I64}, {"5,2,39"}}},
    {.op = KVA_OP_scatter_elements, .attrs = "reduction=max", .dtype = KVA_I32, .in = {{"5"}, {"9", 0, 4, I64}, {"9"}}},
    {.op = KVA_OP_scatter_elements,
     .attrs = "reduction=mul",
     .no_gradient = true,
     .in = {{"5"}, {"9", 0, 4, I64}, {"9"}}},
    {.op = KVA_OP_scatter_nd, .in = {{"6,3"}, {"4,1", 0, 0, I64, "0,5,-4,3"}, {"4,3"}}},
    {.op = KVA_OP_scatter_nd, .attrs = "reduction=add", .in = {{"4,2,B=3"}, {"5,2", 0, 1, I64}, {"5,B"}}},
    {.op = KVA_OP_scatter_nd, .attrs = "reduction=add", .in = {{"5,33"}, {"2,2,1", -5, 4, I64}, {"2,2,33"}}},
    {.op = KVA_OP_scatter_nd, .attrs = "reduction=min", .no_gradient = true, .in = {{"4"}, {"7,1", 0, 3, I64}, {"7"}}},
};

const kva_case_table kva_cases_core = {cases, sizeof cases / sizeof cases[0]};
