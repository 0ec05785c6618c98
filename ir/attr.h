/* Typed attributes. An operator's attributes are one C struct; the struct and its description (for printing, parsing,
 * comparing, hashing) come from one X-macro list (ops/attrs.def), so that there is no second list to forget:
 *
 *   ATTRS(softmax, ATTR(INT, axis, -1))
 *
 * gives `typedef struct { int64_t axis; } kva_softmax_attrs;` and its field table. */
#ifndef KVA_IR_ATTR_H
#define KVA_IR_ATTR_H

#include "ir/expr.h"

typedef struct kva_ints {
  uint32_t n;
  const int64_t *v;
} kva_ints;
typedef struct kva_dims {
  uint32_t n;
  const kva_dim *v;
} kva_dims;

/* A constant: bytes borrowed from a mapped file or the module's arena, packed in `dtype`'s storage format. */
typedef struct kva_tensor_data {
  kva_dtype dtype;
  uint32_t rank;
  const int64_t *dims;
  const void *data;
  int64_t bytes;
  bool spare; /* memory of the module for these elements alone: a pass that replaces their last reader may release it */
  bool mapped; /* memory of a file, which can be released at any time: pages come back when they are read */
} kva_tensor_data;

static inline int64_t kva_tensor_elements(const kva_tensor_data *t) {
  int64_t n = 1;
  for (uint32_t d = 0; d < t->rank; d++) n *= t->dims[d];
  return n;
}

typedef struct kva_state kva_state; /* ir.h */

typedef enum kva_attr_kind {
  KVA_ATTR_INT,     /* int64_t */
  KVA_ATTR_FLOAT,   /* double */
  KVA_ATTR_BOOL,    /* bool */
  KVA_ATTR_STR,     /* const char *, NULL: absent */
  KVA_ATTR_INTS,    /* kva_ints */
  KVA_ATTR_DIM,     /* kva_dim, NULL: absent */
  KVA_ATTR_DIMS,    /* kva_dims */
  KVA_ATTR_SYMBOLS, /* kva_dims: symbols that the node defines; prints as N or [N, M] */
  KVA_ATTR_DTYPE,   /* kva_dtype */
  KVA_ATTR_TENSOR,  /* const kva_tensor_data * */
  KVA_ATTR_STATE,   /* kva_state *, prints as its name */
} kva_attr_kind;

#define KVA_ATTR_CTYPE_INT     int64_t
#define KVA_ATTR_CTYPE_FLOAT   double
#define KVA_ATTR_CTYPE_BOOL    bool
#define KVA_ATTR_CTYPE_STR     const char *
#define KVA_ATTR_CTYPE_INTS    kva_ints
#define KVA_ATTR_CTYPE_DIM     kva_dim
#define KVA_ATTR_CTYPE_DIMS    kva_dims
#define KVA_ATTR_CTYPE_SYMBOLS kva_dims
#define KVA_ATTR_CTYPE_DTYPE   kva_dtype
#define KVA_ATTR_CTYPE_TENSOR  const kva_tensor_data *
#define KVA_ATTR_CTYPE_STATE   kva_state *

typedef struct kva_attr_field {
  const char *name;
  kva_attr_kind kind;
  uint32_t offset;
  double default_value; /* INT, FLOAT, BOOL, DTYPE; others default to absent / empty */
} kva_attr_field;

/* The attribute struct of one operator as data. */
typedef struct kva_attr_desc {
  uint32_t size;
  uint32_t n_fields;
  const kva_attr_field *fields;
} kva_attr_desc;

/* Allocates a struct of this kind with default values. */
void *kva_attrs_default(kva_arena *arena, const kva_attr_desc *desc);
bool kva_attrs_equal(const kva_attr_desc *desc, const void *a, const void *b);
uint64_t kva_attrs_hash(const kva_attr_desc *desc, const void *a, uint64_t seed);
const kva_attr_field *kva_attrs_find(const kva_attr_desc *desc, const char *name, size_t name_len);

#endif
