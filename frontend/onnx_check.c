/* Counts what a model needs before anything is built: every (domain, operator, version) in the main graph, its
 * sub-graphs and called functions, with the rule table's answer. Also checks the model's header. */
#include "frontend/frontend_internal.h"
#include "frontend/onnx_proto.h"

const char *kva_pb_domain(const char *domain) {
  domain = kva_pb_str(domain);
  return strcmp(domain, "ai.onnx") ? domain : "";
}

int64_t kva_pb_opset_version(size_t n, kva_pb_opset *const *imports, const char *domain) {
  for (size_t i = 0; i < n; i++)
    if (!strcmp(kva_pb_domain(imports[i]->domain), domain)) return imports[i]->version;
  return 0;
}

/* Key of a function: its three names, each with its length, so that different names never give equal keys. */
static void function_key(const char *domain, const char *name, const char *overload, kva_text *out) {
  const char *parts[] = {kva_pb_domain(domain), kva_pb_str(name), kva_pb_str(overload)};
  for (int i = 0; i < 3; i++) kva_text_add(out, "%zu:%s", strlen(parts[i]), parts[i]);
}

kva_map *kva_pb_index_functions(const kva_pb_model *m, kva_arena *arena) {
  kva_map *map = kva_map_create(arena);
  for (size_t i = 0; i < m->n_functions; i++) {
    const kva_pb_function *f = m->functions[i];
    kva_text key = {0};
    function_key(f->domain, f->name, f->overload, &key);
    kva_map_set(map, key.data, key.len, (void *)(uintptr_t)f);
    kva_text_free(&key);
  }
  return map;
}

static bool holds(kva_attr_kind kind, const kva_pb_attr *a) {
  switch (kind) {
  case KVA_ATTR_FLOAT:
    if (a->type == ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT) return true;
    return a->type == ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSOR && a->t && a->t->data_type == (int32_t)KVA_F64;
  case KVA_ATTR_STR: return a->type == ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING;
  default: return a->type == ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT;
  }
}

/* Whether n calls Kvasir's own operator. If its attributes do not match the operator's, it calls another function that
 * happens to have the name. */
static bool is_own_call(const kva_pb_node *n) {
  const kva_op_info *op = kva_onnx_own_operator(kva_pb_domain(n->domain), kva_pb_str(n->op_type));
  for (size_t i = 0; op && i < n->n_attribute; i++) {
    const char *name = kva_pb_str(n->attribute[i]->name);
    const kva_attr_field *f = kva_attrs_find(op->attrs, name, strlen(name));
    if (!f || !holds(f->kind, n->attribute[i])) return false;
  }
  return op != NULL;
}

/* Bodies of Kvasir's own operators are for other runtimes: the call becomes the operator, without inlining. */
const kva_pb_function *kva_pb_find_function(const kva_map *functions, const kva_pb_node *n) {
  if (!kva_map_len(functions) || is_own_call(n)) return NULL;
  kva_text key = {0};
  function_key(n->domain, n->op_type, n->overload, &key);
  const kva_pb_function *f = kva_map_get(functions, key.data, key.len);
  kva_text_free(&key);
  return f;
}

static const char *domain_name(const char *domain) {
  return *domain ? domain : "ai.onnx";
}

/* A domain that is imported twice has no version; `owner` is NULL for the model, or a function. */
static kva_status check_imports(size_t n, kva_pb_opset *const *imports, const kva_pb_function *owner,
                                const kva_loc *loc, kva_diag *diag) {
  for (size_t i = 0; i < n; i++)
    for (size_t j = 0; j < i; j++) {
      const char *domain = kva_pb_domain(imports[i]->domain);
      if (strcmp(domain, kva_pb_domain(imports[j]->domain)) || imports[i]->version == imports[j]->version) continue;
      return kva_error(diag, loc, "%s%s%s imports domain '%s' twice, as versions %lld and %lld",
                       owner ? "function '" : "the model", owner ? kva_pb_str(owner->name) : "", owner ? "'" : "",
                       domain_name(domain), (long long)imports[j]->version, (long long)imports[i]->version);
    }
  return KVA_OK;
}

static kva_status check_functions(const kva_pb_model *m, const kva_loc *loc, kva_diag *diag) {
  kva_arena *scratch = kva_arena_create();
  kva_map *seen = kva_map_create(scratch);
  kva_status status = KVA_OK;
  for (size_t i = 0; status == KVA_OK && i < m->n_functions; i++) {
    const kva_pb_function *f = m->functions[i];
    kva_text key = {0};
    function_key(f->domain, f->name, f->overload, &key);
    if (kva_map_get(seen, key.data, key.len))
      status = kva_error(diag, loc, "function '%s' of domain '%s' is defined a second time", kva_pb_str(f->name),
                         domain_name(kva_pb_domain(f->domain)));
    else
      status = check_imports(f->n_opset_import, f->opset_import, f, loc, diag);
    kva_map_set(seen, key.data, key.len, seen);
    kva_text_free(&key);
  }
  kva_arena_destroy(scratch);
  return status;
}

