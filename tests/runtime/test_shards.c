/* Checkpoints in shards: slices and parts come back as the whole tensor; an index that says something else about the
 * files, or nothing that makes sense, is refused. */
#include "runtime/shards.h"

#include "runtime/base/platform.h"

#include <setjmp.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

enum { ROWS = 4, COLUMNS = 6, DATA = 3, TENSOR = 2, SHARDS = DATA * TENSOR, PART = 4 };
static const char mesh[] = "data=3,tensor=2", division[] = "4,6 axis=1 slices=2 part=4";
static char root[] = "/tmp/kvasir-shards-XXXXXX", index_path[64];

static char *path_of(int shard) {
  return kva_shards_path(root, shard, SHARDS);
}

/* Element e of part `data` of the slice of columns `tensor`: rows of the slice have COLUMNS / TENSOR elements. */
static float value(int data, int tensor, int e) {
  int i = data * PART + e, width = COLUMNS / TENSOR;
  return (float)(i / width * COLUMNS + tensor * width + i % width);
}

static void write_index_as(const char *format, const char *mesh_text, const char *division_text) {
  const kva_metadata metadata[] = {{KVA_FORMAT_KEY, format},
                                   {KVA_SHARDS_MESH, mesh_text},
                                   {KVA_SHARDS_SUMS, "0"},
                                   {KVA_SHARDS_DIVIDED "w", division_text}};
  assert_int_equal(kva_safetensors_write(index_path, 0, NULL, 4, metadata, NULL), KVA_OK);
}

static void write_index(const char *mesh_text, const char *division_text) {
  write_index_as("3", mesh_text, division_text);
}

static int make_folder(void **state) {
  (void)state;
  if (!mkdtemp(root)) return -1;
  snprintf(index_path, sizeof index_path, "%s/" KVA_SHARDS_INDEX, root);
  for (int i = 0; i < SHARDS; i++) {
    float part[PART], bias[2] = {1, 2};
    for (int e = 0; e < PART; e++) part[e] = value(i / TENSOR, i % TENSOR, e);
    const kva_named_tensor tensors[] = {{"w", {.dtype = KVA_F32, .rank = 1, .dims = {PART}, .data = part}},
                                        {"bias", {.dtype = KVA_F32, .rank = 1, .dims = {2}, .data = bias}}};
    char *path = path_of(i);
    kva_status status = kva_safetensors_write(path, i ? 1 : 2, tensors, 0, NULL, NULL);
    free(path);
    if (status != KVA_OK) return -1;
  }
  return 0;
}

static int remove_folder(void **state) {
  (void)state;
  for (int i = 0; i < SHARDS; i++) {
    char *path = path_of(i);
    remove(path);
    free(path);
  }
  remove(index_path);
  return rmdir(root);
}

/* Opens the folder and puts all its tensors together. */
static kva_status read_all(kva_diag *diag) {
  kva_shards *f;
  KVA_TRY(kva_shards_open(root, diag, &f));
  kva_status status = KVA_OK;
  for (int64_t i = 0; status == KVA_OK && i < kva_shards_count(f); i++) {
    kva_tensor t;
    status = kva_shards_whole(f, i, diag, &t);
  }
  for (int64_t i = 0; i < kva_shards_number(f) && i < SHARDS; i++) (void)!kva_shards_check(f, i, diag);
  kva_shards_close(f);
  return status;
}

static void pieces_come_back_whole(void **state) {
  (void)state;
  write_index(mesh, division);
  kva_shards *f;
  assert_true(kva_shards_is(root));
  assert_int_equal(kva_shards_open(root, NULL, &f), KVA_OK);
  assert_int_equal(kva_shards_number(f), SHARDS);
  assert_int_equal(kva_shards_count(f), 2);
  assert_int_equal(kva_shards_find(f, "absent"), -1);
  kva_tensor w, again, bias;
  assert_int_equal(kva_shards_whole(f, kva_shards_find(f, "w"), NULL, &w), KVA_OK);
  assert_int_equal(kva_shards_whole(f, kva_shards_find(f, "w"), NULL, &again), KVA_OK);
  assert_int_equal(kva_shards_whole(f, kva_shards_find(f, "bias"), NULL, &bias), KVA_OK);
  assert_true(w.rank == 2 && w.dims[0] == ROWS && w.dims[1] == COLUMNS && again.data == w.data);
  for (int i = 0; i < ROWS * COLUMNS; i++) assert_true(((const float *)w.data)[i] == (float)i);
  assert_true(((const float *)bias.data)[1] == 2);
  /* A range across slices and parts. */
  float range[9];
  assert_int_equal(kva_shards_copy(f, kva_shards_find(f, "w"), 7, 9, range, NULL), KVA_OK);
  for (int i = 0; i < 9; i++) assert_true(range[i] == (float)(7 + i));
  kva_shards_close(f);
}

