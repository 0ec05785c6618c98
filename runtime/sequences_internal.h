/* Shared by the files that implement runtime/sequences.h. */
#ifndef KVA_RUNTIME_SEQUENCES_INTERNAL_H
#define KVA_RUNTIME_SEQUENCES_INTERNAL_H

#include "runtime/sequences.h"
#include "runtime/session.h"

#include <stdlib.h>

enum {
  KVA_NO_AXIS = -1, /* a tensor without rows */
  KVA_SHARED = -2,  /* one that belongs to no sequence, without rows either */
  KVA_NO_PAGE = -1,
  KVA_NO_TABLE = -1,
  KVA_RECENT = 4,      /* calls after which state is kept */
  KVA_MARK_ROWS = 128, /* and after so many rows: calls end there */
};

/* A tensor whose first dimension counts pages or sequences, and its rows along `axis`. */
typedef struct kva_row_tensor {
  kva_tensor tensor;
  int axis;
} kva_row_tensor;

/* Pages of all tensors whose rows live equally long: caches that one table divides; or what the runtime itself keeps:
 * inputs, and state after every KVA_MARK_ROWS rows, at the page that ends there. */
typedef struct kva_page_pool {
  int64_t window; /* rows further back than that are not read; 0: all are */
  int32_t table;  /* the program's input, or KVA_NO_TABLE */
  int64_t symbol; /* the number of pages */
  int32_t n_tensors;
  kva_row_tensor *tensors; /* [pages, ...] */
  int32_t *inputs;         /* of the program: by tensor */
  int32_t n_free, *free;
  int32_t *uses;        /* by page */
  kva_session *session; /* on a device with its own memory, where the tensors are then, in `block`; else NULL */
  kva_block block;
  char *zeros; /* there: a page of the largest tensor */
} kva_page_pool;

/* State that does not grow: last rows of shifts, sums. A call of n sequences has the states of all of them one after
 * the other at n times `at`. */
typedef struct kva_carried_state {
  int32_t input;
  size_t bytes, at; /* of one sequence; in its state */
} kva_carried_state;

typedef struct kva_sequence {
  int64_t rows;
  int32_t *pages;                  /* [pool][max_pages] */
  char *recent;                    /* states after the last calls: a ring */
  int64_t recent_rows[KVA_RECENT]; /* rows then; -1: none */
  int now;                         /* the current state in the ring */
} kva_sequence;

/* Rows of a call to come. */
typedef struct kva_append_item {
  kva_sequence *s;
  const kva_tensor *inputs;
  kva_tensor *outputs;
  int64_t rows, done, wanted;
} kva_append_item;

typedef struct kva_sequence_program {
  int program;
  int64_t sequences, rows; /* that it takes; 0: any number */
  bool last;               /* results of the last row alone */
} kva_sequence_program;

struct kva_sequences {
  kva_session *session;
  const kva_program *desc; /* "decode" */
  kva_sequence_program programs[4];
  int n_programs;
  int64_t longest, page_rows, max_pages; /* max_pages: of a sequence */
  int32_t n_pages;
  int32_t own_inputs, own_outputs, rows_input;
  bool alone; /* an input or output is shared: sequences run one by one */
  int *input_axes, *output_axes;
  int32_t n_pools, n_carried;
  kva_page_pool *pools; /* the last one keeps inputs and states */
  kva_carried_state *carried;
  size_t carried_bytes;
  kva_sequence **sequences;
  int64_t n_sequences;
  /* Of a call. */
  kva_tensor *inputs, *outputs;
  size_t *staged;          /* bytes at inputs[i].data that are the call's own */
  char *carried_rows;      /* states of its sequences */
  int64_t carried_room;    /* so many of them fit */
  kva_block carried_block; /* a copy, on a device with its own memory */
  kva_append_item *items, **members;
  int64_t n_items, room;
  uint64_t fingerprint; /* of the model; 0: not yet known */
};

