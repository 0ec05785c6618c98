#include "ir/pass.h"

/* ---- tables ------------------------------------------------------------------------------------------------------ */

const kva_pass *kva_pass_find(const kva_pass_level *level, const char *name) {
  for (uint32_t i = 0; i < level->n_passes; i++)
    if (!strcmp(level->passes[i].name, name)) return &level->passes[i];
  return NULL;
}

static const kva_pass_property *find_property(const kva_pass_level *level, const char *name, size_t len) {
  for (uint32_t i = 0; i < level->n_properties; i++) {
    const kva_pass_property *p = &level->properties[i];
    if (strlen(p->name) == len && !memcmp(p->name, name, len)) return p;
  }
  return NULL;
}

const kva_pass_property *kva_pass_missing(const kva_pass *pass, const kva_pass_unit *unit) {
  for (const char *word = pass->needs; *word;) {
    size_t len = strcspn(word, " ");
    const kva_pass_property *p = find_property(unit->level, word, len);
    KVA_ASSERT(p);
    if (!p->holds(unit->ir)) return p;
    word += len + strspn(word + len, " ");
  }
  return NULL;
}

static kva_status check_needs(const kva_pass *pass, const kva_pass_unit *unit, const kva_pass_control *c) {
  const kva_pass_property *missing = kva_pass_missing(pass, unit);
  if (!missing) return KVA_OK;
  KVA_ASSERT(c->by_name);
  return kva_error(unit->diag, NULL, "pass '%s' requires property '%s', which %s '%s' lacks: %s", pass->name,
                   missing->name, unit->level->name, unit->name, missing->help);
}

/* ---- changes ----------------------------------------------------------------------------------------------------- */

bool kva_pass_may_change(const kva_pass_control *c) {
  return !c || !c->bisect || c->changes < c->max_changes;
}

void kva_pass_count_change(kva_pass_control *c, const kva_loc *loc, const char *what) {
  if (!c || !c->bisect) return;
  c->changes++;
  fprintf(stderr, "change %lld: %s: %s", (long long)c->changes, c->running ? c->running->name : "?", what);
  if (loc && loc->node) fprintf(stderr, " '%s'", loc->node);
  if (loc && loc->file && loc->line) fprintf(stderr, " at %s:%u", loc->file, loc->line);
  fputc('\n', stderr);
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

static kva_pass_statistics *statistics_of(kva_pass_control *c, const kva_pass *pass) {
  uint32_t i = 0;
  while (i < c->n_statistics && c->statistics[i].pass != pass) i++;
  KVA_ASSERT(i < KVA_MAX_PASSES);
  if (i == c->n_statistics) c->statistics[c->n_statistics++] = (kva_pass_statistics){.pass = pass};
  return &c->statistics[i];
}

void kva_pass_print_timing(const kva_pass_control *c, FILE *out) {
  fprintf(out, "%-12s %8s %8s %10s\n", "pass", "runs", "changes", "ms");
  for (uint32_t i = 0; i < c->n_statistics; i++) {
    const kva_pass_statistics *s = &c->statistics[i];
    fprintf(out, "%-12s %8lld %8lld %10.2f\n", s->pass->name, (long long)s->runs, (long long)s->changing_runs,
            s->seconds * 1e3);
  }
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* A pass may run others (training runs differentiation), so what was running before is running again afterwards. */
static kva_status run_measured(const kva_pass *pass, const kva_pass_unit *unit, const void *options,
                               kva_pass_control *c, bool *changed) {
  const kva_pass *outer = c->running;
  uint64_t (*hash)(const void *) = unit->level->hash;
  uint64_t before = c->bisect && hash ? hash(unit->ir) : 0;
  double start = kva_now();
  c->running = pass;
  kva_task level = {.what = unit->level->name, .name = unit->name}, task = {.what = "pass", .name = pass->name};
  kva_task_begin(&level);
  kva_task_begin(&task);
  kva_status status = pass->run(unit->ir, options, changed);
  kva_task_end(&task);
  kva_task_end(&level);
  if (c->bisect && hash) *changed = hash(unit->ir) != before;
  if (*changed && !(pass->flags & (KVA_PASS_REQUIRED | KVA_PASS_COUNTS))) kva_pass_count_change(c, NULL, unit->name);
  c->running = outer;
  kva_pass_statistics *s = statistics_of(c, pass);
  s->runs++;
  s->changing_runs += *changed;
  s->seconds += kva_now() - start;
  return status;
}

static bool verifies(const kva_pass_control *c) {
#ifdef KVA_DEBUG
  (void)c;
  return true;
#else
  return c->verify_each;
#endif
}

static kva_status check_result(const kva_pass *pass, const kva_pass_unit *unit, kva_pass_control *c) {
  if (verifies(c) && unit->level->verify(unit->ir, unit->diag) != KVA_OK)
    return kva_error(unit->diag, NULL, "%s '%s' does not verify after pass '%s'", unit->level->name, unit->name,
                     pass->name);
  return c->after_each ? c->after_each(c->user, pass, unit) : KVA_OK;
}

static void print_unit(const kva_pass *pass, const kva_pass_unit *unit, const kva_pass_control *c) {
  kva_text text = {0};
  unit->level->print(unit->ir, pass, &text);
  fprintf(c->print_to ? c->print_to : stdout, "// after %s\n%s\n", pass->name, text.data ? text.data : "");
  kva_text_free(&text);
}

static bool names(const char *name, const kva_pass *pass) {
  return name && !strcmp(name, pass->name);
}

kva_status kva_pass_run(const kva_pass *pass, const kva_pass_unit *unit, const void *options, kva_pass_control *control,
                        bool *changed) {
  kva_pass_control none = {0}, *c = control ? control : &none;
  bool progress = false;
  KVA_TRY(check_needs(pass, unit, c));
  if (!(pass->flags & KVA_PASS_REQUIRED) && !kva_pass_may_change(c)) return KVA_OK;
  KVA_TRY(run_measured(pass, unit, options, c, &progress));
  *changed |= progress;
  KVA_TRY(check_result(pass, unit, c));
  bool stops = names(c->stop_after, pass);
  if (stops || names(c->print_after, pass) || (c->print_after && !strcmp(c->print_after, "all")))
    print_unit(pass, unit, c);
  return stops ? KVA_STOPPED : KVA_OK;
}
