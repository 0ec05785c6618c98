/* Growable text for printers and messages. */
#include "runtime/base/memory.h"
#include "runtime/base/numbers.h"
#include "runtime/base/trap.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* Out of memory ends the compiler, as in the arena. A deployed runtime drops what does not fit: most of its texts are
 * messages. */
static bool out_of_memory(kva_text *text, size_t size) {
#ifndef KVA_DEPLOYED
  kva_fatal_memory("out of memory: a text of %zu bytes", size);
#endif
  (void)size;
  text->cut = true;
  return false;
}

/* Reserves n more bytes and the NUL. */
static bool reserve(kva_text *text, size_t n) {
  size_t need = text->len + n + 1;
  if (need <= text->cap) return true;
  size_t cap = text->cap ? 2 * text->cap : 128;
  if (cap < need) cap = need;
  char *data = realloc(text->data, cap);
  if (!data) return out_of_memory(text, cap);
  text->data = data;
  text->cap = cap;
  return true;
}

void kva_text_add_bytes(kva_text *text, const char *data, size_t n) {
  if (!reserve(text, n)) return;
  if (n) memcpy(text->data + text->len, data, n);
  text->len += n;
  text->data[text->len] = 0;
}

void kva_text_add(kva_text *text, const char *fmt, ...) {
  va_list args, again;
  va_start(args, fmt);
  va_copy(again, args);
  int n = vsnprintf(NULL, 0, fmt, args);
  va_end(args);
  KVA_ASSERT(n >= 0);
  bool room = reserve(text, (size_t)n);
  if (room) vsnprintf(text->data + text->len, (size_t)n + 1, fmt, again);
  va_end(again);
  if (room) text->len += (size_t)n;
}

static void add_escaped(kva_text *text, unsigned char c) {
  static const char short_form[] = "\"\"\\\\\nn\tt\rr\bb\ff";
  for (const char *s = short_form; *s; s += 2) {
    if (c == (unsigned char)*s) {
      kva_text_add(text, "\\%c", s[1]);
      return;
    }
  }
  if (c < 0x20) {
    kva_text_add(text, "\\u%04x", c);
  } else {
    kva_text_add_bytes(text, (const char *)&c, 1);
  }
}

void kva_text_add_quoted(kva_text *text, const char *s) {
  kva_text_add_bytes(text, "\"", 1);
  for (; *s; s++) add_escaped(text, (unsigned char)*s);
  kva_text_add_bytes(text, "\"", 1);
}

/* Adds the decimal of `digits` significant digits for v. Uses fixed notation if that needs no more digits than the
 * value has. */
static void add_decimal(kva_text *text, const char *scientific, double v, int digits) {
  int exponent = atoi(strchr(scientific, 'e') + 1);
  if (exponent >= digits - 1 && exponent < 16) {
    kva_text_add(text, "%.1f", v);
  } else {
    kva_text_add(text, "%.*g", digits, v);
  }
}

/* 9 and 17 digits always suffice (Steele and White, PLDI 1990). */
static void add_finite(kva_text *text, double v, bool is_f32) {
  int most = is_f32 ? 9 : 17;
  char s[40];
  for (int digits = 1; digits <= most; digits++) {
    snprintf(s, sizeof s, "%.*e", digits - 1, v);
    double back = strtod(s, NULL);
    if (back != v && !(is_f32 && (float)back == (float)v) && digits < most) continue;
    add_decimal(text, s, back, digits);
    return;
  }
}

static void add_shortest(kva_text *text, double v, bool is_f32) {
  if (!isfinite(v)) {
    kva_text_add(text, "%s", isnan(v) ? "nan" : v < 0 ? "-inf" : "inf");
    return;
  }
  locale_t before = kva_numbers_enter();
  add_finite(text, v, is_f32);
  kva_numbers_leave(before);
}

void kva_text_add_double(kva_text *text, double v) {
  add_shortest(text, v, false);
}

void kva_text_add_float(kva_text *text, float v) {
  add_shortest(text, (double)v, true);
}

/* ERANGE is also said of subnormal numbers, which are numbers like others. */
bool kva_parse_double(const char *text, double *out) {
  char *end;
  locale_t before = kva_numbers_enter();
  errno = 0;
  *out = strtod(text, &end);
  kva_numbers_leave(before);
  return end != text && !*end && (errno != ERANGE || (*out != 0 && isfinite(*out)));
}

void kva_text_free(kva_text *text) {
  free(text->data);
  *text = (kva_text){0};
}
