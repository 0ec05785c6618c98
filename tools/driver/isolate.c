/* fork, and a pipe for what comes back. */
#include "tools/driver/isolate.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static bool tell(int fd, const kva_isolated *job, const kva_text *text, size_t size) {
  if (job->result && write(fd, job->result, job->result_size) != (ssize_t)job->result_size) return false;
  return !text->len || write(fd, text->data, text->len < size ? text->len : size - 1) >= 0;
}

static void hear(int fd, const kva_isolated *job, char *text, size_t size) {
  size_t len = 0;
  if (job->result && read(fd, job->result, job->result_size) != (ssize_t)job->result_size)
    memset(job->result, 0, job->result_size);
  for (ssize_t n; len + 1 < size && (n = read(fd, text + len, size - 1 - len)) > 0;) len += (size_t)n;
  text[len] = 0;
}

int kva_isolate(const kva_isolated *job, char *text, size_t size) {
  int pipe_fd[2], wait_status = 0;
  text[0] = 0;
  if (pipe(pipe_fd) != 0) return -1;
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    close(pipe_fd[0]);
    alarm((unsigned)job->seconds);
    kva_text found = {0};
    int code = job->work(job->user, &found);
    _exit(tell(pipe_fd[1], job, &found, size) ? code : 255);
  }
  close(pipe_fd[1]);
  hear(pipe_fd[0], job, text, size);
  close(pipe_fd[0]);
  if (pid < 0 || waitpid(pid, &wait_status, 0) != pid) return -1;
  if (WIFEXITED(wait_status)) return WEXITSTATUS(wait_status);
  if (WTERMSIG(wait_status) == SIGALRM)
    snprintf(text, size, "took longer than %lld s", (long long)job->seconds);
  else
    snprintf(text, size, "ended by signal %d (%s)", WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)));
  return -1;
}
