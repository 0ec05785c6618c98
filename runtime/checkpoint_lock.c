/* The lock of a folder that one process at a time writes to, as one of checkpoints.
 *
 * The lock is the system's (flock), so that it never outlives its process. The text in the file is for messages alone:
 * it stays when the lock ends. */
#include "runtime/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { MAX_HOLDER = 256 };

static kva_status lock_error(const char *path, const char *doing, kva_diag *diag) {
  return kva_fail(diag, KVA_IO, &(kva_loc){.file = path}, "cannot %s: %s", doing, strerror(errno));
}

/* Without room on the disk the holder stays unnamed; the lock holds. */
static void write_holder(int fd) {
  char host[100] = "", since[40], text[MAX_HOLDER];
  time_t now = time(NULL);
  struct tm utc;
  gethostname(host, sizeof host - 1);
  strftime(since, sizeof since, "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&now, &utc));
  int n = snprintf(text, sizeof text, "process %ld on %s since %s\n", (long)getpid(), host, since);
  bool named = !ftruncate(fd, 0) && write(fd, text, (size_t)n) == n;
  (void)named;
}

static kva_status held(int fd, const char *folder, const char *use, kva_diag *diag) {
  char text[MAX_HOLDER];
  ssize_t n = pread(fd, text, sizeof text - 1, 0);
  text[n > 0 ? n : 0] = 0;
  text[strcspn(text, "\n")] = 0;
  for (char *c = text; *c; c++)
    if ((unsigned char)*c < ' ') *c = '?';
  return kva_error(diag, &(kva_loc){.file = folder}, "%s: %s; wait for its end, or give another folder", use,
                   *text ? text : "a process that did not leave its name");
}

static kva_status take(int fd, const char *folder, const char *use, kva_diag *diag, int *out_lock) {
  if (!flock(fd, LOCK_EX | LOCK_NB)) {
    write_holder(fd);
    *out_lock = fd;
    return KVA_OK;
  }
  kva_status status = KVA_OK;
  if (errno == EWOULDBLOCK)
    status = held(fd, folder, use, diag);
  else
    kva_warn(diag, &(kva_loc){.file = folder}, "cannot lock this folder against other processes: %s", strerror(errno));
  close(fd);
  return status;
}

kva_status kva_folder_lock(const char *folder, const char *use, kva_diag *diag, int *out_lock) {
  *out_lock = -1;
  char *path = NULL;
  if (asprintf(&path, "%s/.lock", folder) < 0) return KVA_NO_MEMORY;
  int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
  kva_status status = fd < 0 ? lock_error(path, "open it", diag) : take(fd, folder, use, diag, out_lock);
  free(path);
  return status;
}

kva_status kva_checkpoint_lock(const char *folder, kva_diag *diag, int *out_lock) {
  return kva_folder_lock(folder, "another trainer saves its checkpoints in this folder", diag, out_lock);
}

void kva_checkpoint_unlock(int lock) {
  if (lock >= 0) close(lock);
}
