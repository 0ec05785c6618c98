/* The attributes of operators as structs, kva_<op>_attrs, generated from attrs.def. */
#ifndef KVA_OPS_ATTRS_H
#define KVA_OPS_ATTRS_H

#include "ir/attr.h"

#define ATTR(KIND, name, def) KVA_ATTR_CTYPE_##KIND name;
#define ATTRS(op, ...)              \
  typedef struct kva_##op##_attrs { \
    __VA_ARGS__                     \
  } kva_##op##_attrs;
#include "ops/attrs.def"

/* Attributes that a family's shared code reads: every operator of the family has them first. */
typedef struct kva_reduce_attrs {
  KVA_REDUCE_ATTRS
} kva_reduce_attrs;
typedef struct kva_exchange_attrs {
  KVA_EXCHANGE_ATTRS
} kva_exchange_attrs;
typedef struct kva_arg_attrs {
  KVA_ARG_ATTRS
} kva_arg_attrs;
typedef struct kva_scan_attrs {
  KVA_SCAN_ATTRS
} kva_scan_attrs;

#undef ATTR
#undef ATTRS

#endif
