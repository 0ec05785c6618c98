/* Tokenizers: text to numbers and back. By bytes, or as a Hugging Face tokenizer.json with a BPE model says; then the
 * numbers are those of the `tokenizers` package with add_special_tokens=False. */
#ifndef KVA_TOOLS_TOKENIZER_TOKENIZER_H
#define KVA_TOOLS_TOKENIZER_TOKENIZER_H

#include "runtime/base/base.h"

typedef struct kva_tokenizer kva_tokenizer;

typedef struct kva_token_ids {
  uint32_t *data; /* free() */
  int64_t n, capacity;
} kva_token_ids;

/* 256 bytes, and 256 for the end of a document. */
kva_tokenizer *kva_tokenizer_bytes(void);
/* What is not supported is KVA_UNSUPPORTED and named. */
KVA_MUST_USE kva_status kva_tokenizer_load(const char *path, kva_diag *diag, kva_tokenizer **out_tokenizer);
KVA_MUST_USE kva_status kva_tokenizer_parse(const char *path, const char *json, size_t size, kva_diag *diag,
                                            kva_tokenizer **out_tokenizer);
void kva_tokenizer_destroy(kva_tokenizer *t);

/* One more than the greatest number of a token. */
int64_t kva_tokenizer_vocab(const kva_tokenizer *t);
/* The number of a token of this text; -1: there is none. */
int64_t kva_tokenizer_find(const kva_tokenizer *t, const char *text);
/* The token that ends documents: of several usual ones the first that exists; -1: none. */
int64_t kva_tokenizer_end(const kva_tokenizer *t);

/* Appends the tokens of a text. Bytes that are not UTF-8 become U+FFFD (*out_replaced counts how often), but for the
 * tokenizer of bytes. One thread at a time. */
KVA_MUST_USE kva_status kva_tokenizer_encode(kva_tokenizer *t, const char *text, size_t size, kva_diag *diag,
                                             kva_token_ids *ids, int64_t *out_replaced);
/* Appends the text of a token, for reading: special tokens by name. */
void kva_tokenizer_decode(const kva_tokenizer *t, uint32_t id, kva_text *out);

#endif