static void an_index_that_does_not_fit_is_refused(void **state) {
  (void)state;
  static const char *const divisions[] = {"",
                                          "4,6",
                                          "4,6 axis=1 slices=2",
                                          "4,6 axis=1 slices=2 part=4x",
                                          "4,,6 axis=1 slices=2 part=4",
                                          " axis=0 slices=2 part=4",
                                          "4,-6 axis=1 slices=2 part=4",
                                          "4,6 axis=2 slices=2 part=4",
                                          "4,6 axis=-1 slices=2 part=4",
                                          "4,6 axis=1 slices=3 part=4",
                                          "4,6 axis=1 slices=-2 part=4",
                                          "4,7 axis=1 slices=2 part=4",
                                          "4,6 axis=1 slices=2 part=3",
                                          "4,6 axis=1 slices=2 part=-4",
                                          "4,6 axis=1 slices=2 part=8",
                                          "4,6 axis=1 slices=2 part=999999999999999999",
                                          "4,6 axis=1 slices=0 part=0",
                                          "4,8 axis=1 slices=2 part=8",
                                          "1,1,1,1,1,1,1,1,1,4,6 axis=1 slices=2 part=4",
                                          "4611686018427387904,6 axis=1 slices=2 part=4",
                                          "99999999999999999999,6 axis=1 slices=2 part=4"};
  static const char *const meshes[] = {
      "", "data=3", "data=0,tensor=2", "data=3,tensor=2,sequence=1", "data=-3,tensor=-2", "data=999999,tensor=999999"};
  for (size_t i = 0; i < sizeof divisions / sizeof *divisions; i++) {
    write_index(mesh, divisions[i]);
    if (read_all(NULL) != KVA_DAMAGED) fail_msg("'%s' is accepted", divisions[i]);
  }
  for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
    write_index(meshes[i], division);
    if (read_all(NULL) != KVA_DAMAGED) fail_msg("'%s' is accepted", meshes[i]);
  }
}

/* Format 4: the files of the folder as those of stages. */
static void stages_have_tensors_of_their_own(void **state) {
  (void)state;
  static const char *const meshes[] = {"data=3,tensor=2",
                                       "data=3,pipeline=0,tensor=2",
                                       "data=3,pipeline=2,tensor=2",
                                       "data=1,pipeline=999999,tensor=1",
                                       "data=999999,pipeline=999999,tensor=999999",
                                       "data=3,pipeline=2,tensor=1",
                                       "data=1,pipeline=6,tensor=1"};
  write_index_as("4", "data=3,pipeline=1,tensor=2", division);
  assert_int_equal(read_all(NULL), KVA_OK);
  for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
    write_index_as("4", meshes[i], division);
    if (read_all(NULL) != KVA_DAMAGED) fail_msg("'%s' is accepted", meshes[i]);
  }
  /* "bias" is the first one's alone; "w" all claim to have. */
  kva_diag *diag = kva_diag_create();
  write_index_as("4", "data=1,pipeline=6,tensor=1", "4,6 axis=0 slices=0 part=24");
  assert_int_equal(read_all(diag), KVA_DAMAGED);
  assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), "several stages have w"));
  kva_diag_destroy(diag);
}

/* Whatever a byte of the index is, the answer is a status. */
static void no_byte_of_the_index_is_trusted(void **state) {
  (void)state;
  char bytes[1024];
  write_index(mesh, division);
  FILE *f = fopen(index_path, "rb");
  assert_non_null(f);
  size_t n = fread(bytes, 1, sizeof bytes, f);
  fclose(f);
  assert_true(n > 100 && n < sizeof bytes);
  for (size_t i = 0; i < n; i++) {
    char old = bytes[i];
    for (const char *c = "\"0169,=- }\x80"; *c; c++) {
      bytes[i] = *c;
      f = fopen(index_path, "wb");
      assert_non_null(f);
      assert_int_equal(fwrite(bytes, 1, n, f), n);
      fclose(f);
      (void)!read_all(NULL);
    }
    bytes[i] = old;
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pieces_come_back_whole),
      cmocka_unit_test(an_index_that_does_not_fit_is_refused),
      cmocka_unit_test(stages_have_tensors_of_their_own),
      cmocka_unit_test(no_byte_of_the_index_is_trusted),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
