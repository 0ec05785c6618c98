/* Tokenizers against the numbers of the reference package; hostile files. */
#include "tools/tokenizer/tokenizer.h"
#include "tools/tokenizer/unicode.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static kva_tokenizer *open_named(const char *name) {
  char path[128];
  snprintf(path, sizeof path, "tests/data/tokenizer_%s.json", name);
  kva_tokenizer *t;
  kva_diag *diag = kva_diag_create();
  if (kva_tokenizer_load(path, diag, &t)) fail_msg("%s: %s", path, kva_diag_message(diag, 0, NULL, NULL));
  kva_diag_destroy(diag);
  return t;
}

static void check_case(kva_tokenizer *t, const char *name, const json_t *c) {
  const json_t *text = json_object_get(c, "text"), *expected = json_object_get(c, "ids");
  kva_token_ids ids = {0};
  int64_t replaced;
  assert_int_equal(kva_tokenizer_encode(t, json_string_value(text), json_string_length(text), NULL, &ids, &replaced),
                   KVA_OK);
  assert_int_equal(replaced, 0);
  bool same = (size_t)ids.n == json_array_size(expected);
  for (size_t i = 0; same && i < (size_t)ids.n; i++)
    same = ids.data[i] == json_integer_value(json_array_get(expected, i));
  if (!same) {
    print_message("%s: '%s': %lld tokens, expected %zu:", name, json_string_value(text), (long long)ids.n,
                  json_array_size(expected));
    for (int64_t i = 0; i < ids.n; i++) print_message(" %u", ids.data[i]);
    fail_msg("\ndiffers");
  }
  free(ids.data);
}

static void numbers_are_those_of_the_reference(void **unused) {
  (void)unused;
  json_t *cases = json_load_file("tests/data/tokenizer_cases.json", JSON_ALLOW_NUL, NULL);
  kva_tokenizer *t = NULL;
  const char *name = "";
  assert_true(json_array_size(cases) > 900);
  for (size_t i = 0; i < json_array_size(cases); i++) {
    const json_t *c = json_array_get(cases, i);
    const char *wanted = json_string_value(json_object_get(c, "tokenizer"));
    if (strcmp(wanted, name)) {
      kva_tokenizer_destroy(t);
      t = open_named(name = wanted);
    }
    check_case(t, name, c);
  }
  kva_tokenizer_destroy(t);
  json_decref(cases);
}

/* Byte-level tokens give the text back. */
static void decoding_gives_the_text_back(void **unused) {
  (void)unused;
  const char *const text = "Grüße: it's 日本語 😀\n\n  x1234 \x7f";
  kva_tokenizer *all[] = {open_named("gpt2"), open_named("llama3"), open_named("o200k"), kva_tokenizer_bytes()};
  for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
    kva_token_ids ids = {0};
    int64_t replaced;
    kva_text out = {0};
    assert_int_equal(kva_tokenizer_encode(all[k], text, strlen(text), NULL, &ids, &replaced), KVA_OK);
    for (int64_t i = 0; i < ids.n; i++) kva_tokenizer_decode(all[k], ids.data[i], &out);
    assert_string_equal(out.data, text);
    kva_text_free(&out);
    free(ids.data);
    kva_tokenizer_destroy(all[k]);
  }
}

