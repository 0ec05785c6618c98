/* The graph: building, rewriting, verifying, printing, cloning and hashing, over a private table of operators. */
#include "ir/op_info.h"

#include <setjmp.h>
#include <cmocka.h>

/* ---- operators of this test -------------------------------------------------------------------------------------- */

typedef struct all_attrs {
  int64_t axis;
  double scale;
  bool flag;
  const char *mode;
  kva_ints perm;
  kva_dim extent;
  kva_dims shape;
  kva_dtype to;
  const kva_tensor_data *value;
} all_attrs;
#define FIELD(kind, name, value) \
  { #name, KVA_ATTR_##kind, offsetof(all_attrs, name), value }
static const kva_attr_field all_fields[] = {
    FIELD(INT, axis, -1),  FIELD(FLOAT, scale, 0.5),  FIELD(BOOL, flag, 1),
    FIELD(STR, mode, 0),   FIELD(INTS, perm, 0),      FIELD(DIM, extent, 0),
    FIELD(DIMS, shape, 0), FIELD(DTYPE, to, KVA_F32), FIELD(TENSOR, value, 0),
};
static const kva_attr_desc all_desc = {sizeof(all_attrs), sizeof all_fields / sizeof *all_fields, all_fields};

typedef struct state_attrs {
  kva_state *state;
} state_attrs;
static const kva_attr_field state_fields[] = {{"state", KVA_ATTR_STATE, 0, 0}};
static const kva_attr_desc state_desc = {sizeof(state_attrs), 1, state_fields};

static kva_status infer_nothing(kva_module *m, const kva_node *n, const kva_type **out_types) {
  (void)m, (void)n, (void)out_types;
  return KVA_OK;
}

static kva_status infer_same(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_type *t = kva_operand(n, 0)->type;
  for (uint32_t i = 1; i < n->n_operands; i++) {
    if (kva_operand(n, i) && kva_operand(n, i)->type != t) return kva_error(m->diag, &n->loc, "operand types differ");
  }
  for (uint32_t i = 0; i < n->n_results; i++) out_types[i] = t;
  return KVA_OK;
}

static kva_status infer_state(kva_module *m, const kva_node *n, const kva_type **out_types) {
  (void)m;
  out_types[0] = ((const state_attrs *)n->attrs)->state->type;
  return KVA_OK;
}

static kva_status infer_reshape(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_dims *shape = &((const all_attrs *)n->attrs)->shape;
  out_types[0] = kva_type_tensor(m, kva_operand(n, 0)->type->dtype, shape->n, shape->v);
  return KVA_OK;
}

static kva_status infer_graph(kva_module *m, const kva_node *n, const kva_type **out_types) {
  (void)m;
  for (uint32_t i = 0; i < n->n_results; i++) out_types[i] = kva_graph_output(n->graphs[0], i)->type;
  return KVA_OK;
}

#define ROW(op, least, most, results, bits, description, inference) \
  static const kva_op_info op_##op = {.name = #op,                  \
                                      .min_operands = least,        \
                                      .max_operands = most,         \
                                      .n_results = results,         \
                                      .traits = bits,               \
                                      .attrs = description,         \
                                      .infer = inference}
ROW(return, 0, -1, 0, KVA_RETURN, NULL, infer_nothing);
ROW(add, 2, 2, 1, KVA_ELEMENTWISE, NULL, infer_same);
ROW(pick, 1, 3, 1, 0, NULL, infer_same);
ROW(split, 1, 1, -1, 0, NULL, infer_same);
ROW(reshape, 1, 1, 1, KVA_VIEW, &all_desc, infer_reshape);
ROW(state_read, 0, 0, 1, KVA_READS_STATE, &state_desc, infer_state);
ROW(state_write, 1, 1, 0, KVA_WRITES_STATE, &state_desc, infer_nothing);
ROW(kernel, 0, -1, -1, 0, NULL, infer_graph);

/* ---- building ---------------------------------------------------------------------------------------------------- */

typedef struct fixture {
  kva_diag *diag;
  kva_module *m;
  kva_function *f;
  kva_graph *g;
  const kva_type *matrix; /* float[B, T] */
  kva_value *x, *y;
} fixture;

static const kva_type *tensor(kva_module *m, const char *a, const char *b) {
  kva_dim dims[] = {kva_expr_symbol(m->exprs, a), kva_expr_symbol(m->exprs, b)};
  return kva_type_tensor(m, KVA_F32, 2, dims);
}

