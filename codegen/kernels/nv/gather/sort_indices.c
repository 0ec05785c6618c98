/* sort_indices: a block sorts a chunk in shared memory. */
#include "codegen/kernels/any/scatter/sort_indices.h"
#include "codegen/kernels/nv/gather/sort.h"

enum { MAX_THREADS = 512 };

static void by_blocks(const kva_sorting *s) {
  kva_kbuf *buf = kva_k_shared(s->b, "sorted", s->s.dtype, 2 * s->s.chunk);
  kva_kloop *chunk = kva_k_loop_begin(s->b, KVA_K_GRID, s->s.chunks, "chunk");
  kva_gpu_list list = kva_gpu_list_begin(s->b, buf, s->s.chunk, kva_sorting_num(s, s->s.chunk));
  s->b->kernel->threads = (uint32_t)(s->s.chunk < MAX_THREADS ? s->s.chunk : MAX_THREADS);
  kva_kloop *i = kva_k_loop_begin(s->b, KVA_K_THREAD, kva_sorting_num(s, s->s.chunk), "i");
  kva_k_store(s->b, buf, i->var, kva_sorting_key_at(s, chunk->var, i->var));
  kva_k_loop_end(s->b, i);
  kva_gpu_list_sort(s->b, &list);
  i = kva_k_loop_begin(s->b, KVA_K_THREAD, kva_sorting_num(s, s->s.chunk), "i");
  kva_kval key = kva_k_load(s->b, buf, kva_expr_add(s->e, list.first, i->var));
  kva_k_store(s->b, s->keys, kva_sorting_key_place(s, chunk->var, i->var), key);
  kva_k_loop_end(s->b, i);
  kva_kloop *owner = kva_k_loop_begin(s->b, KVA_K_THREAD, kva_expr_addi(s->e, s->s.owners, 1), "owner");
  kva_sorting_store_bound(s, chunk->var, owner->var,
                          kva_gpu_list_below(s->b, &list, kva_sorting_first_key(s, owner->var)));
  kva_k_loop_end(s->b, owner);
  kva_k_loop_end(s->b, chunk);
}

void kva_nv_sort_indices_emit(kva_lower *l, const kva_node *n) {
  kva_sorting s = kva_sorting_of(l, n);
  by_blocks(&s);
}