/* ---- sequences_pages.c ------------------------------------------------------------------------------------------- */

/* Allocates n_pages pages of the pool's tensors: those of the program where its device has its memory. */
KVA_MUST_USE kva_status kva_pages_create(kva_sequences *q, kva_page_pool *pool, int32_t n_pages, kva_diag *diag);
void kva_pages_free(kva_page_pool *pool);
/* Copies a page of a tensor to the host's memory, and from there. */
KVA_MUST_USE kva_status kva_page_read(const kva_page_pool *pool, int32_t tensor, int32_t page, void *to);
KVA_MUST_USE kva_status kva_page_write(const kva_page_pool *pool, int32_t tensor, int32_t page, const void *from);
size_t kva_page_bytes(const kva_page_pool *pool, int32_t tensor);

static inline int32_t *kva_pages_of(const kva_sequences *q, const kva_sequence *s, int32_t pool) {
  return s->pages + pool * q->max_pages;
}
/* Pages of its own for the rows of every item. KVA_NO_MEMORY, and none is taken: not so many are free. */
KVA_MUST_USE kva_status kva_pages_reserve(kva_sequences *q, int64_t n, const kva_append_item *items);
/* Gives back the pages behind the first `rows` rows. */
void kva_pages_truncate(kva_sequences *q, kva_sequence *s, int64_t rows);
/* Gives back the pages that no window reaches any more. */
void kva_pages_drop(kva_sequences *q, kva_sequence *s);
/* Gives back one page of a sequence, if there is one. */
void kva_page_release(kva_page_pool *pool, int32_t *page);
/* All that a continuation of the first `rows` rows reads is there. */
bool kva_pages_present(const kva_sequences *q, const kva_sequence *s, int64_t rows);

/* Whether the caches of sequences lie in the memory of a device. */
static inline bool kva_sequences_on_device(const kva_sequences *q) {
  return !q->session->device->class->host_memory;
}

static inline int64_t kva_pages_for(const kva_sequences *q, int64_t rows) {
  return (rows + q->page_rows - 1) / q->page_rows;
}

/* A place in a tensor of rows. */
typedef struct kva_row_place {
  const kva_tensor *tensor;
  int64_t index, row; /* along the first dimension; along the axis of rows */
} kva_row_place;
/* Copies n rows along `axis`, or with KVA_NO_AXIS all there is at the index. Other dimensions are equal. */
void kva_rows_copy(kva_row_place to, kva_row_place from, int axis, int64_t n);

/* ---- sequences_append.c ------------------------------------------------------------------------------------------ */

/* Room for n items. */
KVA_MUST_USE kva_status kva_items_room(kva_sequences *q, int64_t n);
/* Runs the rows of q->items, whose pages are reserved. */
KVA_MUST_USE kva_status kva_items_run(kva_sequences *q);

/* Copies rows [row, row + n) of tensor `tensor` of the history of a sequence. */
void kva_history_read(const kva_sequences *q, const kva_sequence *s, int32_t tensor, int64_t row, int64_t n,
                      kva_row_place to);

/* ---- sequences.c ------------------------------------------------------------------------------------------------- */

/* NULL: there is none. */
kva_sequence *kva_sequences_get(const kva_sequences *q, int64_t sequence);
static inline char *kva_sequence_state(const kva_sequences *q, const kva_sequence *s) {
  return s->recent + (size_t)s->now * q->carried_bytes;
}
/* The pool that keeps inputs and states, and the state that it has at a page. */
static inline const kva_page_pool *kva_history(const kva_sequences *q) {
  return &q->pools[q->n_pools - 1];
}
/* Whether it keeps an input: it has rows, of a size that no call changes. */
bool kva_history_has(const kva_sequences *q, int32_t input);
char *kva_sequence_mark(const kva_sequences *q, const kva_sequence *s, int64_t page);

#endif
