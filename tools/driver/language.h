/* Language models: one input of tokens, logits of the token after each of them. */
#ifndef KVA_TOOLS_DRIVER_LANGUAGE_H
#define KVA_TOOLS_DRIVER_LANGUAGE_H

#include "ir/ir.h"

typedef struct kva_language {
  kva_dtype token_type; /* KVA_I32 or KVA_I64 */
  int64_t vocabulary;   /* of the logits */
  int64_t context;      /* tokens of a text: rows of a table that the number of a token looks up; INT64_MAX: any */
} kva_language;

/* Looks at the model as it is written, so that the answer comes before compiling; logits of another type of floats
 * become float. KVA_UNSUPPORTED: it is no language model; the message begins with `who`, the command that needs one. */
KVA_MUST_USE kva_status kva_language_of(kva_module *m, const char *who, kva_diag *diag, kva_language *out);

#endif
