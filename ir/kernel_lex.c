/* Tokens of kernel text: names, numbers, quoted strings, punctuation; white space and `# comment` are skipped. */
#include "ir/kernel_lex.h"

#include <ctype.h>

static void fail(kva_klexer *lex, kva_ktoken at, const char *text) {
  if (lex->failed) return;
  kva_loc loc = {.file = lex->file, .source = lex->source, .line = at.line, .column = at.column};
  (void)kva_error(lex->diag, &loc, "%s", text);
  lex->failed = true;
  lex->token = (kva_ktoken){.kind = KVA_KT_END, .text = "end of text", .line = at.line, .column = at.column};
}

void kva_klex_error_at(kva_klexer *lex, kva_ktoken at, const char *fmt, ...) {
  char text[256];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  fail(lex, at, text);
}

void kva_klex_error(kva_klexer *lex, const char *fmt, ...) {
  char text[256];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  fail(lex, lex->token, text);
}

static void skip_blank(kva_klexer *lex) {
  for (;; lex->at++) {
    if (*lex->at == '#') lex->at += strcspn(lex->at, "\n");
    if (*lex->at == '\n') {
      lex->line++;
      lex->line_start = lex->at + 1;
    } else if (*lex->at != ' ' && *lex->at != '\t' && *lex->at != '\r') {
      return;
    }
  }
}

static size_t name_length(const char *s) {
  size_t n = 0;
  while (isalnum((unsigned char)s[n]) || s[n] == '_' || s[n] == '.') n++;
  return n;
}

static size_t digits(const char *s) {
  return strspn(s, "0123456789");
}

static size_t number_length(const char *s) {
  size_t n = digits(s);
  if (s[n] == '.') n += 1 + digits(s + n + 1);
  if (s[n] != 'e') return n;
  size_t sign = s[n + 1] == '-' || s[n + 1] == '+';
  return digits(s + n + 1 + sign) ? n + 1 + sign + digits(s + n + 1 + sign) : n;
}

static int hex_byte(const char *s) {
  int v = 0;
  for (int i = 0; i < 4; i++) {
    if (!isxdigit((unsigned char)s[i])) return -1;
    v = 16 * v + (isdigit((unsigned char)s[i]) ? s[i] - '0' : tolower((unsigned char)s[i]) - 'a' + 10);
  }
  return v > 0 && v < 256 ? v : -1;
}

/* One character of a string after its backslash; 0: bad escape. */
static char escape(const char **s) {
  static const char letters[] = "nrtbf\"\\/", meaning[] = "\n\r\t\b\f\"\\/";
  char c = **s;
  if (c == 'u') {
    int v = hex_byte(*s + 1);
    if (v > 0) *s += 5;
    return (char)(v > 0 ? v : 0);
  }
  const char *found = c ? strchr(letters, c) : NULL;
  if (!found) return 0;
  ++*s;
  return meaning[found - letters];
}

static void read_string(kva_klexer *lex) {
  kva_text text = {0};
  const char *s = lex->at + 1;
  while (*s && *s != '"' && *s != '\n') {
    char c = *s++;
    if (c == '\\') c = escape(&s);
    if (!c) break;
    kva_text_add_bytes(&text, &c, 1);
  }
  bool ok = *s == '"';
  lex->token.kind = KVA_KT_STRING;
  lex->token.text = kva_arena_strndup(lex->arena, text.data ? text.data : "", text.len);
  kva_text_free(&text);
  lex->at = s + 1;
  if (!ok) fail(lex, lex->token, "string without end or with a bad escape");
}

static void take(kva_klexer *lex, kva_ktoken_kind kind, size_t n) {
  lex->token.kind = kind;
  lex->token.text = kva_arena_strndup(lex->arena, lex->at, n);
  lex->at += n;
}

void kva_klex_next(kva_klexer *lex) {
  if (lex->failed) return;
  skip_blank(lex);
  unsigned char c = (unsigned char)*lex->at;
  lex->token.line = lex->line;
  lex->token.column = (uint32_t)(lex->at - lex->line_start) + 1;
  if (!c) {
    lex->token.kind = KVA_KT_END;
    lex->token.text = "end of text";
  } else if (c == '"') {
    read_string(lex);
  } else if (isdigit(c)) {
    take(lex, KVA_KT_NUMBER, number_length(lex->at));
  } else if (isalpha(c) || c == '_') {
    take(lex, KVA_KT_NAME, name_length(lex->at));
  } else {
    take(lex, KVA_KT_PUNCT, lex->at[0] == '-' && lex->at[1] == '>' ? 2 : 1);
  }
}

void kva_klex_start(kva_klexer *lex, kva_arena *arena, const char *text, const char *file, kva_diag *diag) {
  *lex = (kva_klexer){.arena = arena, .source = text, .file = file, .at = text, .line_start = text, .line = 1};
  lex->diag = diag;
  kva_klex_next(lex);
}

bool kva_klex_is(const kva_klexer *lex, const char *punct) {
  return lex->token.kind == KVA_KT_PUNCT && !strcmp(lex->token.text, punct);
}

bool kva_klex_is_name(const kva_klexer *lex, const char *name) {
  return lex->token.kind == KVA_KT_NAME && !strcmp(lex->token.text, name);
}

bool kva_klex_accept(kva_klexer *lex, const char *punct) {
  bool found = kva_klex_is(lex, punct);
  if (found) kva_klex_next(lex);
  return found;
}

bool kva_klex_accept_name(kva_klexer *lex, const char *name) {
  bool found = kva_klex_is_name(lex, name);
  if (found) kva_klex_next(lex);
  return found;
}

void kva_klex_expect(kva_klexer *lex, const char *punct) {
  if (!kva_klex_accept(lex, punct)) kva_klex_error(lex, "expected '%s', found '%s'", punct, lex->token.text);
}

void kva_klex_expect_name(kva_klexer *lex, const char *what) {
  bool ok = lex->token.kind == KVA_KT_NAME || lex->token.kind == KVA_KT_STRING;
  if (!ok) kva_klex_error(lex, "expected %s, found '%s'", what, lex->token.text);
  kva_klex_next(lex);
}
