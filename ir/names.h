/* What other programs call the hyper-parameters and parameters of a model: the `checkpoint` blocks of a .kv file, one
 * for each format. The compiler carries them; tools/checkpoint reads files by them. */
#ifndef KVA_IR_NAMES_H
#define KVA_IR_NAMES_H

#include "ir/ir.h"

typedef enum kva_naming_kind {
  KVA_NAMING_FIELD,      /* a hyper-parameter is a field of the checkpoint's configuration */
  KVA_NAMING_MISSING,    /* a hyper-parameter is true if the checkpoint has no such tensor */
  KVA_NAMING_TENSOR,     /* a parameter is a tensor as it is */
  KVA_NAMING_TRANSPOSED, /* ... a matrix [out, in], where the parameter is [in, out] */
  KVA_NAMING_ROW_NORMS,  /* ... the Euclidean norm of each row of a matrix that another parameter is */
  KVA_NAMING_COUNT
} kva_naming_kind;

/* One row. '*' in names of a tensor row stands for the same digits in all of them. */
typedef struct kva_naming {
  kva_naming_kind kind;
  const char *own;  /* the hyper-parameter, "_" for a field that is checked only; or the parameters */
  uint32_t n_names; /* 1 of a tensor; of a field: the first that exists counts */
  const char **names;
  uint32_t n_allowed;   /* FIELD: 0: any value */
  const char **allowed; /* as JSON */
  const char *value;    /* FIELD: what the hyper-parameter is in this module, as JSON; NULL for "_" */
  int64_t pairs;        /* TENSOR, TRANSPOSED: 0, or the size of heads whose channels i and i + pairs / 2 are the
                           tensor's neighbouring rows 2i and 2i + 1 */
  kva_loc loc;
} kva_naming;

typedef KVA_VEC(const char *) kva_strs;

struct kva_names {
  const char *format; /* "huggingface", "gguf" */
  const char *prefix; /* with which tensors' names may begin or not; NULL: none */
  KVA_VEC(kva_naming) rows;
  kva_strs ignored; /* patterns of configuration fields without influence on results */
  kva_strs buffers; /* patterns of tensors that no parameter is */
  kva_loc loc;
};

/* The word of the text language for a kind: "field", "tensor", ... */
const char *kva_naming_word(kva_naming_kind kind);
/* The block of a format, or NULL. */
const kva_names *kva_names_find(const kva_module *m, const char *format);

#endif
