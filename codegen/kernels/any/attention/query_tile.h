/* Query tiles, the basis of the tiled attention kernels (attention.c).
 *
 * A work item owns a query tile: `width` consecutive queries (or keys, for dk and dv) across vector lanes; of forward
 * kernels with one query a head, the heads that share keys, so that keys and values are read once for them. Everything
 * it keeps is a local matrix [rows][width] whose last axis is the query tile: q transposed, scores, probabilities,
 * results. Then all matrix products have one form, without horizontal steps and without packing the other operand:
 *
 *   out[r][lane] += sum_k element(r, k) * in[k][lane]              element: a scalar read from memory and broadcast
 *
 * and maxima and sums of softmax run along rows, lane by lane. The walk over the other axis ("far": keys, or queries)
 * is in blocks of `block` positions. */
#ifndef KVA_KERNELS_ANY_ATTENTION_QUERY_TILE_H
#define KVA_KERNELS_ANY_ATTENTION_QUERY_TILE_H

#include "codegen/kernels/kernels.h"
#include "ops/attention.h"

/* Far positions of a block. */
enum { KVA_ATTENTION_BLOCK = 64 };

typedef enum kva_query_tile_kind { KVA_TILES_OF_QUERIES, KVA_TILES_OF_KEYS } kva_query_tile_kind;

typedef struct kva_query_tile {
  kva_lower *l;
  kva_kb *kb;
  kva_query_tile_kind kind;
  kva_attention a;
  kva_dtype t;                       /* arithmetic */
  int64_t lanes;                     /* of a vector */
  int64_t width, block, rows;        /* lanes, far positions per block, rows of a register tile */
  const kva_expr *b, *h, *h_kv;      /* h: query head */
  const kva_expr *first;             /* first position of the query tile */
  kva_dim extent, far_extent;        /* of the query tile's axis and the other: T, S or S, T */
  kva_kbuf *acc;                     /* register tile */
  const kva_expr *page, *page_first; /* keys in pages: that of the block, and the position of its first row */
  bool grouped; /* the only query of every head that shares h_kv, instead of consecutive queries of h, which is NULL */
} kva_query_tile;

/* The head and the position along T of the query at q, a position of the query tile's axis; head: the tile's. */
typedef struct kva_query_place {
  const kva_expr *head, *t;
} kva_query_place;
kva_query_place kva_query_tile_place(const kva_query_tile *s, const kva_expr *head, const kva_expr *q);

/* Fills in all but the place of an item. Items are (b, heads, query tiles): query heads and queries, or key-value heads
 * and keys, where h stays NULL. */
void kva_query_tile_describe(kva_query_tile *s, kva_lower *l, const kva_node *n, kva_query_tile_kind kind);
const kva_expr *kva_query_tile_items(const kva_query_tile *s);
void kva_query_tile_place_item(kva_query_tile *s, const kva_expr *item);
/* All of it, with the grid over the items. Close the loop with kva_k_loop_end. */
kva_kloop *kva_query_tile_begin(kva_query_tile *s, kva_lower *l, const kva_node *n, kva_query_tile_kind kind);
/* The grid over (b, key-value heads), of which an item walks all of its query tiles, of keys: in a loop that
 * kva_query_tile_next opens, which fills in the tile's first position. */
kva_kloop *kva_query_tile_begin_heads(kva_query_tile *s, kva_lower *l, const kva_node *n);
kva_kloop *kva_query_tile_next(kva_query_tile *s);

/* Queries of attention_cached stand behind the rows that their sequence has, which s->b finds; what is behind the
 * queries is not read. */
void kva_query_tile_start_at_position(kva_query_tile *s);

/* Positions of a block, and the lanes that may see one of them (of keys) or that one of them may see (of queries). */
typedef struct kva_far_piece {
  const kva_expr *begin, *end; /* from the block's first position on */
  int64_t lane, lanes;
} kva_far_piece;

/* The loop over blocks of far positions [begin, end), with begin rounded down to a block. A block that causality cuts
 * is divided where half of the lanes begins or ceases to take part; quarters would save little more, and every piece is
 * code of its own. Of another block, one piece has all positions. */
enum { KVA_FAR_PIECES = 2 };
typedef struct kva_far_loop {
  kva_kloop *loop;
  const kva_expr *first; /* position of the block */
  const kva_expr *n;     /* positions of it: those before the end; on a GPU as many as in other blocks */
  bool of_queries;
  uint32_t n_pieces;
  kva_far_piece pieces[KVA_FAR_PIECES];
} kva_far_loop;
/* The one over the keys that some query of the tile may see, and where these end. */
const kva_expr *kva_query_tile_keys_end(const kva_query_tile *s);
kva_far_loop kva_query_tile_keys_begin(const kva_query_tile *s);
/* The one over the queries that may see some key of the tile. */
kva_far_loop kva_query_tile_queries_begin(const kva_query_tile *s);

