/* Files: mapped for reading; written whole and atomically. */
#include "runtime/base/platform.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static kva_status io_error(kva_diag *diag, const char *doing, const char *path) {
  kva_loc loc = {.file = path};
  return kva_fail(diag, KVA_IO, &loc, "cannot %s: %s", doing, strerror(errno));
}

static kva_status map_open_file(int fd, const char *path, kva_diag *diag, kva_file *out_file) {
  kva_loc loc = {.file = path};
  struct stat st;
  if (fstat(fd, &st)) return io_error(diag, "read it", path);
  if (!S_ISREG(st.st_mode)) return kva_fail(diag, KVA_INVALID, &loc, "is not a regular file, so it cannot be mapped");
  if (st.st_size == 0) return KVA_OK;
  void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) return io_error(diag, "map it", path);
  *out_file = (kva_file){.data = data, .size = (size_t)st.st_size};
  return KVA_OK;
}

/* O_NONBLOCK: a pipe is rejected like every other special file instead of blocking. */
kva_status kva_file_map(const char *path, kva_diag *diag, kva_file *out_file) {
  *out_file = (kva_file){0};
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return io_error(diag, "open it", path);
  kva_status status = map_open_file(fd, path, diag, out_file);
  close(fd);
  return status;
}

void kva_file_unmap(kva_file *file) {
  if (file->data) munmap((void *)(uintptr_t)file->data, file->size);
  *file = (kva_file){0};
}

static void advise(const void *data, size_t size, int advice) {
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = ((uintptr_t)data + page - 1) / page * page;
  uintptr_t end = ((uintptr_t)data + size) / page * page;
  if (begin < end) (void)madvise((void *)begin, end - begin, advice); /* kernels without huge pages reject those */
}

void kva_pages_release(const void *data, size_t size) {
  advise(data, size, MADV_DONTNEED);
}

void kva_pages_enlarge(const void *data, size_t size) {
  advise(data, size, MADV_HUGEPAGE);
}

static bool is_link(int folder, const char *name) {
  struct stat st;
  return !fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) && S_ISLNK(st.st_mode);
}

/* Opens one component of `relative` below `folder`; closes `folder`. Each call resolves a single name that is not a
 * link, so a concurrent change of the tree cannot lead outside. */
static kva_status step_below(int folder, const char *name, bool last, const char *relative, kva_diag *diag,
                             int *out_fd) {
  int flags = last ? O_RDONLY | O_NONBLOCK : O_PATH | O_DIRECTORY;
  int fd = openat(folder, name, flags | O_NOFOLLOW | O_CLOEXEC);
  kva_status status = KVA_OK;
  kva_loc loc = {.file = relative};
  if (fd < 0 && is_link(folder, name)) {
    status =
        kva_error(diag, &loc, "'%s' is a symbolic link; data of a model must be regular files below its folder", name);
  } else if (fd < 0) {
    status = io_error(diag, "open it", relative);
  }
  close(folder);
  *out_fd = fd;
  return status;
}

/* `path` is a private copy of `relative`, which this function splits into components. */
static kva_status open_below(const char *dir, char *path, const char *relative, kva_diag *diag, int *out_fd) {
  kva_loc loc = {.file = relative};
  int fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return io_error(diag, "open the folder", dir);
  for (char *name = path, *next; name; name = next) {
    next = strchr(name, '/');
    if (next) *next++ = 0;
    if (next && (!*name || !strcmp(name, "."))) continue;
    if (!*name || !strcmp(name, ".") || !strcmp(name, "..")) {
      close(fd);
      return kva_error(diag, &loc, "expected the name of a file below the model's folder, without '..'");
    }
    KVA_TRY(step_below(fd, name, !next, relative, diag, &fd));
  }
  *out_fd = fd;
  return KVA_OK;
}

