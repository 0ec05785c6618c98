/* Arithmetic of kernel constants, with the results that instructions have on every target. Private to ir/kernel_*.c. */
#ifndef KVA_IR_KERNEL_FOLD_H
#define KVA_IR_KERNEL_FOLD_H

#include "ir/kernel.h"

typedef union kva_kconst {
  double f;
  int64_t i;
} kva_kconst;

/* op on constants of type t (select: the type of args[1..2]; args[0] is bool). False if machines may differ in the
 * result (exp, shifts by more than the width ...): such instructions are not folded. */
bool kva_kfold_arith(kva_kop op, kva_dtype t, const kva_kconst *args, kva_kconst *out);
/* C conversion; float to integer saturates, NaN gives 0. */
kva_kconst kva_kfold_convert(kva_dtype from, kva_dtype to, kva_kconst v);
kva_kconst kva_kfold_bitcast(kva_dtype from, kva_dtype to, kva_kconst v);

#endif
