/* Functions on strings. utf8proc maps cases, PCRE2 matches. */
#include "runtime/base/external/external.h"

#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

static void *result(const kva_external_call *c) {
  return c->args[c->n_args - 1].data;
}

static int64_t count(const kva_external_call *c) {
  return c->args[c->n_args - 1].n;
}

/* ---- edges of a program ------------------------------------------------------------------------------------------ */

kva_status kva_external_strings_in(kva_external_call *c) {
  KVA_TRY(kva_external_expect(c, 2, (kva_dtype[]){KVA_STRING, KVA_I64}));
  const char *const *in = c->args[0].data;
  for (int64_t i = 0; i < count(c); i++) {
    if (!in[i]) return kva_external_fail(c, KVA_INVALID, "element %lld is NULL, expected a string", (long long)i);
    kva_external_set_text(c, i, in[i], strlen(in[i]));
  }
  return KVA_OK;
}

kva_status kva_external_strings_out(kva_external_call *c) {
  KVA_TRY(kva_external_expect(c, 2, (kva_dtype[]){KVA_I64, KVA_STRING}));
  const char **out = result(c);
  for (int64_t i = 0; i < count(c); i++) KVA_TRY(kva_external_text(c, 0, i, &out[i]));
  return KVA_OK;
}

kva_status kva_external_string_bytes(kva_external_call *c) {
  if (c->n_args != 2 || c->args[0].dtype != KVA_U8 || c->args[1].dtype != KVA_I64)
    return kva_external_fail(c, KVA_INVALID, "expected bytes and numbers of strings");
  const char *at = c->args[0].data, *end = at + c->args[0].n;
  for (int64_t i = 0; i < count(c); i++) {
    const char *stop = at < end ? memchr(at, 0, (size_t)(end - at)) : NULL;
    if (!stop)
      return kva_external_fail(c, KVA_INVALID, "the bytes hold %lld strings, expected %lld", (long long)i,
                               (long long)count(c));
    kva_external_set_text(c, i, at, (size_t)(stop - at));
    at = stop + 1;
  }
  return KVA_OK;
}

/* ---- texts from texts -------------------------------------------------------------------------------------------- */

kva_status kva_external_string_concat(kva_external_call *c) {
  kva_text text = {0};
  kva_status status = kva_external_expect(c, 3, (kva_dtype[]){KVA_I64, KVA_I64, KVA_I64});
  for (int64_t i = 0; i < count(c) && !status; i++) {
    const char *a = "", *b = "";
    status = kva_external_text(c, 0, i, &a);
    if (!status) status = kva_external_text(c, 1, i, &b);
    text.len = 0;
    kva_text_add(&text, "%s%s", a, b);
    if (!status) kva_external_set_text(c, i, text.data, text.len);
  }
  kva_text_free(&text);
  return status;
}

static kva_status map_case(kva_external_call *c, utf8proc_int32_t (*map)(utf8proc_int32_t), const char *s,
                           kva_text *out) {
  out->len = 0;
  kva_text_add(out, "%s", "");
  for (const utf8proc_uint8_t *p = (const utf8proc_uint8_t *)s; *p;) {
    utf8proc_int32_t point;
    utf8proc_uint8_t bytes[4];
    utf8proc_ssize_t n = utf8proc_iterate(p, -1, &point);
    if (n <= 0) return kva_external_fail(c, KVA_INVALID, "a string is not UTF-8");
    kva_text_add_bytes(out, (const char *)bytes, (size_t)utf8proc_encode_char(map(point), bytes));
    p += n;
  }
  return KVA_OK;
}

static kva_status map_cases(kva_external_call *c, utf8proc_int32_t (*map)(utf8proc_int32_t)) {
  kva_text text = {0};
  kva_status status = kva_external_expect(c, 2, (kva_dtype[]){KVA_I64, KVA_I64});
  for (int64_t i = 0; i < count(c) && !status; i++) {
    const char *s = "";
    status = kva_external_text(c, 0, i, &s);
    if (!status) status = map_case(c, map, s, &text);
    if (!status) kva_external_set_text(c, i, text.data, text.len);
  }
  kva_text_free(&text);
  return status;
}

kva_status kva_external_string_lower(kva_external_call *c) {
  return map_cases(c, utf8proc_tolower);
}

kva_status kva_external_string_upper(kva_external_call *c) {
  return map_cases(c, utf8proc_toupper);
}

/* ---- regular expressions ----------------------------------------------------------------------------------------- */

enum { MATCH_LIMIT = 10000000 }; /* steps of a match, which backtracks */

static kva_status match_all(kva_external_call *c, const pcre2_code *code, pcre2_match_data *data,
                            pcre2_match_context *context) {
  for (int64_t i = 0; i < count(c); i++) {
    const char *s = NULL;
    KVA_TRY(kva_external_text(c, 0, i, &s));
    int n = pcre2_match(code, (PCRE2_SPTR)s, PCRE2_ZERO_TERMINATED, 0, 0, data, context);
    if (n < 0 && n != PCRE2_ERROR_NOMATCH)
      return kva_external_fail(c, KVA_INVALID, "element %lld: the match of '%.100s' failed (PCRE2 error %d)",
                               (long long)i, c->text, n);
    ((uint8_t *)result(c))[i] = n >= 0;
  }
  return KVA_OK;
}

