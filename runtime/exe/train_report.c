/* Collects what a run reports: learned shift scalars, throughput, memory, times of kernels. */
#include "runtime/exe/train.h"

#include "runtime/comm.h"

#include <stdlib.h>

/* ---- shift scalars ----------------------------------------------------------------------------------------------- */

/* The weights of one shift, one pair a head: states "<layer>.k.current" and "<layer>.k.previous", likewise v. */
typedef struct shift_pair {
  const float *current, *previous; /* NULL: not shifted */
  int64_t heads;
} shift_pair;

/* NULL: this process has no such state. */
static const kva_state_desc *shift_state(kva_session *s, size_t len, const char *layer, const char *suffix,
                                         kva_tensor *out) {
  char name[512];
  snprintf(name, sizeof name, "%.*s.%s", (int)len, layer, suffix);
  if (!kva_session_state(s, name, out) || out->dtype != KVA_F32) return NULL;
  int i = 0;
  while (strcmp(kva_session_state_desc(s, i, NULL)->name, name) != 0) i++;
  return kva_session_state_desc(s, i, NULL);
}

static int64_t elements(const kva_tensor *t) {
  int64_t n = 1;
  for (int32_t d = 0; d < t->rank; d++) n *= t->dims[d];
  return n;
}

/* The weights of all heads: those of slices are in order of ranks, as slices are of rows. comm NULL: other processes do
 * not take part, and their slices are left out. */
static kva_status all_heads(kva_comm *comm, const kva_state_desc *d, const kva_tensor *own, kva_arena *arena,
                            const float **out, int64_t *out_heads) {
  *out = own->data;
  *out_heads = elements(own);
  if (!comm || !d->slices) return KVA_OK;
  int64_t all = *out_heads * d->slices;
  float *weights = KVA_NEW_ARRAY(arena, float, all);
  *out = weights;
  *out_heads = all;
  kva_comm *slices = kva_comm_group(comm, d->slices, 1);
  return slices ? kva_comm_all_gather(slices, d->bytes, d->bytes * d->slices, own->data, weights) : KVA_INVALID;
}

/* Gates, which are no weights, lack the second state; windows of three and more have more columns: neither is a pair.
 */
static kva_status find_pair(kva_session *s, kva_comm *comm, const char *layer, const char *current,
                            const char *previous, kva_arena *arena, shift_pair *out) {
  kva_tensor c, p;
  const kva_state_desc *first = shift_state(s, strlen(layer), layer, current, &c);
  const kva_state_desc *second = shift_state(s, strlen(layer), layer, previous, &p);
  *out = (shift_pair){0};
  if (!first || !second || elements(&c) != elements(&p) || first->slices != second->slices) return KVA_OK;
  KVA_TRY(all_heads(comm, first, &c, arena, &out->current, &out->heads));
  return all_heads(comm, second, &p, arena, &out->previous, &out->heads);
}

static double current_of(const shift_pair *p, int64_t h) {
  return p->heads ? p->current[h] : 1;
}

static double previous_of(const shift_pair *p, int64_t h) {
  return p->heads ? p->previous[h] : 0;
}

/* Length of the layer's name if `name` is the first state of a layer's shifts; else 0. */
static size_t shifted_layer(kva_session *s, const char *name) {
  static const char keys[] = ".k.current", values[] = ".v.current";
  size_t n = strlen(name), suffix = sizeof keys - 1;
  if (n <= suffix) return 0;
  size_t len = n - suffix;
  if (!strcmp(name + len, keys)) return len;
  kva_tensor k;
  return !strcmp(name + len, values) && !shift_state(s, len, name, keys + 1, &k) ? len : 0;
}

static kva_status collect_shifts(kva_session *s, kva_comm *comm, kva_arena *arena, kva_train_result *result) {
  KVA_VEC(kva_report_shift) rows = {0};
  for (int i = 0; i < kva_session_state_count(s); i++) {
    kva_tensor first;
    const char *name = kva_session_state_desc(s, i, &first)->name;
    size_t len = shifted_layer(s, name);
    if (!len) continue;
    const char *layer = kva_arena_strndup(arena, name, len);
    shift_pair k, v;
    KVA_TRY(find_pair(s, comm, layer, "k.current", "k.previous", arena, &k));
    KVA_TRY(find_pair(s, comm, layer, "v.current", "v.previous", arena, &v));
    for (int64_t h = 0; h < (k.heads ? k.heads : v.heads); h++) {
      kva_report_shift row = {
          layer, (int)h, current_of(&k, h), previous_of(&k, h), current_of(&v, h), previous_of(&v, h)};
      KVA_PUSH(arena, &rows, row);
    }
  }
  result->shifts = rows.data;
  result->n_shifts = (int)rows.len;
  return KVA_OK;
}

