/* What `kvasir train` and trainers do with the processes of a run. */
#include "runtime/exe/processes.h"

#include "runtime/base/platform.h"
#include "runtime/checkpoint.h"
#include "runtime/sum.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- joining ----------------------------------------------------------------------------------------------------- */

static kva_status redirect(int stream, const char *path, kva_diag *diag) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  bool done = fd >= 0 && dup2(fd, stream) >= 0;
  int why = errno;
  if (fd >= 0) close(fd);
  return done ? KVA_OK : kva_fail(diag, KVA_IO, &(kva_loc){.file = path}, "cannot be written to: %s", strerror(why));
}

static kva_status open_log(const kva_comm *c, const char *folder, kva_diag *diag) {
  char path[4096];
  if (!folder) return redirect(STDOUT_FILENO, "/dev/null", diag);
  KVA_TRY(kva_folder_make(folder, 0777, diag));
  if (snprintf(path, sizeof path, "%s/rank-%d.log", folder, kva_comm_rank(c)) >= (int)sizeof path)
    return kva_error(diag, &(kva_loc){.file = folder}, "--rank-logs: the name is too long");
  return redirect(STDOUT_FILENO, path, diag);
}

static kva_status check_size(kva_comm *c, int expected, kva_diag *diag) {
  int found = kva_comm_size(c), launched = kva_comm_launched();
  if (found == expected) return KVA_OK;
  kva_comm_note_agreed(c, true); /* all see the same numbers */
  if (found == 1 && launched > 1)
    return kva_error(
        diag, NULL,
        "the launcher started %d processes, which %s does not join: it is another MPI than the launcher's; "
        "set KVASIR_MPI_LIBRARY to the launcher's libmpi.so",
        launched, kva_comm_library(c));
  const char *world = getenv("WORLD_SIZE");
  if (found == 1 && world && atoi(world) > 1)
    return kva_error(diag, NULL,
                     "the mesh has %d processes, which meet through MPI; found RANK and WORLD_SIZE=%s of another "
                     "launcher: start them with mpirun -n %d",
                     expected, world, expected);
  return kva_error(diag, NULL, "the mesh has %d processes, and %d %s started; start them with mpirun -n %d", expected,
                   found, found == 1 ? "was" : "were", expected);
}

kva_status kva_processes_join(const kva_comm_mesh *mesh, const char *logs, kva_diag *diag, kva_comm **out_comm) {
  int launched = kva_comm_launched(), expected = (int)kva_comm_mesh_size(mesh);
  *out_comm = NULL;
  if (expected <= 1 && launched > 1)
    kva_warn(diag, NULL, "the launcher started %d processes, and each does the whole run: a mesh (data=%d) divides it",
             launched, launched);
  if (expected <= 1) return KVA_OK;
  KVA_TRY(kva_comm_create(diag, out_comm));
  KVA_TRY(check_size(*out_comm, expected, diag));
  kva_status status = kva_comm_set_mesh(*out_comm, mesh);
  if (status != KVA_OK) return kva_fail(diag, status, NULL, "the groups of the mesh: %s", kva_comm_error(*out_comm));
  return kva_comm_rank(*out_comm) ? open_log(*out_comm, logs, diag) : KVA_OK;
}

void kva_processes_quieten(const kva_comm *c) {
  if (kva_comm_rank(c) && kva_comm_agreed(c) && redirect(STDERR_FILENO, "/dev/null", NULL) != KVA_OK) fclose(stderr);
}

/* ---- the same in all --------------------------------------------------------------------------------------------- */

static uint64_t program_sum(void) {
  kva_file file;
  if (kva_file_map("/proc/self/exe", NULL, &file) != KVA_OK) return 0;
  uint64_t sum = kva_sum_bytes(0, file.data, file.size);
  kva_file_unmap(&file);
  return sum;
}

static void add_schedule(const kva_schedule *s, kva_text *lines) {
  kva_text_add(lines, "schedule: %d\nlearning rate: %.17g\nwarm-up: %lld\n", s->kind, s->lr, (long long)s->warmup);
  kva_text_add(lines, "end of the schedule: %lld\nlast rate: %.17g\n", (long long)s->total, s->final_ratio);
}

static void add_settings(const kva_train_settings *o, const kva_train_options *t, kva_text *lines) {
  kva_text_add(lines, "--steps: %lld\n--batch: %lld\n--micro-batch: %lld\n--seed: %llu\n", (long long)t->steps,
               (long long)t->batch, (long long)t->micro_batch, (unsigned long long)t->seed);
  add_schedule(&t->schedule, lines);
  kva_text_add(lines, "--eval-every: %lld\n--eval-batches: %lld\n", (long long)t->eval_every,
               (long long)t->eval_batches);
  kva_text_add(lines, "--weight-decay: %.17g\n--clip: %.17g\n", o->weight_decay, o->clip);
  kva_text_add(lines, "--checkpoint: %s\n--checkpoint-every: %lld\n--keep-best: %d\n", o->checkpoint ? "given" : "none",
               (long long)o->checkpoint_every, o->keep_best);
}

kva_status kva_processes_compare(kva_session *s, const kva_train_settings *o, const kva_train_options *t, uint64_t data,
                                 kva_trainer *trainer, kva_diag *diag) {
  const kva_artifact *a = kva_session_artifact(s);
  kva_text lines = {0};
  if (!o->comm) return KVA_OK;
  kva_text_add(&lines, "the program: %016" PRIx64 "\nwhat it was compiled for: %s\n", program_sum(),
               a->target ? a->target : "");
  kva_text_add(&lines, "the model: %016" PRIx64 "\nthe model's tensors: %016" PRIx64 "\nthe data: %016" PRIx64 "\n",
               o->model, kva_model_hash(a), data);
  add_settings(o, t, &lines);
  kva_status status = lines.cut ? KVA_NO_MEMORY : kva_comm_compare(o->comm, lines.data, diag);
  kva_text_free(&lines);
  return status == KVA_OK ? kva_trainer_compare(trainer, diag) : status;
}
