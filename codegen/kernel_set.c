/* Kernels by node. A step of a plan costs 0.2 ms to lower and schedule, and 28 equal layers have thousands of steps. */
#include "codegen/codegen.h"

typedef struct entry {
  const kva_node *node;
  kva_kernel *kernel;
  struct entry *next; /* of the same hash */
} entry;

struct kva_kernel_set {
  kva_arena *arena; /* of everything */
  const kva_target *target;
  kva_pass_control *control;
  kva_map *by_hash; /* kva_node_hash -> entry */
};

kva_kernel_set *kva_kernel_set_create(const kva_target *target, kva_pass_control *control) {
  kva_arena *arena = kva_arena_create();
  kva_kernel_set *set = KVA_NEW(arena, kva_kernel_set);
  *set = (kva_kernel_set){arena, target, control, kva_map_create(arena)};
  return set;
}

void kva_kernel_set_destroy(kva_kernel_set *set) {
  if (set) kva_arena_destroy(set->arena);
}

kva_status kva_kernel_set_get(kva_kernel_set *set, const kva_node *node, const kva_kernel **out_kernel) {
  uint64_t hash = kva_node_hash(node);
  entry *known = kva_map_get(set->by_hash, &hash, sizeof hash);
  for (const entry *e = known; e; e = e->next) {
    *out_kernel = e->kernel;
    if (kva_codegen_lower_equally(e->node, node)) return KVA_OK;
  }
  entry *made = KVA_NEW(set->arena, entry);
  *made = (entry){.node = node, .next = known};
  *out_kernel = NULL;
  KVA_TRY(kva_codegen_kernel(set->arena, node, set->target, set->control, &made->kernel));
  kva_map_set(set->by_hash, &hash, sizeof hash, made);
  *out_kernel = made->kernel;
  return KVA_OK;
}
