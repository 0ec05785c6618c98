/* Connections on libmicrohttpd, a thread each: which request is meant, who may, how much. */
#include "tools/serve/http/internal.h"
#include "page_text.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { READ_SECONDS = 60, THREAD_STACK = 1 << 20, BLOCK = 16 << 10, MANY_BODIES = 4 };

typedef enum MHD_Result result;

typedef struct request {
  kva_server *server;
  kva_text body;
  size_t size;       /* of the body, also of what was dropped */
  const char *named; /* the name that the path ends with */
} request;

typedef struct route {
  const char *method, *path;
  bool open;  /* without a key */
  bool names; /* the path goes on with a name */
  result (*answer)(request *r, struct MHD_Connection *c);
} route;

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static result send_response(kva_server *s, struct MHD_Connection *c, unsigned status, const char *type,
                            struct MHD_Response *response) {
  if (!response) return MHD_NO;
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
  MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
  atomic_fetch_add(&s->answers[status / 100], 1);
  result sent = MHD_queue_response(c, status, response);
  MHD_destroy_response(response);
  return sent;
}

/* text: from malloc; MHD frees it. */
static result send_text(kva_server *s, struct MHD_Connection *c, unsigned status, const char *type, char *text) {
  if (!text) return MHD_NO;
  return send_response(s, c, status, type, MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE));
}

static result send_json(kva_server *s, struct MHD_Connection *c, unsigned status, json_t *o) {
  char *text = json_dumps(o, JSON_COMPACT);
  json_decref(o);
  return send_text(s, c, status, "application/json", text);
}

static result send_error(kva_server *s, struct MHD_Connection *c, const kva_http_error *e) {
  return send_json(s, c, e->status,
                   json_pack("{s:{s:o, s:s, s:n, s:s?}}", "error", "message",
                             kva_http_text(e->message, strlen(e->message)), "type", e->type, "param", "code", e->code));
}

