/* Bodies of /v1/completions and /v1/chat/completions. What would change the texts and is not known is refused. */
#include "tools/serve/http/internal.h"

#include <stdarg.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

/* Sets an error of status 400, and returns false. */
static bool KVA_PRINTF(2, 3) invalid(kva_http_error *e, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  *e = (kva_http_error){.status = 400, .type = "invalid_request_error"};
  vsnprintf(e->message, sizeof e->message, fmt, args);
  va_end(args);
  return false;
}

/* ---- members ----------------------------------------------------------------------------------------------------- */

static const json_t *member(const json_t *o, const char *name) {
  const json_t *v = json_object_get(o, name);
  return json_is_null(v) ? NULL : v;
}

static bool take_number(const json_t *o, const char *name, double low, double high, double *out, kva_http_error *e) {
  const json_t *v = member(o, name);
  if (!v) return true;
  double x = json_number_value(v);
  if (!json_is_number(v) || !(x >= low && x <= high))
    return invalid(e, "%s: expected a number from %g to %g", name, low, high);
  *out = x;
  return true;
}

static bool take_integer(const json_t *o, const char *name, int64_t low, int64_t high, int64_t *out,
                         kva_http_error *e) {
  const json_t *v = member(o, name);
  if (!v) return true;
  if (!json_is_integer(v) || json_integer_value(v) < low || json_integer_value(v) > high)
    return invalid(e, "%s: expected an integer from %lld to %lld", name, (long long)low, (long long)high);
  *out = json_integer_value(v);
  return true;
}

static bool take_bool(const json_t *o, const char *name, bool *out, kva_http_error *e) {
  const json_t *v = member(o, name);
  if (v && !json_is_boolean(v)) return invalid(e, "%s: expected true or false", name);
  if (v) *out = json_is_true(v);
  return true;
}

static bool is_one_of(const char *name, const char *const *names, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (!strcmp(name, names[i])) return true;
  return false;
}

/* Members that say nothing of the texts, or only what is so anyway. */
static bool is_harmless(const char *name, const json_t *v) {
  static const char *const notes[] = {"user",
                                      "metadata",
                                      "store",
                                      "service_tier",
                                      "safety_identifier",
                                      "prompt_cache_key",
                                      "parallel_tool_calls"}; /* tools are refused */
  if (json_is_null(v) || is_one_of(name, notes, sizeof notes / sizeof *notes)) return true;
  if (!strcmp(name, "best_of")) return json_is_integer(v) && json_integer_value(v) == 1;
  if (!strcmp(name, "top_logprobs")) return json_is_integer(v) && !json_integer_value(v);
  if (!strcmp(name, "tool_choice")) return json_is_string(v) && strcmp(json_string_value(v), "required") != 0;
  if (!strcmp(name, "response_format")) {
    const char *type = json_string_value(json_object_get(v, "type"));
    return type && !strcmp(type, "text");
  }
  return json_is_false(v) || (json_is_object(v) && !json_object_size(v)) || (json_is_array(v) && !json_array_size(v));
}

static bool check_names(json_t *o, bool chat, kva_http_error *e) {
  static const char *const known[] = {
      "model", "n",      "max_tokens",    "max_completion_tokens", "temperature",      "top_p",
      "top_k", "min_p",  "stop",          "repetition_penalty",    "presence_penalty", "frequency_penalty",
      "seed",  "stream", "stream_options"};
  for (void *i = json_object_iter(o); i; i = json_object_iter_next(o, i)) {
    const char *name = json_object_iter_key(i);
    bool text = !strcmp(name, "prompt") || !strcmp(name, "messages");
    bool taken =
        text ? !strcmp(name, chat ? "messages" : "prompt")
             : is_one_of(name, known, sizeof known / sizeof *known) || is_harmless(name, json_object_iter_value(i));
    if (!taken) return invalid(e, "%.100s: not supported with this value, or not known", name);
  }
  return true;
}

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

static kva_token_ids *add_prompt(kva_job *j) {
  kva_token_ids *more = realloc(j->prompts, (j->n_prompts + 1) * sizeof *more);
  KVA_ASSERT(more);
  j->prompts = more;
  more[j->n_prompts] = (kva_token_ids){0};
  return &more[j->n_prompts++];
}

