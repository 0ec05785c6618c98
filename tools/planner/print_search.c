/* A search as text and as JSON. */
#include "tools/planner/planner.h"

/* Meshes that are not taken for the same reason as the first of them, `from`, on one line. Those before it have others.
 */
static void print_reason(const kva_search *s, uint32_t from, kva_arena *arena, FILE *out) {
  const char *reason = s->all[from].reason;
  for (uint32_t i = s->n_taken; i < from; i++)
    if (!strcmp(s->all[i].reason, reason)) return;
  fprintf(out, "  %s:\n   ", reason);
  for (uint32_t i = from; i < s->n; i++)
    if (!strcmp(s->all[i].reason, reason)) fprintf(out, " %s", kva_mesh_text(&s->all[i].mesh, arena));
  fprintf(out, "\n");
}

static void print_taken(const kva_planner *planner, const kva_search *s, kva_arena *arena, FILE *out) {
  fprintf(out, "%-36s rows  micro-batches        GB    seconds  %s/s    MFU %%\n", "mesh",
          planner->row_tokens ? "    tokens" : "      rows");
  for (uint32_t i = 0; i < s->n_taken; i++) {
    const kva_paper *p = &s->all[i].paper;
    fprintf(out, "%-36s %4lld %14lld %9.1f %10.4g %12.0f %8.1f%s\n", kva_mesh_text(&p->mesh, arena), (long long)p->rows,
            (long long)p->passes, (double)kva_paper_bytes(p) / 1e9, kva_paper_seconds(p),
            kva_planner_tokens(planner, p), 100 * kva_planner_mfu(planner, p), p->memory ? "  computes again" : "");
  }
}

void kva_search_print(const kva_planner *planner, const kva_search *s, FILE *out) {
  kva_arena *arena = kva_arena_create();
  if (s->n_taken) print_taken(planner, s, arena, out);
  if (s->n > s->n_taken) fprintf(out, "\nnot taken\n");
  for (uint32_t i = s->n_taken; i < s->n; i++) print_reason(s, i, arena, out);
  if (s->n_taken) {
    fprintf(out, "\nthe best: ");
    kva_planner_print(planner, &s->all[0].paper, out);
  }
  kva_arena_destroy(arena);
}

void kva_search_print_json(const kva_planner *planner, const kva_search *s, FILE *out) {
  kva_arena *arena = kva_arena_create();
  fprintf(out, "{\"taken\": [");
  for (uint32_t i = 0; i < s->n_taken; i++) {
    fprintf(out, i ? ",\n" : "\n");
    kva_planner_print_json(planner, &s->all[i].paper, out);
  }
  fprintf(out, "],\n\"not_taken\": [");
  for (uint32_t i = s->n_taken; i < s->n; i++) {
    kva_text reason = {0};
    kva_text_add_quoted(&reason, s->all[i].reason);
    fprintf(out, "%s{\"mesh\": \"%s\", \"reason\": %s}", i > s->n_taken ? ",\n " : "\n ",
            kva_mesh_text(&s->all[i].mesh, arena), reason.data);
    kva_text_free(&reason);
  }
  fprintf(out, "]}\n");
  kva_arena_destroy(arena);
}
