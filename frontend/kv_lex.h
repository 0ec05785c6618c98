/* Tokens of the text language. The whole text is tokenised at once, which gives the parser unlimited lookahead.
 * Comments are kept separately, for the formatter. */
#ifndef KVA_FRONTEND_KV_LEX_H
#define KVA_FRONTEND_KV_LEX_H

#include "runtime/base/base.h"

/* A punctuation character is its own kind: '{', '<', ... */
enum {
  KVA_TOKEN_END = 256,
  KVA_TOKEN_NAME,   /* identifier, or %12 */
  KVA_TOKEN_STRING, /* in double quotes; `text` is without quotes and escapes */
  KVA_TOKEN_INT,
  KVA_TOKEN_FLOAT,
  KVA_TOKEN_ARROW, /* => */
  KVA_TOKEN_EQ,    /* == */
  KVA_TOKEN_NE,
  KVA_TOKEN_LE,
  KVA_TOKEN_GE,
};

typedef struct kva_token {
  int kind;
  uint32_t offset, length; /* in the source */
  uint32_t line, column;
  const char *text; /* NAME, STRING */
  uint64_t integer; /* INT */
  double number;    /* INT, FLOAT */
} kva_token;

typedef struct kva_comment {
  uint32_t offset, length; /* from '#', without the newline */
  uint32_t line;
} kva_comment;

typedef struct kva_tokens {
  const char *file, *source; /* in the arena */
  KVA_VEC(kva_token) token;  /* the last one is KVA_TOKEN_END */
  KVA_VEC(kva_comment) comment;
} kva_tokens;

/* Tokenises source, which is referenced, not copied. Reports and skips invalid characters: false if there were any. */
bool kva_lex(kva_arena *arena, kva_diag *diag, const char *file, const char *source, kva_tokens *out);
kva_loc kva_token_loc(const kva_tokens *t, uint32_t token);
/* The name of a kind or a token in messages: "'{'", "a name"; "'embed'", "the end of the file". */
const char *kva_token_kind_name(kva_arena *arena, int kind);
const char *kva_token_name(kva_arena *arena, const kva_tokens *t, uint32_t token);

#endif