static bool add_text(kva_job *j, const char *text, size_t size, kva_http_error *e) {
  kva_token_ids *ids = add_prompt(j);
  int64_t replaced;
  kva_diag *diag = kva_diag_create();
  pthread_mutex_lock(&j->server->encoding);
  kva_tokenizer_begin(j->server->tokenizer, ids);
  kva_status status = kva_tokenizer_encode(j->server->tokenizer, text, size, diag, ids, &replaced);
  pthread_mutex_unlock(&j->server->encoding);
  if (status != KVA_OK) invalid(e, "prompt: %s", kva_diag_message(diag, 0, NULL, NULL));
  kva_diag_destroy(diag);
  return status == KVA_OK;
}

static bool add_tokens(kva_job *j, const json_t *list, kva_http_error *e) {
  kva_token_ids *ids = add_prompt(j);
  int64_t known = j->server->o.tokens;
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *v = json_array_get(list, i);
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= known)
      return invalid(e, "prompt: expected tokens from 0 to %lld", (long long)known - 1);
    kva_token_ids_add(ids, (uint32_t)json_integer_value(v));
  }
  return true;
}

/* A text, tokens, or a list of either. */
static bool take_prompts(kva_job *j, const json_t *o, kva_http_error *e) {
  const json_t *v = member(o, "prompt"), *first = json_array_get(v, 0);
  if (json_is_string(v)) return add_text(j, json_string_value(v), json_string_length(v), e);
  if (json_is_integer(first)) return add_tokens(j, v, e);
  if (!first) return invalid(e, "prompt: expected a text, tokens, or a list of them");
  for (size_t i = 0; i < json_array_size(v); i++) {
    const json_t *item = json_array_get(v, i);
    if (!json_is_string(item) && !json_is_array(item))
      return invalid(e, "prompt: expected a list of texts or of lists of tokens");
    if (json_is_string(item) ? !add_text(j, json_string_value(item), json_string_length(item), e)
                             : !add_tokens(j, item, e))
      return false;
  }
  return true;
}

/* A text, or a list of parts of type "text". */
static bool add_content(const json_t *content, kva_text *out) {
  kva_text_add(out, "%s", "");
  if (json_is_string(content)) kva_text_add_bytes(out, json_string_value(content), json_string_length(content));
  for (size_t i = 0; i < json_array_size(content); i++) {
    const json_t *part = json_array_get(content, i), *text = json_object_get(part, "text");
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!type || strcmp(type, "text") || !json_is_string(text)) return false;
    kva_text_add_bytes(out, json_string_value(text), json_string_length(text));
  }
  return json_is_string(content) || json_is_array(content);
}

/* What formats of chats have no place for. */
static const char *unknown_part(const json_t *message) {
  static const char *const parts[] = {"tool_calls", "function_call", "audio"};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    const json_t *v = member(message, parts[i]);
    if (v && !is_harmless(parts[i], v)) return parts[i];
  }
  return NULL;
}

static bool read_message(const json_t *v, kva_message *m, kva_text *text, kva_http_error *e) {
  const char *unknown = unknown_part(v);
  const char *role = json_string_value(json_object_get(v, "role"));
  m->role = role ? kva_role_named(role) : KVA_ROLES;
  if (m->role == KVA_ROLES) return invalid(e, "messages: expected the role system, user or assistant");
  if (unknown) return invalid(e, "messages: %s: not supported", unknown);
  if (!add_content(json_object_get(v, "content"), text)) return invalid(e, "messages: expected content that is text");
  m->text = text->data;
  return true;
}