static fixture make(void) {
  fixture f = {.diag = kva_diag_create()};
  f.m = kva_module_create(f.diag);
  f.f = kva_function_create(f.m, "main");
  f.g = f.f->graph;
  f.matrix = tensor(f.m, "B", "T");
  f.x = kva_graph_add_input(f.g, f.matrix, "x");
  f.y = kva_graph_add_input(f.g, f.matrix, "y");
  return f;
}

static void unmake(fixture *f) {
  kva_module_destroy(f->m);
  kva_diag_destroy(f->diag);
}

static kva_node *node(kva_graph *g, const kva_op_info *op, kva_value *a, kva_value *b, uint32_t n, void *attrs) {
  kva_value *operands[] = {a, b};
  kva_node *made = kva_node_create(g, NULL, op, a ? b ? 2 : 1 : 0, operands, n, attrs, (kva_loc){0});
  const kva_type *types[8];
  if (op->infer(g->module, made, types) != KVA_OK) return made;
  for (uint32_t i = 0; i < n; i++) made->results[i].type = types[i];
  return made;
}

static kva_value *named(kva_node *n, uint32_t i, const char *name) {
  n->results[i].name = name;
  return &n->results[i];
}

static void assert_valid(kva_module *m) {
  if (kva_module_verify(m) == KVA_OK) return;
  kva_diag_print(m->diag, stderr);
  fail_msg("the verifier refused the module");
}

static void assert_refused(kva_module *m, const char *message) {
  assert_int_equal(kva_module_verify(m), KVA_INVALID);
  for (size_t i = 0; i < kva_diag_count(m->diag); i++) {
    if (strstr(kva_diag_message(m->diag, i, NULL, NULL), message)) return;
  }
  kva_diag_print(m->diag, stderr);
  fail_msg("no message has '%s'", message);
}

