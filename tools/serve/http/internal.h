/* A request from its bytes to its answer. */
#ifndef KVA_TOOLS_SERVE_HTTP_INTERNAL_H
#define KVA_TOOLS_SERVE_HTTP_INTERNAL_H

#include "tools/serve/http/server.h"

#include <jansson.h>
#include <microhttpd.h>
#include <pthread.h>

struct kva_server {
  kva_service *service;
  kva_tokenizer *tokenizer;
  pthread_mutex_t encoding; /* the tokenizer takes one thread at a time */
  kva_server_options o;
  struct MHD_Daemon *daemon;
  atomic_bool drains;      /* no more texts */
  int64_t started;         /* seconds since 1970 */
  atomic_llong answers[6]; /* by the first digit of their status */
};

/* What a client gets instead of what it asked for. */
typedef struct kva_http_error {
  unsigned status;
  const char *type, *code; /* OpenAI's; code may be NULL */
  char message[256];
} kva_http_error;

/* A string of JSON, with U+FFFD for what is not UTF-8. */
json_t *kva_http_text(const char *data, size_t size);

/* ---- jobs: a request for texts ----------------------------------------------------------------------------------- */

typedef struct kva_job kva_job;

typedef struct kva_choice {
  kva_completion c;
  kva_job *job;
  kva_text fresh; /* that came and was not sent */
  bool ended, reported;
} kva_choice;

struct kva_job {
  kva_server *server;
  bool chat, stream, usage;
  char id[40];
  int64_t created;
  uint32_t n_prompts;
  kva_token_ids *prompts;
  char *stops[8];
  const char *stop_list[8];
  int64_t n, ended;      /* texts */
  kva_completion *texts; /* [n]; user: their choices */
  kva_choice *choices;
  pthread_mutex_t lock; /* of what the texts add: fresh, ended */
  pthread_cond_t changed;
  kva_text out; /* of a stream: bytes to send */
  size_t sent;
  bool begun, done;
};

/* Reads the body of a request. NULL: *e says why not. */
kva_job *kva_job_parse(kva_server *s, bool chat, const char *body, size_t size, kva_http_error *e);
void kva_job_destroy(kva_job *job);
/* Hands the texts to the service; false: the queue is full. */
bool kva_job_submit(kva_job *job);
/* Waits until all texts have ended, or a little; whether they have. */
bool kva_job_wait(kva_job *job);
/* Its client is gone: the texts end soon. Waits until they have. */
void kva_job_abandon(kva_job *job);
/* The whole answer, to be freed with free(). NULL: a text failed. */
char *kva_job_answer(kva_job *job);
/* Moves what came since to job->out, as server-sent events; waits a little for it. */
void kva_job_events(kva_job *job);

/* The text of /metrics. */
void kva_http_metrics(kva_server *s, kva_text *out);

#endif
