/* Checkpoints: position and bits come back; files that are damaged, cut off or another model's are refused and change
 * nothing; a full disk leaves the old file; temporary files are no checkpoints. */
#include "runtime/checkpoint.h"

#include "runtime/base/platform.h"
#include "runtime/safetensors.h"
#include "tests/runtime/sample.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static char root[] = "/tmp/kvasir-checkpoint-XXXXXX";

static const char *in_root(const char *name) {
  static char path[4][128];
  static int next;
  next = (next + 1) % 4;
  snprintf(path[next], sizeof path[next], "%s/%s", root, name);
  return path[next];
}

static int make_root(void **state) {
  (void)state;
  return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state) {
  (void)state;
  return rmdir(root); /* fails where a test left something behind */
}

static kva_session *open_session(const kva_artifact *a, uint64_t seed) {
  kva_session *s;
  assert_int_equal(kva_session_create(a, &(kva_session_options){.threads = 1, .seed = seed}, NULL, &s), KVA_OK);
  return s;
}

static const kva_checkpoint position = {
    .step = 17,
    .steps = 100,
    .batch = 32,
    .micro_batch = 8,
    .seed = UINT64_MAX,
    .data_id = 1ull << 63,
    .schedule = {.kind = KVA_SCHEDULE_LINEAR, .lr = 0.1, .final_ratio = 1.0 / 3, .warmup = 4, .total = 90},
    .weight_decay = 1e-310}; /* subnormal */

static void position_and_bits_come_back(void **state) {
  (void)state;
  const char *path = in_root("a");
  kva_session *a = open_session(&sample_artifact, 1), *b = open_session(&sample_artifact, 2);
  assert_int_equal(kva_checkpoint_write(path, a, &position, NULL), KVA_OK);
  kva_checkpoint found;
  assert_int_equal(kva_checkpoint_read(path, b, NULL, &found), KVA_OK);
  assert_memory_equal(&found.schedule.lr, &position.schedule.lr, 4 * 8);
  assert_true(found.weight_decay == 1e-310);
  assert_int_equal(found.schedule.kind, position.schedule.kind);
  assert_true(found.step == 17 && found.steps == 100 && found.batch == 32 && found.micro_batch == 8);
  assert_true(found.seed == UINT64_MAX && found.data_id == 1ull << 63);
  kva_tensor x, y;
  assert_true(kva_session_state(a, "w", &x) && kva_session_state(b, "w", &y));
  assert_memory_equal(x.data, y.data, 12);
  /* Differences between runs are told, but for those that a longer run has by right. */
  kva_diag *diag = kva_diag_create();
  kva_checkpoint other = position;
  other.steps = 200;
  kva_checkpoint_compare(path, &position, &other, diag);
  assert_int_equal(kva_diag_count(diag), 0);
  other.batch = 33;
  other.schedule.lr = 0.2;
  kva_checkpoint_compare(path, &position, &other, diag);
  assert_int_equal(kva_diag_count(diag), 2);
  assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), "batch: was 32 when this was saved, is 33 now"));
  kva_diag_destroy(diag);
  kva_session_destroy(a);
  kva_session_destroy(b);
  remove(path);
}

/* The error of reading a file into a session, whose states stay as they were. */
static void expect_refusal(const char *path, const kva_artifact *a, kva_status status, const char *message) {
  kva_session *s = open_session(a, 9);
  kva_tensor w;
  float before[3];
  assert_true(kva_session_state(s, "w", &w));
  memcpy(before, w.data, sizeof before);
  kva_diag *diag = kva_diag_create();
  kva_checkpoint found;
  assert_int_equal(kva_checkpoint_read(path, s, diag, &found), status);
  const char *text = kva_diag_message(diag, 0, NULL, NULL);
  if (!strstr(text, message)) fail_msg("expected '%s', found '%s'", message, text);
  assert_memory_equal(before, w.data, sizeof before);
  kva_diag_destroy(diag);
  kva_session_destroy(s);
}

static void save(const char *path) {
  kva_session *s = open_session(&sample_artifact, 1);
  assert_int_equal(kva_checkpoint_write(path, s, &position, NULL), KVA_OK);
  kva_session_destroy(s);
}

