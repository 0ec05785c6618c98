/* Strings: models by hand, imported, and run by the reference evaluator. */
#include "tests/frontend/onnx_pack.h"

/* A string attribute. */
static kva_text attr_string(const char *name, const char *s) {
  kva_text a = {0};
  pk_str(&a, 1, name);
  pk_int(&a, 20, 3);
  pk_str(&a, 4, s);
  return a;
}

/* One node x[, w] -> y on string[shape]; `w` is an initialiser of strings separated by commas, or NULL. Takes the
 * attributes. */
static kva_text model(const char *op, const char *shape, const char *w, int out, const char *out_shape, int n_attrs,
                      kva_text *attrs) {
  kva_text g = {0}, node = pk_node(op, w ? "x w" : "x", "y", "n");
  for (int i = 0; i < n_attrs; i++) pk_sub(&node, 5, attrs[i]);
  pk_sub(&g, 1, node);
  if (w) {
    int64_t n = 1;
    for (const char *p = w; *p; p++) n += *p == ',';
    kva_text t = pk_tensor_header("w", KVA_STRING, 1, &n);
    for (const char *p = w; n-- > 0; p += strcspn(p, ",") + (n > 0)) pk_bytes(&t, 6, p, strcspn(p, ","));
    pk_sub(&g, 5, t);
  }
  pk_sub(&g, 11, pk_value("x", KVA_STRING, shape));
  pk_sub(&g, 12, pk_value("y", out, out_shape));
  return pk_model(g, 21);
}
#define MODEL(op, shape, w, out, out_shape, ...) \
  model(op, shape, w, out, out_shape, sizeof((kva_text[]){__VA_ARGS__}) / sizeof(kva_text), (kva_text[]){__VA_ARGS__})
#define PLAIN(op, shape, w, out, out_shape) model(op, shape, w, out, out_shape, 0, NULL)

/* Runs the model on n strings of shape [n] (rows 0) or [rows, n / rows]; y as text: elements with a bar behind each. */
static kva_status run(kva_text bytes, int64_t rows, int64_t n, const char *const *x, kva_text *y, kva_diag *diag) {
  kva_module *m = NULL;
  kva_status status = pk_load(&bytes, diag, &m);
  kva_text_free(&bytes);
  if (status) return status;
  kva_ref_tensor *in = rows ? kva_ref_tensor_create(KVA_STRING, 2, (int64_t[]){rows, n / rows})
                            : kva_ref_tensor_create(KVA_STRING, 1, &n);
  kva_ref_tensor *out = NULL;
  for (int64_t i = 0; i < n; i++) in->i[i] = (int64_t)(intptr_t)x[i];
  const kva_ref_tensor *list[] = {in};
  status = kva_ref_run(m, m->functions.data[0], list, &out, NULL, NULL, NULL, NULL, diag);
  for (int64_t i = 0; !status && i < out->n; i++) {
    if (out->dtype == KVA_STRING)
      kva_text_add(y, "%s|", (const char *)(intptr_t)out->i[i]);
    else
      kva_text_add(y, "%g|", kva_ref_tensor_get(out, i));
  }
  kva_ref_tensor_free(in), kva_ref_tensor_free(out);
  kva_module_destroy(m);
  return status;
}

static void check(kva_text bytes, int64_t rows, int64_t n, const char *const *x, const char *expected) {
  kva_diag *diag = kva_diag_create();
  kva_text y = {0};
  kva_status status = run(bytes, rows, n, x, &y, diag);
  if (status) kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
  assert_string_equal(y.data ? y.data : "", expected);
  kva_text_free(&y);
  kva_diag_destroy(diag);
}
#define X(...)                                                               \
  sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *), (const char *[]) { \
    __VA_ARGS__                                                              \
  }

static void refuse(kva_text bytes, int64_t n, const char *const *x, kva_status status, const char *part) {
  kva_diag *diag = kva_diag_create();
  kva_text y = {0};
  assert_int_equal(run(bytes, 0, n, x, &y, diag), status);
  if (!pk_has_message(diag, part)) kva_diag_print(diag, stderr);
  assert_true(pk_has_message(diag, part));
  kva_text_free(&y);
  kva_diag_destroy(diag);
}

/* Strings that appear twice, in the data and in constants, have one number. */
static void test_equal_and_concat(void **unused) {
  (void)unused;
  check(PLAIN("Equal", "3", "a,b,", KVA_BOOL, "3"), 0, X("a", "a", ""), "1|0|1|");
  check(PLAIN("StringConcat", "3,1", "-x,", KVA_STRING, "3,2"), 3, X("a", "", "\xc3\xa4"),
        "a-x|a|-x||\xc3\xa4-x|\xc3\xa4|");
  check(PLAIN("Identity", "2", NULL, KVA_STRING, "2"), 0, X("same", "same"), "same|same|");
}

