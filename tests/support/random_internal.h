/* What the two halves of the generator share: random_graph.c draws the operators that gradients are checked of,
 * random_wide.c all others. */
#ifndef KVA_TESTS_SUPPORT_RANDOM_INTERNAL_H
#define KVA_TESTS_SUPPORT_RANDOM_INTERNAL_H

#include "tests/support/random_graph.h"
#include "ops/ids.h"

enum { MAX_ELEMENTS = 4000, MAX_STATES = 3 };

/* A value and how large its elements may be. */
typedef struct item {
  kva_value *v;
  double bound;
} item;

typedef struct gen {
  const random_graph_options *o;
  kva_module *m;
  kva_function *f;
  kva_builder b;
  kva_arena *scratch;
  uint64_t draws;      /* made from the seed; with bytes, those that are used up */
  KVA_VEC(item) items; /* values of the options' type */
  KVA_VEC(kva_value *) bools;
  KVA_VEC(kva_value *) others; /* wide: values of any type and magnitude */
  random_exact exact;
  kva_value *index; /* integers that index any axis of extent 3 or more */
  kva_dim base[4];  /* most shapes are broadcasts of this one */
  uint32_t base_rank;
  kva_state *states[MAX_STATES];
  uint32_t n_states;
  uint32_t depth; /* of sub-graphs around */
} gen;

/* Uniform in [0, n): from the bytes while there are any, then 0; without bytes from the seed. */
uint32_t random_draw(gen *g, uint32_t n);
/* With the sizes of the options; -1: the size depends on data. */
int64_t random_extent(const gen *g, kva_dim d);
int64_t random_elements(const gen *g, const kva_type *t);

item random_pick(gen *g);
item random_pick_rank(gen *g, uint32_t least); /* v NULL: found none */
bool random_broadcasts(const kva_type *a, const kva_type *b);
item random_pick_compatible(gen *g, const kva_type *t);
void random_add_item(gen *g, kva_value *v, double bound);

/* Adds a few nodes of any operator and type. */
void random_add_wide(gen *g);
/* Inputs of further types. */
void random_add_wide_inputs(gen *g);

#endif
