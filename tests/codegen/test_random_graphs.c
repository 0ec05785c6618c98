/* Random graphs of every operator and type, extents 0 and 1 among them: compiled code against the reference, each in a
 * process of its own, counted. A third kind is written as an ONNX file of fixed extents and read with every extent
 * above 1 as a symbol.
 *
 *   KVA_TEST_STATIC=5000 KVA_TEST_SYMBOLIC=2000 KVA_TEST_ONNX=2000   how many of each kind
 *   KVA_TEST_FIRST=1      the first seed
 *   KVA_TEST_PRINT=1      what is wrong or refused, with the graph as text
 *   KVA_TEST_FILES=DIR    keep the files of the third kind, which random_graphs_peer.py runs in ONNX Runtime as well
 *
 * None may be wrong, and at most 5 % of the third kind refused. */
#include "tests/support/graph_check.h"
#include "tests/support/target.h"
#include "tools/driver/isolate.h"
#include "ops/ids.h"

#include <setjmp.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

typedef enum graph_kind { FIXED, SYMBOLIC, ONNX, KINDS } graph_kind;
static const char *const kind_names[KINDS] = {"static", "symbolic", "symbolic through ONNX"};

enum { MAX_SIZES = 256, SECONDS = 120, OTHER_KIND = 10, NOT_WRITTEN = 11 };

/* What is in a graph. */
typedef struct contents {
  bool symbols, empty, single; /* an extent is a symbol, 0, 1 */
  uint8_t ops[KVA_OP_COUNT], dtypes[KVA_DTYPE_COUNT];
} contents;

typedef struct tally {
  graph_kind kind;
  uint32_t wanted, right, wrong, refused, not_written, empty, single;
  contents all;
} tally;

/* ---- one graph --------------------------------------------------------------------------------------------------- */

static graph_setting setting_of(uint64_t seed) {
  static const kva_dtype dtypes[] = {KVA_F64, KVA_F32, KVA_F32, KVA_F64, KVA_F16, KVA_BF16, KVA_F32, KVA_F64};
  static const int64_t extents[] = {3, 7, 1, 2, 5, 0, 4, 1};
  static const char *const symbols[] = {"B", "T", "N"};
  kva_philox a = kva_philox4x32(0, 1, seed), b = kva_philox4x32(1, 1, seed);
  graph_setting s = {.graph = {.seed = seed, .dtype = dtypes[a.v[0] % 8], .nodes = 4 + a.v[1] % 37}};
  for (int i = 0; i < 3; i++) {
    s.sizes[0][i] = (eval_size){symbols[i], extents[b.v[i] % 8]};
    s.sizes[1][i] = (eval_size){symbols[i], extents[b.v[i] % 8] + b.v[i] / 8 % 3};
  }
  s.graph.wide = a.v[2] % 4 != 0;
  s.graph.states = a.v[2] / 4 % 4 == 0;
  s.graph.control = a.v[2] / 16 % 4 == 0 && (s.graph.dtype == KVA_F32 || s.graph.dtype == KVA_F64);
  s.target = test_target(2, NULL);
  return s;
}

static void note_type(contents *c, const kva_type *t) {
  if (t->kind != KVA_TYPE_TENSOR) return;
  c->dtypes[t->dtype] = 1;
  for (uint32_t i = 0; i < t->rank; i++) {
    c->symbols |= !kva_expr_is_const(t->dims[i], NULL);
    c->empty |= kva_expr_is(t->dims[i], 0);
    c->single |= kva_expr_is(t->dims[i], 1);
  }
}

static void note_graph(contents *c, const kva_graph *g) {
  for (uint32_t i = 0; i < g->inputs.len; i++) note_type(c, g->inputs.data[i]->type);
  for (const kva_node *n = g->first; n; n = n->next) {
    c->ops[n->op->id] = 1;
    for (uint32_t i = 0; i < n->n_results; i++) note_type(c, n->results[i].type);
  }
}

static void note_sizes(contents *c, const graph_setting *s) {
  for (int i = 0; i < 2 && c->symbols; i++)
    for (int k = 0; k < 3; k++) {
      c->empty |= s->sizes[i][k].size == 0;
      c->single |= s->sizes[i][k].size == 1;
    }
}

/* ---- through ONNX ------------------------------------------------------------------------------------------------ */

/* Symbols of m's inputs are what the inputs of the fixed module have there. */
static void sizes_of_inputs(const kva_module *fixed, const kva_module *m, eval_size out[MAX_SIZES]) {
  const kva_graph *a = fixed->functions.data[0]->graph, *b = m->functions.data[0]->graph;
  uint32_t n = 0;
  assert_int_equal(a->inputs.len, b->inputs.len);
  for (uint32_t i = 0; i < a->inputs.len; i++)
    for (uint32_t k = 0; k < a->inputs.data[i]->type->rank && n + 1 < MAX_SIZES; k++) {
      kva_dim d = b->inputs.data[i]->type->dims[k];
      if (d->kind != KVA_EXPR_SYMBOL) continue;
      out[n].name = d->name;
      (void)kva_expr_is_const(a->inputs.data[i]->type->dims[k], &out[n++].size);
    }
  out[n].name = NULL;
}

static void put_away(const char *path, uint64_t seed) {
  const char *folder = getenv("KVA_TEST_FILES");
  char kept[4096];
  if (!folder) return (void)unlink(path);
  snprintf(kept, sizeof kept, "%s/%llu.onnx", folder, (unsigned long long)seed);
  assert_int_equal(rename(path, kept), 0);
}