kva_status kva_file_map_below(const char *dir, const char *relative, kva_diag *diag, kva_file *out_file) {
  kva_loc loc = {.file = relative};
  *out_file = (kva_file){0};
  if (*relative == '/')
    return kva_error(diag, &loc, "expected a path relative to the model's folder, found an absolute one");
  char *path = strdup(relative);
  if (!path) return KVA_NO_MEMORY;
  int fd = -1;
  kva_status status = open_below(dir, path, relative, diag, &fd);
  free(path);
  if (status) return status;
  status = map_open_file(fd, relative, diag, out_file);
  close(fd);
  return status;
}

static bool write_all(int fd, const char *data, size_t size) {
  while (size) {
    ssize_t n = write(fd, data, size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    data += n;
    size -= (size_t)n;
  }
  return true;
}

/* The caller frees it; NULL: no memory. */
static char *folder_of(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
}

/* A rename is durable once its folder is synced. Some file systems cannot sync a folder; that is ignored. */
static void sync_folder_of(const char *path) {
  char *folder = folder_of(path);
  int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
  free(folder);
  if (fd < 0) return;
  (void)fsync(fd);
  close(fd);
}

static bool write_parts(int fd, int n, const kva_file_part *parts) {
  for (int i = 0; i < n; i++)
    if (!write_all(fd, parts[i].data, parts[i].size)) return false;
  return true;
}

/* The new file inherits the mode of the file that it replaces. */
static bool write_temporary(const char *temporary, const struct stat *old, int n, const kva_file_part *parts) {
  int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd < 0) return false;
  bool ok = !old || !fchmod(fd, old->st_mode & 07777);
  ok = ok && write_parts(fd, n, parts) && !fsync(fd);
  int error = errno;
  ok = !close(fd) && ok;
  if (!ok) errno = error;
  return ok;
}

char *kva_file_unfinished(const char *path) {
  char *name = NULL;
  return asprintf(&name, "%s.%ld.tmp", path, (long)getpid()) < 0 ? NULL : name;
}

static kva_status replace(const char *path, const struct stat *old, int n, const kva_file_part *parts, kva_diag *diag) {
  char *temporary = kva_file_unfinished(path);
  if (!temporary) return KVA_NO_MEMORY;
  kva_status status = KVA_OK;
  if (!write_temporary(temporary, old, n, parts) || rename(temporary, path)) {
    status = io_error(diag, "write it", path);
    unlink(temporary);
  } else {
    sync_folder_of(path);
  }
  free(temporary);
  return status;
}

static kva_status write_in_place(const char *path, int n, const kva_file_part *parts, kva_diag *diag) {
  int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
  if (fd < 0) return io_error(diag, "open it for writing", path);
  bool ok = write_parts(fd, n, parts);
  ok = !close(fd) && ok;
  return ok ? KVA_OK : io_error(diag, "write it", path);
}

/* A path that is not a regular file (/dev/stdout, a link) is written in place; a rename would replace it. */
static bool is_written_in_place(const char *path) {
  struct stat old;
  return !lstat(path, &old) && !S_ISREG(old.st_mode);
}

kva_status kva_file_write_parts(const char *path, int n, const kva_file_part *parts, kva_diag *diag) {
  struct stat old;
  if (is_written_in_place(path)) return write_in_place(path, n, parts, diag);
  return replace(path, lstat(path, &old) ? NULL : &old, n, parts, diag);
}

kva_status kva_file_write(const char *path, const void *data, size_t size, kva_diag *diag) {
  return kva_file_write_parts(path, 1, &(kva_file_part){data, size}, diag);
}

/* The folder of a device (/dev) may take no other files. */
char *kva_file_temporary(const char *path) {
  char *name = NULL;
  if (!is_written_in_place(path)) return kva_file_unfinished(path);
  const char *folder = getenv("TMPDIR");
  if (asprintf(&name, "%s/kvasir-XXXXXX", folder && *folder ? folder : "/tmp") < 0) return NULL;
  int fd = mkstemp(name);
  if (fd >= 0) {
    close(fd);
    return name;
  }
  free(name);
  return NULL;
}

