/* Patterns are copied to PCRE2 piece by piece, so that no construct gets there that it reads in another way. */
#include "tools/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

struct kva_regex {
  pcre2_code *code;
  pcre2_match_data *match;
  pcre2_match_context *limits;
  bool exceeded;
};

/* Bounds of one search; ordinary patterns stay far below. */
enum { STEPS_AT_LEAST = 1000000, HEAP_KIB = 64 << 10 };

/* ---- from Oniguruma's syntax to PCRE2's -------------------------------------------------------------------------- */

/* Oniguruma's \w; PCRE2's own has no marks. Outside of sets the numbers of Latin-1 belong to it, too. */
#define WORD    "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define NUMBERS "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"

typedef struct translator {
  const char *begin, *at, *end;
  int sets; /* that the place is in */
  kva_text out;
  const kva_loc *loc;
  kva_diag *diag;
} translator;

static kva_status unsupported(const translator *t, const char *what) {
  return kva_fail(t->diag, KVA_UNSUPPORTED, t->loc, "the regular expression '%.*s': %s is not supported (byte %zu)",
                  (int)(t->end - t->begin), t->begin, what, (size_t)(t->at - t->begin));
}

static bool at_text(const translator *t, const char *text) {
  size_t n = strlen(text);
  return (size_t)(t->end - t->at) >= n && !memcmp(t->at, text, n);
}

static void copy(translator *t, size_t n) {
  kva_text_add_bytes(&t->out, t->at, n);
  t->at += n;
}

static void replace(translator *t, size_t n, const char *by) {
  kva_text_add(&t->out, "%s", by);
  t->at += n;
}

/* \p{L} and \p{Lu} are categories, longer names are scripts, which PCRE2 would take for extensions of scripts. */
static kva_status property(translator *t) {
  const char *name = t->at + 3, *close = name;
  while (close < t->end && *close != '}') close++;
  if (t->end - t->at < 4 || t->at[2] != '{' || close == t->end || *name == '^')
    return unsupported(t, "this form of a property");
  bool category = close - name <= 2;
  kva_text_add(&t->out, "\\%c{%s%.*s}", t->at[1], category ? "" : "sc:", (int)(close - name), name);
  t->at = close + 1;
  return KVA_OK;
}

static bool is_punctuation(char c) {
  return c > ' ' && c < 127 && !strchr("_0123456789", c) && !((c | 32) >= 'a' && (c | 32) <= 'z');
}

static kva_status escape(translator *t) {
  char c = t->at + 1 < t->end ? t->at[1] : 0;
  if (c == 'p' || c == 'P') return property(t);
  if (c == 'W' && t->sets) return unsupported(t, "\\W in a set");
  if (c == 's')
    replace(t, 2, "\\p{White_Space}");
  else if (c == 'S')
    replace(t, 2, "\\P{White_Space}");
  else if (c == 'w')
    replace(t, 2, t->sets ? WORD : "[" WORD NUMBERS "]");
  else if (c == 'W')
    replace(t, 2, "[^" WORD NUMBERS "]");
  else if (c && (strchr("dDrntfx", c) || is_punctuation(c)))
    copy(t, 2);
  else
    return unsupported(t, c ? "this escape" : "an escape without a character");
  return KVA_OK;
}

static kva_status group(translator *t) {
  static const char *const kinds[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    if (!at_text(t, kinds[i])) continue;
    copy(t, strlen(kinds[i]));
    return KVA_OK;
  }
  if (at_text(t, "(?") || at_text(t, "(*")) return unsupported(t, "this kind of group");
  copy(t, 1);
  return KVA_OK;
}

/* {n}, {n,}, {n,m}. What follows is greedy: "{2}+" means two things. */
static kva_status repetition(translator *t) {
  const char *p = t->at + 1;
  while (p < t->end && *p >= '0' && *p <= '9') p++;
  bool counted = p > t->at + 1;
  if (p < t->end && *p == ',') p++;
  while (p < t->end && *p >= '0' && *p <= '9') p++;
  bool closed = p < t->end && *p == '}';
  if (!counted || !closed || (p + 1 < t->end && strchr("+?", p[1]))) return unsupported(t, "this quantifier");
  copy(t, (size_t)(p + 1 - t->at));
  return KVA_OK;
}

static kva_status set_begin(translator *t) {
  copy(t, at_text(t, "[^") ? 2 : 1);
  t->sets = 1;
  return at_text(t, "]") ? unsupported(t, "an empty set") : KVA_OK;
}