static void print_shifts(const kva_train_result *result, kva_text *out) {
  for (int i = 0; i < result->n_shifts; i++) {
    const kva_report_shift *s = &result->shifts[i];
    kva_text_add(out, "%s\t%d %.17g %.17g %.17g %.17g\n", s->layer, s->head, s->k_current, s->k_previous, s->v_current,
                 s->v_previous);
  }
}

/* The inverse. Returns the number of rows. */
static int parse_shifts(const char *text, kva_arena *arena, kva_report_shift *out) {
  int n = 0;
  for (const char *at = text; at && *at; at = strchr(at, '\n') + 1) {
    const char *name = at, *tab = strchr(at, '\t');
    kva_report_shift *s = &out[n++];
    s->layer = kva_arena_strndup(arena, name, (size_t)(tab - name));
    if (sscanf(tab, "%d %lg %lg %lg %lg", &s->head, &s->k_current, &s->k_previous, &s->v_current, &s->v_previous) != 5)
      return n - 1;
  }
  return n;
}

static int count_lines(const char *text) {
  int n = 0;
  for (; text && *text; text++) n += *text == '\n';
  return n;
}

/* The rows of all stages, in their order, in all processes. */
static kva_status share_shifts(kva_comm *stages, kva_arena *arena, kva_train_result *result) {
  kva_text all = {0};
  kva_status status = KVA_OK;
  for (int i = 0; status == KVA_OK && i < kva_comm_size(stages); i++) {
    kva_text own = {0};
    if (i == kva_comm_rank(stages)) print_shifts(result, &own);
    status = kva_comm_broadcast_text(stages, i, &own);
    kva_text_add(&all, "%s", own.data ? own.data : "");
    kva_text_free(&own);
  }
  if (status == KVA_OK && all.cut) status = KVA_NO_MEMORY;
  if (status == KVA_OK) {
    kva_report_shift *rows = KVA_NEW_ARRAY(arena, kva_report_shift, count_lines(all.data) + 1);
    result->n_shifts = parse_shifts(all.data, arena, rows);
    result->shifts = rows;
  }
  kva_text_free(&all);
  return status;
}

/* ---- times, memory, items ---------------------------------------------------------------------------------------- */

static int longer_first(const void *a, const void *b) {
  double x = ((const kva_report_time *)a)->seconds, y = ((const kva_report_time *)b)->seconds;
  return x < y ? 1 : x > y ? -1 : 0;
}

/* Time by kernel: the times of steps that call the same kernel are added. */
static void collect_times(kva_session *s, int program, kva_arena *arena, kva_train_result *result) {
  const double *seconds;
  const int64_t *calls;
  int n = kva_session_profile(s, program, &seconds, &calls);
  const kva_program *p = kva_session_program_desc(s, program);
  result->times = KVA_NEW_ARRAY(arena, kva_report_time, n + 1);
  for (int i = 0; i < n; i++) {
    const char *name = p->steps[i].origin ? p->steps[i].origin : "copy";
    int k = 0;
    while (k < result->n_times && strcmp(result->times[k].name, name) != 0) k++;
    if (k == result->n_times)
      result->times[result->n_times++] = (kva_report_time){.name = kva_arena_strdup(arena, name)};
    result->times[k].seconds += seconds[i];
    result->times[k].calls += calls[i];
    result->times[k].bytes += (double)calls[i] * (double)kva_session_step_bytes(s, program, i);
  }
  qsort(result->times, (size_t)result->n_times, sizeof *result->times, longer_first);
}

static void collect_moments(kva_session *s, int program, kva_arena *arena, kva_train_result *result) {
  int n = kva_session_timeline(s, program, 0, NULL);
  const kva_program *p = kva_session_program_desc(s, program);
  int64_t *bytes = KVA_NEW_ARRAY(arena, int64_t, n + 1);
  result->moments = KVA_NEW_ARRAY(arena, kva_report_moment, n + 1);
  result->n_moments = kva_session_timeline(s, program, n, bytes);
  for (int i = 0; i < n; i++) {
    const char *name = p->steps[i].origin ? p->steps[i].origin : "copy";
    result->moments[i] = (kva_report_moment){kva_arena_strdup(arena, name), bytes[i]};
  }
}

