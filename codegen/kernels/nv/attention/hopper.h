/* Attention by warpgroups (architectures with warpgroup mma), after FlashAttention-3 (Shah et al. 2024): the basis of
 * hopper_forward.c, hopper_grad_q.c and hopper_grad_kv.c. A block owns 128 rows, queries or keys. Two warpgroups
 * compute 64 rows each. One of their threads loads the block's own tiles once, and the tiles of the other side through
 * tensor maps into two rings: A and B are K and V, or Q and dY of every head that shares the keys. Tiles that hide keys
 * from some queries come first: keys from the last to the first, queries from the first to the last.
 *
 *   all:     see those files; a warp that has read A_i or B_i releases it
 *   loader:  own tiles, A_0, B_0 to the rings' ends; after its own release of A_i waits for the other warps', which is
 *            short, for its group is the last to have its turn, and loads A_{i + stages}; B the same
 *
 * No warpgroup only loads: with 384 threads each has 168 registers, too few here unless setmaxnreg moves those of the
 * loaders, which compilers of PTX that link ignore (nvJitLink). With 256 threads each has 255.
 *
 * In shared memory a tile consists of consecutive parts of 64 columns, 128 bytes in the 128-byte swizzle. wgmma reads
 * it transposed as the right operand of a sum over its rows. Elements past the edges are 0; the scores mask what must
 * not be seen. Barriers carry the parity of their phase as in nv/contract/wgmma.c. */
#ifndef KVA_KERNELS_NV_ATTENTION_HOPPER_H
#define KVA_KERNELS_NV_ATTENTION_HOPPER_H

#include "codegen/kernels/nv/attention/softmax.h"

typedef enum kva_hopper_ring { KVA_HOPPER_A, KVA_HOPPER_B, KVA_HOPPER_RINGS } kva_hopper_ring;
enum { KVA_HOPPER_OPERANDS = KVA_ATTENTION_DY + 1 };

typedef struct kva_hopper {
  kva_flash f;
  bool by_key;                         /* the block owns keys */
  uint32_t n_own, own[2];              /* operands whose rows the block owns */
  uint32_t far_side[KVA_HOPPER_RINGS]; /* operands that come through the rings */
  int64_t far, stages;                 /* rows of a tile, tiles of a ring */
  kva_ktensor_map maps[KVA_HOPPER_OPERANDS];
  int32_t map_number[KVA_HOPPER_OPERANDS];
  kva_kbuf *own_tiles, *ring, *staged, *barriers; /* ring: stages of A, then of B */
  kva_kbuf *next;                                 /* [ring]: what the loader loads next */
  const kva_expr *first_tile, *tiles, *masked;    /* of a walk; masked: how many of its first tiles hide keys */
} kva_hopper;

/* Chooses sizes: tiles of at most `most` rows and tile_bytes. Returns why the target, sizes or layout of the operands
 * do not suit, for a node that flash.h accepts; NULL: they do. */
const char *kva_hopper_choose(kva_hopper *w, kva_lower *l, const kva_node *n, int64_t most, int64_t tile_bytes);
/* Gradients are computed here for scores with only a positive factor and visibility, and for heads of at most 128, for
 * which registers suffice; others use flash_backward.c. */
bool kva_hopper_has_gradients(const kva_node *n, kva_expr_ctx *c);
/* Opens the kernel, and starts the first loads. */
void kva_hopper_begin(kva_hopper *w, kva_lower *l, const kva_node *n);
/* Registers for a result of the warpgroup's 64 rows, initially 0; for scores; for rounded scores, a left operand. */
kva_kbuf *kva_hopper_sums(const kva_hopper *w, const char *name);
kva_kbuf *kva_hopper_scores(const kva_hopper *w, const char *name);
kva_kbuf *kva_hopper_operand(const kva_hopper *w, const char *name);
void kva_hopper_end(kva_hopper *w);

static inline kva_kval kva_hopper_has_tiles(const kva_hopper *w) {
  return kva_k_index_lt(w->f.s.kb, kva_expr_const(w->f.s.kb->exprs, 0), w->tiles);
}
/* The first position of the i-th tile of a walk. */
const kva_expr *kva_hopper_position(const kva_hopper *w, const kva_expr *i);
/* by_key: opens a loop over the heads that share the keys, whose walks follow one another; sets f.s.h. */
kva_kloop *kva_hopper_each_head(kva_hopper *w);

void kva_hopper_wait_own(const kva_hopper *w);
/* Below, i numbers the tiles of all walks of the block. */
void kva_hopper_wait_full(const kva_hopper *w, kva_hopper_ring ring, const kva_expr *i);
/* One thread of each warp signals that the warp has read the tile. */
void kva_hopper_release(const kva_hopper *w, kva_hopper_ring ring, const kva_expr *i);
/* The loader waits until every warp has released tile i of a ring, and loads the tiles that take its place in rings
 * released .. last. Its own group has released it, and read those of the other rings, before. */
void kva_hopper_refill(const kva_hopper *w, kva_hopper_ring released, kva_hopper_ring last, const kva_expr *i);
/* Barrier of a warpgroup's threads. */
void kva_hopper_barrier(const kva_hopper *w);

/* The warpgroups take turns at issuing products, so that the exponentials of one overlap the other's products: a group
 * waits until the other has issued its own. Every await is followed by a pass; all of them are between begin and
 * end. */
void kva_hopper_begin_turns(const kva_hopper *w);
void kva_hopper_await_turn(const kva_hopper *w);
void kva_hopper_pass_turn(const kva_hopper *w);
void kva_hopper_end_turns(const kva_hopper *w);

/* Issues out = own tile number `own` times the rows of tile i, transposed. */
void kva_hopper_begin_scores(const kva_hopper *w, kva_kbuf *out, int64_t own, kva_hopper_ring ring, const kva_expr *i);
/* Issues y += p times tile i. */
void kva_hopper_begin_results(const kva_hopper *w, kva_kbuf *y, kva_kbuf *p, kva_hopper_ring ring, const kva_expr *i);
/* Waits until at most `groups` issued groups are pending, m (scores) not among them. */
void kva_hopper_wait_scores(const kva_hopper *w, kva_kbuf *m, int32_t groups);
/* Waits for everything: y, and m. The rounding of values computed from m does not move before this. */
void kva_hopper_wait_results(const kva_hopper *w, kva_kbuf *y, kva_kbuf *m);
/* p = s, rounded. */
void kva_hopper_round(const kva_hopper *w, kva_kbuf *p, kva_kbuf *s);
void kva_hopper_scale(const kva_hopper *w, kva_kbuf *y, double factor);
/* All reads of the own tiles are complete: stores may begin. */
void kva_hopper_begin_stores(const kva_hopper *w);
/* Rounds and stores y as a result. */
void kva_hopper_store(const kva_hopper *w, kva_kbuf *y, uint32_t result);

#endif
