/* Mapping, what map_below refuses, and that a failed write leaves the old file. */
#include "runtime/base/platform.h"

#include <setjmp.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

/* A folder with: model/w.bin, model/sub/w.bin, secret, and links in model/ to both and out of it. */
static char root[64];

static const char *in_root(const char *name) {
  static char path[4][128];
  static int next;
  next = (next + 1) % 4;
  snprintf(path[next], sizeof path[next], "%s/%s", root, name);
  return path[next];
}

static void put(const char *name, const char *content) {
  assert_int_equal(kva_file_write(in_root(name), content, strlen(content), NULL), KVA_OK);
}

static int make_tree(void **state) {
  (void)state;
  snprintf(root, sizeof root, "/tmp/kvasir-test-XXXXXX");
  if (!mkdtemp(root) || mkdir(in_root("model"), 0777) || mkdir(in_root("model/sub"), 0777)) return -1;
  put("secret", "secret");
  put("model/w.bin", "weights");
  put("model/sub/w.bin", "below");
  if (symlink("../secret", in_root("model/out")) || symlink("w.bin", in_root("model/in"))) return -1;
  if (symlink("sub", in_root("model/folder"))) return -1;
  return mkfifo(in_root("model/pipe"), 0666);
}

static int remove_tree(void **state) {
  (void)state;
  static const char *const names[] = {"model/out", "model/in",        "model/folder", "model/pipe", "model/w.bin",
                                      "secret",    "model/sub/w.bin", "model/sub",    "model"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) remove(in_root(names[i]));
  return rmdir(root); /* fails where a test, or a write, left something behind */
}

static void maps_a_file(void **state) {
  (void)state;
  kva_file file;
  assert_int_equal(kva_file_map(in_root("secret"), NULL, &file), KVA_OK);
  assert_int_equal(file.size, 6);
  assert_memory_equal(file.data, "secret", 6);
  kva_file_unmap(&file);
  assert_null(file.data);
  put("secret", "");
  assert_int_equal(kva_file_map(in_root("secret"), NULL, &file), KVA_OK);
  assert_true(!file.data && !file.size);
  kva_file_unmap(&file);
}

/* Pages of a file come again, and what shares a page with other memory stays. */
static void releases_whole_pages(void **state) {
  (void)state;
  enum { SIZE = 1 << 16 };
  char *bytes = malloc(SIZE);
  kva_file file;
  memset(bytes, 'x', SIZE);
  assert_int_equal(kva_file_write(in_root("secret"), bytes, SIZE, NULL), KVA_OK);
  assert_int_equal(kva_file_map(in_root("secret"), NULL, &file), KVA_OK);
  kva_pages_release(file.data, file.size);
  assert_memory_equal(file.data, bytes, SIZE);
  kva_pages_release(bytes + 1, 1000);
  kva_pages_release(bytes, 0);
  kva_pages_enlarge(bytes, SIZE);
  assert_memory_equal(file.data, bytes, SIZE);
  kva_file_unmap(&file);
  free(bytes);
}

static void refuses_what_is_no_file(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  kva_file file;
  assert_int_equal(kva_file_map(in_root("absent"), diag, &file), KVA_IO);
  assert_int_equal(kva_file_map(in_root("model"), diag, &file), KVA_INVALID);
  assert_int_equal(kva_file_map(in_root("model/pipe"), diag, &file), KVA_INVALID);
  assert_int_equal(kva_diag_errors(diag), 3);
  assert_string_equal(kva_diag_message(diag, 0, NULL, NULL), "cannot open it: No such file or directory");
  kva_diag_destroy(diag);
}

static kva_status below(const char *relative) {
  kva_file file;
  kva_diag *diag = kva_diag_create();
  kva_status status = kva_file_map_below(in_root("model"), relative, diag, &file);
  assert_int_equal(kva_diag_errors(diag), status != KVA_OK);
  assert_true(status == KVA_OK || !file.data);
  kva_file_unmap(&file);
  kva_diag_destroy(diag);
  return status;
}

static void below_accepts(void **state) {
  (void)state;
  assert_int_equal(below("w.bin"), KVA_OK);
  assert_int_equal(below("sub/w.bin"), KVA_OK);
  assert_int_equal(below("./sub//w.bin"), KVA_OK);
}

static void below_refuses(void **state) {
  (void)state;
  assert_int_equal(below("../secret"), KVA_INVALID);
  assert_int_equal(below("sub/../w.bin"), KVA_INVALID);
  assert_int_equal(below("sub/.."), KVA_INVALID);
  assert_int_equal(below(in_root("model/w.bin")), KVA_INVALID);
  assert_int_equal(below(""), KVA_INVALID);
  assert_int_equal(below("."), KVA_INVALID);
  assert_int_equal(below("w.bin/"), KVA_IO);
  assert_int_equal(below("sub/"), KVA_INVALID);
  assert_int_equal(below("sub"), KVA_INVALID);
  assert_int_equal(below("out"), KVA_INVALID);
  assert_int_equal(below("in"), KVA_INVALID);
  assert_int_equal(below("folder/w.bin"), KVA_INVALID);
  assert_int_equal(below("pipe"), KVA_INVALID);
  assert_int_equal(below("absent/w.bin"), KVA_IO);
}