static void other_models_are_refused_by_tensor(void **state) {
  (void)state;
  const char *path = in_root("foreign");
  save(path);
  kva_state_desc states[N_STATES];
  kva_artifact a = sample_artifact;
  memcpy(states, sample_states, sizeof states);
  a.states = states;
  states[S_BIAS].dims[0] = 2;
  states[S_BIAS].bytes = 8;
  assert_true(kva_model_hash(&a) != kva_model_hash(&sample_artifact));
  expect_refusal(path, &a, KVA_INVALID, "another model: its tensor 'bias' is float[1], and this model's is float[2]");
  memcpy(states, sample_states, sizeof states);
  states[S_A].name = "alpha";
  expect_refusal(path, &a, KVA_INVALID, "another model: it has no tensor 'alpha'");
  memcpy(states, sample_states, sizeof states);
  states[S_A].role = KVA_ROLE_CACHE;
  expect_refusal(path, &a, KVA_INVALID, "another model: this one has no tensor 'a'");
  /* Weights alone are no checkpoint. */
  const float w[3] = {1, 2, 3};
  const kva_named_tensor tensor = {"w", {.dtype = KVA_F32, .rank = 1, .dims = {3}, .data = (void *)(uintptr_t)w}};
  assert_int_equal(kva_safetensors_write(path, 1, &tensor, 0, NULL, NULL), KVA_OK);
  expect_refusal(path, &sample_artifact, KVA_DAMAGED, "no checkpoint of Kvasir");
  remove(path);
}

/* Without waiting for the disk; a file that is cut and written anew would wait on some file systems. */
static int write_plainly(const char *path, const void *data, size_t size) {
  remove(path);
  FILE *f = fopen(path, "wb");
  if (!f) return -1;
  size_t n = fwrite(data, 1, size, f);
  return fclose(f) || n != size ? -1 : 0;
}

/* Files of format 1, whose sum covers the data alone. */
static void the_first_format_is_read(void **state) {
  (void)state;
  static const char first[] = "tests/data/checkpoint_format1.safetensors";
  const char *path = in_root("first");
  kva_session *a = open_session(&sample_artifact, 1), *b = open_session(&sample_artifact, 2);
  kva_checkpoint found;
  assert_int_equal(kva_checkpoint_read(first, b, NULL, &found), KVA_OK);
  assert_true(found.step == 17 && found.schedule.total == 90 && found.data_id == 1ull << 63);
  kva_tensor x, y;
  assert_true(kva_session_state(a, "w", &x) && kva_session_state(b, "w", &y));
  assert_memory_equal(x.data, y.data, 12);
  kva_session_destroy(a);
  kva_session_destroy(b);
  kva_file file;
  assert_int_equal(kva_file_map(first, NULL, &file), KVA_OK);
  char *copy = malloc(file.size);
  assert_non_null(copy);
  memcpy(copy, file.data, file.size);
  copy[file.size - 1] ^= 1;
  assert_int_equal(write_plainly(path, copy, file.size), 0);
  expect_refusal(path, &sample_artifact, KVA_DAMAGED, "damaged checkpoint: its sum is ");
  char *step = memmem(copy, file.size, "\"kvasir.step\":\"17\"", 18);
  assert_non_null(step);
  memcpy(step, "\"kvasir.step\":\"x7\"", 18);
  assert_int_equal(write_plainly(path, copy, file.size), 0);
  expect_refusal(path, &sample_artifact, KVA_DAMAGED, "'kvasir.step' should be a number, found 'x7'");
  free(copy);
  kva_file_unmap(&file);
  remove(path);
}

