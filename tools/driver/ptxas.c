/* Compiles PTX to machine code with ptxas, if a CUDA toolkit is installed. */
#include "tools/driver/build.h"

#include "runtime/base/platform.h"

#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <unistd.h>

bool kva_find_ptxas(char *out, size_t size) {
  const char *own = getenv("KVASIR_PTXAS"), *path = getenv("PATH");
  if (own && *own) {
    snprintf(out, size, "%s", own);
    return access(out, X_OK) == 0;
  }
  for (const char *p = path; p && *p;) {
    size_t len = strcspn(p, ":");
    snprintf(out, size, "%.*s/ptxas", (int)len, p);
    if (access(out, X_OK) == 0) return true;
    p += len + (p[len] == ':');
  }
  snprintf(out, size, "/usr/local/cuda/bin/ptxas");
  return access(out, X_OK) == 0;
}

/* The last match of a pattern in a folder. */
static bool find_in(const char *folder, const char *pattern, char *out, size_t size) {
  char path[512];
  glob_t files;
  int n = folder && *folder ? snprintf(path, sizeof path, "%s/%s", folder, pattern) : 0;
  if (n <= 0 || n >= (int)sizeof path || glob(path, 0, NULL, &files) != 0) return false;
  snprintf(out, size, "%s", files.gl_pathv[files.gl_pathc - 1]);
  globfree(&files);
  return true;
}

bool kva_find_jit_linker(char *out, size_t size) {
  static const char toolkit[] = "lib*/libnvJitLink.so.1[23]",
                    python[] = "lib/python3*/*-packages/nvidia/*/lib/libnvJitLink.so.1[23]";
  return find_in(getenv("VIRTUAL_ENV"), python, out, size) || find_in(getenv("CONDA_PREFIX"), python, out, size) ||
         find_in("/usr/local/cuda", toolkit, out, size) || find_in("/usr/local", python, out, size) ||
         find_in("/usr", python, out, size);
}

static kva_status run(const char *const *argv, kva_diag *diag) {
  int state = 0, error = kva_run_program(argv, &state);
  if (error) return kva_fail(diag, KVA_MISSING, NULL, "cannot run %s: %s", argv[0], strerror(error));
  return state ? kva_fail(diag, KVA_UNSUPPORTED, NULL, "ptxas failed; its messages are above") : KVA_OK;
}

/* Uses a private folder with fixed file names, so that no name can enter the code. */
static kva_status assemble(const char *folder, const char *program, const char *arch, kva_file_part ptx,
                           kva_arena *arena, kva_diag *diag, kva_file_part *out_cubin) {
  const char *in = kva_arena_printf(arena, "%s/model.ptx", folder);
  const char *made = kva_arena_printf(arena, "%s/model.cubin", folder);
  const char *const argv[] = {program, kva_arena_printf(arena, "-arch=%s", arch), in, "-o", made, NULL};
  kva_file file = {0};
  kva_status status = kva_file_write(in, ptx.data, ptx.size, diag);
  if (status == KVA_OK) status = run(argv, diag);
  if (status == KVA_OK) status = kva_file_map(made, diag, &file);
  if (status == KVA_OK) *out_cubin = (kva_file_part){kva_arena_memdup(arena, file.data, file.size), file.size};
  kva_file_unmap(&file);
  unlink(in);
  unlink(made);
  return status;
}

kva_status kva_assemble_ptx(const char *arch, kva_file_part ptx, kva_arena *arena, kva_diag *diag,
                            kva_file_part *out_cubin) {
  char program[4096], folder[512];
  if (!kva_find_ptxas(program, sizeof program))
    return kva_fail(diag, KVA_MISSING, NULL,
                    "there is no ptxas to make machine code of PTX: install the CUDA toolkit, or name the program in "
                    "KVASIR_PTXAS. Without it the driver compiles the PTX");
  const char *parent = getenv("TMPDIR");
  int n = snprintf(folder, sizeof folder, "%s/kvasir-XXXXXX", parent && *parent ? parent : "/tmp");
  if (n >= (int)sizeof folder || !mkdtemp(folder))
    return kva_fail(diag, KVA_IO, NULL, "cannot make the folder %s: %s", folder, strerror(errno));
  kva_status status = assemble(folder, program, arch, ptx, arena, diag, out_cubin);
  rmdir(folder);
  return status;
}

kva_status kva_add_machine_code(kva_artifact *a, kva_arena *arena, kva_diag *diag) {
  kva_file_part cubin;
  const kva_code *ptx = &a->codes[0];
  if (a->n_codes != 1 || ptx->format != KVA_CODE_PTX) return KVA_OK;
  KVA_TRY(kva_assemble_ptx(ptx->arch, (kva_file_part){ptx->data, (size_t)ptx->bytes}, arena, diag, &cubin));
  kva_code *codes = KVA_NEW_ARRAY(arena, kva_code, 2);
  codes[0] = (kva_code){.format = KVA_CODE_CUBIN, .arch = ptx->arch, .data = cubin.data, .bytes = (int64_t)cubin.size};
  codes[1] = *ptx;
  a->codes = codes;
  a->n_codes = 2;
  return KVA_OK;
}
