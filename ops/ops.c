/* The operator table, expanded from ops.def. Token pasting derives the functions of a row from its columns, so a
 * missing function is a link error and an unused one is never declared. */
#include "ops/facts.h"
#include "ops/ids.h"

#include <stddef.h>

#define OP(name, ...) KVA_OP_FUNCTIONS(name)
#include "ops/ops.def"
#undef OP

/* ---- attribute descriptions -------------------------------------------------------------------------------------- */

/* A list of attributes expands to `, (KIND, field, default), ...`. EACH passes every tuple on with the operator's name,
 * which offsetof needs and the list lacks. */
#define ATTR(KIND, field, def) , (KIND, field, def)
#define UNWRAP(...)            __VA_ARGS__
#define ROW_(op, KIND, field, def) \
  {#field, KVA_ATTR_##KIND, (uint32_t)offsetof(kva_##op##_attrs, field), (double)(def)},
#define ROW(...) ROW_(__VA_ARGS__)
#define EACH_0(op)
#define EACH_1(op, t)                             ROW(op, UNWRAP t)
#define EACH_2(op, t, ...)                        ROW(op, UNWRAP t) EACH_1(op, __VA_ARGS__)
#define EACH_3(op, t, ...)                        ROW(op, UNWRAP t) EACH_2(op, __VA_ARGS__)
#define EACH_4(op, t, ...)                        ROW(op, UNWRAP t) EACH_3(op, __VA_ARGS__)
#define EACH_5(op, t, ...)                        ROW(op, UNWRAP t) EACH_4(op, __VA_ARGS__)
#define EACH_6(op, t, ...)                        ROW(op, UNWRAP t) EACH_5(op, __VA_ARGS__)
#define EACH_7(op, t, ...)                        ROW(op, UNWRAP t) EACH_6(op, __VA_ARGS__)
#define EACH_8(op, t, ...)                        ROW(op, UNWRAP t) EACH_7(op, __VA_ARGS__)
#define NTH(op, a, b, c, d, e, f, g, h, nth, ...) nth
#define EACH_(...) \
  NTH(__VA_ARGS__, EACH_8, EACH_7, EACH_6, EACH_5, EACH_4, EACH_3, EACH_2, EACH_1, EACH_0, )(__VA_ARGS__)
#define EACH(...) EACH_(__VA_ARGS__)

#define ATTRS(op, ...)                                                                            \
  static const kva_attr_field op##_fields[] = {EACH(op __VA_ARGS__)};                             \
  static const kva_attr_desc op##_desc = {.size = sizeof(kva_##op##_attrs),                       \
                                          .n_fields = sizeof op##_fields / sizeof op##_fields[0], \
                                          .fields = op##_fields};
#include "ops/attrs.def"
#undef ATTR
#undef ATTRS

/* ---- the table --------------------------------------------------------------------------------------------------- */

#define ATTRS_OF_ATTRS(op)     &op##_desc
#define ATTRS_OF_PLAIN(op)     NULL
#define VJP_OF_RULE(op)        kva_##op##_vjp
#define VJP_OF_ZERO(op)        NULL
#define VJP_OF_NONE(reason)    VJP_OF_ZERO
#define VJP_OF_GRAPH(op)       NULL
#define KIND_OF_RULE           KVA_VJP_RULE
#define KIND_OF_ZERO           KVA_VJP_ZERO
#define KIND_OF_NONE(reason)   KVA_VJP_NONE
#define KIND_OF_GRAPH          KVA_VJP_GRAPH
#define REASON_OF_RULE         NULL
#define REASON_OF_ZERO         NULL
#define REASON_OF_GRAPH        NULL
#define REASON_OF_NONE(reason) reason
#define REF_OF_ELEMENT(op)     kva_##op##_ref
#define REF_OF_KERNEL(op)      kva_##op##_ref
#define REF_OF_STRUCTURE(op)   NULL
#define LOWER_OF_ELEMENT(op)   kva_##op##_lower
#define LOWER_OF_KERNEL(op)    NULL
#define LOWER_OF_STRUCTURE(op) NULL
#define REF_OF_CALL(op)        kva_##op##_ref
#define LOWER_OF_CALL(op)      NULL
#define KVA_LOWER_STRUCTURE    KVA_LOWER_NONE

static const kva_op_info rows[KVA_OP_COUNT] = {
#define OP(op, min_in, max_in, n_out, trait_bits, ATTR, VJP, LOWER, ...) \
  [KVA_OP_##op] = {.name = #op,                                          \
                   .id = KVA_OP_##op,                                    \
                   .min_operands = min_in,                               \
                   .max_operands = max_in,                               \
                   .n_results = n_out,                                   \
                   .traits = trait_bits,                                 \
                   .attrs = ATTRS_OF_##ATTR(op),                         \
                   .vjp_kind = KIND_OF_##VJP,                            \
                   .vjp_reason = REASON_OF_##VJP,                        \
                   .lower_kind = KVA_LOWER_##LOWER,                      \
                   .infer = kva_##op##_infer,                            \
                   .ref = REF_OF_##LOWER(op),                            \
                   .vjp = VJP_OF_##VJP(op),                              \
                   .lower = LOWER_OF_##LOWER(op),                        \
                   .tolerance = __VA_ARGS__}, /* and the row's facts */
#include "ops/ops.def"
#undef OP
};

static const kva_op_info *const pointers[KVA_OP_COUNT] = {
#define OP(op, ...) &rows[KVA_OP_##op],
#include "ops/ops.def"
#undef OP
};

const kva_op_set kva_ops = {.n = KVA_OP_COUNT, .ops = pointers};