/* Every bit of header and data, every kind of cut. A length that is another may leave a header that is too long. */
static void damage_is_found(void **state) {
  (void)state;
  const char *path = in_root("damaged");
  save(in_root("whole"));
  kva_file file;
  assert_int_equal(kva_file_map(in_root("whole"), NULL, &file), KVA_OK);
  char *copy = malloc(file.size);
  assert_non_null(copy);
  uint64_t header;
  memcpy(&header, file.data, 8);
  char *format = memmem(file.data, file.size, "\"kvasir.format\":\"2\"", 19);
  assert_non_null(format);
  size_t format_at = (size_t)(format + 17 - (const char *)file.data);
  for (size_t at = 0; at < file.size; at++) {
    int unknown = 0;
    for (int bit = 0; bit < 8; bit++) {
      memcpy(copy, file.data, file.size);
      copy[at] ^= (char)(1 << bit);
      assert_int_equal(write_plainly(path, copy, file.size), 0);
      kva_session *s = open_session(&sample_artifact, 9);
      kva_diag *diag = kva_diag_create();
      kva_checkpoint found;
      kva_status status = kva_checkpoint_read(path, s, diag, &found);
      unknown += status == KVA_UNSUPPORTED;
      if (status != KVA_DAMAGED && status != KVA_UNSUPPORTED) fail_msg("byte %zu, bit %d: status %d", at, bit, status);
      kva_diag_destroy(diag);
      kva_session_destroy(s);
    }
    if (at == format_at ? unknown < 3 : unknown) fail_msg("byte %zu: %d flips are of an unknown format", at, unknown);
    if (at < 8 + header) continue;
    expect_refusal(path, &sample_artifact, KVA_DAMAGED, "damaged checkpoint: its sum is ");
  }
  for (size_t size = 0; size < file.size; size += 1 + size / 7) {
    assert_int_equal(write_plainly(path, file.data, size), 0);
    expect_refusal(path, &sample_artifact, KVA_DAMAGED, size < 8 ? "no safetensors file" : "cut off");
  }
  memcpy(copy, file.data, file.size);
  char *step = memmem(copy, file.size, "\"kvasir.step\":\"17\"", 18);
  assert_non_null(step);
  memcpy(step, "\"kvasir.step\":\"18\"", 18);
  assert_int_equal(write_plainly(path, copy, file.size), 0);
  expect_refusal(path, &sample_artifact, KVA_DAMAGED, "damaged checkpoint: its sum is ");
  free(copy);
  kva_file_unmap(&file);
  remove(path);
  remove(in_root("whole"));
}

static void a_full_disk_leaves_the_old_file(void **state) {
  (void)state;
  const char *path = in_root("full");
  save(path);
  kva_file before, after;
  assert_int_equal(kva_file_map(path, NULL, &before), KVA_OK);
  struct rlimit usual, tiny;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &usual), 0);
  tiny = usual;
  tiny.rlim_cur = 200;
  signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &tiny), 0);
  kva_session *s = open_session(&sample_artifact, 4);
  kva_diag *diag = kva_diag_create();
  assert_int_equal(kva_checkpoint_write(path, s, &position, diag), KVA_IO);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &usual), 0);
  assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), "cannot write it: "));
  assert_int_equal(kva_file_map(path, NULL, &after), KVA_OK);
  assert_true(before.size == after.size && !memcmp(before.data, after.data, after.size));
  kva_file_unmap(&before);
  kva_file_unmap(&after);
  kva_diag_destroy(diag);
  kva_session_destroy(s);
  remove(path); /* and remove_root finds no temporary file */
}

/* Whoever holds the lock is named; it ends with its holder. */
static void a_folder_has_one_trainer(void **state) {
  (void)state;
  const char *folder = in_root("held");
  char own[32];
  int lock, second;
  snprintf(own, sizeof own, ": process %ld on ", (long)getpid());
  assert_int_equal(kva_checkpoint_prepare(folder, NULL), KVA_OK);
  assert_int_equal(kva_checkpoint_lock(folder, NULL, &lock), KVA_OK);
  assert_true(lock >= 0);
  kva_diag *diag = kva_diag_create();
  assert_int_equal(kva_checkpoint_lock(folder, diag, &second), KVA_INVALID);
  assert_int_equal(second, -1);
  const char *text = kva_diag_message(diag, 0, NULL, NULL);
  if (!strstr(text, own) || !strstr(text, " since 20") || !strstr(text, " UTC;")) fail_msg("%s", text);
  kva_diag_destroy(diag);
  kva_checkpoint_unlock(lock);
  assert_int_equal(kva_checkpoint_lock(folder, NULL, &second), KVA_OK);
  kva_checkpoint_unlock(second);
  kva_checkpoint_unlock(-1);
  remove(in_root("held/.lock"));
  assert_int_equal(kva_checkpoint_lock(in_root("absent"), NULL, &second), KVA_IO);
  assert_int_equal(rmdir(folder), 0);
}

