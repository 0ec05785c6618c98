/* Tokens of PTX text, private to the simulator. */
#ifndef KVA_RUNTIME_PTXSIM_LEX_H
#define KVA_RUNTIME_PTXSIM_LEX_H

#include "runtime/ptxsim/program.h"

typedef enum ptx_token_kind {
  PTX_TOKEN_END,
  PTX_TOKEN_WORD,   /* mnemonics, directives, names: letters, digits, _ $ % . and "::" */
  PTX_TOKEN_INT,    /* value in bits */
  PTX_TOKEN_F32,    /* bits of 0f... */
  PTX_TOKEN_F64,    /* bits of 0d... or of a decimal number */
  PTX_TOKEN_STRING, /* text without quotes */
  PTX_TOKEN_PUNCT,  /* one character: text[0] */
  PTX_TOKEN_BAD,    /* text is the reason */
} ptx_token_kind;

typedef struct ptx_token {
  ptx_token_kind kind;
  const char *text; /* in the source; not terminated */
  size_t n;
  uint64_t bits;
  uint32_t line, column;
} ptx_token;

typedef struct ptx_lexer {
  const char *p, *end, *line_start;
  uint32_t line;
} ptx_lexer;

/* text[size] must be NUL. */
void kva_ptx_lex_start(ptx_lexer *lexer, const char *text, size_t size);
ptx_token kva_ptx_lex(ptx_lexer *lexer);

#endif
