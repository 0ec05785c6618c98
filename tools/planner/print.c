/* A step on paper as text and as JSON. */
#include "tools/planner/planner.h"

const char *kva_mesh_text(const kva_mesh *mesh, kva_arena *arena) {
  const struct {
    const char *name;
    int64_t n, least;
  } axes[] = {
      {"data", mesh->data, 2}, {"zero", mesh->zero, 1}, {"sequence", mesh->sequence, 2}, {"tensor", mesh->tensor, 2}};
  const char *text = "";
  for (size_t i = 0; i < sizeof axes / sizeof *axes; i++)
    if (axes[i].n >= axes[i].least)
      text = kva_arena_printf(arena, "%s%s%s=%lld", text, *text ? "," : "", axes[i].name, (long long)axes[i].n);
  return *text ? text : "data=1";
}

static double gigabytes(int64_t bytes) {
  return (double)bytes / 1e9;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static void print_head(const kva_planner *planner, const kva_paper *p, const char *mesh, FILE *out) {
  const kva_cluster *c = &planner->cluster;
  int64_t tokens = planner->batch * planner->row_tokens;
  fprintf(out, "%s on %lld GPUs %s, %lld in a node\n", mesh, (long long)kva_cluster_gpus(c), c->gpu->name,
          (long long)c->per_node);
  fprintf(out, "a step of %lld rows", (long long)planner->batch);
  if (tokens) fprintf(out, " (%lld tokens)", (long long)tokens);
  fprintf(out, ": %lld micro-batches of %lld rows in each of %lld groups\n", (long long)p->passes, (long long)p->rows,
          (long long)kva_mesh_extent(p->mesh.data));
  if (p->memory) fprintf(out, "computes values again: --memory %lld\n", (long long)p->memory);
}

static void print_memory(const kva_planner *planner, const kva_paper *p, FILE *out) {
  int64_t gradients = 0;
  for (int i = 0; i < p->n_programs; i++)
    if (p->programs[i].gradients > gradients) gradients = p->programs[i].gradients;
  const struct {
    const char *title;
    int64_t bytes;
  } rows[] = {{"parameters", p->params},          {"copies of them", p->copies},
              {"optimiser moments", p->moments},  {"sums of gradients", p->gradients},
              {"other", kva_paper_other(p)},      {"temporaries, peak", kva_paper_temporaries(p)},
              {"of these, gradients", gradients}, {"in all", kva_paper_bytes(p)},
              {"may take", planner->memory},      {"memory of the GPU", planner->cluster.gpu->memory}};
  fprintf(out, "\nmemory of a process              GB\n");
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    fprintf(out, "  %-22s %10.3f\n", rows[i].title, gigabytes(rows[i].bytes));
}

static void print_exchanges(const kva_paper *p, FILE *out) {
  fprintf(
      out,
      "\nexchange of a step  axis      processes  link        calls   messages    GB sent   latency s    seconds\n");
  for (int i = 0; i < p->n_exchanges; i++) {
    const kva_exchange_cost *e = &p->exchanges[i];
    fprintf(out, "  %-17s %-8s %10lld  %-8s %8lld %10lld %10.3f %11.4f %10.4f\n", e->op, e->axis, (long long)e->parts,
            e->link.name, (long long)e->count, (long long)e->messages, gigabytes(e->bytes),
            (double)e->messages * e->link.latency, e->seconds);
  }
  if (!p->n_exchanges) fprintf(out, "  none\n");
  fprintf(out, "  sent by process 0: %lld bytes\n", (long long)kva_paper_sent(p));
}

static void print_time(const kva_planner *planner, const kva_paper *p, FILE *out) {
  fprintf(out, "\nseconds of a step: %.4f, computing %.4f, exchange %.4f\n", kva_paper_seconds(p), kva_paper_compute(p),
          kva_paper_exchange(p));
  fprintf(out, "%s a second: %.0f; MFU %.1f %%\n", planner->row_tokens ? "tokens" : "rows",
          kva_planner_tokens(planner, p), 100 * kva_planner_mfu(planner, p));
  fprintf(out,
          "A model (docs/scale.md), not a measurement: products at %.0f %% of the peak, no overlap. There is no axis "
          "pipeline,\nand so no bubble.\n",
          100 * planner->efficiency);
}

void kva_planner_print(const kva_planner *planner, const kva_paper *p, FILE *out) {
  kva_arena *arena = kva_arena_create();
  print_head(planner, p, kva_mesh_text(&p->mesh, arena), out);
  print_memory(planner, p, out);
  print_exchanges(p, out);
  print_time(planner, p, out);
  kva_arena_destroy(arena);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void print_exchange_json(const kva_exchange_cost *e, FILE *out) {
  fprintf(
      out,
      "{\"operator\": \"%s\", \"axis\": \"%s\", \"processes\": %lld, \"link\": \"%s\", \"calls\": %lld, \"messages\": "
      "%lld, \"bytes\": %lld, \"seconds\": %.9g}",
      e->op, e->axis, (long long)e->parts, e->link.name, (long long)e->count, (long long)e->messages,
      (long long)e->bytes, e->seconds);
}

void kva_planner_print_json(const kva_planner *planner, const kva_paper *p, FILE *out) {
  kva_arena *arena = kva_arena_create();
  fprintf(out,
          "{\"mesh\": \"%s\", \"gpus\": %lld, \"gpu\": \"%s\", \"batch\": %lld, \"tokens\": %lld, \"rows\": %lld, ",
          kva_mesh_text(&p->mesh, arena), (long long)kva_cluster_gpus(&planner->cluster), planner->cluster.gpu->name,
          (long long)planner->batch, (long long)(planner->batch * planner->row_tokens), (long long)p->rows);
  fprintf(out,
          "\"micro_batches\": %lld, \"recompute_within\": %lld,\n \"bytes\": {\"parameters\": %lld, \"copies\": %lld, "
          "\"moments\": %lld, "
          "\"gradients\": %lld, \"other\": %lld, \"temporaries\": %lld, \"total\": %lld, \"limit\": %lld},\n",
          (long long)p->passes, (long long)p->memory, (long long)p->params, (long long)p->copies, (long long)p->moments,
          (long long)p->gradients, (long long)kva_paper_other(p), (long long)kva_paper_temporaries(p),
          (long long)kva_paper_bytes(p), (long long)planner->memory);
  fprintf(out, " \"exchanges\": [");
  for (int i = 0; i < p->n_exchanges; i++) {
    fprintf(out, i ? ",\n  " : "\n  ");
    print_exchange_json(&p->exchanges[i], out);
  }
  fprintf(out,
          "],\n \"sent\": %lld, \"compute_seconds\": %.9g, \"exchange_seconds\": %.9g, \"seconds\": %.9g, "
          "\"%s_per_second\": %.9g, \"mfu\": %.6g}",
          (long long)kva_paper_sent(p), kva_paper_compute(p), kva_paper_exchange(p), kva_paper_seconds(p),
          planner->row_tokens ? "tokens" : "rows", kva_planner_tokens(planner, p), kva_planner_mfu(planner, p));
  kva_arena_destroy(arena);
}
