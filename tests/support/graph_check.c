/* Implements graph_check.h. How far a result may be off follows from the graph: the reference runs again with every
 * value off by what its operator may be off, a few times. Results may differ by a few times of what that does to them;
 * values that every evaluator computes to the bit not at all. */
#include "tests/support/graph_check.h"
#include "tools/verify/cases.h"
#include "ops/attention.h"
#include "ops/ids.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <time.h>
#include <cmocka.h>

enum { NOISY = 6 };
static const double MARGIN = 4, CPU_LIMIT = 20;

/* ---- how far results may be off ---------------------------------------------------------------------------------- */

typedef struct noise {
  random_exact exact;
  uint64_t drawn;
  bool *infinite; /* by value: an element is not finite */
  bool vanishing; /* what may be zero is zero: zero times infinity is NaN, on either side of it not */
} noise;

static double largest(const kva_ref_tensor *w) {
  double m = 1;
  for (int64_t i = 0; w->f && i < w->n; i++)
    if (isfinite(w->f[i]) && fabs(w->f[i]) > m) m = fabs(w->f[i]);
  return m;
}

/* Kernels may multiply zeros that the reference leaves out, or leave out zeros that it multiplies: of keys that a mask
 * hides, of taps that reach no element. Where the other factor is infinite, the product is NaN (docs/design.md). */
static bool meets_infinite_zeros(const noise *n, const kva_value *v) {
  static const struct {
    kva_op_id op;
    uint32_t factors; /* a bit for each operand */
  } rows[] = {{KVA_OP_attention, 1 << KVA_ATTENTION_V},
              {KVA_OP_attention_grad_q, 1 << KVA_ATTENTION_K | 1 << KVA_ATTENTION_V | 1 << KVA_ATTENTION_DY},
              {KVA_OP_attention_grad_kv, 1 << KVA_ATTENTION_Q | 1 << KVA_ATTENTION_V | 1 << KVA_ATTENTION_DY},
              {KVA_OP_attention_grad,
               1 << KVA_ATTENTION_Q | 1 << KVA_ATTENTION_K | 1 << KVA_ATTENTION_V | 1 << KVA_ATTENTION_DY},
              {KVA_OP_conv_input_grad, 1 << 1}};
  for (size_t i = 0; v->def && i < sizeof rows / sizeof *rows; i++) {
    if (!kva_is(v->def, rows[i].op)) continue;
    for (uint32_t k = 0; k < v->def->n_operands; k++)
      if (rows[i].factors >> k & 1 && n->infinite[v->def->operands[k].value->id]) return true;
  }
  return false;
}

static bool is_finite(const kva_ref_tensor *w) {
  bool finite = true;
  for (int64_t i = 0; i < w->n; i++) finite = finite && isfinite(w->f[i]);
  return finite;
}

static void add_noise(void *user, const kva_value *v, const kva_ref_tensor *w) {
  noise *n = user;
  if (!w->f) return;
  n->infinite[v->id] = !is_finite(w);
  if (random_is_exact(&n->exact, v)) return;
  bool lost = meets_infinite_zeros(n, v);
  for (int64_t i = 0; lost && i < w->n; i++) w->f[i] = NAN;
  double units = v->def ? fmax(1, v->def->op->tolerance) : 1;
  double size = kva_case_tolerance(units, w->dtype) * largest(w);
  for (int64_t i = 0; i < w->n; i++) {
    double off = size * (2 * kva_case_uniform(n->drawn++, 1) - 1);
    w->f[i] = n->vanishing && fabs(w->f[i]) <= size ? 0 : w->f[i] + off;
  }
}

/* How far element i may be off; infinite: anything may come out. */
static double spread(const kva_ref_tensor *w, kva_ref_tensor *const *noisy, int64_t i) {
  double s = 0;
  for (int k = 0; k < NOISY; k++) {
    if (!w->f && noisy[k]->i[i] != w->i[i]) return INFINITY;
    if (!w->f) continue;
    if (!isfinite(w->f[i]) || !isfinite(noisy[k]->f[i])) {
      bool same = (isnan(w->f[i]) && isnan(noisy[k]->f[i])) || w->f[i] == noisy[k]->f[i];
      if (!same) return INFINITY;
      continue;
    }
    s = fmax(s, fabs(noisy[k]->f[i] - w->f[i]));
  }
  return s;
}