static void assert_text(kva_module *m, const char *want) {
  kva_text text = {0};
  kva_module_print(m, &text);
  assert_string_equal(text.data, want);
  kva_text_free(&text);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void types_are_interned(void **state) {
  (void)state;
  fixture f = make();
  assert_ptr_equal(tensor(f.m, "B", "T"), f.matrix);
  assert_ptr_not_equal(tensor(f.m, "T", "B"), f.matrix);
  assert_ptr_equal(kva_type_with_dtype(f.m, f.matrix, KVA_F32), f.matrix);
  assert_int_equal(kva_type_with_dtype(f.m, f.matrix, KVA_I8)->dtype, KVA_I8);
  assert_false(kva_type_is_static(f.matrix));
  assert_true(kva_type_is_static(kva_type_scalar(f.m, KVA_F64)));
  assert_ptr_equal(kva_type_elements(f.m, f.matrix),
                   kva_expr_mul(f.m->exprs, kva_expr_symbol(f.m->exprs, "T"), kva_expr_symbol(f.m->exprs, "B")));
  unmake(&f);
}

static void uses_follow_rewrites(void **state) {
  (void)state;
  fixture f = make();
  kva_node *a = node(f.g, &op_add, f.x, f.x, 1, NULL), *b = node(f.g, &op_add, &a->results[0], f.y, 1, NULL);
  node(f.g, &op_return, &b->results[0], &a->results[0], 0, NULL);
  assert_int_equal(kva_value_use_count(f.x), 2);
  assert_int_equal(kva_value_use_count(&a->results[0]), 2);
  assert_valid(f.m);
  kva_value_replace_all_uses(&a->results[0], f.y);
  assert_int_equal(kva_value_use_count(&a->results[0]), 0);
  assert_int_equal(kva_value_use_count(f.y), 3);
  kva_node_remove(a);
  assert_int_equal(kva_value_use_count(f.x), 0);
  assert_ptr_equal(f.g->first, b);
  assert_int_equal(kva_graph_output_count(f.g), 2);
  assert_ptr_equal(kva_graph_output(f.g, 1), f.y);
  kva_node_set_operand(b, 0, f.x);
  assert_int_equal(kva_value_use_count(f.x), 1);
  assert_valid(f.m);
  unmake(&f);
}

static void nodes_move(void **state) {
  (void)state;
  fixture f = make();
  kva_node *a = node(f.g, &op_add, f.x, f.x, 1, NULL), *b = node(f.g, &op_add, f.y, f.y, 1, NULL);
  kva_node *r = node(f.g, &op_return, &a->results[0], &b->results[0], 0, NULL);
  kva_node_move_before(b, a);
  assert_ptr_equal(f.g->first, b);
  assert_ptr_equal(b->next, a);
  assert_ptr_equal(a->next, r);
  assert_ptr_equal(f.g->last, r);
  kva_node_move_before(a, a);
  assert_valid(f.m);
  unmake(&f);
}

static kva_value *build_everything(fixture *f) {
  kva_module *m = f->m;
  m->name = "demo";
  kva_dim dims[] = {kva_expr_const(m->exprs, 256), kva_expr_const(m->exprs, 64)};
  kva_state *embed = kva_state_create(m, "embed", kva_type_tensor(m, KVA_F32, 2, dims), KVA_STATE_PARAM);
  embed->init = KVA_INIT_NORMAL;
  embed->init_a = 0.02;
  kva_state *moment = kva_state_create(m, "embed.m", embed->type, KVA_STATE_MOMENT);
  moment->of = embed;
  moment->decay = false;
  kva_state *total = kva_state_create(m, "total", f->matrix, KVA_STATE_BUFFER);
  total->frozen = true;
  state_attrs *of_total = KVA_NEW(m->arena, state_attrs), *also = KVA_NEW(m->arena, state_attrs);
  of_total->state = also->state = total;
  kva_node *read = node(f->g, &op_state_read, NULL, NULL, 1, of_total);
  named(read, 0, "a");
  kva_value *sum = named(node(f->g, &op_add, &read->results[0], f->x, 1, NULL), 0, "a");
  kva_node *parts = node(f->g, &op_split, sum, NULL, 2, NULL);
  named(parts, 1, "attention.0");
  kva_value *operands[] = {&parts->results[0], NULL, f->y};
  kva_node *pick = kva_node_create(f->g, NULL, &op_pick, 3, operands, 1, NULL, (kva_loc){0});
  pick->results[0].type = f->matrix;
  named(pick, 0, "picked");
  all_attrs *reshape = kva_attrs_default(m->arena, &all_desc);
  kva_dim *shape = KVA_NEW_ARRAY(m->arena, kva_dim, 2);
  shape[0] = kva_expr_muli(m->exprs, kva_expr_symbol(m->exprs, "T"), 2);
  shape[1] = kva_expr_div(m->exprs, kva_expr_symbol(m->exprs, "B"), kva_expr_const(m->exprs, 2));
  reshape->shape = (kva_dims){2, shape};
  kva_value *shaped = named(node(f->g, &op_reshape, &pick->results[0], NULL, 1, reshape), 0, "shaped");
  node(f->g, &op_state_write, &pick->results[0], NULL, 0, also);
  kva_node *kernel = kva_node_create(f->g, NULL, &op_kernel, 1, &shaped, 1, NULL, (kva_loc){0});
  kva_graph *body = kva_graph_create(m, kernel);
  kva_value *p = kva_graph_add_input(body, shaped->type, "p");
  kva_value *r = named(node(body, &op_add, p, p, 1, NULL), 0, "r");
  node(body, &op_return, r, NULL, 0, NULL);
  kernel->results[0].type = r->type;
  named(kernel, 0, "out");
  node(f->g, &op_return, &kernel->results[0], &kernel->results[0], 0, NULL);
  static const char *const outputs[] = {"logits", "again"};
  f->f->output_names = outputs;
  return &kernel->results[0];
}

static const char everything[] =
    "module \"demo\"\n"
    "state float[256, 64] \"embed\" : param ~ normal(0.02)\n"
    "state float[256, 64] \"embed.m\" : moment of \"embed\" ~ zeros nodecay\n"
    "state float[B, T] \"total\" : buffer ~ zeros frozen\n"
    "main (float[B, T] x, float[B, T] y) => (float[2*T, floordiv(B, 2)] logits, float[2*T, floordiv(B, 2)] again)\n"
    "{\n"
    "  a = kv.state_read <state = \"total\"> ()\n"
    "  a_2 = kv.add (a, x)\n"
    "  v4, \"attention.0\" = kv.split (a_2)\n"
    "  picked = kv.pick (v4, , y)\n"
    "  shaped = kv.reshape <shape = [2*T, floordiv(B, 2)]> (picked)\n"
    "  kv.state_write <state = \"total\"> (picked)\n"
    "  out = kv.kernel (shaped) { (float[2*T, floordiv(B, 2)] p) => (float[2*T, floordiv(B, 2)] r)\n"
    "    r = kv.add (p, p)\n"
    "    return (r)\n"
    "  }\n"
    "  return (out, out)\n"
    "}\n";

static void text_is_as_specified(void **state) {
  (void)state;
  fixture f = make();
  build_everything(&f);
  assert_valid(f.m);
  assert_text(f.m, everything);
  assert_text(f.m, everything); /* names once given stay */
  unmake(&f);
}

static void clones_are_equal_and_independent(void **state) {
  (void)state;
  fixture f = make();
  build_everything(&f);
  f.f->loc = (kva_loc){.file = "demo.kv", .line = 3};
  kva_train_spec *spec = f.m->train = KVA_NEW(f.m->arena, kva_train_spec);
  *spec = (kva_train_spec){.optimizer = "adamw", .schedule = "cosine", .data = "induction", .lr = 0.002, .steps = 7};
  spec->data_args = kva_map_create(f.m->arena);
  double pool = 48;
  kva_map_set_str(spec->data_args, "pool", &pool);
  kva_module *copy = kva_module_clone(f.m);
  kva_text before = {0}, after = {0};
  kva_module_print(f.m, &before);
  uint64_t hash = kva_graph_hash(f.g);
  kva_module_destroy(f.m);
  assert_valid(copy);
  assert_string_equal(copy->functions.data[0]->loc.file, "demo.kv");
  assert_int_equal(kva_graph_hash(copy->functions.data[0]->graph), hash);
  kva_module_print(copy, &after);
  assert_string_equal(after.data, before.data);
  assert_non_null(strstr(after.data, "  lr = 0.002\n"));
  assert_non_null(strstr(after.data, "  data = induction <pool = 48.0>\n"));
  /* simplification goes on in the copy as in the original */
  kva_expr_ctx *c = copy->exprs;
  const kva_expr *B = kva_expr_symbol(c, "B");
  assert_ptr_equal(kva_expr_div(c, kva_expr_mul(c, B, B), B), B);
  assert_ptr_equal(kva_expr_symbol(c, "T"), copy->functions.data[0]->graph->inputs.data[0]->type->dims[1]);
  kva_text_free(&before);
  kva_text_free(&after);
  kva_module_destroy(copy);
  kva_diag_destroy(f.diag);
}

static void attributes_compare_hash_and_print(void **state) {
  (void)state;
  fixture f = make();
  kva_arena *arena = f.m->arena;
  all_attrs *a = kva_attrs_default(arena, &all_desc), *b = kva_attrs_default(arena, &all_desc);
  assert_int_equal(a->axis, -1);
  assert_true(a->flag);
  assert_true(kva_attrs_equal(&all_desc, a, b));
  static const int64_t perm[] = {1, 0}, dims[] = {2, 2};
  static const float data[] = {1, 2.5f, -0.1f, 4};
  static const uint16_t halves[] = {0x3F80, 0x4000};
  static const kva_tensor_data floats = {KVA_F32, 2, dims, data, sizeof data, false, false};
  static const kva_tensor_data bf16 = {KVA_BF16, 1, dims, halves, sizeof halves, false, false};
  uint64_t before = kva_attrs_hash(&all_desc, b, 0);
  *b = (all_attrs){.axis = 2,
                   .scale = 1e-5,
                   .mode = "a\"b",
                   .perm = {2, perm},
                   .extent = f.matrix->dims[1],
                   .to = KVA_BF16,
                   .value = &floats,
                   .shape = {1, f.matrix->dims}};
  assert_false(kva_attrs_equal(&all_desc, a, b));
  assert_true(kva_attrs_hash(&all_desc, b, 0) != before);
  assert_true(kva_attrs_hash(&all_desc, b, 0) != kva_attrs_hash(&all_desc, b, 1));
  kva_node *n = node(f.g, &op_reshape, f.x, NULL, 1, b);
  named(n, 0, "r");
  b->shape = (kva_dims){1, f.matrix->dims};
  node(f.g, &op_return, &n->results[0], NULL, 0, NULL);
  assert_text(f.m,
              "main (float[B, T] x, float[B, T] y) => (float[B] r)\n{\n"
              "  r = kv.reshape <axis = 2, scale = 1e-05, flag = false, mode = \"a\\\"b\", perm = [1, 0], extent = T, "
              "shape = [B], to = bfloat16, value = float[2, 2] {1.0, 2.5, -0.1, 4.0}> (x)\n"
              "  return (r)\n}\n");
  b->value = &bf16;
  kva_text text = {0};
  kva_module_print(f.m, &text);
  assert_non_null(strstr(text.data, "bfloat16[2] {1.0, 2.0}"));
  kva_text_free(&text);
  assert_ptr_equal(kva_attrs_find(&all_desc, "perm", 4), &all_fields[4]);
  assert_null(kva_attrs_find(&all_desc, "per", 3));
  unmake(&f);
}

static void large_tensors_print_as_their_hash(void **state) {
  (void)state;
  fixture f = make();
  static const int64_t dims[] = {100};
  static const float data[100] = {1};
  static const kva_tensor_data large = {KVA_F32, 1, dims, data, sizeof data, false, false};
  kva_dim dim = kva_expr_const(f.m->exprs, 100);
  kva_state *s = kva_state_create(f.m, "w", kva_type_tensor(f.m, KVA_F32, 1, &dim), KVA_STATE_PARAM);
  s->init = KVA_INIT_DATA;
  s->data = &large;
  kva_text text = {0};
  kva_module_print(f.m, &text);
  unsigned long long hash;
  assert_int_equal(sscanf(text.data, "state float[100] \"w\" : param ~ data(float[100] [\"hash\": \"%llx\"])", &hash),
                   1);
  assert_ptr_equal(kva_module_find_data(f.m, hash), &large);
  assert_null(kva_module_find_data(f.m, hash + 1));
  kva_text_free(&text);
  unmake(&f);
}

/* Equal up to names of values, sizes and states; different where the structure is. */
static uint64_t hash_of(const char *a, const char *b, const char *name, bool swapped, bool twice) {
  fixture f = {.diag = kva_diag_create()};
  f.m = kva_module_create(f.diag);
  kva_expr_symbol(f.m->exprs, swapped ? "unrelated" : b);
  f.g = kva_function_create(f.m, name)->graph;
  f.x = kva_graph_add_input(f.g, tensor(f.m, a, b), name);
  f.y = kva_graph_add_input(f.g, tensor(f.m, a, b), NULL);
  kva_state *s = kva_state_create(f.m, name, f.x->type, KVA_STATE_BUFFER);
  state_attrs *of_state = KVA_NEW(f.m->arena, state_attrs);
  of_state->state = s;
  kva_node *read = node(f.g, &op_state_read, NULL, NULL, 1, of_state);
  kva_node *add = node(f.g, &op_add, swapped ? f.y : f.x, swapped ? f.x : f.y, 1, NULL);
  if (twice) add = node(f.g, &op_add, &add->results[0], &read->results[0], 1, NULL);
  node(f.g, &op_return, &add->results[0], NULL, 0, NULL);
  uint64_t hash = kva_graph_hash(f.g);
  unmake(&f);
  return hash;
}

static void hashes_see_structure_only(void **state) {
  (void)state;
  uint64_t base = hash_of("B", "T", "x", false, false);
  assert_true(hash_of("M", "N", "other", false, false) == base);
  assert_true(hash_of("B", "T", "x", true, false) != base);
  assert_true(hash_of("B", "T", "x", false, true) != base);
  assert_true(hash_of("B", "B", "x", false, false) != base);
}

static void dot_mentions_every_node(void **state) {
  (void)state;
  fixture f = make();
  build_everything(&f);
  kva_text text = {0};
  kva_module_print_dot(f.m, &text);
  assert_non_null(strstr(text.data, "digraph module {"));
  assert_non_null(strstr(text.data, "state_write\\n<state = \\\"total\\\"> \"];"));
  assert_non_null(strstr(text.data, "subgraph cluster_n"));
  kva_text_free(&text);
  unmake(&f);
}

/* ---- the verifier refuses ---------------------------------------------------------------------------------------- */

static void refuses_late_definitions(void **state) {
  (void)state;
  fixture f = make();
  kva_node *a = node(f.g, &op_add, f.x, f.y, 1, NULL), *b = node(f.g, &op_add, &a->results[0], f.y, 1, NULL);
  node(f.g, &op_return, &b->results[0], NULL, 0, NULL);
  kva_node_move_before(b, a);
  assert_refused(f.m, "not defined before this node");
  unmake(&f);
}

static void refuses_values_of_other_graphs(void **state) {
  (void)state;
  fixture f = make();
  node(f.g, &op_return, f.x, NULL, 0, NULL);
  kva_function *other = kva_function_create(f.m, "other");
  node(other->graph, &op_return, f.x, NULL, 0, NULL);
  assert_refused(f.m, "not defined before this node");
  unmake(&f);
}

static void refuses_wrong_types(void **state) {
  (void)state;
  fixture f = make();
  kva_node *a = node(f.g, &op_add, f.x, f.y, 1, NULL);
  a->results[0].type = kva_type_scalar(f.m, KVA_I64);
  node(f.g, &op_return, &a->results[0], NULL, 0, NULL);
  assert_refused(f.m, "has type int64, but its operands make it float[B, T]");
  unmake(&f);
}

static void refuses_wrong_arity_and_missing_operands(void **state) {
  (void)state;
  fixture f = make();
  kva_value *operands[] = {f.x, NULL};
  kva_node *one = kva_node_create(f.g, NULL, &op_add, 1, operands, 1, NULL, (kva_loc){0});
  kva_node *hole = kva_node_create(f.g, NULL, &op_add, 2, operands, 1, NULL, (kva_loc){0});
  one->results[0].type = hole->results[0].type = f.matrix;
  node(f.g, &op_return, f.x, NULL, 0, NULL);
  assert_refused(f.m, "expected 2 operands, found 1");
  assert_refused(f.m, "operand 1 is required but left out");
  unmake(&f);
}

static void refuses_graphs_without_return(void **state) {
  (void)state;
  fixture f = make();
  node(f.g, &op_add, f.x, f.y, 1, NULL);
  assert_refused(f.m, "needs a return");
  unmake(&f);
}

static void refuses_return_in_the_middle(void **state) {
  (void)state;
  fixture f = make();
  node(f.g, &op_return, f.x, NULL, 0, NULL);
  node(f.g, &op_return, f.x, NULL, 0, NULL);
  assert_refused(f.m, "before the end");
  unmake(&f);
}

static void refuses_duplicate_states(void **state) {
  (void)state;
  fixture f = make();
  kva_state_create(f.m, "w", f.matrix, KVA_STATE_PARAM);
  kva_state_create(f.m, "w", f.matrix, KVA_STATE_PARAM);
  node(f.g, &op_return, f.x, NULL, 0, NULL);
  assert_refused(f.m, "two states called 'w'");
  unmake(&f);
}

static void refuses_broken_use_lists(void **state) {
  (void)state;
  fixture f = make();
  kva_node *r = node(f.g, &op_return, f.x, NULL, 0, NULL);
  r->operands[0].value = f.y;
  assert_refused(f.m, "use list");
  unmake(&f);
}

static void refuses_overflowing_sizes(void **state) {
  (void)state;
  fixture f = make();
  kva_dim huge = kva_expr_muli(f.m->exprs, kva_expr_const(f.m->exprs, INT64_MAX), 2);
  kva_graph_add_input(f.g, kva_type_tensor(f.m, KVA_F32, 1, &huge), "z");
  node(f.g, &op_return, f.x, NULL, 0, NULL);
  assert_refused(f.m, "does not fit 64 bits");
  unmake(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(types_are_interned),
      cmocka_unit_test(uses_follow_rewrites),
      cmocka_unit_test(nodes_move),
      cmocka_unit_test(text_is_as_specified),
      cmocka_unit_test(clones_are_equal_and_independent),
      cmocka_unit_test(attributes_compare_hash_and_print),
      cmocka_unit_test(large_tensors_print_as_their_hash),
      cmocka_unit_test(hashes_see_structure_only),
      cmocka_unit_test(dot_mentions_every_node),
      cmocka_unit_test(refuses_late_definitions),
      cmocka_unit_test(refuses_values_of_other_graphs),
      cmocka_unit_test(refuses_wrong_types),
      cmocka_unit_test(refuses_wrong_arity_and_missing_operands),
      cmocka_unit_test(refuses_graphs_without_return),
      cmocka_unit_test(refuses_return_in_the_middle),
      cmocka_unit_test(refuses_duplicate_states),
      cmocka_unit_test(refuses_broken_use_lists),
      cmocka_unit_test(refuses_overflowing_sizes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