/* Gemma's runs of spaces are added tokens. Where tokens are characters of bytes, added ones stand for themselves. */
static void added_tokens_have_spaces(void **unused) {
  (void)unused;
  static const char *const decoders[] = {
      "{\"type\": \"Metaspace\", \"replacement\": \"\u2581\"}",
      "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": {\"String\": \"\u2581\"}, "
      "\"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}]}",
      "{\"type\": \"ByteLevel\"}"};
  static const char *const expected[] = {"a  <e> b", "a  <e> b", "a\u2581\u2581<e>\u2581b"};
  for (size_t i = 0; i < sizeof decoders / sizeof *decoders; i++) {
    kva_text json = {0}, out = {0};
    kva_tokenizer *t;
    kva_text_add(&json,
                 "{\"decoder\": %s, \"model\": {\"vocab\": {\"a\": 0, \"\u2581b\": 1, \"\u2581\u2581\": 2}, "
                 "\"merges\": []}, \"added_tokens\": [{\"id\": 2, \"content\": \"\u2581\u2581\"}, "
                 "{\"id\": 3, \"content\": \"<e>\", \"special\": true}]}",
                 decoders[i]);
    assert_int_equal(kva_tokenizer_parse("t", json.data, json.len, NULL, &t), KVA_OK);
    static const uint32_t ids[] = {0, 2, 3, 1};
    for (size_t k = 0; k < sizeof ids / sizeof *ids; k++) kva_tokenizer_decode(t, ids[k], &out);
    assert_string_equal(out.data, expected[i]);
    kva_tokenizer_destroy(t);
    kva_text_free(&json);
    kva_text_free(&out);
  }
}

/* What is not UTF-8 counts by maximal subparts: E2 82 is one, FF another, a cut F0 9F 98 one more. */
static void wrong_bytes_are_replaced(void **unused) {
  (void)unused;
  kva_tokenizer *t = open_named("gpt2");
  kva_token_ids wrong = {0}, right = {0};
  int64_t replaced;
  const char text[] = "a\xE2\x82z\xFF\xF0\x9F\x98", same[] = "a\xEF\xBF\xBDz\xEF\xBF\xBD\xEF\xBF\xBD";
  assert_int_equal(kva_tokenizer_encode(t, text, sizeof text - 1, NULL, &wrong, &replaced), KVA_OK);
  assert_int_equal(replaced, 3);
  assert_int_equal(kva_tokenizer_encode(t, same, sizeof same - 1, NULL, &right, &replaced), KVA_OK);
  assert_int_equal(replaced, 0);
  assert_int_equal(wrong.n, right.n);
  assert_memory_equal(wrong.data, right.data, (size_t)right.n * sizeof *right.data);
  free(wrong.data);
  free(right.data);
  kva_tokenizer_destroy(t);
}

static kva_status encode_with(kva_tokenizer *t, const char *text) {
  kva_token_ids ids = {0};
  int64_t replaced;
  kva_status status = kva_tokenizer_encode(t, text, strlen(text), NULL, &ids, &replaced);
  free(ids.data);
  return status;
}

/* A text on which a regular expression takes too many steps is refused, the next one is not. */
static void a_refused_text_leaves_no_trace(void **unused) {
  (void)unused;
  const char json[] = "{\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": "
                      "{\"Regex\": \"(?:a+)+b|a\"}}, \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, "
                      "\"merges\": []}}";
  kva_tokenizer *t;
  assert_int_equal(kva_tokenizer_parse("t.json", json, strlen(json), NULL, &t), KVA_OK);
  assert_int_equal(encode_with(t, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac"), KVA_UNSUPPORTED);
  assert_int_equal(encode_with(t, "aaa"), KVA_OK);
  kva_tokenizer_destroy(t);
}

/* Marks in the wrong order, as many as a request may have: their canonical order, in seconds. */
static void many_marks_are_ordered(void **unused) {
  (void)unused;
  enum { PAIRS = 1 << 18, SECONDS = 60 };
  kva_text mixed = {0}, ordered = {0}, forms[2] = {{0}, {0}};
  kva_text_add(&mixed, "q");
  kva_text_add(&ordered, "q");
  for (int i = 0; i < PAIRS; i++) kva_text_add(&mixed, "\xCC\x80\xCC\x96"); /* U+0300 is above, U+0316 below */
  for (int i = 0; i < 2 * PAIRS; i++) kva_text_add(&ordered, i < PAIRS ? "\xCC\x96" : "\xCC\x80");
  alarm(SECONDS);
  kva_normalize(mixed.data, mixed.len, KVA_NFC, &forms[0]);
  kva_normalize(ordered.data, ordered.len, KVA_NFC, &forms[1]);
  alarm(0);
  assert_string_equal(forms[0].data, ordered.data);
  assert_string_equal(forms[1].data, ordered.data);
  kva_text_free(&mixed);
  kva_text_free(&ordered);
  kva_text_free(&forms[0]);
  kva_text_free(&forms[1]);
}

static void ends_of_documents(void **unused) {
  (void)unused;
  kva_tokenizer *gpt2 = open_named("gpt2"), *llama3 = open_named("llama3"), *llama2 = open_named("llama2"),
                *words = open_named("words");
  assert_int_equal(kva_tokenizer_end(gpt2), kva_tokenizer_find(gpt2, "<|endoftext|>"));
  assert_int_equal(kva_tokenizer_end(llama3), kva_tokenizer_find(llama3, "<|end_of_text|>"));
  assert_int_equal(kva_tokenizer_end(llama2), 2);
  assert_int_equal(kva_tokenizer_end(words), -1);
  assert_int_equal(kva_tokenizer_find(words, "no such token"), -1);
  kva_tokenizer_destroy(gpt2);
  kva_tokenizer_destroy(llama3);
  kva_tokenizer_destroy(llama2);
  kva_tokenizer_destroy(words);
}

/* The only token of a tokenizer. */
static void expect_end(const char *token, bool of_document) {
  kva_text json = {0};
  kva_tokenizer *t;
  kva_text_add(&json, "{\"model\": {\"vocab\": {\"%s\": 0}, \"merges\": []}}", token);
  assert_int_equal(kva_tokenizer_parse("t", json.data, json.len, NULL, &t), KVA_OK);
  assert_true(kva_tokenizer_ends(t, 0));
  assert_int_equal(kva_tokenizer_end(t), of_document ? 0 : -1);
  kva_tokenizer_destroy(t);
  kva_text_free(&json);
}

static void ends_of_turns(void **unused) {
  (void)unused;
  static const char *const turns[] = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<end_of_turn>",
                                      "<turn|>",    "<|end|>",    "<|return|>", "<|EOT|>", "<|END_OF_TURN_TOKEN|>"};
  for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) expect_end(turns[i], false);
  expect_end("<\uFF5Cend\u2581of\u2581sentence\uFF5C>", true);
}

/* ---- hostile files ----------------------------------------------------------------------------------------------- */

static void expect_error(const char *json, kva_status status, const char *message) {
  kva_diag *diag = kva_diag_create();
  kva_tokenizer *t;
  kva_status found = kva_tokenizer_parse("t.json", json, strlen(json), diag, &t);
  if (found != status) fail_msg("%s: status %d", json, found);
  assert_null(t);
  if (!strstr(kva_diag_message(diag, 0, NULL, NULL), message))
    fail_msg("'%s' is not in '%s'", message, kva_diag_message(diag, 0, NULL, NULL));
  kva_diag_destroy(diag);
}

static void what_is_not_supported_is_named(void **unused) {
  (void)unused;
#define MODEL "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [\"a b\"]}"
#define SPLIT(pattern)                                                                                        \
  "{\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": {\"Regex\": \"" pattern \
  "\"}}, " MODEL "}"
  expect_error("{\"normalizer\": {\"type\": \"Precompiled\"}, " MODEL "}", KVA_UNSUPPORTED,
               "normalizer Precompiled is not supported");
  expect_error("{\"pre_tokenizer\": {\"type\": \"UnicodeScripts\"}, " MODEL "}", KVA_UNSUPPORTED,
               "pre-tokenizer UnicodeScripts");
  expect_error("{\"model\": {\"type\": \"WordLevel\"}}", KVA_UNSUPPORTED, "model WordLevel");
  expect_error("{\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"a\": 0}}}", KVA_INVALID, "an unk_token");
  expect_error("{\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"a\", -1]]}}", KVA_INVALID, "unk_id of the model");
  expect_error("{\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"a\"]]}}", KVA_INVALID, "[piece, score]");
  expect_error("{\"model\": [1,]}", KVA_INVALID, "malformed JSON");
  expect_error("", KVA_INVALID, "malformed JSON");
  expect_error("{\"model\": {\"vocab\": {}, \"merges\": [], \"end_of_word_suffix\": \"</w>\"}}", KVA_UNSUPPORTED,
               "end_of_word_suffix </w>");
  expect_error("{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [], \"dropout\": 0.1}}", KVA_INVALID, "no dropout");
  expect_error("{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [\"a a\"]}}", KVA_INVALID,
               "merge 0: 'aa' is not in the vocabulary");
  expect_error("{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [\"aa\"]}}", KVA_INVALID, "a merge of two tokens");
  expect_error("{\"model\": {\"vocab\": {\"a\": 1e9}, \"merges\": []}}", KVA_INVALID, "less than 2^24");
  expect_error("{\"model\": {\"vocab\": {\"a\": 0.5}, \"merges\": []}}", KVA_INVALID, "less than 2^24");
  expect_error("{\"model\": {\"vocab\": {}, \"merges\": []}}", KVA_INVALID, "not empty");
  expect_error("{\"added_tokens\": [{\"id\": 1}], " MODEL "}", KVA_INVALID, "a string \"content\"");
  expect_error("[]", KVA_INVALID, "an object \"model\"");
  expect_error(SPLIT("(?<x>a)"), KVA_UNSUPPORTED, "kind of group");
  expect_error(SPLIT("(*UTF)a"), KVA_UNSUPPORTED, "kind of group");
  expect_error(SPLIT("\\\\p{Klingon}"), KVA_UNSUPPORTED, "unknown property");
  expect_error(SPLIT("\\\\pL"), KVA_UNSUPPORTED, "this form of a property");
  expect_error(SPLIT("^"), KVA_UNSUPPORTED, "a match of nothing");
  expect_error(SPLIT("(a|b"), KVA_UNSUPPORTED, "missing closing parenthesis");
  expect_error(SPLIT("a)"), KVA_UNSUPPORTED, "unmatched closing parenthesis");
  expect_error(SPLIT("[a"), KVA_UNSUPPORTED, "missing terminating ]");
  expect_error(SPLIT("[a[b]"), KVA_UNSUPPORTED, "missing terminating ]");
  expect_error(SPLIT("[a[^b]]"), KVA_UNSUPPORTED, "this set in a set");
  expect_error(SPLIT("[a[-b]]"), KVA_UNSUPPORTED, "this set in a set");
  expect_error(SPLIT("[a-[b]]"), KVA_UNSUPPORTED, "this set in a set");
  expect_error(SPLIT("[a[b]-c]"), KVA_UNSUPPORTED, "this set in a set");
  expect_error(SPLIT("[[b-]c]"), KVA_UNSUPPORTED, "this set in a set");
  expect_error(SPLIT("[[:alpha:]]"), KVA_UNSUPPORTED, "this set in a set");
  expect_error(SPLIT("[a&&b]"), KVA_UNSUPPORTED, "an intersection of sets");
  expect_error(SPLIT("[]a]"), KVA_UNSUPPORTED, "an empty set");
  expect_error(SPLIT("[\\\\W]"), KVA_UNSUPPORTED, "\\W in a set");
  expect_error(SPLIT("\\\\h"), KVA_UNSUPPORTED, "this escape");
  expect_error(SPLIT("\\\\bx"), KVA_UNSUPPORTED, "this escape");
  expect_error(SPLIT("a*"), KVA_UNSUPPORTED, "a match of nothing");
  expect_error(SPLIT("a{2,1}"), KVA_UNSUPPORTED, "numbers out of order");
  expect_error(SPLIT("a{2}+"), KVA_UNSUPPORTED, "this quantifier");
  expect_error(SPLIT("a{,2}b"), KVA_UNSUPPORTED, "this quantifier");
  expect_error(SPLIT("\\\\"), KVA_UNSUPPORTED, "an escape without a character");
}

/* Cut and changed files: any status, no crash; a tokenizer that loads must encode. */
static void changed_files_do_no_harm(void **unused) {
  (void)unused;
  static const char *const names[] = {"gpt2", "llama2", "o200k", "bert", "unigram_bytes"};
  const char text[] = "a kvasir <mask> 123 \n\n x'll \xF0\x9F\x98\x80";
  uint32_t state = 1;
  int loaded = 0;
  for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
    char path[128];
    kva_file file;
    snprintf(path, sizeof path, "tests/data/tokenizer_%s.json", names[k]);
    assert_int_equal(kva_file_map(path, NULL, &file), KVA_OK);
    char *copy = malloc(file.size);
    for (int round = 0; round < 1200; round++) {
      size_t size = file.size;
      memcpy(copy, file.data, size);
      for (int change = 0; change <= round % 3; change++) {
        state = state * 1664525u + 1013904223u;
        /* mostly where the structure is, not the vocabulary */
        size_t at = state >> 8, range = change ? 1500 : size;
        copy[at % (range < size ? range : size)] = "\"{}[],:0x\\\xFFn"[(state >> 4) % 12];
      }
      if (round % 4 == 0) size = (state >> 8) % size;
      kva_tokenizer *t;
      kva_token_ids ids = {0};
      int64_t replaced;
      if (kva_tokenizer_parse("x", copy, size, NULL, &t)) continue;
      loaded++;
      kva_status ignored = kva_tokenizer_encode(t, text, sizeof text - 1, NULL, &ids, &replaced);
      (void)ignored;
      for (int64_t i = 0; i < ids.n; i++) assert_true(ids.data[i] < kva_tokenizer_vocab(t));
      free(ids.data);
      kva_tokenizer_destroy(t);
    }
    free(copy);
    kva_file_unmap(&file);
  }
  assert_in_range(loaded, 50, 3000); /* of 6000: neither all refused nor all taken */
}

/* Nested quantifiers: exponential without the bound. */
static void hostile_expressions_end(void **unused) {
  (void)unused;
  const char json[] = SPLIT("(?:[ab]+)+c");
  kva_tokenizer *t;
  kva_diag *diag = kva_diag_create();
  assert_int_equal(kva_tokenizer_parse("x", json, sizeof json - 1, diag, &t), KVA_OK);
  char text[64];
  memset(text, 'a', sizeof text);
  memcpy(text + sizeof text - 2, "!c", 2); /* else PCRE2 sees that there is no 'c' */
  kva_token_ids ids = {0};
  int64_t replaced;
  assert_int_equal(kva_tokenizer_encode(t, text, sizeof text, diag, &ids, &replaced), KVA_UNSUPPORTED);
  assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), "too many steps"));
  free(ids.data);
  kva_tokenizer_destroy(t);
  kva_diag_destroy(diag);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(numbers_are_those_of_the_reference),
      cmocka_unit_test(decoding_gives_the_text_back),
      cmocka_unit_test(added_tokens_have_spaces),
      cmocka_unit_test(wrong_bytes_are_replaced),
      cmocka_unit_test(a_refused_text_leaves_no_trace),
      cmocka_unit_test(many_marks_are_ordered),
      cmocka_unit_test(ends_of_documents),
      cmocka_unit_test(ends_of_turns),
      cmocka_unit_test(what_is_not_supported_is_named),
      cmocka_unit_test(changed_files_do_no_harm),
      cmocka_unit_test(hostile_expressions_end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
