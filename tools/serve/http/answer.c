/* Texts on their way to the client: whole answers and server-sent events. */
#include "tools/serve/http/internal.h"
#include "tools/tokenizer/unicode.h"

#include <stdlib.h>
#include <time.h>

enum { PATIENCE_MS = 250 }; /* how often a wait looks whether the client is there */

/* ---- from the service's thread ----------------------------------------------------------------------------------- */

static void on_text(kva_completion *c, const char *text, size_t size) {
  kva_choice *choice = c->user;
  pthread_mutex_lock(&choice->job->lock);
  kva_text_add_bytes(&choice->fresh, text, size);
  pthread_cond_signal(&choice->job->changed);
  pthread_mutex_unlock(&choice->job->lock);
}

/* The job may be gone when the lock is. */
static void on_end(kva_completion *c) {
  kva_choice *choice = c->user;
  kva_job *job = choice->job;
  pthread_mutex_lock(&job->lock);
  choice->ended = true;
  job->ended++;
  pthread_cond_signal(&job->changed);
  pthread_mutex_unlock(&job->lock);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

bool kva_job_submit(kva_job *j) {
  for (int64_t i = 0; i < j->n; i++) {
    if (j->stream) j->texts[i].on_text = on_text;
    j->texts[i].on_end = on_end;
  }
  return kva_service_submit(j->server->service, j->texts, j->n);
}

static void wait_locked(kva_job *j) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += PATIENCE_MS * 1000000L;
  until.tv_sec += until.tv_nsec / 1000000000L;
  until.tv_nsec %= 1000000000L;
  pthread_cond_timedwait(&j->changed, &j->lock, &until);
}

bool kva_job_wait(kva_job *j) {
  pthread_mutex_lock(&j->lock);
  if (j->ended < j->n) wait_locked(j);
  bool all = j->ended == j->n;
  pthread_mutex_unlock(&j->lock);
  return all;
}

void kva_job_abandon(kva_job *j) {
  for (int64_t i = 0; i < j->n; i++) atomic_store(&j->texts[i].cancelled, true);
  while (!kva_job_wait(j)) continue;
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static const char *finish_name(const kva_completion *c) {
  return c->finish == KVA_FINISH_LENGTH ? "length" : "stop";
}

json_t *kva_http_text(const char *data, size_t size) {
  kva_text valid = {0};
  kva_utf8_add_valid(data, size, &valid);
  json_t *text = json_stringn_nocheck(valid.len ? valid.data : "", valid.len);
  kva_text_free(&valid);
  return text;
}

static json_t *usage_of(const kva_job *j) {
  json_int_t prompt = 0, drawn = 0, reused = 0;
  for (uint32_t i = 0; i < j->n_prompts; i++) prompt += j->prompts[i].n;
  for (int64_t i = 0; i < j->n; i++) {
    drawn += j->texts[i].tokens;
    if (i % (j->n / j->n_prompts) == 0) reused += j->texts[i].reused;
  }
  return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", prompt, "completion_tokens", drawn, "total_tokens",
                   prompt + drawn, "prompt_tokens_details", "cached_tokens", reused);
}

static json_t *choice_of(const kva_job *j, int64_t i) {
  const kva_completion *c = &j->texts[i];
  json_t *text = kva_http_text(c->text.data, c->text.len);
  if (j->chat)
    return json_pack("{s:I, s:{s:s, s:o}, s:n, s:s}", "index", (json_int_t)i, "message", "role", "assistant", "content",
                     text, "logprobs", "finish_reason", finish_name(c));
  return json_pack("{s:I, s:o, s:n, s:s}", "index", (json_int_t)i, "text", text, "logprobs", "finish_reason",
                   finish_name(c));
}

static json_t *object_of(const kva_job *j, const char *kind, json_t *choices) {
  return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", j->id, "object", kind, "created", (json_int_t)j->created, "model",
                   j->server->o.model, "choices", choices);
}

static bool any_failed(const kva_job *j) {
  for (int64_t i = 0; i < j->n; i++)
    if (j->texts[i].finish == KVA_FINISH_FAILED) return true;
  return false;
}

char *kva_job_answer(kva_job *j) {
  if (any_failed(j)) return NULL;
  json_t *choices = json_array();
  for (int64_t i = 0; i < j->n; i++) json_array_append_new(choices, choice_of(j, i));
  json_t *o = object_of(j, j->chat ? "chat.completion" : "text_completion", choices);
  json_object_set_new(o, "usage", usage_of(j));
  char *text = json_dumps(o, JSON_COMPACT);
  json_decref(o);
  return text;
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static void add_event(kva_job *j, json_t *o) {
  char *text = json_dumps(o, JSON_COMPACT);
  if (text) kva_text_add(&j->out, "data: %s\n\n", text);
  free(text);
  json_decref(o);
}

static void add_chunk(kva_job *j, json_t *choice) {
  json_t *choices = json_array();
  json_array_append_new(choices, choice);
  add_event(j, object_of(j, j->chat ? "chat.completion.chunk" : "text_completion", choices));
}

static void add_begin(kva_job *j) {
  for (int64_t i = 0; j->chat && i < j->n; i++)
    add_chunk(j, json_pack("{s:I, s:{s:s, s:s}, s:n}", "index", (json_int_t)i, "delta", "role", "assistant", "content",
                           "", "finish_reason"));
  j->begun = true;
}

static void add_fresh(kva_job *j, int64_t i) {
  kva_choice *c = &j->choices[i];
  json_t *text = kva_http_text(c->fresh.data, c->fresh.len);
  c->fresh.len = 0;
  add_chunk(j,
            j->chat
                ? json_pack("{s:I, s:{s:o}, s:n}", "index", (json_int_t)i, "delta", "content", text, "finish_reason")
                : json_pack("{s:I, s:o, s:n, s:n}", "index", (json_int_t)i, "text", text, "logprobs", "finish_reason"));
}

static void add_end(kva_job *j, int64_t i) {
  const char *finish = finish_name(&j->texts[i]);
  j->choices[i].reported = true;
  if (j->texts[i].finish == KVA_FINISH_FAILED)
    add_event(
        j, json_pack("{s:{s:s, s:s}}", "error", "message", "the model failed on this server", "type", "server_error"));
  else
    add_chunk(j, j->chat ? json_pack("{s:I, s:{}, s:s}", "index", (json_int_t)i, "delta", "finish_reason", finish)
                         : json_pack("{s:I, s:s, s:n, s:s}", "index", (json_int_t)i, "text", "", "logprobs",
                                     "finish_reason", finish));
}

static void add_last(kva_job *j) {
  if (j->usage) {
    json_t *o = object_of(j, j->chat ? "chat.completion.chunk" : "text_completion", json_array());
    json_object_set_new(o, "usage", usage_of(j));
    add_event(j, o);
  }
  kva_text_add(&j->out, "data: [DONE]\n\n");
  j->done = true;
}

void kva_job_events(kva_job *j) {
  bool news = !j->begun;
  j->out.len = j->sent = 0;
  if (news) add_begin(j);
  pthread_mutex_lock(&j->lock);
  for (int64_t i = 0; i < j->n; i++)
    news = news || j->choices[i].fresh.len || (j->choices[i].ended && !j->choices[i].reported);
  if (!news) wait_locked(j);
  for (int64_t i = 0; i < j->n; i++) {
    if (j->choices[i].fresh.len) add_fresh(j, i);
    if (j->choices[i].ended && !j->choices[i].reported) add_end(j, i);
  }
  bool all = j->ended == j->n;
  pthread_mutex_unlock(&j->lock);
  if (all) add_last(j);
}
