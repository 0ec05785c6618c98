/* Tokens of kernel text; private to kernel_parse.c. */
#ifndef KVA_IR_KERNEL_LEX_H
#define KVA_IR_KERNEL_LEX_H

#include "runtime/base/base.h"

typedef enum kva_ktoken_kind {
  KVA_KT_END,
  KVA_KT_NAME,
  KVA_KT_NUMBER, /* digits, maybe with fraction and exponent; no sign */
  KVA_KT_STRING, /* text without quotes, escapes resolved */
  KVA_KT_PUNCT,  /* one character, or "->" */
} kva_ktoken_kind;

typedef struct kva_ktoken {
  kva_ktoken_kind kind;
  const char *text;
  uint32_t line, column;
} kva_ktoken;

typedef struct kva_klexer {
  kva_arena *arena;
  const char *source, *file, *at, *line_start;
  uint32_t line;
  kva_diag *diag;
  kva_ktoken token; /* the current one */
  bool failed;      /* after an error the current token remains END */
} kva_klexer;

void kva_klex_start(kva_klexer *lex, kva_arena *arena, const char *text, const char *file, kva_diag *diag);
void kva_klex_next(kva_klexer *lex);
bool kva_klex_is(const kva_klexer *lex, const char *punct);
bool kva_klex_is_name(const kva_klexer *lex, const char *name);
bool kva_klex_accept(kva_klexer *lex, const char *punct);
bool kva_klex_accept_name(kva_klexer *lex, const char *name);
void kva_klex_expect(kva_klexer *lex, const char *punct);
void kva_klex_expect_name(kva_klexer *lex, const char *what);                /* a name or a string */
void kva_klex_error(kva_klexer *lex, const char *fmt, ...) KVA_PRINTF(2, 3); /* at the current token */
void kva_klex_error_at(kva_klexer *lex, kva_ktoken at, const char *fmt, ...) KVA_PRINTF(3, 4);

#endif
