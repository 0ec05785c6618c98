/* Instructions of a GPU that the rest of the kernel IR has no word for: asynchronous copies, matrix fragments, tensor
 * cores, barriers. They exist for kernels that write what every thread does, in a THREAD loop over exactly the block's
 * threads. A CPU has none of them.
 *
 * An instruction is a row of KVA_K_MACHINES: its name in the text, the type of its value, and its operands in the order
 * of the text, a letter each:
 *
 *   p    a place in a parameter, read        s, S  a place in shared memory, read, written
 *   l    a place in a LOCAL buffer, read     L, B  the same, written; read and written
 *   m    an mbarrier: a place in a shared uint64 buffer
 *   e    an index expression                 +     one or more of them
 *   v    a float value                       i     a small number, known now
 *
 * A LOCAL place is the first of the elements that the instruction's registers hold; its index is constant once UNROLL
 * loops are expanded, so that the buffer lives in registers. Elements are packed: two of 16 bits to a register.
 *
 * copy_async dst, src, bytes       16 bytes from global to shared memory; those from `bytes` on become 0. Both places
 *                                  are aligned to 16 bytes. Complete after copy_wait by the same thread
 * copy_commit; copy_wait n         ends a group; waits until at most n groups of this thread are under way
 * load_matrix dst, row, n, t       n (1, 2, 4) matrices of 8 x 8 elements of 16 bits; lane 8*i + r of the warp names
 *                                  row r of matrix i (16 bytes). A thread gets elements
 *                                  (lane / 4, 2 * (lane % 4) + 0, 1) of each; t = 1: of the transposes
 * store_matrix row, src, n, t      the reverse (sm_90)
 * mma d, a, b                      d[4] += a[8] * b[4]: 16 x 16 by 16 x 8 elements of 16 bits, float sums
 * block_barrier                    all threads of the block
 * named_barrier id, n              n threads, whole warps; named_arrive does not wait
 * warp_barrier
 * shuffle_xor v, bit               v of the lane whose number differs in `bit`
 * exp2 v                           2^v to 2 units in the last place; below 2^-126 it is 0
 * round_pair d, s                  d[2] of 16 bits = s[2] of floats, rounded to nearest: one register at once
 *
 * sm_90a. An mbarrier counts arrivals and bytes; its phase ends when all are there, and the parity of the phase that
 * wait names tells the phases apart.
 *
 * mbarrier_init m, n               one thread; then mbarrier_fence and a block barrier
 * mbarrier_expect m, bytes         arrives and announces bytes
 * mbarrier_arrive m
 * mbarrier_arrive_if m, e          the threads where e is not 0, without a branch
 * mbarrier_wait m, parity          until the phase of that parity has ended
 * tensor_load dst, m, map, x...    a box of tensor map number `map` at coordinates x (innermost first), which may lie
 *                                  outside: 0 there. One thread; counts on m
 * proxy_fence                      stores to shared memory before it are seen by what follows of tensor_load and wgmma
 * wgmma d, a, b, add, n, ta, tb, la, lb
 *                                  d[n/2] = a * b + (add ? d : 0): a warpgroup's 64 x 16 by 16 x n. a and b lie
 *                                  in shared memory in the 128-byte swizzle, at multiples of 1024 bytes but for
 *                                  advances along the depth. ta, tb: 0 the depth is contiguous, 1 the rows (columns)
 *                                  are; then la, lb: bytes from 64 of them to the next 64
 * wgmma_registers d, a, b, add, n, tb, lb
 *                                  the same, with a[8] in registers
 * wgmma_fence d, n                 before the first wgmma after d[n] or shared memory was written otherwise
 * wgmma_fence2 d, n, a, k          the same, and a, k registers of 16-bit pairs
 * wgmma_commit; wgmma_wait k, d, n
 *                                  waits until at most k groups are under way. d[n]: what they write, so that no use
 *                                  of it moves before; wgmma_wait2 for two buffers
 * registers_inc n, registers_dec n a warpgroup takes registers, up to n a thread, or gives them up
 */
#ifndef KVA_IR_KERNEL_GPU_H
#define KVA_IR_KERNEL_GPU_H

#include "ir/expr.h"

struct kva_kbuf;