static void test_normalizer(void **unused) {
  (void)unused;
  check(MODEL("StringNormalizer", "C", NULL, KVA_STRING, "D", attr_string("case_change_action", "UPPER"),
              pk_attr_strings("stopwords", "und,Oder")),
        0, X("\xc3\xa4pfel", "UND", "oder", "birnen"), "\xc3\x84PFEL|BIRNEN|");
  check(MODEL("StringNormalizer", "C", NULL, KVA_STRING, "D", pk_attr_int("is_case_sensitive", 1),
              pk_attr_strings("stopwords", "und")),
        0, X("und", "UND"), "UND|");
  check(MODEL("StringNormalizer", "C", NULL, KVA_STRING, "D", pk_attr_strings("stopwords", "a,b")), 0, X("b", "A"),
        "|");
  refuse(MODEL("StringNormalizer", "C", NULL, KVA_STRING, "D", attr_string("case_change_action", "LOWER")), X("\xff"),
         KVA_INVALID, "a string is not UTF-8");
}

static void test_split(void **unused) {
  (void)unused;
  check(MODEL("StringSplit", "N", NULL, KVA_STRING, "N,M", attr_string("delimiter", ",")), 0, X("a,b,,", "", "c"),
        "a|b|||||||c||||");
  check(PLAIN("StringSplit", "N", NULL, KVA_STRING, "N,M"), 0, X("  a  b ", " ", "c"), "a|b|||c||");
  check(MODEL("StringSplit", "N", NULL, KVA_STRING, "N,M", pk_attr_int("maxsplit", 1)), 0, X(" 1  2   3  "),
        "1|2   3  |");
}

static void test_regular_expressions(void **unused) {
  (void)unused;
  check(MODEL("RegexFullMatch", "N", NULL, KVA_BOOL, "N", attr_string("pattern", "a|ab")), 0, X("ab", "abc", "a", ""),
        "1|0|1|0|");
  refuse(MODEL("RegexFullMatch", "N", NULL, KVA_BOOL, "N", attr_string("pattern", "(a")), X("a"), KVA_INVALID,
         "'(a' is no regular expression: at 2");
  refuse(MODEL("RegexFullMatch", "N", NULL, KVA_BOOL, "N", attr_string("pattern", "(a|aa)+\\d")),
         X("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"), KVA_INVALID, "failed");
}

static void test_numbers(void **unused) {
  (void)unused;
  check(MODEL("Cast", "N", NULL, KVA_F32, "N", pk_attr_int("to", KVA_F32)), 0, X("1.5", "-2e3", "inf"),
        "1.5|-2000|inf|");
  check(MODEL("Cast", "N", NULL, KVA_I32, "N", pk_attr_int("to", KVA_I32)), 0, X("-7", "12"), "-7|12|");
  refuse(MODEL("Cast", "N", NULL, KVA_F32, "N", pk_attr_int("to", KVA_F32)), X("0x10"), KVA_INVALID,
         "'0x10' is no decimal number");
  refuse(MODEL("Cast", "N", NULL, KVA_I32, "N", pk_attr_int("to", KVA_I32)), X("1.5"), KVA_INVALID,
         "'1.5' is no decimal number");
}

/* What computes with numbers does not take strings. */
static void test_refusals(void **unused) {
  (void)unused;
  pk_expect(PLAIN("Add", "2", "a,b", KVA_STRING, "2"), KVA_INVALID, "found string[2]");
  pk_expect(PLAIN("Neg", "2", NULL, KVA_STRING, "2"), KVA_INVALID, "found string[2]");
  pk_expect(MODEL("BitCast", "2", NULL, KVA_I64, "2", pk_attr_int("to", KVA_I64)), KVA_UNSUPPORTED, "BitCast");
  pk_expect(MODEL("ReduceMax", "2", NULL, KVA_STRING, "1", pk_attr_int("keepdims", 1)), KVA_INVALID, "found string[2]");
  kva_text t = {0}, g = {0};
  int64_t n = 1;
  t = pk_tensor_header("w", KVA_STRING, 1, &n);
  pk_bytes(&t, 6, "a\0b", 3);
  pk_sub(&g, 1, pk_node("Identity", "w", "y", "n"));
  pk_sub(&g, 5, t);
  pk_sub(&g, 12, pk_value("y", KVA_STRING, "1"));
  pk_expect(pk_model(g, 21), KVA_UNSUPPORTED, "has a NUL in it");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_equal_and_concat),    cmocka_unit_test(test_normalizer), cmocka_unit_test(test_split),
      cmocka_unit_test(test_regular_expressions), cmocka_unit_test(test_numbers),    cmocka_unit_test(test_refusals)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
