/* Reading tokenizer.json: what its parts share. */
#ifndef KVA_TOOLS_TOKENIZER_LOAD_H
#define KVA_TOOLS_TOKENIZER_LOAD_H

#include "tools/tokenizer/internal.h"

#include <jansson.h>

typedef struct kva_loader {
  kva_tokenizer *t;
  kva_loc loc; /* of the file */
  kva_diag *diag;
  int depth; /* of sequences of steps */
} kva_loader;

/* "expected ..., in the <part>" */
kva_status kva_json_wrong(const kva_loader *l, const char *part, const char *what);
/* "the <part> <type> is not supported"; type: its name in the file. */
kva_status kva_json_unsupported(const kva_loader *l, const char *part, const json_t *type);

bool kva_json_is(const json_t *v, const char *string);
bool kva_json_flag(const json_t *v, const char *key, bool otherwise);
/* A string's bytes, copied. */
kva_bytes kva_json_text(const kva_loader *l, const json_t *string);
KVA_MUST_USE kva_status kva_json_bytes(const kva_loader *l, const json_t *v, const char *key, kva_bytes *out);

/* The steps of "normalizer" and "pre_tokenizer"; null has none. */
KVA_MUST_USE kva_status kva_json_normalizer(kva_loader *l, const json_t *v, kva_text_steps *to);
KVA_MUST_USE kva_status kva_json_pre_tokenizer(kva_loader *l, const json_t *v, kva_text_steps *to);
/* The members "model" and "added_tokens" of the whole. */
KVA_MUST_USE kva_status kva_json_model(const kva_loader *l, const json_t *root);
KVA_MUST_USE kva_status kva_json_added(const kva_loader *l, const json_t *root);

#endif
