/* Lists the checks, runs them on all threads and adds up the results. Checks are independent: each has its own module
 * and code generator. */
#include "tools/verify/verify.h"
#include "tools/verify/compiled.h"
#include "tools/verify/simulated.h"

typedef enum item_kind { FORWARD, GRADIENT, BACKWARD } item_kind;

typedef struct item {
  kva_case c;
  kva_dtype dtype;
  item_kind kind;
  bool ok;
  uint32_t launches;
  kva_check check;
} item;

typedef struct work {
  kva_arena *arena;
  const kva_verify_options *options;
  KVA_VEC(item) items;
  kva_dtype_set met[KVA_OP_COUNT]; /* types in which there is a case of compiled code */
  uint32_t n_others;
} work;

static void add(work *w, const kva_case *c, kva_dtype dtype, item_kind kind) {
  item i = {.c = *c, .dtype = dtype, .kind = kind};
  KVA_PUSH(w->arena, &w->items, i);
}

static void add_forward(work *w, const kva_case *c, kva_dtype dtype) {
  kva_dtype_set type = (kva_dtype_set)1 << (dtype ? dtype : c->dtype ? c->dtype : KVA_F32);
  bool first = !(w->met[c->op] & type), skipped = !first && w->options->every && w->n_others++ % w->options->every;
  w->met[c->op] |= type;
  if (!skipped) add(w, c, dtype, FORWARD);
}

static void add_gradient(work *w, const kva_case *c) {
  if (w->options->no_gradients || !kva_case_has_gradient(c)) return;
  add(w, c, KVA_F64, GRADIENT);
  add(w, c, KVA_F32, BACKWARD);
}

static void add_listed(work *w, kva_op_id op, const kva_case_table *table) {
  for (uint32_t i = 0; i < table->n; i++) {
    const kva_case *c = &table->cases[i];
    if (c->op != op) continue;
    kva_dtype_set set = kva_case_dtypes(c);
    for (int t = 0; t < KVA_DTYPE_COUNT; t++)
      if (kva_dtype_in(set, (kva_dtype)t)) add_forward(w, c, (kva_dtype)t);
    add_gradient(w, c);
  }
}

/* Operators whose row names no class select a dtype by the number, so they run all in one go. Casts go to any dtype. */
static uint32_t random_count(const work *w, kva_op_id op, kva_dtype dtype) {
  uint32_t n = w->options->n_random, least = kva_case_random_least(op);
  if (!n || dtype == KVA_DTYPE_NONE) return n ? 12 : 0;
  return n < least ? least : n;
}

static void add_random(work *w, kva_op_id op) {
  kva_dtype_set set = kva_case_op_dtypes(op);
  if (!set) set = 1u << KVA_DTYPE_NONE;
  for (int t = 0; t < KVA_DTYPE_COUNT; t++) {
    uint32_t n = kva_dtype_in(set, (kva_dtype)t) ? random_count(w, op, (kva_dtype)t) : 0;
    for (uint32_t i = 0; i < n; i++) {
      kva_case c;
      if (!kva_case_random(w->arena, op, (kva_dtype)t, i, &c)) break;
      add_forward(w, &c, KVA_DTYPE_NONE);
      if (t == KVA_F64) add_gradient(w, &c);
    }
  }
}

/* Neighbouring items have similar cost, and the pool's pieces are contiguous: piece p of P takes items p, p + P, ... */
typedef struct job {
  work *w;
  int64_t pieces;
} job;

static bool execute(item *i, kva_executor run, void *user) {
  if (i->kind == BACKWARD) return kva_case_check_backward(&i->c, run, user, &i->check);
  return kva_case_check(&i->c, i->dtype, run, user, &i->check);
}

static void check(const kva_verify_options *o, item *i) {
  if (i->kind == GRADIENT) {
    i->ok = kva_case_check_gradient(&i->c, &i->check);
  } else if (o->arch) {
    kva_ptx_run ptx = {.arch = o->arch};
    i->ok = execute(i, kva_run_ptx, &ptx);
    i->launches = ptx.launches;
  } else {
    i->ok = execute(i, o->run ? o->run : kva_run_compiled, o->run_user);
  }
}

static void run_piece(void *ctx, int64_t begin, int64_t end) {
  job *j = ctx;
  for (int64_t piece = begin; piece < end; piece++)
    for (int64_t k = piece; k < j->w->items.len; k += j->pieces) check(j->w->options, &j->w->items.data[k]);
}

static void run(work *w) {
  kva_pool *pool = w->options->threads == 1 ? NULL : kva_pool_create(w->options->threads);
  job j = {w, w->items.len / 16 + 1};
  kva_pool_run(pool, j.pieces, run_piece, &j);
  if (pool) kva_pool_destroy(pool);
}

/* ---- adding up --------------------------------------------------------------------------------------------------- */

static kva_dtype dtype_of(const item *i) {
  if (!kva_case_op_dtypes(i->c.op)) return i->check.dtype;
  return i->dtype ? i->dtype : i->c.dtype ? i->c.dtype : KVA_F32;
}