static int check_through_onnx(const graph_setting *s, kva_module *m) {
  char path[] = "/tmp/kvasir-graph-XXXXXX";
  kva_diag *diag = kva_diag_create();
  kva_module *read = NULL;
  kva_compiled *code = NULL;
  eval_size sizes[MAX_SIZES];
  int fd = mkstemp(path);
  if (fd < 0) return GRAPH_WRONG;
  close(fd);
  kva_status written = kva_export_onnx(m, path, NULL, NULL, diag);
  kva_status status = written ? written : kva_load_model(path, &(kva_load_options){.free_extents = true}, diag, &read);
  if (written) return unlink(path), kva_diag_destroy(diag), NOT_WRITTEN;
  put_away(path, s->graph.seed);
  if (!status) {
    sizes_of_inputs(m, read, sizes);
    status = graph_compile(s, read, &code);
  }
  if (status) kva_diag_print(diag, stderr);
  if (status) graph_print(s, s->sizes[0], m);
  int verdict = status ? GRAPH_REFUSED : graph_run(s, s->sizes[0], m, code, sizes);
  kva_module_destroy(read);
  kva_compiled_destroy(code);
  kva_diag_destroy(diag);
  return verdict;
}

/* ---- counting ---------------------------------------------------------------------------------------------------- */

typedef struct job {
  uint64_t seed;
  graph_kind kind;
  contents found;
} job;

static int work_on_graph(void *user, kva_text *text) {
  job *j = user;
  graph_setting s = setting_of(j->seed);
  (void)text;
  s.graph.sizes = s.sizes[0];
  if (j->kind == ONNX) s.graph.states = s.graph.control = false;
  if (!getenv("KVA_TEST_PRINT") && !freopen("/dev/null", "w", stderr)) return GRAPH_WRONG;
  kva_diag *diag = kva_diag_create();
  kva_module *m = random_graph(&s.graph, diag);
  note_graph(&j->found, m->functions.data[0]->graph);
  note_sizes(&j->found, &s);
  if (j->found.symbols != (j->kind == SYMBOLIC)) return OTHER_KIND;
  int verdict = j->kind == ONNX ? check_through_onnx(&s, m) : (int)graph_check(&s, m);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
  return verdict;
}

static void count(tally *t, uint64_t seed, int verdict, const contents *c, const char *why) {
  if (verdict == NOT_WRITTEN) t->not_written++;
  if (verdict == OTHER_KIND || verdict == NOT_WRITTEN) return;
  t->right += verdict == GRAPH_RIGHT;
  t->refused += verdict == GRAPH_REFUSED;
  t->wrong += verdict != GRAPH_RIGHT && verdict != GRAPH_REFUSED;
  t->empty += c->empty, t->single += c->single;
  for (uint32_t i = 0; i < KVA_OP_COUNT; i++) t->all.ops[i] |= c->ops[i];
  for (uint32_t i = 0; i < KVA_DTYPE_COUNT; i++) t->all.dtypes[i] |= c->dtypes[i];
  if (verdict == GRAPH_RIGHT) return;
  printf("seed %llu, %s: %s%s%s\n", (unsigned long long)seed, kind_names[t->kind],
         verdict == GRAPH_REFUSED ? "refused" : "wrong", *why ? ": " : "", why);
}

static uint32_t done(const tally *t) {
  return t->right + t->wrong + t->refused;
}

static void run_kind(tally *t, uint64_t first) {
  for (uint64_t seed = first; done(t) < t->wanted; seed++) {
    char why[512];
    job j = {.seed = seed, .kind = t->kind};
    const kva_isolated isolated = {work_on_graph, &j, &j.found, sizeof j.found, SECONDS};
    int verdict = kva_isolate(&isolated, why, sizeof why);
    count(t, seed, verdict, &j.found, why);
  }
}

static uint32_t set_bits(const uint8_t *v, uint32_t n) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < n; i++) count += v[i];
  return count;
}

static void print_tally(const tally *t) {
  printf(
      "%u %s graphs: %u right, %u wrong, %u refused; %u operator types, %u element types; an extent is 0 in %u, 1 in "
      "%u\n",
      done(t), kind_names[t->kind], t->right, t->wrong, t->refused, set_bits(t->all.ops, KVA_OP_COUNT),
      set_bits(t->all.dtypes, KVA_DTYPE_COUNT), t->empty, t->single);
  if (t->not_written) printf("%u more have operators or types that ONNX files have not\n", t->not_written);
}

static uint32_t env(const char *name, uint32_t value) {
  const char *s = getenv(name);
  return s ? (uint32_t)strtoul(s, NULL, 10) : value;
}

static void check_kind(graph_kind kind, const char *name, uint32_t few) {
  tally t = {.kind = kind, .wanted = env(name, sanitized() ? few / 10 : few)};
  run_kind(&t, env("KVA_TEST_FIRST", 1));
  print_tally(&t);
  assert_int_equal(t.wrong, 0);
  uint32_t most = kind == ONNX ? (done(&t) + 19) / 20 : 0; /* 5 %, of few graphs one */
  assert_true(t.refused <= most);
}

static void test_static(void **state) {
  (void)state;
  check_kind(FIXED, "KVA_TEST_STATIC", 60);
}

static void test_symbolic(void **state) {
  (void)state;
  check_kind(SYMBOLIC, "KVA_TEST_SYMBOLIC", 30);
}

static void test_through_onnx(void **state) {
  (void)state;
  check_kind(ONNX, "KVA_TEST_ONNX", 60);
}

int main(void) {
  setenv("CMOCKA_TEST_ABORT", "1", 1); /* for what tests/support finds in a graph's process */
  setvbuf(stdout, NULL, _IOLBF, 0);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_static), cmocka_unit_test(test_symbolic),
                                     cmocka_unit_test(test_through_onnx)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
