/* The default action of SIGPIPE stays: it ends a program quietly whose reader went away. EPIPE is seen only where the
 * caller ignores that signal. */
#include "runtime/exe/streams.h"
#include "runtime/exe/options.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void kva_streams_open(void) {
  signal(SIGXFSZ, SIG_IGN);
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
    if (fcntl(fd, F_GETFD) != -1) continue;
    if (open("/dev/null", O_RDWR) != fd) _exit(EXIT_MACHINE); /* open takes the lowest number that is free */
  }
}

/* A write long ago may have failed, so errno does not tell. */
static bool reader_is_gone(void) {
  struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};
  return poll(&p, 1, 0) == 1 && (p.revents & (POLLERR | POLLHUP));
}

int kva_streams_close(const char *program, int code) {
  bool lost = ferror(stdout);
  errno = 0;
  if (fflush(stdout) == 0 && !lost) return code;
  const char *why = errno ? strerror(errno) : "a write failed";
  if (!reader_is_gone()) fprintf(stderr, "%s: standard output is incomplete: %s\n", program, why);
  return code == EXIT_DONE ? EXIT_NO : code;
}
