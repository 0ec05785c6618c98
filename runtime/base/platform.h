/* Services of the operating system: time, files, threads; and Philox, shared by every device. */
#ifndef KVA_BASE_PLATFORM_H
#define KVA_BASE_PLATFORM_H

#include "runtime/base/host.h"
#include "runtime/base/memory.h"

/* Seconds on a monotonic clock. */
double kva_now(void);

/* Memory that this process may use, in bytes. */
typedef struct kva_memory_size {
  int64_t whole;     /* with swap; 0: unknown */
  int64_t available; /* without swap, and without what others use now */
} kva_memory_size;
/* Of the machine, or of the control group that limits the process to less. root: what stands before /proc and /sys, "".
 */
kva_memory_size kva_machine_memory(const char *root);

/* A file mapped read-only. size 0 gives data NULL. On failure a message goes to diag. */
typedef struct kva_file {
  const void *data;
  size_t size;
} kva_file;
KVA_MUST_USE kva_status kva_file_map(const char *path, kva_diag *diag, kva_file *out_file);
void kva_file_unmap(kva_file *file);
/* Maps `relative` below folder `dir`. Rejects absolute paths, "..", symbolic links, paths that resolve outside `dir`,
 * and files that are not regular (ONNX docs/ExternalDataSecurity.md). */
KVA_MUST_USE kva_status kva_file_map_below(const char *dir, const char *relative, kva_diag *diag, kva_file *out_file);

/* Asks the system for the registers of AMX, in all threads of the process, which it gives those alone that ask; false:
 * there are none. What the processor has is another question. */
bool kva_tiles_permit(void);

/* Gives the whole pages of this memory back to the system. Those of a mapped file are read again when they are touched;
 * all others lose their content. */
void kva_pages_release(const void *data, size_t size);
/* Asks for huge pages behind this memory, of which nothing has been touched yet: a hint. */
void kva_pages_enlarge(const void *data, size_t size);

/* Writes a whole file under a temporary name in the same folder, syncs and renames it; the old file stays until the new
 * one is complete. */
KVA_MUST_USE kva_status kva_file_write(const char *path, const void *data, size_t size, kva_diag *diag);
/* Like kva_file_write, for content that lies in memory in several parts. */
typedef struct kva_file_part {
  const void *data;
  size_t size;
} kva_file_part;
KVA_MUST_USE kva_status kva_file_write_parts(const char *path, int n, const kva_file_part *parts, kva_diag *diag);

/* The name that a file or folder has until it is complete and gets its own: what a process that was killed leaves is
 * known by it. The caller frees it. NULL: no memory. */
char *kva_file_unfinished(const char *path);

/* The same in two steps, for what another program writes or what is not in memory at once: the name of a file to write,
 * which the caller frees (NULL: no memory, or no folder for temporary files; see errno), and its move to `path`. A file
 * that cannot be moved is removed. */
char *kva_file_temporary(const char *path);
KVA_MUST_USE kva_status kva_file_place(const char *temporary, const char *path, kva_diag *diag);

/* A path without its folder, and the folder alone: "." where the path has none, or is NULL. */
static inline const char *kva_file_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}
static inline const char *kva_file_folder(kva_arena *arena, const char *path) {
  const char *slash = path ? strrchr(path, '/') : NULL;
  if (!slash) return ".";
  return slash == path ? "/" : kva_arena_strndup(arena, path, (size_t)(slash - path));
}

/* Whether there is a folder of this name, or a link to one. */
bool kva_is_folder(const char *path);
/* Makes a folder, if it is not there, and those above it that are missing. mode: of new folders, as of mkdir. */
KVA_MUST_USE kva_status kva_folder_make(const char *path, unsigned mode, kva_diag *diag);
/* Renames folder `from` to `to`. If there is a folder of that name, it gets the name `from`; where the file system
 * cannot exchange names at once, there is a moment without `to`. */
KVA_MUST_USE kva_status kva_folder_replace(const char *from, const char *to, kva_diag *diag);
/* Makes the folders above a file that the user names for writing. Fails as kva_file_write would then, as far as that is
 * known without writing: early, where the content comes late. */
KVA_MUST_USE kva_status kva_file_prepare(const char *path, kva_diag *diag);

/* Zeroed memory from the caller's allocator, or from the system if it is NULL; NULL: no memory. */
void *kva_allocate(const kva_allocator *allocator, size_t bytes, size_t alignment);
void kva_release(const kva_allocator *allocator, void *memory); /* ignores NULL */

/* Thread pool. One job at a time; workers spin for a bounded time, then sleep. The partition into chunks is static and
 * depends only on (n, threads). Which thread runs a chunk is not fixed: a thread that finishes early helps. Work items
 * must be independent, so results never depend on the number of threads. */
typedef struct kva_pool kva_pool;
/* threads = 0: as many as the process may run on. The caller counts as one. Fewer if the system cannot start more;
 * NULL: no memory. */
kva_pool *kva_pool_create(int threads);
typedef struct kva_pool_options {
  int threads;
  bool sleep;                     /* never spin: an idle pool costs nothing, but every job must wake threads */
  const kva_parallel *parallel;   /* borrowed: runs all jobs; the pool creates no threads */
  const kva_allocator *allocator; /* borrowed; NULL: the system's */
} kva_pool_options;
kva_pool *kva_pool_create_with(const kva_pool_options *options);
void kva_pool_destroy(kva_pool *pool);
int kva_pool_threads(const kva_pool *pool);
const kva_allocator *kva_pool_allocator(const kva_pool *pool);
/* Runs fn(ctx, begin, end) over [0, n) in a few chunks per thread; returns when all are done. `pool` NULL: runs in the
 * caller. */
typedef void (*kva_pool_fn)(void *ctx, int64_t begin, int64_t end);
void kva_pool_run(kva_pool *pool, int64_t n, kva_pool_fn fn, void *ctx);

/* Philox 4x32-10 (Salmon et al., SC 2011). Counter-based: the same on every device and thread count. */
typedef struct kva_philox {
  uint32_t v[4];
} kva_philox;
kva_philox kva_philox4x32(uint64_t counter_lo, uint64_t counter_hi, uint64_t key);
/* Uniform in (0, 1): (top 23 bits + 0.5) / 2^23; exact in f32 (24 bits would round up to 1). */
double kva_uniform01(uint32_t bits);

#endif