/* clang-format off */
#define KVA_K_MACHINES(X)                         \
  X(copy_async,      KVA_DTYPE_NONE, "Spe")       \
  X(copy_commit,     KVA_DTYPE_NONE, "")          \
  X(copy_wait,       KVA_DTYPE_NONE, "i")         \
  X(load_matrix,     KVA_DTYPE_NONE, "Lsii")      \
  X(store_matrix,    KVA_DTYPE_NONE, "Slii")      \
  X(mma,             KVA_DTYPE_NONE, "Bll")       \
  X(block_barrier,   KVA_DTYPE_NONE, "")          \
  X(named_barrier,   KVA_DTYPE_NONE, "ii")        \
  X(named_arrive,    KVA_DTYPE_NONE, "ii")        \
  X(warp_barrier,    KVA_DTYPE_NONE, "")          \
  X(shuffle_xor,     KVA_F32,        "vi")        \
  X(exp2,            KVA_F32,        "v")         \
  X(round_pair,      KVA_DTYPE_NONE, "Ll")        \
  X(mbarrier_init,   KVA_DTYPE_NONE, "mi")        \
  X(mbarrier_fence,  KVA_DTYPE_NONE, "")          \
  X(mbarrier_expect, KVA_DTYPE_NONE, "mi")        \
  X(mbarrier_arrive, KVA_DTYPE_NONE, "m")         \
  X(mbarrier_arrive_if, KVA_DTYPE_NONE, "me")     \
  X(mbarrier_wait,   KVA_DTYPE_NONE, "me")        \
  X(tensor_load,     KVA_DTYPE_NONE, "Smi+")      \
  X(proxy_fence,     KVA_DTYPE_NONE, "")          \
  X(wgmma,           KVA_DTYPE_NONE, "Bsseiiiii") \
  X(wgmma_registers, KVA_DTYPE_NONE, "Blseiii")   \
  X(wgmma_fence,     KVA_DTYPE_NONE, "Bi")        \
  X(wgmma_fence2,    KVA_DTYPE_NONE, "BiBi")      \
  X(wgmma_commit,    KVA_DTYPE_NONE, "")          \
  X(wgmma_wait,      KVA_DTYPE_NONE, "iBi")       \
  X(wgmma_wait2,     KVA_DTYPE_NONE, "iBiBi")     \
  X(registers_inc,   KVA_DTYPE_NONE, "i")         \
  X(registers_dec,   KVA_DTYPE_NONE, "i")
/* clang-format on */

typedef enum kva_kmop {
#define KVA_M_ENUM(name, type, operands) KVA_M_##name,
  KVA_K_MACHINES(KVA_M_ENUM)
#undef KVA_M_ENUM
      KVA_M_COUNT
} kva_kmop;

typedef struct kva_kplace {
  struct kva_kbuf *buf;
  const kva_expr *index;
} kva_kplace;

enum { KVA_K_MAX_PLACES = 3, KVA_K_MAX_INDICES = 5, KVA_K_MAX_NUMBERS = 5 };

/* The operands of one kind stand in the order of the row. A float value is args[0] of the instruction. */
typedef struct kva_kmachine {
  kva_kmop op;
  kva_kplace places[KVA_K_MAX_PLACES];
  const kva_expr *indices[KVA_K_MAX_INDICES]; /* NULL after the last */
  int32_t numbers[KVA_K_MAX_NUMBERS];
} kva_kmachine;

/* A tensor map: how tensor_load sees a parameter. Dimensions from the innermost one. */
enum { KVA_K_TENSOR_MAP_RANK = 5 };
typedef struct kva_ktensor_map {
  struct kva_kbuf *buf;
  uint32_t rank;
  const kva_expr *dims[KVA_K_TENSOR_MAP_RANK];    /* elements, over shape symbols */
  const kva_expr *strides[KVA_K_TENSOR_MAP_RANK]; /* bytes, multiples of 16; [0] is not used */
  int32_t box[KVA_K_TENSOR_MAP_RANK];             /* elements; the innermost ones fill `swizzle` bytes */
  int32_t swizzle;                                /* 0, 32, 64, 128 */
} kva_ktensor_map;

const char *kva_kmop_name(kva_kmop op);
const char *kva_kmop_operands(kva_kmop op); /* letters, see above */
kva_dtype kva_kmop_type(kva_kmop op);
uint32_t kva_kmop_count(kva_kmop op, const char *letters); /* operands of these kinds; '+' counts as none */
#define KVA_KMOP_PLACES "psSlLBm"

#endif
