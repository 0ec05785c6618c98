/* Tokenizers: text to ids and back, by bytes or according to a Hugging Face tokenizer.json with a BPE, WordPiece
 * or Unigram model. The ids then equal those of the `tokenizers` package with add_special_tokens=False. */
#ifndef KVA_TOOLS_TOKENIZER_TOKENIZER_H
#define KVA_TOOLS_TOKENIZER_TOKENIZER_H

#include "runtime/base/base.h"

typedef struct kva_tokenizer kva_tokenizer;

typedef struct kva_token_ids {
  uint32_t *data; /* free() */
  int64_t n, capacity;
} kva_token_ids;
void kva_token_ids_add(kva_token_ids *ids, uint32_t id);

/* Ids 0 to 255 are bytes, 256 ends a document. */
kva_tokenizer *kva_tokenizer_bytes(void);
/* KVA_UNSUPPORTED names what is not supported. */
KVA_MUST_USE kva_status kva_tokenizer_load(const char *path, kva_diag *diag, kva_tokenizer **out_tokenizer);
KVA_MUST_USE kva_status kva_tokenizer_parse(const char *path, const char *json, size_t size, kva_diag *diag,
                                            kva_tokenizer **out_tokenizer);
void kva_tokenizer_destroy(kva_tokenizer *t);

bool kva_tokenizer_is_bytes(const kva_tokenizer *t);
/* The largest id plus one. */
int64_t kva_tokenizer_vocab(const kva_tokenizer *t);
/* The id of the token with this text; -1: none. */
int64_t kva_tokenizer_find(const kva_tokenizer *t, const char *text);
/* The token that ends documents: the first of several common ones that exists; -1: none. */
int64_t kva_tokenizer_end(const kva_tokenizer *t);
/* Whether a token ends a document or a turn of a chat. */
bool kva_tokenizer_ends(const kva_tokenizer *t, int64_t id);
/* Appends the tokens that the post-processor puts before a text. */
void kva_tokenizer_begin(const kva_tokenizer *t, kva_token_ids *ids);

/* Libraries that tokenizers stand on. */
typedef struct kva_text_library {
  const char *name;
  char version[32];
} kva_text_library;
enum { KVA_TEXT_LIBRARIES = 3 };
void kva_tokenizer_libraries(kva_text_library out[KVA_TEXT_LIBRARIES]);

/* Appends the tokens of a text. Invalid UTF-8 becomes U+FFFD (*out_replaced counts replacements), except in the byte
 * tokenizer. One thread at a time. */
KVA_MUST_USE kva_status kva_tokenizer_encode(kva_tokenizer *t, const char *text, size_t size, kva_diag *diag,
                                             kva_token_ids *ids, int64_t *out_replaced);
/* Appends a token's text for display: special tokens by name. */
void kva_tokenizer_decode(const kva_tokenizer *t, uint32_t id, kva_text *out);

#endif
