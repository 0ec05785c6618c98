/* Shared by kernel_parse.c (instructions, blocks, buffers) and kernel_parse_value.c (operands, index expressions). */
#ifndef KVA_IR_KERNEL_PARSE_H
#define KVA_IR_KERNEL_PARSE_H

#include "ir/kernel.h"
#include "ir/kernel_lex.h"

enum { KVA_KPARSE_MAX_NESTING = 64 }; /* of blocks and parentheses: bounds the recursion on hostile input */

typedef struct kva_kparser {
  kva_klexer lex;
  kva_arena *scratch;
  kva_kernel *k;
  kva_map *values;        /* number -> instruction */
  kva_map *loops;         /* name -> loop */
  kva_map *shape_symbols; /* names used so far, which no loop may take later */
  kva_map *value_symbols; /* instruction -> symbol */
  kva_map *constants;     /* type and bits -> instruction */
  kva_map *bufs;          /* name -> buffer */
  int nesting;
} kva_kparser;

/* An operand whose type may not be known yet. */
typedef struct kva_koperand {
  kva_kval value; /* NULL: the constant */
  bool negative;
  kva_ktoken constant;
} kva_koperand;

/* Enters one level of nesting; false, with an error, if it is too deep. */
bool kva_kparse_enter(kva_kparser *p);
kva_dtype kva_kparse_dtype(kva_kparser *p);
uint32_t kva_kparse_uint(kva_kparser *p, const char *what);
bool kva_kparse_is_function(const char *name); /* floordiv, mod, min, max */

kva_koperand kva_kparse_operand(kva_kparser *p);
/* The value of an operand once its type is known; NULL after an error. */
kva_kval kva_kparse_typed(kva_kparser *p, const kva_koperand *o, kva_dtype t);
kva_kval kva_kparse_value(kva_kparser *p, kva_dtype t); /* both at once */

const kva_expr *kva_kparse_expr(kva_kparser *p);
const kva_expr *kva_kparse_bracketed(kva_kparser *p);

#endif