/* Looks up the page of the block of keys at position `far`. */
void kva_query_tile_turn_page(kva_query_tile *s, const kva_expr *far);

/* A local matrix of `rows` rows across the query tile, and its element (r, lane). */
kva_kbuf *kva_query_tile_matrix(const kva_query_tile *s, const char *name, int64_t rows);
const kva_expr *kva_query_tile_at(const kva_query_tile *s, const kva_expr *r, const kva_expr *lane);

/* body(row, lane) for so many rows, with lanes in vectors. */
typedef void (*kva_query_tile_body)(const kva_query_tile *s, const kva_expr *r, const kva_expr *lane, void *user);
void kva_query_tile_each(const kva_query_tile *s, int64_t rows, kva_query_tile_body body, void *user);
/* The same for the positions of a block, with the lanes of their piece. */
void kva_query_tile_each_far(const kva_query_tile *s, const kva_far_loop *far, kva_query_tile_body body, void *user);
void kva_query_tile_fill(const kva_query_tile *s, kva_kbuf *m, int64_t rows, double v);

/* m[d][lane] = factor * operand[b, h or h_kv, first + lane, d]; 0 past the edge. */
void kva_query_tile_pack(const kva_query_tile *s, kva_kbuf *m, uint32_t operand, const kva_expr *head, int64_t channels,
                         double factor);
/* result[b, head, first + lane, d] = factor * m[d][lane] (* scale[lane] where `scale` is not NULL), inside the edge. */
void kva_query_tile_unpack(const kva_query_tile *s, kva_kbuf *m, uint32_t result, const kva_expr *head,
                           int64_t channels, double factor, kva_kbuf *scale);

/* operand[b, head, at, d] of the tensor along the far axis, in its page where it has pages. */
kva_kval kva_query_tile_far(const kva_query_tile *s, uint32_t operand, const kva_expr *head, const kva_expr *at,
                            const kva_expr *d);
/* A position of the far axis, at most the last one. */
const kva_expr *kva_query_tile_clamp_far(const kva_query_tile *s, const kva_expr *at);

/* One matrix product: out[r][lane] (+)= sum_k operand(r, k) * in[k][lane], where operand(r, k) is element
 * [b, head, far + r, k] (by_row) or [b, head, far + k, r] of `operand`, for the positions of a far block and for all
 * `channels` of the operand, with the lanes of their pieces. Rows of `out` are made in whole register tiles: those past
 * the far edge read the last position. */
typedef struct kva_query_tile_product {
  kva_kbuf *out, *in;
  int64_t channels;
  uint32_t operand;
  const kva_expr *head;
  const kva_far_loop *far;
  bool by_row;
  bool clear;        /* start from 0 instead of out */
  kva_kbuf *rescale; /* or from out * rescale[lane]; NULL: from out */
} kva_query_tile_product;
void kva_query_tile_multiply(const kva_query_tile *s, const kva_query_tile_product *p);

/* Rows along the far axis, with channels across vectors: out[out_row + r][d] += sum_lane in[r][lane] * rows[lane][d]
 * for the positions r of a block and the lanes of their pieces, as far as the query tile is filled. */
typedef struct kva_query_tile_rows {
  kva_kbuf *out, *in, *rows;
  const kva_expr *out_row;
  int64_t channels;
  const kva_far_loop *far;
} kva_query_tile_rows;
void kva_query_tile_add_rows(const kva_query_tile *s, const kva_query_tile_rows *p);
/* rows[lane][d] = operand[b, h_kv, first + lane, d], of lanes that are filled. */
void kva_query_tile_copy_rows(const kva_query_tile *s, kva_kbuf *rows, uint32_t operand, int64_t channels);

/* The score of query q and key s from scale * q.k: soft cap, ALiBi, mask, visibility (-inf if unseen). out_cap (may be
 * NULL): derivative of the soft cap, NULL if there is none. */
kva_kval kva_query_tile_score(const kva_query_tile *s, const kva_expr *q, const kva_expr *key, kva_kval dot,
                              kva_kval *out_cap);
/* A query that has seen nothing has maximum -inf; differences use 0 instead, so its exponentials are 0. */
kva_kval kva_query_tile_finite_max(const kva_query_tile *s, kva_kval max);
/* dy_q . y_q; q inside the edge. */
kva_kval kva_query_tile_delta(const kva_query_tile *s, const kva_expr *q);

static inline kva_kval kva_query_tile_const(const kva_query_tile *s, double v) {
  return kva_k_const(s->kb, s->t, v);
}

#endif