static bool is_near(const kva_ref_tensor *a, const kva_ref_tensor *b, int64_t i, double bound) {
  if (!a->f) return a->i[i] == b->i[i] || isinf(bound);
  if (isnan(a->f[i]) && isnan(b->f[i])) return true;
  return a->f[i] == b->f[i] || fabs(a->f[i] - b->f[i]) <= bound || isinf(bound);
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

typedef struct comparison {
  kva_module *m;
  kva_function *f;
  const eval_size *sizes;
  evaluated expected, noisy[NOISY];
  bool has_noisy;
  random_exact exact;
} comparison;

static void evaluate_noisy(comparison *c) {
  if (c->has_noisy) return;
  c->has_noisy = true;
  noise n = {.exact = c->exact, .infinite = calloc(c->m->next_value_id, sizeof(bool))};
  for (int k = 0; k < NOISY; k++) {
    n.vanishing = k == 0;
    c->noisy[k] = evaluate_reference_traced(c->m, c->f, c->sizes, add_noise, &n);
  }
  c->exact = n.exact;
  free(n.infinite);
}

static bool same_shape(const kva_ref_tensor *a, const kva_ref_tensor *b) {
  return a->dtype == b->dtype && a->rank == b->rank && !memcmp(a->dims, b->dims, a->rank * sizeof *a->dims);
}

/* Result k of the outputs or, behind them, of the states. */
static kva_ref_tensor *result(const evaluated *e, uint32_t k) {
  return k < e->n_outputs ? e->outputs[k] : e->states[k - e->n_outputs];
}

/* The first element that is off; -1: none. */
static int64_t first_wrong(comparison *c, uint32_t k, const kva_ref_tensor *found) {
  const kva_ref_tensor *a = result(&c->expected, k), *noisy[NOISY];
  if (!same_shape(a, found)) return 0;
  bool exact = k < c->expected.n_outputs && random_is_exact(&c->exact, kva_graph_output(c->f->graph, k));
  double least = exact || !a->f ? 0 : MARGIN * kva_case_tolerance(16, a->dtype) * largest(a);
  for (int64_t i = 0; i < a->n; i++) {
    if (is_near(a, found, i, least)) continue;
    if (exact) return i;
    evaluate_noisy(c);
    for (int j = 0; j < NOISY; j++) noisy[j] = result(&c->noisy[j], k);
    if (!is_near(a, found, i, least + MARGIN * spread(a, (kva_ref_tensor *const *)noisy, i))) return i;
  }
  return -1;
}

void graph_print(const graph_setting *s, const eval_size *sizes, kva_module *m) {
  kva_text text = {0};
  kva_module_print(m, &text);
  fprintf(stderr, "# target %s, level %d; B = %lld, T = %lld, N = %lld\n%s\n",
          s->target.arch  ? s->target.arch
          : s->target.cpu ? s->target.cpu
                          : "native",
          s->target.opt_level, (long long)sizes[0].size, (long long)sizes[1].size, (long long)sizes[2].size, text.data);
  kva_text_free(&text);
}

static bool all_equal(const graph_setting *s, comparison *c, const evaluated *found) {
  if (found->n_outputs != c->expected.n_outputs) return false;
  for (uint32_t k = 0; k < c->expected.n_outputs + found->n_states && k < c->expected.n_outputs + c->expected.n_states;
       k++) {
    const kva_ref_tensor *a = result(&c->expected, k), *b = result(found, k);
    if (!a || !b) continue; /* a pass may drop a write that changes nothing, and with it the last trace of the state */
    int64_t i = first_wrong(c, k, b);
    if (i < 0) continue;
    graph_print(s, c->sizes, c->m);
    fprintf(stderr, "%s %u: ", k < c->expected.n_outputs ? "output" : "state, behind the outputs,", k);
    if (same_shape(a, b))
      fprintf(stderr, "element %lld of %lld: expected %.17g, found %.17g\n", (long long)i, (long long)a->n,
              kva_ref_tensor_get(a, i), kva_ref_tensor_get(b, i));
    fprintf(stderr, "finding: compiled code and reference differ\n");
    return false;
  }
  return true;
}

graph_verdict graph_run(const graph_setting *s, const eval_size *sizes, kva_module *m, const kva_compiled *code,
                        const eval_size *code_sizes) {
  comparison c = {.m = m, .f = m->functions.data[0], .sizes = sizes, .exact = {.arena = m->arena}};
  evaluated found;
  if (evaluate_compiled_or_refuse(code, code->module->functions.data[0], code_sizes, &found)) {
    graph_print(s, sizes, m);
    return GRAPH_REFUSED;
  }
  c.expected = evaluate_reference(m, c.f, sizes);
  bool same = all_equal(s, &c, &found);
  for (int k = 0; k < NOISY && c.has_noisy; k++) evaluated_free(&c.noisy[k]);
  evaluated_free(&c.expected);
  evaluated_free(&found);
  return same ? GRAPH_RIGHT : GRAPH_WRONG;
}

static double cpu_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

kva_status graph_compile(const graph_setting *s, kva_module *m, kva_compiled **out) {
  kva_diag *diag = m->diag;
  kva_target_options target = s->target;
  kva_pass_control control = {.verify_each = true};
  double start = cpu_seconds();
  target.control = &control;
  const kva_compile_options options = {.target = target, .passes = {.control = &control}};
  kva_status status = kva_compile(kva_module_clone(m), &options, diag, out);
  bool late = !status && cpu_seconds() - start > CPU_LIMIT;
  if (!status && !late) return KVA_OK;
  graph_print(s, s->sizes[0], m);
  if (late) fprintf(stderr, "finding: compiling takes too long\n");
  if (late) kva_compiled_destroy(*out);
  if (!late) kva_diag_print(diag, stderr);
  return status ? status : KVA_UNSUPPORTED;
}

graph_verdict graph_check(const graph_setting *s, kva_module *m) {
  kva_compiled *code = NULL;
  if (graph_compile(s, m, &code)) return GRAPH_REFUSED;
  graph_verdict verdict = graph_run(s, s->sizes[0], m, code, s->sizes[0]);
  if (verdict == GRAPH_RIGHT && memcmp(s->sizes[0], s->sizes[1], sizeof s->sizes[0]))
    verdict = graph_run(s, s->sizes[1], m, code, s->sizes[1]);
  kva_compiled_destroy(code);
  return verdict;
}