static bool take_messages(kva_job *j, const json_t *o, kva_http_error *e) {
  const json_t *list = member(o, "messages");
  size_t n = json_array_size(list), read = 0;
  if (!j->server->o.chat) return invalid(e, "this model has no format of chats: use /v1/completions");
  if (!n) return invalid(e, "messages: expected a list that is not empty");
  kva_message *messages = calloc(n, sizeof *messages);
  kva_text *texts = calloc(n, sizeof *texts), out = {0};
  KVA_ASSERT(messages && texts);
  bool ok = true;
  for (; ok && read < n; read++) ok = read_message(json_array_get(list, read), &messages[read], &texts[read], e);
  const char *wrong = ok ? kva_chat_render(j->server->o.chat, messages, n, &out) : NULL;
  if (wrong) ok = invalid(e, "messages: %s", wrong);
  if (ok) ok = add_text(j, out.data, out.len, e);
  for (size_t i = 0; i < read; i++) kva_text_free(&texts[i]);
  kva_text_free(&out);
  free(texts);
  free(messages);
  return ok;
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

static size_t add_stop(kva_job *j, size_t n, const char *text) {
  j->stops[n] = strdup(text);
  KVA_ASSERT(j->stops[n]);
  j->stop_list[n] = j->stops[n];
  return n + 1;
}

static bool take_stops(kva_job *j, const json_t *o, size_t *out_n, kva_http_error *e) {
  enum { MOST = 4 }; /* as OpenAI; the format of chats may add one */
  const json_t *v = member(o, "stop");
  size_t n = json_is_string(v) ? 1 : json_array_size(v);
  if (v && (n > MOST || (!json_is_string(v) && !json_is_array(v))))
    return invalid(e, "stop: expected a text, or at most %d", MOST);
  for (size_t i = 0; i < n; i++) {
    const json_t *item = json_is_string(v) ? v : json_array_get(v, i);
    if (!json_string_length(item)) return invalid(e, "stop: expected texts that are not empty");
    *out_n = add_stop(j, *out_n, json_string_value(item));
  }
  const char *own = j->chat ? kva_chat_stop(j->server->o.chat) : NULL;
  if (own) *out_n = add_stop(j, *out_n, own);
  return true;
}

static bool take_sampling(const json_t *o, kva_sampling *s, kva_http_error *e) {
  int64_t seed = 0;
  *s = (kva_sampling){.temperature = 1, .top_p = 1, .repetition = 1};
  if (getrandom(&s->seed, sizeof s->seed, 0) != sizeof s->seed) s->seed = (uint64_t)time(NULL);
  bool ok = take_number(o, "temperature", 0, 2, &s->temperature, e) && take_number(o, "top_p", 0, 1, &s->top_p, e) &&
            take_number(o, "min_p", 0, 1, &s->min_p, e) && take_integer(o, "top_k", 0, INT32_MAX, &s->top_k, e) &&
            take_number(o, "repetition_penalty", 0.01, 100, &s->repetition, e) &&
            take_number(o, "presence_penalty", -2, 2, &s->presence, e) &&
            take_number(o, "frequency_penalty", -2, 2, &s->frequency, e) &&
            take_integer(o, "seed", INT64_MIN, INT64_MAX, &seed, e);
  if (ok && member(o, "seed")) s->seed = (uint64_t)seed;
  return ok;
}

static bool check_model(kva_server *s, const json_t *o, kva_http_error *e) {
  const json_t *v = member(o, "model");
  const char *name = json_string_value(v);
  if (!v || (name && !strcmp(name, s->o.model))) return true;
  invalid(e, "the model '%.80s' does not exist; this server has '%.80s'", name ? name : "", s->o.model);
  e->status = 404;
  e->code = "model_not_found";
  return false;
}

/* Completions have 16 tokens unless they say otherwise, as OpenAI's; chats as many as there are. */
static bool take_lengths(kva_job *j, const json_t *o, int64_t *out_tokens, kva_http_error *e) {
  const kva_server_options *s = &j->server->o;
  int64_t longest = 0, tokens = -1;
  if (!take_integer(o, "max_tokens", 1, s->max_tokens, &tokens, e) ||
      !take_integer(o, "max_completion_tokens", 1, s->max_tokens, &tokens, e))
    return false;
  for (uint32_t i = 0; i < j->n_prompts; i++) {
    if (!j->prompts[i].n) return invalid(e, "prompt: expected at least one token");
    if (longest < j->prompts[i].n) longest = j->prompts[i].n;
  }
  int64_t room = s->context - longest, usual = j->chat ? s->max_tokens : 16;
  *out_tokens = tokens > 0 ? tokens : usual < room ? usual : room;
  if (room >= *out_tokens && room > 0) return true;
  invalid(e, "the prompt has %lld tokens and asks for %lld more; this server takes %lld together", (long long)longest,
          (long long)(tokens > 0 ? tokens : 1), (long long)s->context);
  e->code = "context_length_exceeded";
  return false;
}

static void fill(kva_job *j, const kva_completion *pattern, int64_t each) {
  j->n = j->n_prompts * each;
  j->texts = calloc((size_t)j->n, sizeof *j->texts);
  j->choices = calloc((size_t)j->n, sizeof *j->choices);
  KVA_ASSERT(j->texts && j->choices);
  for (int64_t i = 0; i < j->n; i++) {
    const kva_token_ids *p = &j->prompts[i / each];
    kva_completion *c = &j->texts[i];
    memcpy(c, pattern, sizeof *c);
    c->prompt = p->data;
    c->prompt_tokens = p->n;
    c->sequence = (uint64_t)i;
    c->stops = j->stop_list;
    c->user = &j->choices[i];
    j->choices[i].job = j;
  }
}

static bool take_all(kva_job *j, json_t *o, kva_http_error *e) {
  kva_completion pattern = {0};
  int64_t each = 1;
  if (!json_is_object(o)) return invalid(e, "expected a JSON object");
  if (!check_model(j->server, o, e) || !check_names(o, j->chat, e)) return false;
  if (!take_sampling(o, &pattern.sampling, e) || !take_integer(o, "n", 1, j->server->o.max_texts, &each, e))
    return false;
  const json_t *options = member(o, "stream_options");
  if (options && !json_is_object(options)) return invalid(e, "stream_options: expected an object");
  if (!take_bool(o, "stream", &j->stream, e) || !take_bool(options, "include_usage", &j->usage, e)) return false;
  if (!(j->chat ? take_messages(j, o, e) : take_prompts(j, o, e))) return false;
  if (!take_stops(j, o, &pattern.n_stops, e) || !take_lengths(j, o, &pattern.max_tokens, e)) return false;
  if (j->n_prompts * each > j->server->o.max_texts)
    return invalid(e, "expected at most %lld texts in a request", (long long)j->server->o.max_texts);
  fill(j, &pattern, each);
  return true;
}

static void make_id(kva_job *j) {
  uint64_t random[2] = {0, (uint64_t)j->created};
  ssize_t got = getrandom(random, sizeof random, 0);
  (void)got; /* only a name */
  snprintf(j->id, sizeof j->id, "%s-%016llx%08llx", j->chat ? "chatcmpl" : "cmpl", (unsigned long long)random[0],
           (unsigned long long)random[1] & 0xFFFFFFFF);
}

kva_job *kva_job_parse(kva_server *s, bool chat, const char *body, size_t size, kva_http_error *e) {
  json_error_t error;
  json_t *o = json_loadb(body ? body : "", size, 0, &error);
  if (!o) {
    invalid(e, "the body is not JSON: line %d: %s", error.line, error.text);
    return NULL;
  }
  kva_job *j = calloc(1, sizeof *j);
  KVA_ASSERT(j);
  *j = (kva_job){.server = s, .chat = chat, .created = (int64_t)time(NULL)};
  pthread_mutex_init(&j->lock, NULL);
  pthread_cond_init(&j->changed, NULL);
  make_id(j);
  bool ok = take_all(j, o, e);
  json_decref(o);
  if (ok) return j;
  kva_job_destroy(j);
  return NULL;
}

void kva_job_destroy(kva_job *j) {
  if (!j) return;
  for (int64_t i = 0; i < j->n; i++) {
    kva_completion_clear(&j->texts[i]);
    kva_text_free(&j->choices[i].fresh);
  }
  for (uint32_t i = 0; i < j->n_prompts; i++) free(j->prompts[i].data);
  for (size_t i = 0; i < sizeof j->stops / sizeof *j->stops; i++) free(j->stops[i]);
  pthread_cond_destroy(&j->changed);
  pthread_mutex_destroy(&j->lock);
  kva_text_free(&j->out);
  free(j->prompts);
  free(j->choices);
  free(j->texts);
  free(j);
}
