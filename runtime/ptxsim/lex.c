/* The lexer. The text ends with a NUL, so looking ahead needs no bounds checks. */
#include "runtime/ptxsim/lex.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

void kva_ptx_lex_start(ptx_lexer *lexer, const char *text, size_t size) {
  *lexer = (ptx_lexer){text, text + size, text, 1};
}

static void next_line(ptx_lexer *x) {
  x->line++;
  x->line_start = x->p;
}

/* Skips white space and comments; false at an unterminated comment. */
static bool skip_space(ptx_lexer *x) {
  for (;;) {
    if (*x->p == '\n') {
      x->p++;
      next_line(x);
    } else if (*x->p == ' ' || *x->p == '\t' || *x->p == '\r') {
      x->p++;
    } else if (x->p[0] == '/' && x->p[1] == '/') {
      while (x->p < x->end && *x->p != '\n') x->p++;
    } else if (x->p[0] == '/' && x->p[1] == '*') {
      for (x->p += 2; !(x->p[0] == '*' && x->p[1] == '/'); x->p++) {
        if (x->p >= x->end) return false;
        if (*x->p == '\n') {
          x->line++;
          x->line_start = x->p + 1;
        }
      }
      x->p += 2;
    } else {
      return true;
    }
  }
}

static bool starts_word(char c) {
  return isalpha((unsigned char)c) || c == '_' || c == '$' || c == '%' || c == '.';
}
static bool in_word(char c) {
  return starts_word(c) || isdigit((unsigned char)c);
}

static void lex_word(ptx_lexer *x, ptx_token *t) {
  t->kind = PTX_TOKEN_WORD;
  for (;;) {
    if (in_word(*x->p))
      x->p++;
    else if (x->p[0] == ':' && x->p[1] == ':' && isalnum((unsigned char)x->p[2]))
      x->p += 2;
    else
      break;
  }
  t->n = (size_t)(x->p - t->text);
}

static void bad(ptx_token *t, const char *reason) {
  t->kind = PTX_TOKEN_BAD;
  t->text = reason;
  t->n = strlen(reason);
}

/* 0f or 0d and exactly `digits` hexadecimal digits. */
static void lex_hex_float(ptx_lexer *x, ptx_token *t, int digits) {
  t->kind = digits == 8 ? PTX_TOKEN_F32 : PTX_TOKEN_F64;
  x->p += 2;
  for (int i = 0; i < digits; i++, x->p++) {
    if (!isxdigit((unsigned char)*x->p)) {
      bad(t, "a 0f constant takes 8 hexadecimal digits, a 0d constant 16");
      return;
    }
    int c = tolower((unsigned char)*x->p);
    t->bits = t->bits << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
  }
}

static void lex_integer(ptx_lexer *x, ptx_token *t) {
  uint64_t base = 10;
  const char *p = x->p;
  if (p[0] == '0' && tolower((unsigned char)p[1]) == 'x')
    base = 16, p += 2;
  else if (p[0] == '0' && tolower((unsigned char)p[1]) == 'b')
    base = 2, p += 2;
  else if (p[0] == '0')
    base = 8;
  const char *first = p;
  t->kind = PTX_TOKEN_INT;
  for (; isxdigit((unsigned char)*p); p++) {
    int c = tolower((unsigned char)*p);
    uint64_t digit = (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    if (digit >= base) break;
    if (__builtin_mul_overflow(t->bits, base, &t->bits) || __builtin_add_overflow(t->bits, digit, &t->bits)) {
      bad(t, "the integer does not fit 64 bits");
      break;
    }
  }
  if (p == first) bad(t, "a number needs digits");
  x->p = p;
  if (*x->p == 'U' || *x->p == 'u') x->p++;
}

static bool is_decimal_fraction(const char *p) {
  while (isdigit((unsigned char)*p)) p++;
  return *p == '.' || ((*p == 'e' || *p == 'E') && (isdigit((unsigned char)p[1]) || p[1] == '-' || p[1] == '+'));
}

static void lex_number(ptx_lexer *x, ptx_token *t) {
  int second = tolower((unsigned char)x->p[1]);
  if (x->p[0] == '0' && (second == 'f' || second == 'd')) {
    lex_hex_float(x, t, second == 'f' ? 8 : 16);
  } else if (x->p[0] == '0' && second == 'x') {
    lex_integer(x, t);
  } else if (is_decimal_fraction(x->p)) {
    char *end;
    double v = strtod(x->p, &end);
    t->kind = PTX_TOKEN_F64;
    memcpy(&t->bits, &v, sizeof v);
    x->p = end;
  } else {
    lex_integer(x, t);
  }
  if (t->kind != PTX_TOKEN_BAD && in_word(*x->p)) bad(t, "a number ends in a letter");
}

static void lex_string(ptx_lexer *x, ptx_token *t) {
  const char *first = ++x->p;
  while (x->p < x->end && *x->p != '"' && *x->p != '\n') x->p++;
  if (*x->p != '"') {
    bad(t, "a string does not end on its line");
    return;
  }
  t->kind = PTX_TOKEN_STRING;
  t->text = first;
  t->n = (size_t)(x->p++ - first);
}

ptx_token kva_ptx_lex(ptx_lexer *x) {
  bool closed = skip_space(x);
  ptx_token t = {PTX_TOKEN_END, x->p, 0, 0, x->line, (uint32_t)(x->p - x->line_start) + 1};
  if (!closed)
    bad(&t, "a comment does not end");
  else if (x->p >= x->end)
    return t;
  else if (isdigit((unsigned char)*x->p))
    lex_number(x, &t);
  else if (starts_word(*x->p))
    lex_word(x, &t);
  else if (*x->p == '"')
    lex_string(x, &t);
  else if (isprint((unsigned char)*x->p))
    t.kind = PTX_TOKEN_PUNCT, t.n = 1, x->p++;
  else
    bad(&t, "a character that PTX does not use");
  return t;
}