/* A program that is written through a link to a file of another mode runs, too. */
static kva_status let_run(const char *from, const char *path, kva_diag *diag) {
  struct stat source, st;
  if (stat(from, &source) || stat(path, &st)) return io_error(diag, "read its mode", path);
  mode_t mode = (st.st_mode | (source.st_mode & 0111)) & 07777;
  if (!S_ISREG(st.st_mode) || mode == (st.st_mode & 07777)) return KVA_OK;
  return chmod(path, mode) ? io_error(diag, "make it executable", path) : KVA_OK;
}

static kva_status copy_in_place(const char *from, const char *path, kva_diag *diag) {
  kva_file file;
  KVA_TRY(kva_file_map(from, diag, &file));
  kva_status status = write_in_place(path, 1, &(kva_file_part){file.data, file.size}, diag);
  kva_file_unmap(&file);
  return status == KVA_OK ? let_run(from, path, diag) : status;
}

kva_status kva_file_place(const char *temporary, const char *path, kva_diag *diag) {
  kva_status status = KVA_OK;
  bool in_place = is_written_in_place(path);
  if (in_place)
    status = copy_in_place(temporary, path, diag);
  else if (rename(temporary, path))
    status = io_error(diag, "write it", path);
  else
    sync_folder_of(path);
  if (in_place || status != KVA_OK) unlink(temporary);
  return status;
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

bool kva_is_folder(const char *path) {
  struct stat s;
  return !stat(path, &s) && S_ISDIR(s.st_mode);
}

/* Makes the folders that end at each slash behind the first character, and the last one. */
static bool make_folders(char *path, mode_t mode) {
  for (char *p = path + 1; *p; p++) {
    if (*p != '/' || p[-1] == '/') continue;
    *p = 0;
    bool made = !mkdir(path, mode) || errno == EEXIST;
    *p = '/';
    if (!made) return false;
  }
  return !mkdir(path, mode) || (errno == EEXIST && kva_is_folder(path));
}

kva_status kva_folder_make(const char *path, unsigned mode, kva_diag *diag) {
  char *copy = *path ? strdup(path) : NULL;
  if (!copy && *path) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for the name of a folder");
  errno = ENOENT;
  bool made = copy && (kva_is_folder(copy) || make_folders(copy, (mode_t)mode));
  int why = errno;
  free(copy);
  errno = why;
  return made ? KVA_OK : io_error(diag, "make the folder", path);
}

static bool exchange_names(const char *a, const char *b) {
#ifdef RENAME_EXCHANGE
  if (!renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE)) return true;
#endif
  char *aside = NULL;
  if (asprintf(&aside, "%s.old", a) < 0) return false;
  bool done = !rename(b, aside) && !rename(a, b) && !rename(aside, a);
  int why = errno;
  free(aside);
  errno = why;
  return done;
}

kva_status kva_folder_replace(const char *from, const char *to, kva_diag *diag) {
  bool done = !rename(from, to);
  if (!done && (errno == ENOTEMPTY || errno == EEXIST)) done = exchange_names(from, to);
  if (!done) return io_error(diag, "write it", to);
  sync_folder_of(to);
  return KVA_OK;
}

kva_status kva_file_prepare(const char *path, kva_diag *diag) {
  struct stat old;
  bool exists = !lstat(path, &old);
  if (exists && S_ISDIR(old.st_mode))
    return kva_fail(diag, KVA_IO, &(kva_loc){.file = path}, "cannot write it: it is a folder");
  if (exists && !S_ISREG(old.st_mode)) return access(path, W_OK) ? io_error(diag, "write it", path) : KVA_OK;
  char *folder = folder_of(path);
  if (!folder) return KVA_NO_MEMORY;
  kva_status status = kva_folder_make(folder, 0777, diag);
  if (!status && access(folder, W_OK | X_OK)) status = io_error(diag, "write it", path);
  free(folder);
  return status;
}
