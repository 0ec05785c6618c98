/* Lexical rules: names are [A-Za-z_][A-Za-z0-9_]* (or begin with % or similar: unnamed values of a dump). Numbers begin
 * with a digit (a sign is part of the expression). Strings are in double quotes and may span lines. # starts a comment.
 * In strings a backslash quotes the next character, as in ONNX; the JSON escapes that Kvasir's printer writes (\n, \t,
 * \r, \b, \f, \u00XX) have their JSON meaning. */
#include "frontend/kv_lex.h"

#include <errno.h>
#include <stdlib.h>

typedef struct lexer {
  kva_arena *arena;
  kva_diag *diag;
  kva_tokens *out;
  const char *p;          /* next character */
  const char *line_start; /* of the current line */
  uint32_t line;
  uint32_t errors;
} lexer;

enum { MAX_ERRORS = 20 };

static bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

static bool is_name_char(char c) {
  return is_name_start(c) || is_digit(c);
}

static kva_loc here(const lexer *l) {
  return (kva_loc){
      .file = l->out->file, .source = l->out->source, .line = l->line, .column = (uint32_t)(l->p - l->line_start) + 1};
}

static kva_token *start(lexer *l, int kind) {
  kva_token t = {.kind = kind,
                 .offset = (uint32_t)(l->p - l->out->source),
                 .line = l->line,
                 .column = (uint32_t)(l->p - l->line_start) + 1};
  KVA_PUSH(l->arena, &l->out->token, t);
  return &l->out->token.data[l->out->token.len - 1];
}

static void finish(lexer *l, kva_token *t, const char *end) {
  t->length = (uint32_t)(end - l->out->source) - t->offset;
  l->p = end;
}

static void newline(lexer *l) {
  l->line++;
  l->line_start = l->p;
}

static void lex_comment(lexer *l) {
  size_t n = strcspn(l->p, "\r\n");
  kva_comment c = {.offset = (uint32_t)(l->p - l->out->source), .length = (uint32_t)n, .line = l->line};
  while (c.length > 1 && (l->p[c.length - 1] == ' ' || l->p[c.length - 1] == '\t')) c.length--;
  KVA_PUSH(l->arena, &l->out->comment, c);
  l->p += n;
}

static void lex_name(lexer *l) {
  kva_token *t = start(l, KVA_TOKEN_NAME);
  const char *end = l->p + 1;
  while (is_name_char(*end)) end++;
  t->text = kva_arena_strndup(l->arena, l->p, (size_t)(end - l->p));
  finish(l, t, end);
}

/* digits [. digits] [e [sign] digits]; false if an exponent has no digits or letters follow immediately. */
static bool scan_number(const char *p, const char **out_end, bool *out_float) {
  *out_float = false;
  while (is_digit(*p)) p++;
  if (*p == '.') {
    *out_float = true;
    p++;
    while (is_digit(*p)) p++;
  }
  bool ok = true;
  if (*p == 'e' || *p == 'E') {
    *out_float = true;
    p++;
    if (*p == '+' || *p == '-') p++;
    ok = is_digit(*p);
    while (is_digit(*p)) p++;
  }
  if (is_name_char(*p)) ok = false;
  while (is_name_char(*p)) p++;
  *out_end = p;
  return ok;
}

static void lex_number(lexer *l) {
  const char *end;
  bool is_float;
  bool ok = scan_number(l->p, &end, &is_float);
  kva_loc loc = here(l);
  kva_token *t = start(l, is_float ? KVA_TOKEN_FLOAT : KVA_TOKEN_INT);
  char *copy = kva_arena_strndup(l->arena, l->p, (size_t)(end - l->p));
  finish(l, t, end);
  if (!ok) {
    l->errors++;
    kva_error(l->diag, &loc, "'%.40s' is not a number", copy);
    return;
  }
  t->number = strtod(copy, NULL);
  if (is_float) return;
  errno = 0;
  t->integer = strtoull(copy, NULL, 10);
  if (errno != ERANGE) return;
  l->errors++;
  kva_error(l->diag, &loc, "the integer %.40s does not fit 64 bits", copy);
}

static int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  c |= 0x20;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The digits of \uXXXX; -1: not four hexadecimal digits. */
static int32_t unicode_escape(const char *p) {
  int32_t v = 0;
  for (int i = 0; i < 4; i++) {
    int d = hex_digit(p[i]);
    if (d < 0) return -1;
    v = v * 16 + d;
  }
  return v;
}

static char *put_utf8(char *to, int32_t v) {
  if (v < 0x80) {
    *to++ = (char)v;
  } else if (v < 0x800) {
    *to++ = (char)(0xC0 | v >> 6);
    *to++ = (char)(0x80 | (v & 0x3F));
  } else {
    *to++ = (char)(0xE0 | v >> 12);
    *to++ = (char)(0x80 | (v >> 6 & 0x3F));
    *to++ = (char)(0x80 | (v & 0x3F));
  }
  return to;
}

