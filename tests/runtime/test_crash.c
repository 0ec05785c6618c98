/* 200 SIGKILLs at random moments of a run that checkpoints, resumed each time with 1, 2 or 3 threads: the last
 * checkpoint has the bytes of an uninterrupted run's, and no temporary file is ever taken for a checkpoint. */
#include "runtime/base/platform.h"
#include "runtime/checkpoint.h"
#include "tests/runtime/sample.h"

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { KILLS = 200, ROWS = 4096, EVERY = 3, KEEP = 2 }; /* 4096 rows: enough work for several threads */

static char root[] = "/tmp/kvasir-crash-XXXXXX";

static kva_status fill_line(void *self, uint64_t seed, int64_t step, bool evaluation, int n, kva_tensor *tensors,
                            kva_diag *diag) {
  (void)self, (void)diag, (void)n;
  float *x = tensors[0].data, *y = tensors[1].data;
  for (int64_t i = 0; i < tensors[0].dims[0]; i++) {
    kva_philox r = kva_philox4x32((uint64_t)i, (uint64_t)step << 1 | evaluation, seed);
    for (int j = 0; j < 3; j++) x[3 * i + j] = (float)(2 * kva_uniform01(r.v[j]) - 1);
    y[i] = 2 * x[3 * i] - x[3 * i + 1] + 0.5f * x[3 * i + 2] + 3;
  }
  return KVA_OK;
}

static kva_status checkpoint(void *user, kva_trainer *t, bool last, kva_diag *diag) {
  const char *folder = user;
  int64_t step = kva_trainer_done(t);
  if (!last && step % EVERY) return KVA_OK;
  char *path = kva_checkpoint_path(folder, step, false);
  kva_status status = kva_trainer_save(t, path, diag);
  free(path);
  return status == KVA_OK ? kva_checkpoint_prune(folder, KEEP, diag) : status;
}

/* A run as a command line makes it: from the last checkpoint, if there is one. */
static kva_status train(const char *folder, int64_t steps, int threads) {
  kva_diag *diag = kva_diag_create();
  kva_session *s;
  kva_trainer *t;
  kva_data_source line = {.name = "line", .fill = fill_line};
  kva_train_options options = {.steps = steps,
                               .batch = ROWS,
                               .schedule = {.kind = KVA_SCHEDULE_COSINE, .lr = 0.01, .warmup = 10, .total = 100000},
                               .seed = 5,
                               .after_step = checkpoint,
                               .user = (void *)(uintptr_t)folder};
  int64_t n, *found;
  KVA_TRY(kva_session_create(&sample_artifact, &(kva_session_options){.threads = threads, .seed = 3}, diag, &s));
  KVA_TRY(kva_trainer_create(s, &options, diag, &t));
  kva_trainer_bind(t, &line);
  KVA_TRY(kva_checkpoint_prepare(folder, diag));
  KVA_TRY(kva_checkpoint_list(folder, diag, &n, &found));
  char *path = n ? kva_checkpoint_path(folder, found[n - 1], false) : NULL;
  kva_status status = path ? kva_trainer_load(t, path, diag) : KVA_OK;
  if (status == KVA_OK) status = kva_trainer_run(t, diag);
  kva_diag_print(diag, stderr);
  free(path);
  free(found);
  kva_trainer_destroy(t);
  kva_session_destroy(s);
  kva_diag_destroy(diag);
  return status;
}

/* In a process of its own, killed after `microseconds` unless 0; whether it came to its end. */
static bool train_apart(const char *folder, int64_t steps, int threads, unsigned microseconds) {
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) _exit(train(folder, steps, threads) == KVA_OK ? 0 : 1);
  if (microseconds) {
    usleep(microseconds);
    kill(child, SIGKILL);
  }
  int state;
  assert_int_equal(waitpid(child, &state, 0), child);
  if (WIFSIGNALED(state)) {
    assert_int_equal(WTERMSIG(state), SIGKILL);
    return false;
  }
  assert_int_equal(WEXITSTATUS(state), 0);
  return true;
}

static int64_t last_step(const char *folder) {
  int64_t n, *found, last;
  assert_int_equal(kva_checkpoint_list(folder, NULL, &n, &found), KVA_OK);
  last = n ? found[n - 1] : 0;
  free(found);
  return last;
}

static bool same_files(const char *folder_a, const char *folder_b, int64_t step) {
  char *a = kva_checkpoint_path(folder_a, step, false), *b = kva_checkpoint_path(folder_b, step, false);
  kva_file x, y;
  assert_int_equal(kva_file_map(a, NULL, &x), KVA_OK);
  assert_int_equal(kva_file_map(b, NULL, &y), KVA_OK);
  bool same = x.size == y.size && !memcmp(x.data, y.data, x.size);
  kva_file_unmap(&x);
  kva_file_unmap(&y);
  free(a);
  free(b);
  return same;
}

static void remove_folder(const char *folder) {
  DIR *dir = opendir(folder);
  for (struct dirent *e; dir && (e = readdir(dir));) (void)unlinkat(dirfd(dir), e->d_name, 0);
  if (dir) closedir(dir);
  rmdir(folder);
}

static int count_files(const char *folder) {
  int n = 0;
  DIR *dir = opendir(folder);
  for (struct dirent *e; dir && (e = readdir(dir));) n += e->d_name[0] != '.';
  closedir(dir);
  return n;
}

static void killed_runs_end_with_the_same_bytes(void **state) {
  (void)state;
  char killed[64], whole[64];
  snprintf(killed, sizeof killed, "%s/killed", root);
  int64_t begin = 0, progress = 0;
  uint64_t counter = 0;
  for (int i = 0; i < KILLS; i++) {
    /* A run without end, so that each ends by its kill; most are in the middle of something. */
    unsigned after = 500 + kva_philox4x32(counter++, 0, 9).v[0] % 30000;
    assert_false(train_apart(killed, INT32_MAX, 1 + i % 3, after));
    int64_t now = last_step(killed);
    assert_true(now >= begin); /* nothing that was saved is lost */
    progress += now > begin;
    begin = now;
  }
  assert_true(progress > KILLS / 10);
  int64_t steps = begin + 5;
  assert_true(train_apart(killed, steps, 2, 0));
  assert_int_equal(count_files(killed), KEEP); /* what the killed left behind is gone */
  for (int threads = 1; threads <= 3; threads++) {
    snprintf(whole, sizeof whole, "%s/whole-%d", root, threads);
    assert_true(train_apart(whole, steps, threads, 0));
    /* The two differ in `steps` alone until the last run. */
    assert_true(same_files(killed, whole, steps));
    remove_folder(whole);
  }
  remove_folder(killed);
}

static int make_root(void **state) {
  (void)state;
  return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state) {
  (void)state;
  return rmdir(root);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(killed_runs_end_with_the_same_bytes)};
  return cmocka_run_group_tests(tests, make_root, remove_root);
}