/* A process that has ended left them, though nobody has asked for its exit code. */
static void left_overs_are_removed(void **state) {
  (void)state;
  char name[64];
  siginfo_t ended;
  pid_t child = fork();
  if (!child) _exit(0);
  assert_int_equal(waitid(P_PID, (id_t)child, &ended, WEXITED | WNOWAIT), 0);
  assert_int_equal(mkdir(in_root("left"), 0777), 0);
  snprintf(name, sizeof name, "left/best.safetensors.%ld.tmp", (long)child);
  assert_int_equal(kva_file_write(in_root(name), "x", 1, NULL), KVA_OK);
  snprintf(name, sizeof name, "left/step-0000000001.%ld.tmp", (long)child);
  assert_int_equal(mkdir(in_root(name), 0777), 0);
  strcat(name, "/shard-00000-of-00002.safetensors");
  assert_int_equal(kva_file_write(in_root(name), "x", 1, NULL), KVA_OK);
  assert_int_equal(kva_checkpoint_prepare(in_root("left"), NULL), KVA_OK);
  assert_int_equal(rmdir(in_root("left")), 0);
  assert_int_equal(waitpid(child, NULL, 0), child);
}

static void folders_know_checkpoints_by_name(void **state) {
  (void)state;
  static const char *const others[] = {"step-0000000009.safetensors.1.tmp",
                                       "step-0000000009.safetensors.999999999.tmp",
                                       "step-9.safetensors",
                                       "step-0000000009.safetensors~",
                                       "xstep-0000000009.safetensors",
                                       "step-00000000a9.safetensors"};
  char folder[64], name[64];
  snprintf(folder, sizeof folder, "%s/run", root);
  int64_t n, *steps;
  assert_int_equal(kva_checkpoint_list(folder, NULL, &n, &steps), KVA_OK);
  assert_int_equal(n, 0);
  free(steps);
  assert_int_equal(kva_checkpoint_prepare(folder, NULL), KVA_OK);
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    snprintf(name, sizeof name, "run/%s", others[i]);
    assert_int_equal(kva_file_write(in_root(name), "x", 1, NULL), KVA_OK);
  }
  for (int64_t step = 20; step >= 5; step -= 5) {
    char *path = kva_checkpoint_path(folder, step, false);
    save(path);
    free(path);
  }
  assert_int_equal(kva_checkpoint_prepare(folder, NULL), KVA_OK);
  assert_int_equal(kva_checkpoint_prune(folder, 3, NULL), KVA_OK);
  assert_int_equal(kva_checkpoint_list(folder, NULL, &n, &steps), KVA_OK);
  assert_int_equal(n, 3);
  assert_true(steps[0] == 10 && steps[1] == 15 && steps[2] == 20);
  free(steps);
  assert_int_equal(kva_checkpoint_set_aside(folder, 20, NULL), KVA_OK);
  assert_int_equal(remove(in_root("run/step-0000000020.safetensors.damaged")), 0);
  assert_int_equal(kva_checkpoint_set_aside(folder, 20, NULL), KVA_IO);
  assert_int_equal(kva_checkpoint_prune(folder, 0, NULL), KVA_OK);
  /* The temporary file of a process that is no more is gone, that of one which may live is not. */
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    snprintf(name, sizeof name, "run/%s", others[i]);
    assert_int_equal(remove(in_root(name)), i == 1 ? -1 : 0);
  }
  assert_int_equal(rmdir(folder), 0);
}

static void types_without_a_file_are_named(void **state) {
  (void)state;
  kva_state_desc states[N_STATES];
  kva_artifact a = sample_artifact;
  memcpy(states, sample_states, sizeof states);
  a.states = states;
  states[S_BIAS].dtype = KVA_U4;
  kva_diag *diag = kva_diag_create();
  assert_int_equal(kva_checkpoint_possible(&sample_artifact, diag), KVA_OK);
  assert_int_equal(kva_checkpoint_possible(&a, diag), KVA_UNSUPPORTED);
  assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), "cannot hold 'bias' of type uint4"));
  kva_diag_destroy(diag);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(position_and_bits_come_back),
      cmocka_unit_test(other_models_are_refused_by_tensor),
      cmocka_unit_test(damage_is_found),
      cmocka_unit_test(types_without_a_file_are_named),
      cmocka_unit_test(the_first_format_is_read),
      cmocka_unit_test(a_folder_has_one_trainer),
      cmocka_unit_test(a_full_disk_leaves_the_old_file),
      cmocka_unit_test(left_overs_are_removed),
      cmocka_unit_test(folders_know_checkpoints_by_name),
  };
  return cmocka_run_group_tests(tests, make_root, remove_root);
}