static void write_replaces_as_a_whole(void **state) {
  (void)state;
  put("model/w.bin", "old old old");
  kva_file before, after;
  assert_int_equal(kva_file_map(in_root("model/w.bin"), NULL, &before), KVA_OK);
  assert_int_equal(chmod(in_root("model/w.bin"), 0640), 0);
  put("model/w.bin", "new");
  assert_memory_equal(before.data, "old old old", 11); /* the old file lives on in who has it open */
  assert_int_equal(kva_file_map(in_root("model/w.bin"), NULL, &after), KVA_OK);
  assert_int_equal(after.size, 3);
  struct stat st;
  assert_int_equal(stat(in_root("model/w.bin"), &st), 0);
  assert_int_equal(st.st_mode & 0777, 0640);
  kva_file_unmap(&before);
  kva_file_unmap(&after);
}

static void write_fails_with_a_reason(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  assert_int_equal(kva_file_write(in_root("absent/x"), "x", 1, diag), KVA_IO);
  assert_int_equal(kva_diag_errors(diag), 1);
  assert_int_equal(kva_file_write(in_root("model"), "x", 1, diag), KVA_IO);
  kva_diag_destroy(diag);
}

static void write_keeps_devices_and_links(void **state) {
  (void)state;
  struct stat st;
  assert_int_equal(kva_file_write("/dev/null", "x", 1, NULL), KVA_OK);
  assert_true(!stat("/dev/null", &st) && S_ISCHR(st.st_mode));
  put("model/in", "through");
  assert_true(!lstat(in_root("model/in"), &st) && S_ISLNK(st.st_mode));
  assert_true(!stat(in_root("model/w.bin"), &st) && st.st_size == 7);
}

static void place_keeps_links(void **state) {
  (void)state;
  struct stat st;
  put("model/w.bin", "old");
  for (int i = 0; i < 2; i++) {
    const char *path = in_root(i ? "model/in" : "model/w.bin");
    char *temporary = kva_file_temporary(path);
    assert_non_null(temporary);
    assert_int_equal(kva_file_write(temporary, "longer", i ? 6 : 5, NULL), KVA_OK);
    if (i) assert_int_equal(chmod(temporary, 0755), 0);
    assert_int_equal(kva_file_place(temporary, path, NULL), KVA_OK);
    assert_int_equal(access(temporary, F_OK), -1);
    assert_true(!stat(in_root("model/w.bin"), &st) && st.st_size == 5 + i);
    assert_int_equal(st.st_mode & 0111, i ? 0111 : 0);
    free(temporary);
  }
  assert_true(!lstat(in_root("model/in"), &st) && S_ISLNK(st.st_mode));
}

static void folders_are_made_with_those_above(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  assert_int_equal(kva_file_prepare(in_root("new//deep/x"), diag), KVA_OK);
  put("new/deep/x", "x");
  assert_int_equal(kva_folder_make(in_root("new/deep/"), 0777, diag), KVA_OK);
  assert_int_equal(kva_diag_count(diag), 0);
  assert_int_equal(kva_folder_make(in_root("new/deep/x"), 0777, diag), KVA_IO);
  assert_string_equal(kva_diag_message(diag, 0, NULL, NULL), "cannot make the folder: File exists");
  assert_int_equal(kva_file_prepare(in_root("new/deep/x/y/z"), diag), KVA_IO);
  assert_string_equal(kva_diag_message(diag, 1, NULL, NULL), "cannot make the folder: Not a directory");
  assert_int_equal(kva_file_prepare(in_root("new/deep"), diag), KVA_IO);
  kva_diag_destroy(diag);
  unlink(in_root("new/deep/x"));
  rmdir(in_root("new/deep"));
  assert_int_equal(rmdir(in_root("new")), 0);
}

static void clock_is_monotonic(void **state) {
  (void)state;
  double before = kva_now();
  assert_true(kva_now() >= before);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(maps_a_file),
      cmocka_unit_test(releases_whole_pages),
      cmocka_unit_test(refuses_what_is_no_file),
      cmocka_unit_test(below_accepts),
      cmocka_unit_test(below_refuses),
      cmocka_unit_test(write_replaces_as_a_whole),
      cmocka_unit_test(write_fails_with_a_reason),
      cmocka_unit_test(write_keeps_devices_and_links),
      cmocka_unit_test(place_keeps_links),
      cmocka_unit_test(folders_are_made_with_those_above),
      cmocka_unit_test(clock_is_monotonic),
  };
  return cmocka_run_group_tests(tests, make_tree, remove_tree);
}