bool kva_train_reads_tokens(const kva_program *p) {
  const kva_buffer_desc *b = p->n_inputs ? &p->buffers[p->inputs[0]] : NULL;
  return b && b->rank == 2 && kva_dtype_is_int((kva_dtype)b->dtype);
}

/* A step's items are tokens if the first input is an integer matrix, else rows. Lengths that were not compiled in come
 * from the data source. */
static void count_items(const kva_train_settings *o, const kva_train_defaults *d, const kva_program *p,
                        kva_train_result *result) {
  const kva_buffer_desc *b = p->n_inputs ? &p->buffers[p->inputs[0]] : NULL;
  bool tokens = kva_train_reads_tokens(p);
  bool constant = tokens && b->dims[1].n == 1 && b->dims[1].words[0].op == KVA_FORMULA_CONST;
  const char *data = kva_train_data(o, d);
  int64_t given = data ? kva_data_length(data) : 0, length = constant ? b->dims[1].words[0].arg : given;
  if (!length) length = d->length;
  tokens = tokens && length > 0;
  result->items = (double)kva_train_rows(o, d) * (double)(tokens ? length : 1);
  result->unit = tokens ? "tokens" : "rows";
}

/* ---- configuration ----------------------------------------------------------------------------------------------- */

static const char *schedule_text(const kva_schedule *s, kva_arena *arena) {
  static const char *const names[] = {[KVA_SCHEDULE_CONSTANT] = "constant",
                                      [KVA_SCHEDULE_WARMUP] = "constant",
                                      [KVA_SCHEDULE_COSINE] = "cosine",
                                      [KVA_SCHEDULE_LINEAR] = "linear"};
  const char *text = names[s->kind];
  if (s->warmup > 0) text = kva_arena_printf(arena, "%s after %lld steps of warm-up", text, (long long)s->warmup);
  if (s->total > 0)
    text = kva_arena_printf(arena, "%s, to %g times the rate at step %lld", text, s->final_ratio, (long long)s->total);
  return text;
}

static const char *rows_text(const kva_train_options *t, kva_arena *arena) {
  if (!t->micro_batch) return kva_arena_printf(arena, "%lld sequences", (long long)t->batch);
  return kva_arena_printf(arena, "%lld sequences, %lld at a time", (long long)t->batch, (long long)t->micro_batch);
}

int kva_train_config(const kva_train_settings *o, const kva_train_defaults *d, kva_arena *arena,
                     const kva_report_item **out) {
  kva_train_options t;
  if (kva_train_make_options(o, d, NULL, &t) != KVA_OK) return 0; /* the run has said so */
  const char *data = kva_train_data(o, d);
  const kva_report_item items[] = {
      {"data", data ? data : "none"},
      {"batch", rows_text(&t, arena)},
      {"steps", kva_arena_printf(arena, "%lld", (long long)t.steps)},
      {"learning rate", kva_arena_printf(arena, "%g", t.schedule.lr)},
      {"schedule", schedule_text(&t.schedule, arena)},
      {"seed", kva_arena_printf(arena, "%llu", (unsigned long long)t.seed)},
      {"threads", o->threads > 0 ? kva_arena_printf(arena, "%lld", (long long)o->threads) : "all"},
  };
  *out = kva_arena_memdup(arena, items, sizeof items);
  return sizeof items / sizeof *items;
}

/* What a run's configuration shares with the first run's is printed once. */
static bool is_shared(const kva_train_result *results, int run, int item) {
  if (run == 0 || item >= results[0].n_config) return false;
  return !strcmp(results[run].config[item].value, results[0].config[item].value);
}

static int add_config(const kva_train_result *results, int run, kva_arena *arena, kva_report_item *out) {
  int n = 0;
  for (int i = 0; i < results[run].n_config; i++) {
    kva_report_item item = results[run].config[i];
    if (is_shared(results, run, i)) continue;
    if (run) item.name = kva_arena_printf(arena, "%s, %s", item.name, results[run].name);
    out[n++] = item;
  }
  return n;
}

