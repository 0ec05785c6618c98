/* Between autodiff.c and autodiff_control.c. */
#ifndef KVA_PASSES_AUTODIFF_INTERNAL_H
#define KVA_PASSES_AUTODIFF_INTERNAL_H

#include "ops/adjoints.h"
#include "passes/passes_internal.h"

/* The vjp of a node with sub-graphs (autodiff_control.c). A loop is replaced by one with further results. */
KVA_MUST_USE kva_status kva_control_gradient(kva_vjp *c, kva_node *n, kva_arena *scratch);

#endif
