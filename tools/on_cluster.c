/* The step of a model on a cluster: options to a planner. */
#include "tools/on_cluster.h"
#include "tools/planner/planner.h"

/* How the planner gets the model. */
typedef struct loader {
  const kva_cluster_model *model;
  const char *batch; /* symbol of the rows */
  kva_strings pins;  /* without it */
  kva_arena *arena;
} loader;

static kva_status load(void *user, int64_t rows, kva_diag *diag, kva_module **out_module) {
  const loader *l = user;
  kva_strings pins = l->pins;
  if (pins.n < 64) pins.v[pins.n++] = kva_arena_printf(l->arena, "%s=%lld", l->batch, (long long)rows);
  const kva_cli_source from = {
      .path = l->model->path, .defines = l->model->defines, .pins = &pins, .keep_messages = true};
  if (kva_cli_load_from(&from, diag, out_module) >= 0) return KVA_INVALID;
  kva_diag_clear(diag); /* warnings, which the first load has printed */
  return KVA_OK;
}

static bool pins_rows(const loader *l, const char *pin) {
  size_t len = strlen(l->batch);
  return !strncmp(pin, l->batch, len) && pin[len] == '=';
}

/* The user's pins but for the rows, and the length of sequences. */
static void take_pins(const kva_module *m, loader *l) {
  for (uint32_t i = 0; i < l->model->pins->n; i++)
    if (!pins_rows(l, l->model->pins->v[i])) l->pins.v[l->pins.n++] = l->model->pins->v[i];
  kva_cli_pin(m, "T", kva_cli_length_of(m->train), &l->pins, l->arena);
}

/* Looks at the model once. */
static int prepare(loader *l, kva_planner *planner, kva_diag *diag) {
  kva_module *m = NULL;
  int code = kva_cli_load(l->model->path, l->model->defines, l->model->pins, diag, &m);
  if (code >= 0) return code;
  if (m->train) {
    l->batch = kva_arena_strdup(l->arena, kva_cli_batch_symbol(m));
    planner->rows = kva_cli_pin_of(l->model->pins, l->batch);
    take_pins(m, l);
  } else {
    code = kva_cli_fail(kva_error(diag, NULL, "'%s' has no train block; --cluster plans training", m->name), diag);
  }
  kva_module_destroy(m);
  return code;
}

/* A power of two, which meshes divide. */
static kva_status default_batch(kva_planner *planner, kva_diag *diag) {
  enum { TOKENS = 1 << 22 };
  if (planner->batch) return KVA_OK;
  if (!planner->row_tokens)
    return kva_error(diag, NULL, "the model's inputs are no tokens: give the rows of a step, --batch N");
  planner->batch = 1;
  while (planner->batch * planner->row_tokens < TOKENS) planner->batch *= 2;
  return KVA_OK;
}

static kva_status mesh_of(const kva_planner *planner, const char *text, kva_diag *diag, kva_mesh *out) {
  int64_t gpus = kva_cluster_gpus(&planner->cluster);
  KVA_TRY(kva_mesh_named(text, diag, out));
  if (out->pipeline > 1)
    return kva_error(diag, NULL, "--mesh %s: plans of a cluster have no axis pipeline; show --train --mesh has it",
                     text);
  if (kva_mesh_processes(out) == gpus) return KVA_OK;
  return kva_error(diag, NULL, "--mesh %s: %lld processes, and the cluster has %lld GPUs", text,
                   (long long)kva_mesh_processes(out), (long long)gpus);
}

static void print_word(const char *word) {
  bool plain = word[strspn(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./=,:+-")] == 0;
  if (plain) {
    printf(" %s", word);
    return;
  }
  printf(" '");
  for (; *word; word++) printf(*word == '\'' ? "'\\''" : "%c", *word);
  printf("'");
}

/* What starts the step that p plans. */
static void print_command(const loader *l, const kva_planner *planner, const kva_paper *p) {
  const kva_cluster_model *model = l->model;
  printf("\nmpirun -n %lld kvasir train", (long long)kva_cluster_gpus(&planner->cluster));
  print_word(model->path);
  for (uint32_t i = 0; i < model->defines->n; i++) printf(" -D"), print_word(model->defines->v[i]);
  for (uint32_t i = 0; i < model->pins->n; i++)
    if (!pins_rows(l, model->pins->v[i])) printf(" --pin"), print_word(model->pins->v[i]);
  printf(" --mesh %s --batch %lld --micro-batch %lld --precision %s --device cuda", kva_mesh_text(&p->mesh, l->arena),
         (long long)planner->batch, (long long)p->rows, planner->compute == KVA_BF16 ? "bf16" : "f16");
  if (p->memory) printf(" --memory %lld", (long long)p->memory);
  printf("\nRanks fill one node after the other; a process takes the GPU of its number in its node.\n");
}

static kva_status show_mesh(const loader *l, const kva_planner *planner, kva_diag *diag) {
  kva_mesh mesh;
  kva_paper paper;
  KVA_TRY(mesh_of(planner, l->model->mesh, diag, &mesh));
  KVA_TRY(kva_planner_fit(planner, &mesh, diag, &paper));
  if (l->model->json) {
    kva_planner_print_json(planner, &paper, stdout);
    printf("\n");
    return KVA_OK;
  }
  kva_planner_print(planner, &paper, stdout);
  print_command(l, planner, &paper);
  return KVA_OK;
}

static kva_status show_best(const loader *l, const kva_planner *planner, kva_diag *diag) {
  kva_search search;
  KVA_TRY(kva_planner_search(planner, l->arena, diag, &search));
  (l->model->json ? kva_search_print_json : kva_search_print)(planner, &search, stdout);
  if (!search.n_taken) return kva_error(diag, NULL, "no mesh of the cluster fits");
  if (!l->model->json) print_command(l, planner, &search.all[0].paper);
  return KVA_OK;
}

static kva_status show(const loader *l, kva_planner *planner, kva_diag *diag) {
  KVA_TRY(kva_planner_measure(planner, diag));
  KVA_TRY(default_batch(planner, diag));
  return (l->model->mesh ? show_mesh : show_best)(l, planner, diag);
}

int kva_cli_show_cluster(const kva_cluster_choice *c, const kva_cluster_model *model, kva_diag *diag) {
  loader l = {.model = model, .arena = kva_arena_create()};
  kva_planner planner = {.batch = c->batch,
                         .efficiency = c->efficiency,
                         .compute = model->compute,
                         .control = model->control,
                         .load = load,
                         .user = &l};
  kva_status status = kva_cluster_named(c->name, diag, &planner.cluster);
  int code = status == KVA_OK ? prepare(&l, &planner, diag) : kva_cli_fail(status, diag);
  if (code < 0) {
    planner.memory = model->memory ? model->memory : kva_cluster_room(&planner.cluster);
    status = show(&l, &planner, diag);
    code = status == KVA_OK ? EXIT_DONE : kva_cli_fail(status, diag);
  }
  kva_arena_destroy(l.arena);
  return code;
}
