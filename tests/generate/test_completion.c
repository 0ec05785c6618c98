/* Texts: when they end, and what of them may be shown before. */
#include "tools/generate/completion.h"

#include <setjmp.h>
#include <cmocka.h>

typedef struct shown {
  kva_text all; /* pieces, a '|' behind each */
  int ends;
} shown;

static void on_text(kva_completion *c, const char *text, size_t size) {
  shown *s = c->user;
  kva_text_add_bytes(&s->all, text, size);
  kva_text_add(&s->all, "|");
}

static void on_end(kva_completion *c) {
  ((shown *)c->user)->ends++;
}

/* Gives the bytes as tokens until the text ends; 256 is the token that ends texts, written as 0. */
static void expect(const char *bytes, size_t n, const char *const *stops, size_t n_stops, const char *pieces,
                   const char *text, kva_finish finish) {
  kva_tokenizer *t = kva_tokenizer_bytes();
  shown s = {0};
  kva_completion c = {
      .max_tokens = 12, .stops = stops, .n_stops = n_stops, .on_text = on_text, .on_end = on_end, .user = &s};
  bool goes_on = true;
  for (size_t i = 0; goes_on && i < n; i++)
    goes_on = kva_completion_take(&c, t, bytes[i] ? (unsigned char)bytes[i] : 256);
  if (goes_on) kva_completion_end(&c, KVA_FINISH_CANCELLED);
  assert_int_equal(c.finish, finish);
  assert_int_equal(s.ends, 1);
  assert_string_equal(s.all.data ? s.all.data : "", pieces);
  assert_int_equal(c.text.len, strlen(text));
  assert_memory_equal(c.text.data ? c.text.data : "", text, strlen(text));
  kva_text_free(&s.all);
  kva_completion_clear(&c);
  kva_tokenizer_destroy(t);
}

static void texts_end(void **state) {
  (void)state;
  static const char *const stops[] = {"bcd", "xx"};
  expect("abc", 3, NULL, 0, "a|b|c|", "abc", KVA_FINISH_CANCELLED);
  expect("ab\0cd", 5, NULL, 0, "a|b|", "ab", KVA_FINISH_STOP);
  expect("abcdefghijklmno", 15, NULL, 0, "a|b|c|d|e|f|g|h|i|j|k|l|", "abcdefghijkl", KVA_FINISH_LENGTH);
  expect("abcde", 5, stops, 2, "a|", "a", KVA_FINISH_STOP);
  expect("bcd", 3, stops, 2, "", "", KVA_FINISH_STOP);
  expect("abcx\0", 5, stops, 2, "a|bc|x|", "abcx", KVA_FINISH_STOP); /* begun stops are given in the end */
  expect("abbcxxd", 7, stops, 2, "a|b|bc|", "abbc", KVA_FINISH_STOP);
}

static void characters_are_shown_whole(void **state) {
  (void)state;
  static const char *const stops[] = {"\xC3\xA9"};
  expect("a\xC3\xA9z", 4, NULL, 0, "a|\xC3\xA9|z|", "a\xC3\xA9z", KVA_FINISH_CANCELLED);
  expect("\xF0\x9F\x98\x80", 4, NULL, 0, "\xF0\x9F\x98\x80|", "\xF0\x9F\x98\x80", KVA_FINISH_CANCELLED);
  expect("\xF0\x9F", 2, NULL, 0, "\xF0\x9F|", "\xF0\x9F", KVA_FINISH_CANCELLED);
  expect("\xC3z\xFF", 3, NULL, 0, "\xC3z|\xFF|", "\xC3z\xFF", KVA_FINISH_CANCELLED);
  expect("a\xC3\xA9", 3, stops, 1, "a|", "a", KVA_FINISH_STOP);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(texts_end), cmocka_unit_test(characters_are_shown_whole)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
