/* The cache of compiled code as a store: keys in two parts, equal hashes, the bound on its size. */
#include "codegen/cache.h"

#include <setjmp.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

static char folder[] = "/tmp/kva_cache_XXXXXX";

static kva_cache_key key_of(const char *a, const char *b) {
  return (kva_cache_key){{{a, strlen(a)}, {b, strlen(b)}}};
}

static void add(const kva_cache *c, const char *a, const char *b, const char *code, size_t size) {
  kva_cache_key key = key_of(a, b);
  kva_cache_add(c, &key, (kva_file_part){code, size});
}

/* Whether (a, b) is there; checks that its code begins with `code`. */
static bool has(const kva_cache *c, const char *a, const char *b, const char *code) {
  kva_cache_key key = key_of(a, b);
  kva_file entry;
  kva_file_part found;
  if (!kva_cache_find(c, &key, &entry, &found)) return false;
  assert_true(found.size >= strlen(code));
  assert_memory_equal(found.data, code, strlen(code));
  kva_file_unmap(&entry);
  return true;
}

static void finds_what_was_added(void **state) {
  (void)state;
  kva_cache c = {folder, 1 << 20};
  assert_false(has(&c, "x86", "module", "one"));
  add(&c, "x86", "module", "one", 3);
  add(&c, "", "", "", 0);
  assert_true(has(&c, "x86", "module", "one"));
  assert_true(has(&c, "", "", ""));
  add(&c, "x86", "module", "two", 3);
  assert_true(has(&c, "x86", "module", "two"));
  assert_int_equal(kva_cache_measure(&c).entries, 2);
}

/* Entries are known by their keys, not by the hashes that name their files. */
static void equal_hashes_are_told_apart(void **state) {
  (void)state;
  kva_cache c = {folder, 1 << 20};
  int64_t before = kva_cache_measure(&c).entries;
  kva_cache_key one = key_of("p", "q"), other = key_of("r", "s");
  uint64_t hashes[] = {kva_hash(kva_hash(0, "p", 1), "q", 1), kva_hash(kva_hash(0, "r", 1), "s", 1)};
  kva_cache_add(&c, &one, (kva_file_part){"code of pq", 10});
  char from[128], to[128];
  snprintf(from, sizeof from, "%s/%016llx.kvcode", folder, (unsigned long long)hashes[0]);
  snprintf(to, sizeof to, "%s/%016llx.kvcode", folder, (unsigned long long)hashes[1]);
  assert_int_equal(rename(from, to), 0); /* as if r, s had the hash of p, q */
  kva_file entry;
  kva_file_part code;
  assert_false(kva_cache_find(&c, &other, &entry, &code));
  assert_false(kva_cache_find(&c, &one, &entry, &code));
  assert_int_equal(kva_cache_measure(&c).entries, before + 1);
}

static void the_longest_unused_go(void **state) {
  (void)state;
  kva_cache c = {folder, 6000};
  char code[1000] = "code";
  static const char *const names[] = {"a", "b", "c", "d", "e"};
  for (int i = 0; i < 5; i++) {
    add(&c, names[i], "evict", code, sizeof code);
    usleep(20000);
    if (i == 3) assert_true(has(&c, "a", "evict", "code")); /* used again */
    usleep(20000);
  }
  c.max_bytes = 3500;
  usleep(20000);
  add(&c, "f", "evict", code, sizeof code);
  assert_true(has(&c, "f", "evict", "code") && has(&c, "e", "evict", "code") && has(&c, "a", "evict", "code"));
  assert_false(has(&c, "b", "evict", "code") || has(&c, "c", "evict", "code") || has(&c, "d", "evict", "code"));
  assert_true(kva_cache_measure(&c).bytes <= c.max_bytes);
}

static int remove_folder(void **state) {
  (void)state;
  kva_cache c = {folder, 0};
  add(&c, "last", "", "", 0); /* a bound of nothing keeps nothing */
  assert_int_equal(kva_cache_measure(&c).entries, 0);
  return rmdir(folder);
}

int main(void) {
  if (!mkdtemp(folder)) return 1;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(finds_what_was_added),
      cmocka_unit_test(equal_hashes_are_told_apart),
      cmocka_unit_test(the_longest_unused_go),
  };
  return cmocka_run_group_tests(tests, NULL, remove_folder);
}
