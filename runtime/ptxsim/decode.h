/* Translates statements to instructions; private to the simulator. A decoder claims the modifiers that it supports;
 * unclaimed ones are reported as unsupported. */
#ifndef KVA_RUNTIME_PTXSIM_DECODE_H
#define KVA_RUNTIME_PTXSIM_DECODE_H

#include "runtime/ptxsim/exec.h"

typedef struct ptx_decoder {
  ptx_builder *b;
  ptx_statement *s;
  ptx_ins *i;
  const char *target;              /* label of a branch */
  KVA_VEC(uint32_t) reads, writes; /* register slots */
} ptx_decoder;

typedef kva_status (*ptx_decode_fn)(ptx_decoder *d);
typedef struct ptx_decode_row {
  const char *base;
  ptx_decode_fn decode;
} ptx_decode_row;
typedef struct ptx_decode_rows {
  const ptx_decode_row *rows;
  uint32_t n;
} ptx_decode_rows;
extern const ptx_decode_rows kva_ptx_decode_moves, kva_ptx_decode_memory, kva_ptx_decode_control, kva_ptx_decode_async;

kva_status kva_ptx_unsupported(ptx_decoder *d);
/* Reports an error at operand `o`. */
kva_status kva_ptx_operand_error(ptx_decoder *d, const ptx_operand *o, const char *wanted);

/* Claims a modifier; false if it is absent. */
bool kva_ptx_take(ptx_decoder *d, const char *mod);
/* Claims all modifiers of a NULL-terminated list. */
void kva_ptx_take_all(ptx_decoder *d, const char *const *mods);
/* Claims the next type; PTX_NOTYPE: none is left. */
ptx_type kva_ptx_take_type(ptx_decoder *d);
/* Checks that all modifiers are claimed and that there are `n` operands. */
KVA_MUST_USE kva_status kva_ptx_finish(ptx_decoder *d, uint32_t n);

/* Operands as slots of a type's width. `wider`: a register may be wider than the type (ld, st, cvt). */
KVA_MUST_USE kva_status kva_ptx_source_of(ptx_decoder *d, const ptx_operand *o, ptx_type t, bool wider, uint32_t *out);
KVA_MUST_USE kva_status kva_ptx_source(ptx_decoder *d, uint32_t k, ptx_type t, uint32_t *out);
KVA_MUST_USE kva_status kva_ptx_dest_of(ptx_decoder *d, const ptx_operand *o, ptx_type t, bool wider, uint32_t *out);
KVA_MUST_USE kva_status kva_ptx_dest(ptx_decoder *d, uint32_t k, ptx_type t, uint32_t *out);
KVA_MUST_USE kva_status kva_ptx_pred_source(ptx_decoder *d, uint32_t k, uint32_t *out); /* index * 2 + negated */
KVA_MUST_USE kva_status kva_ptx_pred_dest(ptx_decoder *d, const ptx_operand *o, uint32_t *out);
KVA_MUST_USE kva_status kva_ptx_immediate(ptx_decoder *d, uint32_t k, int64_t *out);
/* An address: 64-bit slot (PTX_NONE: none) in *out, offset in i->imm. */
KVA_MUST_USE kva_status kva_ptx_address(ptx_decoder *d, uint32_t k, uint32_t *out);
KVA_MUST_USE kva_status kva_ptx_address_of(ptx_decoder *d, const ptx_operand *o, uint32_t *out);
/* Replaces *slot, of 64 bits, by a slot that holds `offset` more at run time. */
KVA_MUST_USE kva_status kva_ptx_add_offset(ptx_decoder *d, uint64_t offset, uint32_t *slot);
kva_status kva_ptx_decode_pred_logic(ptx_decoder *d);
/* Instructions whose mnemonics share a prefix with others: cp.async.bulk, cp.reduce.async.bulk, cp.async.mbarrier,
 * fence.proxy. */
kva_status kva_ptx_decode_bulk(ptx_decoder *d, bool reduce);
kva_status kva_ptx_decode_copy_arrive(ptx_decoder *d);
kva_status kva_ptx_decode_proxy_fence(ptx_decoder *d);
uint32_t kva_ptx_constant_slot(ptx_builder *b, uint64_t bits, bool wide, bool relocate);

#endif