/* A set in a set is a union, which needs no brackets, unless a '-' beside them would become a range. */
static kva_status inner_bracket(translator *t) {
  bool begins = *t->at == '[';
  if (t->at[-1] == '-' || (t->end - t->at > 1 && strchr(begins ? "^:]-" : "-", t->at[1])))
    return unsupported(t, "this set in a set");
  t->sets += begins ? 1 : -1;
  t->at++;
  return KVA_OK;
}

static kva_status in_set(translator *t) {
  if (at_text(t, "&&")) return unsupported(t, "an intersection of sets");
  if (*t->at == '[' || (*t->at == ']' && t->sets > 1)) return inner_bracket(t);
  if (*t->at == ']') t->sets = 0;
  copy(t, 1);
  return KVA_OK;
}

static kva_status translate(translator *t) {
  while (t->at < t->end) {
    if (*t->at == '\\')
      KVA_TRY(escape(t));
    else if (t->sets)
      KVA_TRY(in_set(t));
    else if (*t->at == '[')
      KVA_TRY(set_begin(t));
    else if (*t->at == '(')
      KVA_TRY(group(t));
    else if (*t->at == '{')
      KVA_TRY(repetition(t));
    else if (*t->at == '^')
      replace(t, 1, "(?m:^)"); /* of every line, as Ruby has it */
    else if (*t->at == '$')
      replace(t, 1, "(?m:$)");
    else
      copy(t, 1);
  }
  return KVA_OK;
}

/* ---- PCRE2 ------------------------------------------------------------------------------------------------------- */

static kva_status compile(kva_regex *r, const translator *t) {
  int error = 0;
  size_t offset = 0;
  uint32_t empty = 0;
  r->code = pcre2_compile((PCRE2_SPTR)t->out.data, t->out.len, PCRE2_UTF | PCRE2_UCP, &error, &offset, NULL);
  if (!r->code) {
    PCRE2_UCHAR text[200] = "";
    pcre2_get_error_message(error, text, sizeof text);
    return kva_fail(t->diag, KVA_UNSUPPORTED, t->loc, "the regular expression '%.*s': %s", (int)(t->end - t->begin),
                    t->begin, (const char *)text);
  }
  pcre2_pattern_info(r->code, PCRE2_INFO_MATCHEMPTY, &empty);
  if (empty) return unsupported(t, "a match of nothing");
  pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE); /* only faster */
  r->match = pcre2_match_data_create(1, NULL);
  r->limits = pcre2_match_context_create(NULL);
  if (!r->match || !r->limits) return kva_fail(t->diag, KVA_NO_MEMORY, NULL, "out of memory");
  pcre2_set_heap_limit(r->limits, HEAP_KIB);
  return KVA_OK;
}

kva_status kva_regex_compile(const char *pattern, size_t size, kva_arena *arena, const kva_loc *loc, kva_diag *diag,
                             kva_regex **out_regex) {
  translator t = {.begin = pattern, .at = pattern, .end = pattern + size, .loc = loc, .diag = diag};
  kva_regex *r = KVA_NEW(arena, kva_regex);
  kva_text_add(&t.out, "%s", "");
  kva_status status = translate(&t);
  if (status == KVA_OK) status = compile(r, &t);
  kva_text_free(&t.out);
  if (status == KVA_OK)
    *out_regex = r;
  else
    kva_regex_release(r);
  return status;
}

void kva_regex_release(kva_regex *r) {
  pcre2_match_context_free(r->limits);
  pcre2_match_data_free(r->match);
  pcre2_code_free(r->code);
}

bool kva_regex_find(kva_regex *r, const char *text, size_t size, size_t at, size_t *out_begin, size_t *out_end) {
  const uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
  size_t most = STEPS_AT_LEAST + size;
  pcre2_set_match_limit(r->limits, most < UINT32_MAX ? (uint32_t)most : UINT32_MAX);
  int found = pcre2_match(r->code, (PCRE2_SPTR)text, size, at, options, r->match, r->limits);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT)
    found = pcre2_match(r->code, (PCRE2_SPTR)text, size, at, options | PCRE2_NO_JIT, r->match, r->limits);
  r->exceeded = r->exceeded || (found < 0 && found != PCRE2_ERROR_NOMATCH);
  if (found < 0) return false;
  *out_begin = pcre2_get_ovector_pointer(r->match)[0];
  *out_end = pcre2_get_ovector_pointer(r->match)[1];
  return true;
}

bool kva_regex_exceeded(kva_regex *r) {
  bool exceeded = r->exceeded;
  r->exceeded = false;
  return exceeded;
}

#define TEXT_OF(x)   #x
#define NUMBER_OF(x) TEXT_OF(x)

const char *kva_regex_version(void) {
  return NUMBER_OF(PCRE2_MAJOR) "." NUMBER_OF(PCRE2_MINOR);
}