static result refuse(kva_server *s, struct MHD_Connection *c, unsigned status, const char *type, const char *code,
                     const char *message) {
  kva_http_error e = {.status = status, .type = type, .code = code};
  snprintf(e.message, sizeof e.message, "%s", message);
  return send_error(s, c, &e);
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static bool client_left(struct MHD_Connection *c) {
  const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
  char byte;
  return info && recv(info->connect_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

typedef struct stream {
  kva_job *job;
  struct MHD_Connection *connection;
} stream;

static ssize_t read_stream(void *user, uint64_t position, char *out, size_t room) {
  (void)position;
  stream *s = user;
  kva_job *j = s->job;
  while (j->sent == j->out.len) {
    if (j->done) return MHD_CONTENT_READER_END_OF_STREAM;
    if (client_left(s->connection)) return MHD_CONTENT_READER_END_WITH_ERROR;
    kva_job_events(j);
  }
  size_t n = j->out.len - j->sent < room ? j->out.len - j->sent : room;
  memcpy(out, j->out.data + j->sent, n);
  j->sent += n;
  return (ssize_t)n;
}

static void end_stream(void *user) {
  stream *s = user;
  kva_job_abandon(s->job);
  kva_job_destroy(s->job);
  free(s);
}

static result send_stream(kva_server *server, struct MHD_Connection *c, kva_job *job) {
  stream *s = malloc(sizeof *s);
  KVA_ASSERT(s);
  *s = (stream){job, c};
  struct MHD_Response *response =
      MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, read_stream, s, end_stream);
  if (!response) {
    end_stream(s);
    return MHD_NO;
  }
  MHD_add_response_header(response, "Cache-Control", "no-cache");
  return send_response(server, c, MHD_HTTP_OK, "text/event-stream", response);
}

static result send_whole(kva_server *s, struct MHD_Connection *c, kva_job *job) {
  bool left = false;
  while (!left && !kva_job_wait(job)) left = client_left(c);
  if (left) kva_job_abandon(job);
  char *text = left ? NULL : kva_job_answer(job);
  kva_job_destroy(job);
  if (left) return MHD_NO;
  if (text) return send_text(s, c, MHD_HTTP_OK, "application/json", text);
  return refuse(s, c, MHD_HTTP_INTERNAL_SERVER_ERROR, "server_error", NULL, "the model failed on this server");
}

static result answer_texts(request *r, struct MHD_Connection *c, bool chat) {
  kva_http_error e;
  if (atomic_load(&r->server->drains))
    return refuse(r->server, c, MHD_HTTP_SERVICE_UNAVAILABLE, "server_error", "stopping", "this server is stopping");
  kva_job *job = kva_job_parse(r->server, chat, r->body.data, r->body.len, &e);
  if (!job) return send_error(r->server, c, &e);
  MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, 0u); /* a text may take its time */
  if (!kva_job_submit(job)) {
    kva_job_destroy(job);
    return refuse(r->server, c, MHD_HTTP_TOO_MANY_REQUESTS, "rate_limit_error", "queue_full",
                  "too many texts wait on this server; try again later");
  }
  return job->stream ? send_stream(r->server, c, job) : send_whole(r->server, c, job);
}

static result completions(request *r, struct MHD_Connection *c) {
  return answer_texts(r, c, false);
}

static result chat_completions(request *r, struct MHD_Connection *c) {
  return answer_texts(r, c, true);
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

static json_t *model_of(const kva_server *s) {
  const kva_server_options *o = &s->o;
  return json_pack("{s:s, s:s, s:I, s:s, s:I, s:s?}", "id", o->model, "object", "model", "created",
                   (json_int_t)s->started, "owned_by", "kvasir", "max_model_len", (json_int_t)o->context, "chat_format",
                   o->chat ? kva_chat_name(o->chat) : NULL);
}

static result models(request *r, struct MHD_Connection *c) {
  return send_json(r->server, c, MHD_HTTP_OK, json_pack("{s:s, s:[o]}", "object", "list", "data", model_of(r->server)));
}

static result model(request *r, struct MHD_Connection *c) {
  if (!strcmp(r->named, r->server->o.model)) return send_json(r->server, c, MHD_HTTP_OK, model_of(r->server));
  return refuse(r->server, c, MHD_HTTP_NOT_FOUND, "invalid_request_error", "model_not_found",
                "this server has no such model; /v1/models names its own");
}

static result health(request *r, struct MHD_Connection *c) {
  bool failed = kva_service_get_stats(r->server->service).failed;
  return send_json(r->server, c, failed ? MHD_HTTP_INTERNAL_SERVER_ERROR : MHD_HTTP_OK,
                   json_pack("{s:s}", "status", failed ? "the last step of the model failed" : "ok"));
}

static result metrics(request *r, struct MHD_Connection *c) {
  kva_text text = {0};
  kva_http_metrics(r->server, &text);
  return send_text(r->server, c, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", text.data);
}

static result page(request *r, struct MHD_Connection *c) {
  struct MHD_Response *response =
      MHD_create_response_from_buffer(sizeof page_text - 1, (void *)(uintptr_t)page_text, MHD_RESPMEM_PERSISTENT);
  if (response)
    MHD_add_response_header(
        response, "Content-Security-Policy",
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'");
  return send_response(r->server, c, MHD_HTTP_OK, "text/html; charset=utf-8", response);
}

static const route routes[] = {{"POST", "/v1/completions", .answer = completions},
                               {"POST", "/v1/chat/completions", .answer = chat_completions},
                               {"GET", "/v1/models", .answer = models},
                               {"GET", "/v1/models/", .names = true, .answer = model},
                               {"GET", "/metrics", .answer = metrics},
                               {"GET", "/health", .open = true, .answer = health},
                               {"GET", "/", .open = true, .answer = page}};
enum { N_ROUTES = sizeof routes / sizeof *routes };

static bool leads_to(const char *url, const route *r) {
  size_t n = strlen(r->path);
  return r->names ? !strncmp(url, r->path, n) && url[n] : !strcmp(url, r->path);
}

/* Takes the same time wherever the two differ. */
static bool same_key(const char *given, const char *key) {
  size_t n = strlen(given), m = strlen(key);
  unsigned char differs = n != m;
  for (size_t i = 0; i < n; i++) differs |= (unsigned char)(given[i] ^ key[i < m ? i : 0]);
  return !differs;
}

static bool may(const kva_server *s, struct MHD_Connection *c) {
  const char *header = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
  return !s->o.api_key || (header && !strncasecmp(header, "Bearer ", 7) && same_key(header + 7, s->o.api_key));
}

static result answer(request *r, struct MHD_Connection *c, const char *url, const char *method) {
  const route *found = NULL;
  bool path = false;
  if (!strcmp(method, MHD_HTTP_METHOD_HEAD)) method = MHD_HTTP_METHOD_GET; /* the library leaves the body out */
  for (size_t i = 0; i < N_ROUTES; i++) {
    if (!leads_to(url, &routes[i])) continue;
    path = true;
    if (!strcmp(routes[i].method, method)) found = &routes[i];
  }
  if (!path)
    return refuse(r->server, c, MHD_HTTP_NOT_FOUND, "invalid_request_error", "unknown_url", "there is nothing here");
  if (!found)
    return refuse(r->server, c, MHD_HTTP_METHOD_NOT_ALLOWED, "invalid_request_error", "method_not_allowed",
                  "another method is needed here");
  if (!found->open && !may(r->server, c))
    return refuse(r->server, c, MHD_HTTP_UNAUTHORIZED, "invalid_request_error", "invalid_api_key",
                  "expected the header Authorization: Bearer KEY with this server's key");
  r->named = url + strlen(found->path);
  return found->answer(r, c);
}

/* ---- libmicrohttpd ----------------------------------------------------------------------------------------------- */

static bool announces_too_much(const kva_server *s, struct MHD_Connection *c) {
  const char *length = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
  return length && strtoll(length, NULL, 10) > s->o.max_body;
}

static result too_large(kva_server *s, struct MHD_Connection *c) {
  return refuse(s, c, MHD_HTTP_CONTENT_TOO_LARGE, "invalid_request_error", "body_too_large",
                "the body of the request is larger than this server takes");
}

/* What is too much is read and dropped, so that the client gets its answer; but not without end. */
static result take_body(request *r, const char *data, size_t size) {
  size_t most = (size_t)r->server->o.max_body;
  r->size += size;
  if (r->size <= most) kva_text_add_bytes(&r->body, data, size);
  return r->size <= MANY_BODIES * most ? MHD_YES : MHD_NO;
}

static result handle(void *user, struct MHD_Connection *c, const char *url, const char *method, const char *version,
                     const char *data, size_t *size, void **state) {
  kva_server *s = user;
  request *r = *state;
  (void)version;
  if (!r) {
    r = *state = calloc(1, sizeof *r);
    if (!r) return MHD_NO;
    r->server = s;
    return announces_too_much(s, c) ? too_large(s, c) : MHD_YES;
  }
  if (*size) {
    result taken = take_body(r, data, *size);
    *size = 0;
    return taken;
  }
  return r->size > (size_t)s->o.max_body ? too_large(s, c) : answer(r, c, url, method);
}

static void completed(void *user, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode code) {
  (void)user, (void)code;
  request *r = *state;
  if (!r) return;
  MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)READ_SECONDS); /* a text had none */
  kva_text_free(&r->body);
  free(r);
  *state = NULL;
}

static kva_status address_of(const kva_server_options *o, struct sockaddr_storage *out, kva_diag *diag) {
  struct sockaddr_in *v4 = (struct sockaddr_in *)out;
  struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
  memset(out, 0, sizeof *out);
  if (inet_pton(AF_INET, o->host, &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons((uint16_t)o->port);
    return KVA_OK;
  }
  if (inet_pton(AF_INET6, o->host, &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons((uint16_t)o->port);
    return KVA_OK;
  }
  return kva_error(diag, NULL, "--host: expected an address such as 127.0.0.1, 0.0.0.0 or ::1, found '%s'", o->host);
}

kva_status kva_server_start(kva_service *service, kva_tokenizer *tokenizer, const kva_server_options *o, kva_diag *diag,
                            kva_server **out_server) {
  struct sockaddr_storage address;
  *out_server = NULL;
  KVA_TRY(address_of(o, &address, diag));
  kva_server *s = calloc(1, sizeof *s);
  if (!s) return kva_fail(diag, KVA_NO_MEMORY, NULL, "out of memory");
  s->service = service;
  s->tokenizer = tokenizer;
  s->o = *o;
  s->started = (int64_t)time(NULL);
  pthread_mutex_init(&s->encoding, NULL);
  unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_USE_ITC |
                   (address.ss_family == AF_INET6 ? MHD_USE_IPv6 : 0);
  errno = 0;
  s->daemon = MHD_start_daemon(flags, 0, NULL, NULL, handle, s, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&address,
                               MHD_OPTION_NOTIFY_COMPLETED, completed, s, MHD_OPTION_CONNECTION_LIMIT,
                               (unsigned)o->connections, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)READ_SECONDS,
                               MHD_OPTION_THREAD_STACK_SIZE, (size_t)THREAD_STACK, MHD_OPTION_END);
  if (s->daemon) {
    *out_server = s;
    return KVA_OK;
  }
  const char *why = errno ? strerror(errno) : "libmicrohttpd gives no reason";
  kva_server_stop(s);
  return kva_fail(diag, KVA_IO, NULL, "cannot listen at %s, port %lld: %s", o->host, (long long)o->port, why);
}

int kva_server_port(const kva_server *s) {
  const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
  return info ? info->port : 0;
}

static unsigned connections_of(const kva_server *s) {
  const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
  return info ? info->num_connections : 0;
}

/* Waits for texts, and for their last bytes. */
static void drain(kva_server *s) {
  enum { POLL_US = 20000, LAST_POLLS = 25 };
  atomic_store(&s->drains, true);
  MHD_socket listening = MHD_quiesce_daemon(s->daemon);
  if (listening != MHD_INVALID_SOCKET) close(listening);
  for (;;) {
    kva_service_stats stats = kva_service_get_stats(s->service);
    if (!stats.waiting && !stats.engine.running) break;
    usleep(POLL_US);
  }
  for (int i = 0; i < LAST_POLLS && connections_of(s); i++) usleep(POLL_US);
}

void kva_server_stop(kva_server *s) {
  if (!s) return;
  if (s->daemon) drain(s);
  if (s->daemon) MHD_stop_daemon(s->daemon);
  pthread_mutex_destroy(&s->encoding);
  free(s);
}

const char *kva_server_library(void) {
  return MHD_get_version();
}
