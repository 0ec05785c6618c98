/* What cutting a function into stages needs to know of it; see stages.c. */
#ifndef KVA_PASSES_STAGES_H
#define KVA_PASSES_STAGES_H

#include "passes/passes_internal.h"

enum { KVA_ANY_STAGE = -1 }; /* of a node that each stage which reads it computes for itself */

/* By node id. */
typedef struct kva_stage_map {
  kva_module *m;
  const kva_graph *graph;
  kva_arena *scratch;
  int64_t n;           /* stages */
  int *of;             /* the stage that computes a node, or KVA_ANY_STAGE */
  bool *forward;       /* an output depends on it */
  bool *of_parameters; /* it depends on one */
  int *last;           /* of a node of the forward pass: the last stage whose forward pass reads it */
} kva_stage_map;

/* Whether n takes floating-point operations in products (kva_node_flops). */
bool kva_stages_has_products(const kva_stage_map *s, const kva_node *n);

/* Functions of the stages in the place of f, which is removed: "NAME.0", "NAME.1", ...; what they give each other are
 * outputs and inputs of the same names. */
void kva_stages_split_passes(kva_stage_map *s, kva_function *f);
void kva_stages_split_eval(kva_stage_map *s, kva_function *f);
/* apply_step; owner: by state id, the stage that updates a parameter. */
void kva_stages_split_updates(kva_module *m, kva_function *f, int64_t n, const int *owner, kva_arena *scratch);

#endif
