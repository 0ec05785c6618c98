/* /metrics in the text format of Prometheus. */
#include "tools/serve/http/internal.h"

static void head(kva_text *out, const char *name, const char *type, const char *help) {
  kva_text_add(out, "# HELP kvasir_%s %s\n# TYPE kvasir_%s %s\n", name, help, name, type);
}

static void gauge(kva_text *out, const char *name, const char *help, int64_t value) {
  head(out, name, "gauge", help);
  kva_text_add(out, "kvasir_%s %lld\n", name, (long long)value);
}

void kva_http_metrics(kva_server *s, kva_text *out) {
  const kva_service_stats stats = kva_service_get_stats(s->service);
  const kva_engine_stats *e = &stats.engine;
  head(out, "responses_total", "counter", "Responses by the first digit of their status.");
  for (int i = 2; i < 6; i++)
    kva_text_add(out, "kvasir_responses_total{status=\"%dxx\"} %lld\n", i, atomic_load(&s->answers[i]));
  head(out, "prompt_tokens_total", "counter",
       "Tokens of prompts that were computed, or found in the cache of prompts.");
  kva_text_add(out,
               "kvasir_prompt_tokens_total{from=\"model\"} %lld\nkvasir_prompt_tokens_total{from=\"cache\"} %lld\n",
               (long long)e->read, (long long)e->reused);
  head(out, "generated_tokens_total", "counter", "Tokens that were drawn.");
  kva_text_add(out, "kvasir_generated_tokens_total %lld\n", (long long)e->drawn);
  head(out, "seconds_total", "counter", "Time of the model for prompts and for generated tokens.");
  kva_text_add(out, "kvasir_seconds_total{for=\"prompts\"} %.6f\nkvasir_seconds_total{for=\"tokens\"} %.6f\n",
               e->read_seconds, e->draw_seconds);
  gauge(out, "texts_running", "Texts that are being made.", e->running);
  gauge(out, "texts_waiting", "Texts that wait for a slot.", stats.waiting);
}
