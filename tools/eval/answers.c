/* Whether answers are the same, and what of a solution is its answer. */
#include "tools/eval/task.h"

#include <ctype.h>
#include <stdlib.h>

const char *kva_boxed(const char *solution, kva_arena *arena) {
  static const char box[] = "\\boxed{";
  const char *last = NULL;
  for (const char *at = solution; (at = strstr(at, box)); at++) last = at;
  if (!last) return NULL;
  last += sizeof box - 1;
  int depth = 1;
  size_t n = 0;
  for (; last[n] && depth; n++) depth += (last[n] == '{') - (last[n] == '}');
  return depth ? NULL : kva_arena_strndup(arena, last, n - 1);
}

/* What may stand in a formula and changes nothing: `shown` in its place. */
static const struct {
  const char *written, *shown;
} same[] = {{"\\left", ""}, {"\\right", ""}, {"\\!", ""},           {"\\,", ""},  {"\\;", ""},
            {"\\ ", ""},    {"$", ""},       {"\\dfrac", "\\frac"}, {"\\%", "%"}, {"\\tfrac", "\\frac"}};

static bool begins(const char *text, const char *with) {
  return !strncmp(text, with, strlen(with));
}

static void plain_formula(const char *text, size_t n, kva_text *out) {
  for (size_t at = 0; at < n;) {
    size_t k = 0, rows = sizeof same / sizeof *same;
    while (k < rows && !begins(text + at, same[k].written)) k++;
    if (k < rows) {
      kva_text_add(out, "%s", same[k].shown);
      at += strlen(same[k].written);
    } else {
      if (!isspace((unsigned char)text[at])) kva_text_add_bytes(out, text + at, 1);
      at++;
    }
  }
  if (out->len && out->data[out->len - 1] == '.') out->data[--out->len] = 0;
}

/* The answer without white space at both ends; of mathematics what is boxed, if something is. */
static void plain(const char *answer, bool mathematics, kva_arena *arena, kva_text *out) {
  const char *boxed = mathematics ? kva_boxed(answer, arena) : NULL, *text = boxed ? boxed : answer;
  while (isspace((unsigned char)*text)) text++;
  size_t n = strlen(text);
  while (n && isspace((unsigned char)text[n - 1])) n--;
  if (mathematics)
    plain_formula(text, n, out);
  else
    kva_text_add_bytes(out, text, n);
}

bool kva_same_answer(const char *a, const char *b, bool mathematics) {
  kva_arena *arena = kva_arena_create();
  kva_text x = {0}, y = {0};
  plain(a, mathematics, arena, &x);
  plain(b, mathematics, arena, &y);
  bool equal = x.len == y.len && (!x.len || !memcmp(x.data, y.data, x.len));
  kva_text_free(&x);
  kva_text_free(&y);
  kva_arena_destroy(arena);
  return equal;
}