kva_status kva_external_string_match(kva_external_call *c) {
  int error;
  PCRE2_SIZE at;
  KVA_TRY(kva_external_expect(c, 2, (kva_dtype[]){KVA_I64, KVA_BOOL}));
  pcre2_code *code = pcre2_compile((PCRE2_SPTR)c->text, PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_ANCHORED | PCRE2_ENDANCHORED, &error, &at, NULL);
  PCRE2_UCHAR reason[128] = "";
  if (!code) {
    pcre2_get_error_message(error, reason, sizeof reason);
    return kva_external_fail(c, KVA_INVALID, "'%.100s' is no regular expression: at %zu: %s", c->text, (size_t)at,
                             (const char *)reason);
  }
  pcre2_match_data *data = pcre2_match_data_create_from_pattern(code, NULL);
  pcre2_match_context *context = pcre2_match_context_create(NULL);
  kva_status status = KVA_NO_MEMORY;
  if (context) pcre2_set_match_limit(context, MATCH_LIMIT);
  if (data && context) status = match_all(c, code, data, context);
  pcre2_match_context_free(context);
  pcre2_match_data_free(data);
  pcre2_code_free(code);
  return status;
}

/* ---- splitting --------------------------------------------------------------------------------------------------- */

static bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

static const char *skip_spaces(const char *s) {
  while (is_space(*s)) s++;
  return s;
}

/* The part at *at, of *n bytes, and moves on; false: there is none. *left: splits that are still allowed; none: all of
 * the rest is one part. Runs of white space separate once, a delimiter each time, as in Python's str.split. */
static bool next_part(const char *delimiter, const char **at, int64_t *left, const char **out, size_t *n) {
  if (!*at) return false;
  bool spaces = !*delimiter;
  if (spaces) *at = skip_spaces(*at);
  if (spaces && !**at) return *at = NULL, false;
  *out = *at;
  const char *end = spaces ? *at + strcspn(*at, " \t\n\v\f\r") : strstr(*at, delimiter);
  if (!*left || !end || (spaces && !*end)) {
    *n = strlen(*at) - (*left && spaces ? strlen(end) : 0);
    *at = NULL;
    return true;
  }
  *n = (size_t)(end - *at);
  *at = end + (spaces ? 0 : strlen(delimiter));
  *left -= *left > 0;
  return true;
}

kva_status kva_external_string_parts(kva_external_call *c) {
  KVA_TRY(kva_external_expect(c, 2, (kva_dtype[]){KVA_I64, KVA_I64}));
  for (int64_t i = 0; i < count(c); i++) {
    const char *at = NULL, *part;
    size_t n;
    int64_t left = c->number, parts = 0;
    KVA_TRY(kva_external_text(c, 0, i, &at));
    while (next_part(c->text, &at, &left, &part, &n)) parts++;
    ((int64_t *)result(c))[i] = parts;
  }
  return KVA_OK;
}

kva_status kva_external_string_part(kva_external_call *c) {
  KVA_TRY(kva_external_expect(c, 3, (kva_dtype[]){KVA_I64, KVA_I64, KVA_I64}));
  for (int64_t i = 0; i < count(c); i++) {
    const char *at = NULL, *part = "";
    size_t n = 0;
    int64_t left = c->number, k = ((const int64_t *)c->args[1].data)[i];
    KVA_TRY(kva_external_text(c, 0, i, &at));
    bool found = true;
    while (k >= 0 && (found = next_part(c->text, &at, &left, &part, &n))) k--;
    kva_external_set_text(c, i, found ? part : "", found ? n : 0);
  }
  return KVA_OK;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static kva_status no_number(kva_external_call *c, int64_t i, const char *s) {
  return kva_external_fail(c, KVA_INVALID, "element %lld: '%.100s' is no decimal number", (long long)i, s);
}

/* strtod also reads hexadecimal numbers and nan(...). */
static bool is_decimal(const char *s) {
  return *s && !is_space(*s) && !strpbrk(s, "xXpP()");
}

kva_status kva_external_string_parse(kva_external_call *c) {
  bool real = c->args[c->n_args - 1].dtype == KVA_F64;
  KVA_TRY(kva_external_expect(c, 2, (kva_dtype[]){KVA_I64, real ? KVA_F64 : KVA_I64}));
  for (int64_t i = 0; i < count(c); i++) {
    const char *s = NULL;
    char *end = NULL;
    KVA_TRY(kva_external_text(c, 0, i, &s));
    if (!is_decimal(s)) return no_number(c, i, s);
    if (real)
      ((double *)result(c))[i] = strtod(s, &end);
    else
      ((int64_t *)result(c))[i] = strtoll(s, &end, 10);
    if (*end) return no_number(c, i, s);
  }
  return KVA_OK;
}

static void format(kva_dtype t, const void *data, int64_t i, kva_text *out) {
  out->len = 0;
  if (t == KVA_F64)
    kva_text_add_double(out, kva_load_f64(t, data, i));
  else if (kva_dtype_is_float(t))
    kva_text_add_float(out, (float)kva_load_f64(t, data, i));
  else if (t == KVA_BOOL)
    kva_text_add(out, "%s", kva_load_i64(t, data, i) ? "True" : "False");
  else if (t == KVA_U64)
    kva_text_add(out, "%llu", (unsigned long long)kva_load_i64(t, data, i));
  else
    kva_text_add(out, "%lld", (long long)kva_load_i64(t, data, i));
}

kva_status kva_external_string_format(kva_external_call *c) {
  kva_text text = {0};
  KVA_TRY(kva_external_expect(c, 2, (kva_dtype[]){c->args[0].dtype, KVA_I64}));
  for (int64_t i = 0; i < count(c); i++) {
    format(c->args[0].dtype, c->args[0].data, i, &text);
    kva_external_set_text(c, i, text.data, text.len);
  }
  kva_text_free(&text);
  return KVA_OK;
}