/* What this process took. */
static void print_memory(const kva_train_result *r) {
  const kva_memory_report *m = &r->memory;
  printf("%-10s bytes held: parameters %lld, moments %lld, other state %lld, temporaries %lld\n", r->name,
         (long long)m->params, (long long)m->moments, (long long)m->other_state, (long long)m->temps);
  if (r->sent) printf("%-10s bytes sent in a step: %lld\n", r->name, (long long)r->sent);
}

/* Time that the steps of other work took meanwhile is hidden. */
static void print_exchange(const kva_train_result *r) {
  double all = r->exchange.exchange, waited = r->exchange.waited;
  if (all > 0)
    printf("%-10s exchange: %.3f s, waited for %.3f s, %.0f %% hidden\n", r->name, all, waited,
           waited < all ? 100 * (1 - waited / all) : 0);
}

static void print_result(const kva_train_result *r, bool times) {
  printf("%-10s trained in %.2f s\n", r->name, r->seconds);
  if (times) print_memory(r);
  if (times) print_exchange(r);
  for (int i = 0; i < r->n_shifts; i++)
    printf("%-10s %s head %d: K current %.3f previous %.3f, V current %.3f previous %.3f\n", r->name,
           r->shifts[i].layer, r->shifts[i].head, r->shifts[i].k_current, r->shifts[i].k_previous,
           r->shifts[i].v_current, r->shifts[i].v_previous);
  for (int i = 0; times && i < r->n_times && i < 30; i++)
    printf("%-10s %9.3f s  %8lld calls  %s\n", r->name, r->times[i].seconds, (long long)r->times[i].calls,
           r->times[i].name);
}

/* What steps called: the forward pass of a stage, gradients of micro-batches, or all in one. */
static int step_program(const kva_session *s, const kva_comm *c) {
  char name[32];
  snprintf(name, sizeof name, "forward.%d", c ? kva_comm_place(c, kva_comm_rank(c)).pipeline : 0);
  if (kva_session_program(s, name) >= 0) return kva_session_program(s, name);
  int parts = kva_session_program(s, "grad_step"), whole = kva_session_program(s, "train_step");
  return whole < 0 || kva_session_timeline(s, parts, 0, NULL) ? parts : whole;
}

kva_status kva_train_collect(kva_session *s, const kva_train_settings *o, const kva_train_defaults *d, bool together,
                             kva_arena *arena, kva_train_result *result) {
  int program = step_program(s, o->comm);
  result->program = program;
  if (program >= 0) {
    kva_session_memory(s, program, &result->memory);
    count_items(o, d, kva_session_program_desc(s, program), result);
    collect_moments(s, program, arena, result);
    collect_times(s, program, arena, result);
  }
  kva_status status = collect_shifts(s, together ? o->comm : NULL, arena, result);
  if (status == KVA_OK && together && kva_comm_stages(o->comm))
    status = share_shifts(kva_comm_stages(o->comm), arena, result);
  result->n_config = kva_train_config(o, d, arena, &result->config);
  if (!o->json && result->seconds > 0) print_result(result, o->profile);
  return status;
}

kva_status kva_train_write_report(const char *path, int n, const kva_train_result *results, int n_config,
                                  const kva_report_item *config, kva_arena *arena, kva_diag *diag) {
  kva_report_run *runs = KVA_NEW_ARRAY(arena, kva_report_run, n);
  kva_report_item *items = KVA_NEW_ARRAY(arena, kva_report_item, n_config + n * (results[0].n_config + 1));
  memcpy(items, config, (size_t)n_config * sizeof *items);
  for (int i = 0; i < n; i++) n_config += add_config(results, i, arena, items + n_config);
  for (int i = 0; i < n; i++) {
    const kva_train_result *result = &results[i];
    runs[i] =
        (kva_report_run){result->name, result->history, result->n_shifts, result->shifts, result->items, result->unit};
    items[n_config + i] = (kva_report_item){kva_arena_printf(arena, "training time, %s", results[i].name),
                                            kva_arena_printf(arena, "%.2f s", results[i].seconds)};
  }
  kva_report r = {.title = "Kvasir training report",
                  .n_runs = n,
                  .runs = runs,
                  .n_config = n_config + n,
                  .config = items,
                  .n_times = results[0].n_times,
                  .times = results[0].times,
                  .memory = &results[0].memory,
                  .n_moments = results[0].n_moments,
                  .moments = results[0].moments};
  return kva_report_write(path, &r, diag);
}