/* A simulated GPU is alone: what exchanges values between processes is checked on the CPU. */
static bool needs_processes(const item *i) {
  return i->check.unsupported && i->check.exchanges;
}

static void tally(const item *i, uint32_t *all, uint32_t *passed, double *error) {
  ++*all;
  *passed += i->ok;
  if (i->check.error > *error) *error = i->check.error;
}

static void count(kva_verify_row *row, const item *i) {
  switch (i->kind) {
  case GRADIENT: tally(i, &row->gradients, &row->gradients_passed, &row->gradient_error); break;
  case BACKWARD: tally(i, &row->backward, &row->backward_passed, &row->backward_error); break;
  default: tally(i, &row->compiled, &row->compiled_passed, &row->error); row->dtypes |= (kva_dtype_set)1 << dtype_of(i);
  }
}

static void add_up(work *w, kva_op_id op, const item *items, uint32_t n, kva_verify_report *report) {
  kva_verify_row *row = &report->rows[report->n++];
  *row = (kva_verify_row){.op = kva_ops.ops[op]};
  for (uint32_t i = 0; i < n; i++) {
    if (needs_processes(&items[i])) {
      kva_case_describe(&items[i].c, items[i].dtype, &report->messages);
      kva_text_add(&report->messages,
                   ": skipped: its gradient exchanges values between processes, and ptxsim has one\n");
      report->skipped++;
      continue;
    }
    count(row, &items[i]);
    report->unsupported += items[i].check.unsupported;
    report->launches += items[i].launches;
    if (items[i].check.message.len)
      kva_text_add_bytes(&report->messages, items[i].check.message.data, items[i].check.message.len);
  }
  bool unchecked_rule = row->op->vjp_kind == KVA_VJP_RULE && !row->gradients && !w->options->no_gradients;
  row->missing = kva_case_op_dtypes(op) & ~row->dtypes;
  uint32_t passed = row->compiled_passed + row->gradients_passed + row->backward_passed;
  report->passed += passed;
  report->failed += row->compiled + row->gradients + row->backward - passed;
  if (!kva_op_has_code(row->op))
    report->skipped++;
  else
    report->skipped += (uint32_t)__builtin_popcount(row->missing) + unchecked_rule + !row->compiled;
}

static bool selected(const kva_verify_options *options, kva_op_id op) {
  return !options->op || !strcmp(options->op, kva_ops.ops[op]->name);
}

/* Lists all checks; those of an operator begin at first[op]. */
static kva_status list(work *w, kva_diag *diag, uint32_t first[KVA_OP_COUNT + 1]) {
  const kva_verify_options *o = w->options;
  if (o->op && !kva_op_set_find(&kva_ops, o->op, strlen(o->op)))
    return kva_error(diag, NULL, "no operator is called '%s'; kvasir ops lists them", o->op);
  for (uint32_t op = 0; op < KVA_OP_COUNT; op++) {
    first[op] = w->items.len;
    if (!selected(o, (kva_op_id)op)) continue;
    add_listed(w, (kva_op_id)op, &kva_cases_core);
    add_listed(w, (kva_op_id)op, &kva_cases_nn);
    add_random(w, (kva_op_id)op);
  }
  first[KVA_OP_COUNT] = w->items.len;
  return KVA_OK;
}

static void add_all(work *w, const uint32_t *first, kva_verify_report *report) {
  for (uint32_t op = 0; op < KVA_OP_COUNT; op++)
    if (selected(w->options, (kva_op_id)op))
      add_up(w, (kva_op_id)op, w->items.data + first[op], first[op + 1] - first[op], report);
  for (uint32_t i = 0; i < w->items.len; i++) kva_text_free(&w->items.data[i].check.message);
}

kva_status kva_verify(const kva_verify_options *options, kva_diag *diag, kva_verify_report *out_report) {
  *out_report = (kva_verify_report){0};
  work w = {.arena = kva_arena_create(), .options = options};
  uint32_t first[KVA_OP_COUNT + 1];
  kva_status status = list(&w, diag, first);
  if (status == KVA_OK) {
    run(&w);
    add_all(&w, first, out_report);
  }
  kva_arena_destroy(w.arena);
  return status;
}

kva_status kva_verify_cases(const kva_verify_options *options, kva_diag *diag, kva_verify_visitor visit, void *user) {
  work w = {.arena = kva_arena_create(), .options = options};
  uint32_t first[KVA_OP_COUNT + 1];
  kva_status status = list(&w, diag, first);
  for (uint32_t i = 0; status == KVA_OK && i < w.items.len; i++)
    if (w.items.data[i].kind == FORWARD) visit(user, &w.items.data[i].c, w.items.data[i].dtype);
  kva_arena_destroy(w.arena);
  return status;
}

void kva_verify_free(kva_verify_report *report) {
  kva_text_free(&report->messages);
}
