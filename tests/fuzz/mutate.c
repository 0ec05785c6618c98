#include "tests/fuzz/mutate.h"

#include <ctype.h>
#include <stdlib.h>

uint32_t mutate_draw(mutate_random *r, size_t n) {
  return n ? kva_philox4x32(r->drawn++, 0, r->key).v[0] % (uint32_t)n : 0;
}

bool mutate_add(mutate_corpus *c, uint8_t *data, size_t n) {
  if (c->n == MUTATE_FILES) return false;
  c->files[c->n].data = data;
  c->files[c->n++].n = n;
  return true;
}

void mutate_free(mutate_corpus *c) {
  for (uint32_t k = 0; k < c->n; k++) free(c->files[k].data);
  c->n = 0;
}

/* A text at work, and where others are taken from. */
typedef struct mutant {
  const mutate_corpus *corpus;
  mutate_random *r;
  uint8_t *text;
  size_t n;
} mutant;

static void replace(mutant *m, size_t at, size_t old, const void *with, size_t len) {
  if (m->n - old + len > MUTATE_MAX) return;
  memmove(m->text + at + len, m->text + at + old, m->n - at - old);
  memcpy(m->text + at, with, len);
  m->n = m->n - old + len;
}

static bool in_word(uint8_t c) {
  return isalnum(c) || c == '_' || c == '%' || c == '.' || c == ':';
}

/* The word at or behind a place: its beginning; *out_n 0: none. */
static size_t word_at(const uint8_t *text, size_t n, size_t at, size_t *out_n) {
  while (at < n && !in_word(text[at])) at++;
  while (at && at < n && in_word(text[at - 1])) at--;
  size_t end = at;
  while (end < n && in_word(text[end])) end++;
  *out_n = end - at;
  return at;
}

/* A word becomes another one of some file. */
static void swap_word(mutant *m) {
  uint32_t k = mutate_draw(m->r, m->corpus->n);
  const uint8_t *other = m->corpus->files[k].data;
  size_t n = m->corpus->files[k].n, len, from_len, at = word_at(m->text, m->n, mutate_draw(m->r, m->n), &len);
  size_t from = word_at(other, n, mutate_draw(m->r, n), &from_len);
  if (len && from_len && from_len <= 200) replace(m, at, len, other + from, from_len);
}

static void change_number(mutant *m) {
  static const char *const numbers[] = {
      "0",      "1", "-1", "3", "7", "16", "32", "33", "64", "77", "4294967295", "2147483648", "0x7fffffffffffffff",
      "1048576"};
  size_t at = mutate_draw(m->r, m->n), end;
  while (at < m->n && !isdigit(m->text[at])) at++;
  for (end = at; end < m->n && isdigit(m->text[end]); end++) continue;
  if (at == m->n) return;
  const char *with = numbers[mutate_draw(m->r, sizeof numbers / sizeof *numbers)];
  if (mutate_draw(m->r, 2))
    m->text[at] = (uint8_t)('0' + mutate_draw(m->r, 10));
  else
    replace(m, at, end - at, with, strlen(with));
}

/* A line goes away, or comes again elsewhere. */
static void move_line(mutant *m) {
  size_t at = mutate_draw(m->r, m->n), to = mutate_draw(m->r, m->n);
  while (at && m->text[at - 1] != '\n') at--;
  while (to && m->text[to - 1] != '\n') to--;
  const uint8_t *end = memchr(m->text + at, '\n', m->n - at);
  size_t len = end ? (size_t)(end + 1 - (m->text + at)) : m->n - at;
  uint8_t line[512];
  if (len > sizeof line) return;
  memcpy(line, m->text + at, len);
  if (mutate_draw(m->r, 2))
    replace(m, at, len, "", 0);
  else
    replace(m, to, 0, line, len);
}

static void change_bytes(mutant *m) {
  static const char alphabet[] = "%rdfph0123456789.,;:{}[]<>()@!|+-_$ \n\"/*xABbu";
  size_t at = mutate_draw(m->r, m->n), len = 1 + mutate_draw(m->r, 12), from = mutate_draw(m->r, m->n);
  uint8_t piece[16];
  if (at + len > m->n) len = m->n - at;
  if (from + len > m->n) from = 0;
  memcpy(piece, m->text + from, len);
  switch (mutate_draw(m->r, 5)) {
  case 0: m->text[at] = (uint8_t)alphabet[mutate_draw(m->r, sizeof alphabet - 1)]; break;
  case 1: m->text[at] = (uint8_t)(m->text[at] ^ 1 << mutate_draw(m->r, 8)); break;
  case 2: m->text[at] = (uint8_t)mutate_draw(m->r, 256); break;
  case 3: replace(m, at, len, "", 0); break;
  default: replace(m, at, mutate_draw(m->r, 2) ? len : 0, piece, len);
  }
}

/* The rest comes from another file. */
static void splice(mutant *m) {
  uint32_t k = mutate_draw(m->r, m->corpus->n);
  size_t at = mutate_draw(m->r, m->n), from = mutate_draw(m->r, m->corpus->files[k].n);
  size_t len = m->corpus->files[k].n - from;
  if (at + len > MUTATE_MAX) return;
  memcpy(m->text + at, m->corpus->files[k].data + from, len);
  m->n = at + len;
}

static void mutate(mutant *m) {
  uint32_t kind = mutate_draw(m->r, 18);
  if (!m->n) return;
  if (kind == 0)
    m->n = mutate_draw(m->r, m->n);
  else if (kind == 1)
    splice(m);
  else if (kind < 6)
    change_bytes(m);
  else if (kind < 9)
    move_line(m);
  else if (kind < 13)
    swap_word(m);
  else
    change_number(m);
}

size_t mutate_make(const mutate_corpus *c, mutate_random *r, uint8_t *out) {
  mutant m = {c, r, out, 0};
  if (!c->n || mutate_draw(r, 4) == 0) {
    m.n = mutate_draw(r, 600);
    for (size_t i = 0; i < m.n; i++) out[i] = (uint8_t)mutate_draw(r, 256);
    return m.n;
  }
  uint32_t k = mutate_draw(r, c->n);
  m.n = c->files[k].n;
  memcpy(out, c->files[k].data, m.n);
  for (uint32_t i = 1 + mutate_draw(r, 4); i > 0; i--) mutate(&m);
  return m.n;
}
