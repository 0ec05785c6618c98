/* Shared by the fuse*.c files. */
#ifndef KVA_PASSES_FUSE_INTERNAL_H
#define KVA_PASSES_FUSE_INTERNAL_H

#include "passes/passes_internal.h"

enum {
  MAX_GROUP = 64,
  MAX_COPIED_OPERANDS = 4,
  MAX_USERS = 256, /* of a value that are looked at, so that thousands of nodes that read one value take linear time */
};

typedef enum role {
  ROLE_OTHER,   /* not fusable: whole-kernel operators, state, constants, structure */
  ROLE_ELEMENT, /* one result element from few operand elements */
  ROLE_ROW,     /* reduces over trailing axes of operand 0 */
  ROLE_SINK,    /* reduces otherwise, windows: may only be the root of a group */
  ROLE_WINDOW,  /* reads operand elements many times: may be absorbed by nothing and absorbs only views */
  ROLE_TILE,    /* whole-kernel operator with an epilogue */
} role;

typedef struct group {
  uint32_t n_nodes;
  kva_node *nodes[MAX_GROUP]; /* in order of absorption: consumers before producers */
  const kva_type *domain;
  uint32_t row_rank; /* leading dims of the domain that are row dims once a row reduction is in; 0: none yet */
  bool has_row;
  const kva_node *tile;   /* the whole-kernel operator; NULL: none */
  uint32_t lowest;        /* position of its first node in the graph; the root, nodes[0], has the highest */
  uint32_t lowest_so_far; /* the least `lowest` of it and the groups before it; set when the next one opens */
  uint32_t limit;         /* no path from a node after this position leads back to the root or before it */
  uint32_t mark;          /* epoch of the last reachability walk */
} group;

/* What a node in the group of a tile works for: an operand, by the role that it has there, or what follows the tile. */
typedef enum tile_part {
  PART_STREAMED = KVA_STREAMED,
  PART_SCALARS = KVA_SCALARS,
  PART_PACKED = KVA_PACKED,
  PART_IMAGE = KVA_IMAGE,
  PART_ONCE = KVA_ONCE,
  PART_MASK = KVA_MASK,
  PART_EPILOGUE,
} tile_part;

typedef struct node_info {
  group *group; /* NULL: none */
  tile_part part;
  const group *refused_by; /* the last group that it could not join beside the others */
  uint32_t refused_at;     /* fuse.version at which it could not join as a producer */
  uint32_t order;          /* in its group's nodes */
  bool aligned;            /* evaluated at the root's own index */
  uint32_t position;       /* order in the graph; copies share their original's */
  uint32_t segment;        /* nodes before it that bind a symbol; copies have their group's */
  uint32_t mark;           /* as in group */
} node_info;

typedef struct fuse {
  kva_module *m;
  kva_arena *scratch;
  KVA_VEC(node_info) info;           /* by node id */
  KVA_VEC(group *) groups;           /* in order of opening: roots from last to first */
  kva_value **values;                /* by value id, while a group is outlined: its copy */
  KVA_VEC(const kva_node *) pending; /* of a reachability walk */
  uint32_t epoch;
  uint32_t version; /* counts changes of groups */
  bool sums;        /* there are partial sums of columns */
  const kva_pass_options *options;
} fuse;

static inline node_info *info(const fuse *f, const kva_node *n) {
  return &f->info.data[n->id];
}

/* (Kernels that were outlined are newer than the side data, and in no group.) */
static inline bool in_group(const fuse *f, const kva_node *n, const group *g) {
  return n && n->id < f->info.len && info(f, n)->group == g;
}

/* No node that binds a symbol stands between n and the group. */
static inline bool kva_fuse_same_segment(const fuse *f, const kva_node *n, const group *g) {
  return info(f, n)->segment == info(f, g->nodes[0])->segment;
}

/* fuse.c */
role kva_fuse_role(const kva_node *n);
/* The first n extents of t are those of the domain. */
bool kva_fuse_has_prefix(const kva_type *t, const kva_type *domain, uint32_t n);
/* Some path from a consumer of p outside the group leads back into it: fusing would make a cycle. A group counts as one
 * node, entered by any of its operands and left by any of its results. */
bool kva_fuse_use_returns(fuse *f, const kva_node *p, const group *g);
bool kva_fuse_used_outside(const fuse *f, const kva_node *p, const group *g);
/* Could a group that u's node opens take n, whose result that is a use of? */
bool kva_fuse_may_take(const fuse *f, const kva_use *u, const kva_node *n);
/* p, a producer of g's nodes. */
bool kva_fuse_may_join(fuse *f, const kva_node *p, const group *g);
void kva_fuse_add(fuse *f, group *g, kva_node *n);
/* g, which has grown since, is `before` again. */
void kva_fuse_restore(fuse *f, group *g, const group *before);
/* Only the first n nodes stay. */
void kva_fuse_shrink(fuse *f, group *g, uint32_t n);
/* Producers that may join do; false: none did. */
bool kva_fuse_join_producers(fuse *f, group *g);

/* fuse_updates.c: the update that n, the root of a group, is or copies the result of; NULL: none. The group grows. */
kva_node *kva_fuse_update_of(const fuse *f, kva_node *n);
void kva_fuse_grow_updates(fuse *f, group *g);

/* fuse_together.c: groups of little work, alike and independent, become one. */
void kva_fuse_together(fuse *f);

/* fuse_siblings.c. May the group have siblings at all? */
bool kva_fuse_takes_siblings(const group *g);
kva_node *kva_fuse_find_sibling(fuse *f, const group *g);
/* Some path leaves the group and comes back. */
bool kva_fuse_has_cycle(fuse *f, const group *g);
/* A partial sum beside the group, or what is beside its partial sums, joins; false: none does. */
bool kva_fuse_join_sums(fuse *f, group *g);

/* fuse_budget.c: g has grown; what would make its kernel too large leaves again. */
void kva_fuse_keep_budget(fuse *f, group *g);

/* fuse_outline.c: the group becomes a kv.kernel node. */
void kva_fuse_outline(fuse *f, group *g);
/* Puts the nodes of g back in SSA order. */
void kva_fuse_restore_order(fuse *f, kva_graph *g);
/* A constant of one element: an immediate in every kernel that uses it. */
bool kva_fuse_is_scalar_constant(const kva_node *n);

#endif