kva_status kva_pb_check_header(const kva_pb_model *m, const kva_loc *loc, kva_diag *diag) {
  if (!m->graph) return kva_error(diag, loc, "not an ONNX model: it has no graph");
  if (m->ir_version < KVA_ONNX_MIN_IR || m->ir_version > KVA_ONNX_MAX_IR)
    return kva_fail(diag, KVA_UNSUPPORTED, loc, "IR version %lld; versions %d to %d are supported",
                    (long long)m->ir_version, KVA_ONNX_MIN_IR, KVA_ONNX_MAX_IR);
  KVA_TRY(check_imports(m->n_opset_import, m->opset_import, NULL, loc, diag));
  KVA_TRY(check_functions(m, loc, diag));
  int64_t opset = kva_pb_opset_version(m->n_opset_import, m->opset_import, "");
  if (opset < 0 || opset > KVA_ONNX_MAX_OPSET)
    return kva_fail(diag, KVA_UNSUPPORTED, loc, "opset %lld of the default domain; versions 1 to %d are supported",
                    (long long)opset, KVA_ONNX_MAX_OPSET);
  return KVA_OK;
}

/* ---- counting ---------------------------------------------------------------------------------------------------- */

typedef struct counting {
  const kva_pb_model *model;
  const kva_map *functions;
  kva_arena *arena;
  kva_check_report *report;
  kva_map *rows;                            /* key -> row number + 1 */
  kva_map *visited;                         /* functions */
  KVA_VEC(const kva_pb_function *) pending; /* called functions whose bodies are yet to be counted */
} counting;

/* Opset imports of the graph or function that contains the nodes. */
typedef struct imports {
  size_t n;
  kva_pb_opset *const *v;
} imports;

static uintptr_t row_of(counting *c, const kva_pb_node *n, const kva_pb_function *f, int64_t version) {
  const char *domain = kva_pb_domain(n->domain), *op_type = kva_pb_str(n->op_type);
  const char *key = kva_arena_printf(c->arena, "%s\n%s\n%lld", domain, op_type, (long long)version);
  uintptr_t row = (uintptr_t)kva_map_get_str(c->rows, key);
  if (row) return row - 1;
  kva_check_row r = {.domain = kva_arena_strdup(c->arena, domain),
                     .op_type = kva_arena_strdup(c->arena, op_type),
                     .version = version,
                     .first_node = kva_arena_strdup(c->arena, kva_pb_str(n->name))};
  r.supported = f || kva_onnx_supported(domain, op_type, version, &r.reason);
  KVA_PUSH(c->arena, &c->report->rows, r);
  kva_map_set_str(c->rows, key, (void *)(uintptr_t)c->report->rows.len);
  return c->report->rows.len - 1;
}

static void count_nodes(counting *c, size_t n, kva_pb_node *const *nodes, imports at);

static void count_graph(counting *c, const kva_pb_graph *g, imports at) {
  if (g) count_nodes(c, g->n_node, g->node, at);
}

static void note_call(counting *c, const kva_pb_function *f) {
  if (!f || kva_map_get(c->visited, &f, sizeof f)) return;
  kva_map_set(c->visited, &f, sizeof f, c);
  KVA_PUSH(c->arena, &c->pending, f);
}

/* Recursion is bounded by the nesting of messages; called functions are put on a list. */
static void count_nodes(counting *c, size_t n, kva_pb_node *const *nodes, imports at) {
  for (size_t i = 0; i < n; i++) {
    int64_t version = kva_pb_opset_version(at.n, at.v, kva_pb_domain(nodes[i]->domain));
    if (!version)
      version = kva_pb_opset_version(c->model->n_opset_import, c->model->opset_import, kva_pb_domain(nodes[i]->domain));
    const kva_pb_function *f = kva_pb_find_function(c->functions, nodes[i]);
    note_call(c, f);
    uintptr_t at_row = row_of(c, nodes[i], f, version); /* may reallocate the rows */
    kva_check_row *row = &c->report->rows.data[at_row];
    row->count++;
    if (!row->supported) c->report->unsupported++;
    for (size_t a = 0; a < nodes[i]->n_attribute; a++) {
      count_graph(c, nodes[i]->attribute[a]->g, at);
      for (size_t g = 0; g < nodes[i]->attribute[a]->n_graphs; g++)
        count_graph(c, nodes[i]->attribute[a]->graphs[g], at);
    }
  }
}

void kva_pb_count_ops(const kva_pb_model *m, const kva_map *functions, kva_arena *arena, kva_check_report *out) {
  counting c = {.model = m,
                .functions = functions,
                .arena = arena,
                .report = out,
                .rows = kva_map_create(arena),
                .visited = kva_map_create(arena)};
  *out = (kva_check_report){0};
  count_graph(&c, m->graph, (imports){m->n_opset_import, m->opset_import});
  for (uint32_t i = 0; i < c.pending.len; i++) {
    const kva_pb_function *f = c.pending.data[i];
    count_nodes(&c, f->n_node, f->node, (imports){f->n_opset_import, f->opset_import});
  }
}

static kva_status check_onnx(const kva_file *file, const char *path, kva_arena *arena, kva_diag *diag,
                             kva_check_report *out) {
  kva_loc loc = {.file = path};
  kva_pb_model *model = NULL;
  kva_pb_raw *raw = NULL;
  kva_status status = kva_pb_unpack_model(file->data, file->size, &loc, arena, diag, &model, &raw);
  if (!status) status = kva_pb_check_header(model, &loc, diag);
  if (!status) kva_pb_count_ops(model, kva_pb_index_functions(model, arena), arena, out);
  if (model) protobuf_c_message_free_unpacked(&model->base, NULL);
  return status;
}

kva_status kva_check_model(const char *path, kva_arena *arena, kva_diag *diag, kva_check_report *out) {
  kva_file file;
  *out = (kva_check_report){0};
  KVA_TRY(kva_file_map(path, diag, &file));
  kva_status status = kva_file_is_text(&file) ? KVA_OK : check_onnx(&file, path, arena, diag, out);
  kva_file_unmap(&file);
  return status;
}
