/* Attention by warpgroups (sm_90a), after FlashAttention-3 (Shah et al. 2024): what attention_flash_hopper_forward.c
 * and attention_flash_hopper_grad_q.c are made of. A block owns 128 queries: two warpgroups of 64 rows each compute,
 * one thread of a third loads the block's own tiles once, and the tiles of K and V through tensor maps into two rings.
 * Tiles go from the last to the first, so that those which hide keys from some queries come first.
 *
 *   producer:   own tiles; for every tile i: K_i, V_i, or K_0, then K_{i+1}, V_i, each when its stage is empty
 *   consumers:  see there
 *
 * In shared memory a tile is parts of 64 columns, 128 bytes in the 128-byte swizzle, one after the other. As the right
 * operand of a sum over its rows it is read transposed, by the machine. Past the edges 0 arrives; what must not be seen
 * is masked in the scores. Barriers carry the parity of their phase as in gpu_contract_wgmma.c. */
#ifndef KVA_OPS_ATTENTION_FLASH_HOPPER_H
#define KVA_OPS_ATTENTION_FLASH_HOPPER_H

#include "ops/attention_flash_softmax.h"

/* Barriers: one of each kind for a stage; the last for the own tiles. */
enum { KVA_HOPPER_FULL_K, KVA_HOPPER_FULL_V, KVA_HOPPER_EMPTY_K, KVA_HOPPER_EMPTY_V, KVA_HOPPER_KINDS };
enum { KVA_HOPPER_OPERANDS = KVA_ATTENTION_DY + 1 };

typedef struct kva_hopper {
  kva_flash f;
  int64_t keys, stages;   /* of a tile, of a ring */
  uint32_t n_own, own[2]; /* operands whose rows the block owns */
  bool keys_ahead;        /* K_{i+1} arrives before V_i: K_i is released before V_i is needed */
  kva_kmap maps[KVA_HOPPER_OPERANDS];
  int32_t map_number[KVA_HOPPER_OPERANDS];
  kva_kbuf *own_tiles, *ring, *staged, *barriers; /* ring: stages of K, then of V */
  kva_kbuf *s, *p, *y;                            /* scores; what is rounded of them, a left operand; results */
  const kva_expr *first_tile, *tiles, *masked;    /* masked: how many of the last tiles hide keys */
  kva_kinstr *role;
} kva_hopper;

/* Chooses sizes: tiles of at most tile_bytes. False when machine, sizes or the operands' places in memory do not suit;
 * nothing is written then. */
bool kva_hopper_choose(kva_hopper *w, kva_lower *l, const kva_node *n, int64_t tile_bytes);
/* Opens the kernel; what follows until the end is for the consumers. Results are 0. */
void kva_hopper_begin(kva_hopper *w, kva_lower *l, const kva_node *n);
void kva_hopper_end(kva_hopper *w);

static inline kva_kval kva_hopper_has_tiles(const kva_hopper *w) {
  return kva_k_index_lt(w->f.s.kb, kva_expr_const(w->f.s.kb->exprs, 0), w->tiles);
}
/* The first key of the i-th tile of the walk. */
const kva_expr *kva_hopper_key(const kva_hopper *w, const kva_expr *i);

void kva_hopper_wait_own(const kva_hopper *w);
void kva_hopper_wait_full(const kva_hopper *w, int64_t kind, const kva_expr *i);
/* One thread of each warp says that the warp has read the tile. */
void kva_hopper_release(const kva_hopper *w, int64_t kind, const kva_expr *i);

/* The warpgroups take turns at starting products, so that one's exponentials run beside the other's products: before
 * it starts any, a group waits for the other to have started its own. Every await is followed by a pass; all of them
 * stand between begin and end. */
void kva_hopper_begin_turns(const kva_hopper *w);
void kva_hopper_await_turn(const kva_hopper *w);
void kva_hopper_pass_turn(const kva_hopper *w);
void kva_hopper_end_turns(const kva_hopper *w);

/* Begins out = own tile number `own` times the rows of tile i of operand (K or V), transposed. */
void kva_hopper_begin_scores(const kva_hopper *w, kva_kbuf *out, int64_t own, uint32_t operand, const kva_expr *i);
/* Begins y += p times tile i of operand. */
void kva_hopper_begin_results(const kva_hopper *w, uint32_t operand, const kva_expr *i);
/* Waits until at most `groups` of what was begun are under way, m (of scores) not among them. */
void kva_hopper_wait_scores(const kva_hopper *w, kva_kbuf *m, int32_t groups);
/* Waits for everything. What was made of s meanwhile is not rounded into p before. */
void kva_hopper_wait_results(const kva_hopper *w);
/* p = s, rounded. */
void kva_hopper_round(const kva_hopper *w);
/* Rounds and stores y as result 0. */
void kva_hopper_store(const kva_hopper *w);

#endif
