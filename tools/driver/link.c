/* Links with the runtime through the system's C compiler. No paths or times enter the result. */
#include "tools/driver/build.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- requirements ------------------------------------------------------------------------------------------------ */

static bool has_library(const char *dir, const char *name) {
  char path[4096];
  return snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path && access(path, R_OK) == 0;
}

/* Beside the tool in a build tree; in ../lib/ of an installed tool, and in a folder below it for another machine. */
static kva_status find_libraries(const kva_link_options *o, kva_arena *arena, kva_diag *diag, const char **out_dir) {
  char self[4096];
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  if (n < 0) n = 0;
  self[n] = 0;
  char *slash = strrchr(self, '/');
  if (slash) *slash = 0;
  const char *machine = o->triple ? o->triple : "", *for_machine = o->triple ? "for " : "";
  const char *name = o->generate ? "libkvasir-generate.a" : "libkvasir-rt.a";
  const char *places[] = {o->runtime, kva_arena_printf(arena, "%s/../lib/%s", self, machine),
                          kva_arena_printf(arena, "%s/%s", self, machine)};
  for (size_t i = o->runtime ? 0 : 1; i < (o->runtime ? 1 : sizeof places / sizeof *places); i++) {
    *out_dir = places[i];
    if (has_library(places[i], name)) return KVA_OK;
  }
  return kva_fail(diag, KVA_MISSING, NULL, "found no %s %s%s; give its folder with --runtime%s", name,
                  o->runtime ? "in " : for_machine, o->runtime ? o->runtime : machine,
                  o->generate ? "" : ", or build an object with -c");
}

/* ---- the compiler ------------------------------------------------------------------------------------------------ */

static kva_status run_compiler(const char *const *argv, kva_diag *diag) {
  int state = 0, error = kva_run_program(argv, &state);
  if (error)
    return kva_fail(
        diag, KVA_MISSING, NULL,
        "cannot run '%s' to link: %s. Install a C compiler (Debian: gcc and libc6-dev), name one with --cc, "
        "or build an object with -c, which needs none",
        argv[0], strerror(error));
  if (WIFEXITED(state) && WEXITSTATUS(state) == 0) return KVA_OK;
  if (WIFEXITED(state) && WEXITSTATUS(state) == 127)
    return kva_fail(diag, KVA_MISSING, NULL, "cannot run '%s' to link; install a C compiler", argv[0]);
  return kva_fail(diag, KVA_IO, NULL, "'%s' failed to link; its messages are above", argv[0]);
}

typedef struct scratch {
  char dir[512];
  char object[544], script[544];
} scratch;

static kva_status write_scratch(scratch *s, const char *object, size_t size, const char *prefix, kva_diag *diag) {
  const char *parent = getenv("TMPDIR");
  if (!parent || !*parent) parent = "/tmp";
  int length = snprintf(s->dir, sizeof s->dir, "%s/kvasir-XXXXXX", parent);
  if (length >= (int)sizeof s->dir || !mkdtemp(s->dir))
    return kva_fail(diag, KVA_IO, NULL, "cannot make a folder in %s: %s", parent, strerror(errno));
  snprintf(s->object, sizeof s->object, "%s/model.o", s->dir);
  snprintf(s->script, sizeof s->script, "%s/model.map", s->dir);
  char text[512];
  int n = snprintf(text, sizeof text, "{ global: %.200s_*; local: *; };\n", prefix);
  KVA_TRY(kva_file_write(s->object, object, size, diag));
  return kva_file_write(s->script, text, (size_t)n, diag);
}

static void remove_scratch(const scratch *s) {
  unlink(s->object);
  unlink(s->script);
  rmdir(s->dir);
}

/* made: what to write; path: whose name it gets. */
static kva_status link_files(const scratch *s, const char *runtime, const char *made, const char *path,
                             const kva_link_options *o, kva_arena *arena, kva_diag *diag) {
  const char *cc = o->cc ? o->cc : o->triple ? kva_arena_printf(arena, "%s-gcc", o->triple) : "cc";
  const char *argv[24];
  int n = 0;
  argv[n++] = cc;
  argv[n++] = o->executable ? "-pie" : "-shared";
  argv[n++] = "-o";
  argv[n++] = made;
  argv[n++] = s->object;
  if (o->generate) argv[n++] = kva_arena_printf(arena, "%s/libkvasir-generate.a", runtime);
  if (o->executable) argv[n++] = kva_arena_printf(arena, "%s/libkvasir-main.a", runtime);
  argv[n++] = kva_arena_printf(arena, "%s/libkvasir-rt.a", runtime);
  if (!o->executable) argv[n++] = kva_arena_printf(arena, "-Wl,--version-script=%s", s->script);
  if (!o->executable) argv[n++] = kva_arena_printf(arena, "-Wl,-soname,%s", kva_file_name(path));
  argv[n++] = "-Wl,--gc-sections,--strip-debug,--build-id=sha1,-z,relro,-z,now,--as-needed";
  argv[n++] = "-pthread";
  argv[n++] = "-lm";
  argv[n] = NULL;
  return run_compiler(argv, diag);
}

/* A failed link leaves the old file. */
static kva_status link_whole(const scratch *s, const char *runtime, const char *path, const kva_link_options *o,
                             kva_arena *arena, kva_diag *diag) {
  char *made = kva_file_temporary(path);
  if (!made)
    return kva_fail(diag, KVA_IO, &(kva_loc){.file = path}, "cannot make a temporary file for it: %s", strerror(errno));
  kva_status status = link_files(s, runtime, made, path, o, arena, diag);
  if (status == KVA_OK)
    status = kva_file_place(made, path, diag);
  else
    unlink(made);
  free(made);
  return status;
}

kva_status kva_link(const char *object, size_t size, const char *path, const kva_link_options *options,
                    kva_diag *diag) {
  kva_arena *arena = kva_arena_create();
  const char *runtime = NULL;
  scratch s = {0};
  kva_status status = find_libraries(options, arena, diag, &runtime);
  if (status == KVA_OK) {
    status = write_scratch(&s, object, size, options->prefix, diag);
    if (status == KVA_OK) status = link_whole(&s, runtime, path, options, arena, diag);
    remove_scratch(&s);
  }
  kva_arena_destroy(arena);
  return status;
}
