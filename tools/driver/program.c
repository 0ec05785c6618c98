/* Runs other programs: compilers, assemblers. */
#include "tools/driver/build.h"

#include <errno.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

int kva_run_program(const char *const *argv, int *out_state) {
  pid_t child;
  int error = posix_spawnp(&child, argv[0], NULL, NULL, (char *const *)(uintptr_t)argv, environ);
  while (!error && waitpid(child, out_state, 0) < 0 && errno == EINTR) continue;
  return error;
}