/* Decodes the escape sequence at p (after the backslash) to *to; returns the position after it. */
static const char *unescape(const char *p, char **to) {
  static const char names[] = "ntrbf", values[] = "\n\t\r\b\f";
  const char *known = strchr(names, *p);
  int32_t code = *p == 'u' ? unicode_escape(p + 1) : -1;
  if (code > 0) {
    *to = put_utf8(*to, code);
    return p + 5;
  }
  *(*to)++ = known ? values[known - names] : *p;
  return p + 1;
}

static const char *string_end(const char *p) {
  while (*p && *p != '"') p += p[0] == '\\' && p[1] ? 2 : 1;
  return p;
}

static void lex_string(lexer *l) {
  const char *end = string_end(l->p + 1);
  kva_loc loc = here(l);
  kva_token *t = start(l, KVA_TOKEN_STRING);
  char *text = kva_arena_alloc(l->arena, (size_t)(end - l->p)), *to = text;
  for (const char *p = l->p + 1; p < end;) {
    if (*p == '\\')
      p = unescape(p + 1, &to);
    else
      *to++ = *p++;
  }
  t->text = text;
  for (; l->p < end;) {
    if (*l->p++ == '\n') newline(l);
  }
  finish(l, t, *end ? end + 1 : end);
  if (*end) return;
  l->errors++;
  kva_error(l->diag, &loc, "this string has no closing quote");
}

static void lex_punctuation(lexer *l) {
  static const struct {
    char text[3];
    int kind;
  } pairs[] = {
      {"=>", KVA_TOKEN_ARROW}, {"==", KVA_TOKEN_EQ}, {"!=", KVA_TOKEN_NE}, {"<=", KVA_TOKEN_LE}, {">=", KVA_TOKEN_GE}};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
    if (strncmp(l->p, pairs[i].text, 2)) continue;
    finish(l, start(l, pairs[i].kind), l->p + 2);
    return;
  }
  if (strchr("{}()[]<>,:=.@?~+-*/", *l->p)) {
    finish(l, start(l, *l->p), l->p + 1);
    return;
  }
  kva_loc loc = here(l);
  l->errors++;
  if (*l->p > 0x20 && *l->p < 0x7F)
    kva_error(l->diag, &loc, "the character '%c' has no meaning here", *l->p);
  else
    kva_error(l->diag, &loc, "the byte 0x%02x has no meaning here", (unsigned char)*l->p);
  l->p++;
}

static void lex_one(lexer *l) {
  char c = *l->p;
  if (c == '\n') {
    l->p++;
    newline(l);
  } else if (c == ' ' || (c >= '\t' && c <= '\r')) {
    l->p++;
  } else if (c == '#') {
    lex_comment(l);
  } else if (is_name_start(c) || (c == '%' && is_name_char(l->p[1]))) {
    lex_name(l);
  } else if (is_digit(c)) {
    lex_number(l);
  } else if (c == '"') {
    lex_string(l);
  } else {
    lex_punctuation(l);
  }
}

bool kva_lex(kva_arena *arena, kva_diag *diag, const char *file, const char *source, kva_tokens *out) {
  *out = (kva_tokens){.file = file, .source = source};
  lexer l = {.arena = arena, .diag = diag, .out = out, .p = source, .line_start = source, .line = 1};
  if (strlen(source) > INT32_MAX) {
    kva_error(diag, &(kva_loc){.file = file}, "the text is longer than 2 GiB");
    return false;
  }
  if (!strncmp(source, "\xEF\xBB\xBF", 3)) l.p = l.line_start = source + 3; /* byte order mark */
  while (*l.p && l.errors < MAX_ERRORS) lex_one(&l);
  start(&l, KVA_TOKEN_END);
  return l.errors == 0;
}

kva_loc kva_token_loc(const kva_tokens *t, uint32_t token) {
  const kva_token *k = &t->token.data[token];
  return (kva_loc){.file = t->file, .source = t->source, .line = k->line, .column = k->column};
}

const char *kva_token_kind_name(kva_arena *arena, int kind) {
  switch (kind) {
  case KVA_TOKEN_END: return "the end of the file";
  case KVA_TOKEN_NAME: return "a name";
  case KVA_TOKEN_STRING: return "a string";
  case KVA_TOKEN_INT: return "an integer";
  case KVA_TOKEN_FLOAT: return "a number";
  case KVA_TOKEN_ARROW: return "'=>'";
  case KVA_TOKEN_EQ: return "'=='";
  case KVA_TOKEN_NE: return "'!='";
  case KVA_TOKEN_LE: return "'<='";
  case KVA_TOKEN_GE: return "'>='";
  default: return kva_arena_printf(arena, "'%c'", kind);
  }
}

const char *kva_token_name(kva_arena *arena, const kva_tokens *t, uint32_t token) {
  const kva_token *k = &t->token.data[token];
  if (k->kind == KVA_TOKEN_STRING) return kva_arena_printf(arena, "the string \"%.40s\"", k->text);
  if (k->kind < KVA_TOKEN_NAME || k->kind > KVA_TOKEN_FLOAT) return kva_token_kind_name(arena, k->kind);
  return kva_arena_printf(arena, "'%.*s'", (int)(k->length > 40 ? 40 : k->length), t->source + k->offset);
}
