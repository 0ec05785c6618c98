/* Loops that reach a machine's peak throughput: what `kvasir profile` compares with, and tools/bench. */
#ifndef KVA_TOOLS_PROFILE_LOOPS_H
#define KVA_TOOLS_PROFILE_LOOPS_H

#include <stdint.h>

enum {
  KVA_LOOP_CHAINS = 12, /* of a round: hides the latency of any FMA unit */
  KVA_LOOP_BLOCK = 256, /* bytes that copies and reads are multiples of */
};

/* Loops for one thread. Results keep the compiler from removing them and mean nothing. */
typedef struct kva_loops {
  const char *isa;
  int lanes;                 /* of floats */
  float (*fma)(int64_t n);   /* n rounds of CHAINS vectors of multiply-adds in registers */
  int32_t (*dot)(int64_t n); /* likewise sums of four products of bytes; NULL: the CPU has none of AVX-512 VNNI */
  void (*copy)(char *to, const char *from, int64_t bytes);   /* plain loads and stores; aligned to BLOCK */
  void (*stream)(char *to, const char *from, int64_t bytes); /* stores that bypass the cache */
  int32_t (*read)(const char *from, int64_t bytes);
} kva_loops;

/* Those of the widest vectors that this CPU has. */
kva_loops kva_find_loops(void);

#endif
